// Package admission gives the store the addresses and node ports of this host that no Service may have:
// those of the host and its networks, its resolvers, and ports at which its programs listen.
//
// It looks at the host before a client writes a Service that is new, or asks for something else than before, and
// gives the store a snapshot (store.Host), which the store asks under its lock. A snapshot is used for a fifth of
// a second, so that many changes at once cost one; when the host cannot be read, nothing is refused for it.
//
// Requests of files are not refused, nor conflicts with later addresses of the host: the reconcile loop reports them.
package admission
