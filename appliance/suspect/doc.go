// Package suspect decides when an endpoint is asked because connections of clients to it failed, and keeps the
// endpoints that turned out to be dead.
//
// A failure of a client is a suspicion and no more: a client that resets its own SYN leaves the same trace in conntrack
// as an endpoint that refuses. So the box connects itself, and only the outcome of that counts. Suspicions of an
// endpoint are acted on once a second, and those of the box a hundred times a second, whatever clients send.
//
// The package computes. It has no socket and no clock.
package suspect
