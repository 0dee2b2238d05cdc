// Package announce is the process `svcctl announce`: it directs clients to this box for the addresses that
// `svcctl serve` has in force, by answering and announcing them on their segments, and by BGP routes.
//
// The addresses come over the API and are stored in a file, so that neither its own restart nor the end of
// serve changes anything on the wire. The file does not survive a boot, and neither do the rules.
//
//   - announcer.go: the goroutine that decides
//   - elect.go: the election by VRRP on all links, its adverts on each, and the addresses that boxes list to each other
//   - segments.go: selects links, and places addresses on interfaces, with the states of addresses on each
//   - peers.go: the BGP peers, and the session with one of them, with BFD
//   - routes.go: the routes to all addresses, by advertisements, and the damping of routes that flap
//   - state.go: the file, the watch of the API, and reports to it
//
// Invariants:
//
//   - No address and no route is added to the box.
//   - Addresses outside of the pools of serve, and addresses of the box, are never announced.
//   - Work is proportional to the addresses that changed; when links change, to all of them.
package announce
