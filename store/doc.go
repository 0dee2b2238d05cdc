// Package store is the one versioned truth: the accepted objects, who owns each of
// them, and the addresses and ports that Services hold.
//
// Objects come from files (SyncFiles), from the API (Put, Delete), or from controllers
// that make them of others (Generate). Everything that one call changes, objects and
// allocations alike, is one commit of the [Engine]: it is durable before anybody can read
// it, and if the commit fails nothing has changed.
//
// Invariants:
//   - Holders win. A Service keeps the values it has until it gives them up; who
//     already has a value, or already owns an object, is never displaced by a newcomer,
//     also over a restart. Only what a controller has made gives way, to a file.
//   - One bad object never stops the others. It keeps its last accepted version, or
//     stays out, and is a Problem.
//   - What was published is immutable: a change makes a new object, readers keep theirs.
//   - Revisions are one counter for all kinds. It never goes back, and its first value
//     comes from the clock, so that it does not go back either when the data is lost.
//   - A call that changes nothing writes nothing, and work is proportional to what
//     changed, not to what is there.
//
// The package must not watch files, speak to the kernel or know what a ruleset is; it
// logs nothing: problems are data.
//
//	engine, err := store.OpenFile("/var/lib/svcctl")
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
package store
