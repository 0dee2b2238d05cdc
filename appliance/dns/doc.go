// Package dns answers the names of Services: the DNS server of the appliance, after the
// Kubernetes DNS specification, version 1.1.
//
// A Server has an index of its own, one immutable entry for each Service, that Update
// brings up to date with what changed. Lookups read the index without locks, so queries
// never hold up an update, and an update costs what the change costs.
//
// Invariants:
//
//   - The records of one Service change at once: an answer never mixes an old and a new
//     state of it.
//   - Unknown is not absent: until Complete, names of the zone get SERVFAIL instead of a
//     negative answer.
//   - Never an open resolver: a name that is not ours is asked upstream only for clients
//     on this box or in Config.Internal, and refused otherwise.
//   - Work for a query is bounded: by the size of the answer that fits, by the number of
//     aliases followed, of questions upstream at a time, and of TCP connections.
//   - No datagram to a client that could have a forged address is larger than
//     the question, beyond a rate for each network.
//
// The package must not decide which endpoints are ready (package resolve does), must not
// read the store, and must not import nft/kernel.
//
//	server, err := dns.Listen(dns.Config{Addresses: []string{"192.0.2.1:53"}, Domain: "cluster.local"}, log)
//	server.Update(map[string]resolve.Input{"default/web": {Service: svc, Slices: slices}})
//	server.Complete()
//	err = server.Run(ctx)
package dns
