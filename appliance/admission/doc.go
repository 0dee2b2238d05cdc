// Package admission tells the store which addresses and node ports of this host no Service may have:
// those of the host and its networks, its resolvers, and ports at which its programs listen.
//
// It looks at the host before a client writes a Service that is new, or asks for something else than before, and
// gives the store a snapshot (store.Host), which the store asks under its lock. A look is believed for a fifth of
// a second, so that many changes at once cost one; when the host cannot be seen, nothing of it is refused.
//
// What files ask for is not refused, nor what the host gets later: the reconcile loop reports it.
package admission
