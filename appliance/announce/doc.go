// Package announce is the process `svcctl announce`: it leads clients to this box for the addresses that
// `svcctl serve` has in force, by answering and announcing them on the segments that they lie on, and by
// routes that it tells routers of.
//
// It decides nothing: what is announced comes over the API, and is kept in a file, so that neither its own
// restart nor the end of serve changes anything on the wire. The file lies where a boot forgets
// it, because the rules are forgotten, too.
//
//   - announcer.go: the one goroutine that decides, and what it waits for
//   - active.go: whether this box or another one answers
//   - elect.go: the election by VRRP on all links
//   - heartbeat.go: its adverts on one link
//   - listing.go: the addresses that boxes list to each other
//   - place.go: every address on the interfaces where it is to be
//   - segments.go: the interfaces, and what is announced on each
//   - peers.go: the routers that are told by BGP
//   - peering.go: the session with one of them, and BFD beside it
//   - routes.go: the routes to all addresses, by advertisements
//   - damp.go: how long routes that were withdrawn stay away
//   - report.go: what became of it, told to serve
//   - plan.go: which address is announced on which link (pure)
//   - feed.go: the watch of the API
//   - state.go: the file
//
// Invariants:
//
//   - No address and no route is put on the box.
//   - Addresses outside of the pools that serve named, and addresses of the box, are never announced.
//   - Work is proportional to the addresses that changed; when links change, to all of them.
package announce
