// Package story describes the way of a packet in sentences: which Service it was for, which rule dropped,
// refused or picked, and how it left. It reads the steps of package nft/trace, in which the names of
// our chains are words already, and what other tables did to the packet.
package story
