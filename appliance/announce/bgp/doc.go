// Package bgp is an announce-only BGP speaker (RFC 4271): one session with one peer, which gets
// a set of routes and its changes.
//
// A Speaker dials and never listens. A received UPDATE is dropped by its length and never parsed, so a
// peer that sends a full table costs no memory. It changes nothing on the host.
//
//	s, err := bgp.New(bgp.Peer{Addr: addr, LocalAS: 64512, RemoteAS: 64513, IPv4: true}, log, changed)
//	s.Set(routes)           // before Run, so that a graceful restart begins with all of them
//	go s.Run(ctx)           // until ctx ends or Leave was called
//	s.Update(more, gone)    // costs what changes
//	s.State()
//
// Two ways to end: Leave asks the peer to prefer others (RFC 8326), withdraws, and closes. The
// end of the context of Run closes the connection without a NOTIFICATION where a graceful restart
// (RFC 4724) was agreed, so that the peer keeps the routes for the program's next start.
//
// Encodings are those of GoBGP's message package (message.go).
// Damping of routes that flap is the caller's.
package bgp
