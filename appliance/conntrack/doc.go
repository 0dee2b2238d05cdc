// Package conntrack ends connections whose endpoint is gone.
//
// The kernel decides about a connection once, at its first packet, and remembers the
// endpoint for as long as packets come. So a change of the ruleset does not reach
// connections that exist already. A sender of UDP that never pauses would go on to an
// endpoint that is gone for ever, and a TCP connection lives as long as its two ends
// like. This package looks such entries up in the connection tracking table and deletes
// them:
//
//   - UDP and SCTP: at once. The next packet begins a new connection, to an endpoint that
//     serves, or is refused where there is none. So does that of a sender whose packets
//     were not translated because they began before the frontend was served.
//   - TCP: not at all, as in Kubernetes, unless the Service asks for draining (ParseDrain).
//     Then connections of any protocol live that long; after it, whichever end of a TCP
//     connection speaks next is answered by a reset.
//   - Of clients that source ranges shut out: UDP and SCTP at once, TCP when it is drained.
//   - Of any protocol, when rules were away for a while: those that were begun meanwhile and
//     were not answered. What their client sends once more is translated (see cleaner.go).
//
// Idle resets the endpoints of connections that the kernel forgot for their silence. Retry forgets
// connections that an endpoint does not answer, so that the client's next SYN gets another one.
//
// # Parts
//
// A ChangeTracker gets the plans and returns the frontends that changed for connections; it
// computes only. A Cleaner does the work in the background: Reconcile never waits. It
// looks twice, at once and a second or two later, for packets that were under way during the
// change. One look serves all changes that came before it, with a few queries that the
// kernel filters, or else one reading of the protocol's entries as a stream.
//
// # Invariants
//
//   - An entry is deleted when its client sent to a frontend that the ChangeTracker got
//     (a node port counts on the box's node-port addresses alone) and its endpoint is
//     not among those that may keep connections, or its client may not connect any more, or
//     it has no endpoint because the rules were away.
//     Nothing else is touched.
//   - Between a commit and its Reconcile the endpoints of before and after it are known: no
//     connection is judged by one of them alone.
//   - An entry is deleted by its id. A newer one with the same addresses is left, unless the
//     kernel gave it the same id.
//   - A look that failed is repeated until it succeeds.
//   - After a restart the ruleset in the kernel is the only source of earlier frontends.
//     An entry has its endpoint, so only those are deleted whose endpoint is not there any
//     more; whatever may be unknown for a while (objects that
//     were not read yet) must be waited for before the first Update. Time that a
//     connection was drained before the restart is not counted.
//
// # Limits
//
//   - A firewall of the host that drops what reaches the box in an established connection
//     keeps the box from answering with a reset.
//   - An association of SCTP that was drained is only forgotten: only its ends can end it.
//   - A second connection of the same client address and port, to another frontend, that
//     is drained at the same time is deleted without a dead end.
//
// It must not change the ruleset, must not wait in Reconcile, must not keep entries in
// memory, and must not import package store.
//
// Entries are read from a netlink socket directly. Package vishvananda/netlink would give
// the table as one list, some hundred megabytes of it with 200,000 entries, and supports
// neither the kernel's filter nor entries that translate, which dead ends are (see
// retry.go).
//
//	tracker := conntrack.NewChangeTracker()
//	tracker.Adopt(rulesetInKernel)
//	cleaner, err := conntrack.New(conntrack.Options{})
//	go cleaner.Run(ctx)
//	…
//	tracker.Update(&box, ports) // for every plan
//	cleaner.Expect(tracker.Pending())
//	…                          // commit
//	cleaner.Reconcile(tracker.Take())
package conntrack
