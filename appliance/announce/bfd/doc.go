// Package bfd detects within milliseconds that a neighbor is gone: BFD (RFC 5880) in
// asynchronous mode, over one hop (RFC 5881) and over several (RFC 5883). It has no echo and no
// authentication.
//
// Machine is the protocol alone: packets and the time are handed to it. Session runs one on the
// sockets of a Hub, which serves both ports, 3784 and 4784.
//
//	hub := bfd.NewHub(log)
//	s, err := hub.Session(bfd.Config{Local: local, Peer: peer, Timers: timers}, changed)
//	go s.Run(ctx)
//	s.State()
//
// Nothing here depends on being scheduled in time: before a neighbor is declared dead, what has
// arrived is read; and a process that woke up late gives the neighbor one more detection time.
//
// Some routers start their BFD session again when the BGP session comes up. Let BFD decide about
// a BGP session only after it was Up for a second beside it.
package bfd
