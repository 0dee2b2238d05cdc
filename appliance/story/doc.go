// Package story tells in sentences what became of a packet: which Service it was for, who dropped,
// refused or picked, and how it left. It reads the steps of package nft/trace, in which the names of
// our chains are words already, and what other tables did to the packet.
package story
