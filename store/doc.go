// Package store keeps the accepted objects with their versions and owners, and the addresses and
// ports that Services hold.
//
// Objects come from files (SyncFiles), from clients of the API (Write), or from controllers that
// make them of others (Generate). Everything that one call changes, objects, allocations and the
// journal alike, is one commit of the [Engine]: it is durable before it can be read, and if the
// commit fails nothing has changed.
//
// Writes of files, clients and controllers go the same way: it is proposed (defaults, validation, admission by a
// snapshot of the host), gets its values from the allocator, is encoded and compared with the stored version, committed
// together with the journal, and published to readers. What a transaction decides is in transaction and change; the
// Store has parts for what lasts: storage, allocator, table, feed, declarations, outcomes, pending sets.
//
// Files: store.go has the Store; table, feed, allocator, values, pools and declare the parts that last. transaction.go has what one call
// decides; its steps are propose, allocate, external, removals and commit. The calls are sync, source, write, pending, staged, rollback and
// export; problems has the faults of objects and files.
//
// The journal keeps the version before each change, and the author of the change. It is the
// history that Events and List look back into, also over a restart, and it is bounded: a follower
// that comes too late has to look at everything.
//
// Invariants:
//   - Holders win. A Service keeps the values it has until it gives them up. The
//     holder of a value, or the owner of an object, is never displaced by a newcomer,
//     also over a restart. Only an object of a controller gives way, to a file.
//   - One bad object never stops the others. It keeps its last accepted version, or
//     stays out, and is a Problem.
//   - What was published is immutable: a change makes a new object, readers keep theirs.
//   - Revisions are one counter for all kinds. It never goes back, and its first value
//     comes from the clock, so that it does not go back either when the data is lost.
//     Every change of an object has one of its own, and is delivered once, in order.
//   - Readers pull. None of them, however slow, keeps a writer waiting.
//   - Where other machines write to the store, a commit waits for them with its turn alone: all calls but commits go on.
//   - A call that changes nothing writes nothing, and work is proportional to the
//     change, not to the number of objects.
//
// The package must not watch files, speak to the kernel or depend on package nft; it
// logs nothing: problems are data.
//
//	engine, err := engine.OpenFile("/var/lib/svcctl", nil)
//	s, err := store.Open(engine, store.Config{ClusterIPRanges: ranges})
//	_, err = s.SyncFiles(snapshot.Files)
//	changes := s.Changes(programmed)
//	if changes.All {
//		... // look at all of s.Services()
//	}
//	for _, key := range changes.Services {
//		service, slices, endpoints := s.Service(key)
//		...
//	}
//	programmed = changes.Revision // then wait for s.Changed()
//
//	services, seen, err := s.List(object.KindService, "", 0)
//	for {
//		published := s.Published()
//		events, err := s.Events(seen, 100) // ErrExpired: list again
//		... // seen is the Revision of the last one
//		<-published
//	}
package store
