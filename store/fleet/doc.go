// Package fleet keeps the pairs of a store in etcd, for the boxes that share them, with a replica
// on this machine. [Engine] is an [engine.Shared].
//
// All keys are below svcctl/FLEET/:
//
//	fleet            {id, format, settings}: what all boxes agree on
//	head             one commit: its revision, its id and that of the one before, a digest of all objects
//	object/KIND/...  the stored form of an object, as package store encodes it
//	sealed/NAME/ID   a secret that boxes have in common and that is no object
//	source/NAME/...  the content of a directory of manifests in force, and the box that reads it
//	trial/...        the trial that is under way, and what was there before it
//	rollout/...      the rollout that is under way, or the last one, and what was there before it
//	bundle/NAME/N    parts of a large commit
//	alive/BOX        held by a lease: which process has the name
//	box/BOX          the last report of a box
//	turn/writer      held by a lease: the box that runs the controllers
//	turn/source/NAME held by a lease: the box that reads a directory of manifests
//
// A commit is one transaction of etcd that compares the modification revision of head, puts head,
// and puts or deletes objects. A box that loses follows the other commit and decides again. A commit that
// does not fit into a request is written to bundle/ first; the put of the head that names the
// bundle is the commit. The writer, or another box, then applies it to object/.
//
// Invariants:
//   - A commit is followed if its head names the one before by its id, and the digest of all
//     objects fits. Otherwise all objects are read again.
//   - An etcd that went back is not followed: a head with a lower revision, another history, another
//     fleet, or none. The state stays, nothing is committed, and [State] has the next step.
//   - A commit without an answer is sent again until its outcome is known; it cannot be
//     made twice, as it compares the same head.
//   - No head of a lower format follows on one of a higher: raising the format moves the head.
//   - Leases only save work. No promise depends on one.
//
// Values of Secrets are sealed by a key that etcd has not. Keys of head, object/, sealed/, source/, trial/ and rollout/ are shared; all others that a store writes (its journal, copies of files)
// stay in the replica, an [engine.File] that has the position of the box as one more pair.
//
// A leaf ([Config.Cores]) follows the commits of a box that follows etcd, over HTTP, instead of etcd itself: the origin of commits
// is an interface, and the checks, the states, the replica and the reads are the same. It commits nothing. A box keeps
// commits for leaves, in one log for all, only while some follow.
//
// The parts of an [Engine] stand on each other, and each refers to those below alone:
//
//	member     the configuration, and the calls of etcd or of a core box
//	position   the newest head, the objects, the state; its lock is that of all parts
//	vault      Secrets and shared keys, open
//	follower   joins the fleet, and takes over commits
//	committer  commits, and reads that see all earlier commits
//	presence   the lease, the name, turns and the report of the box
//	Engine     serves leaves
//
//	e, err := fleet.Open(fleet.Config{Fleet: "pop1", Box: "gw1", Endpoints: urls, Dir: "/var/lib/svcctl"})
//	err = e.Await(ctx)
//	s, err := store.Open(e, cfg)
//	go e.Run(ctx)
//	go s.Follow(ctx)
package fleet
