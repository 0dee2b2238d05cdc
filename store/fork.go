package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// Errors of Fork.
var (
	// ErrForkTimed means that a trial of files is under way, or files are held since one went back.
	ErrForkTimed = errors.New("a trial of files is under way, or what one has tried is held: `svcctl confirm`, or take it back, first")
	// ErrForkReserved means that values are reserved for frontends that the kernel serves and no object declares.
	ErrForkReserved = errors.New("the kernel serves what no object declares, and its addresses are reserved: see `svcctl confirm --removals`")
)

// Fork is a copy of the store in memory, for what would become of changes: objects with their owners, values and ages,
// and what files declare. It takes the indexes of a second store, and shares the objects. Nothing of the copy is stored, and
// revision is that of the store it was made of. The snapshot of the host is the one of now. The copy of a store that
// other machines write to has what they had committed by then, and decides as it does.
func (s *Store) Fork() (fork *Store, revision uint64, err error) {
	memory := engine.NewMemory()
	c, err := s.copyTo(memory)
	if err != nil {
		return nil, 0, err
	}
	c.cfg.Program = "" // it seals nothing
	var in engine.Engine = memory
	if s.storage.shared != nil {
		in = forked{engine.Alone{Memory: memory}, s.storage.shared, c.turns}
	}
	if fork, err = open(in, c.cfg, c.fill); err != nil {
		return nil, 0, err
	}
	fork.SetHost(s.hostNow())
	if s.storage.shared == nil {
		fork.declared, fork.allocator.vanished = c.declared, c.declared.held
		return fork, c.revision, nil
	}
	keep := func(Removals) func(string) Decision { return func(string) Decision { return Keep } }
	return fork, c.revision, fork.SyncFork(c.declared.files, keep)
}

// SyncFork is SyncGuarded for a fork; in a fleet it is about the sources that the machine reads.
func (s *Store) SyncFork(files manifest.Files, guard RemovalGuard) error {
	if f, shared := s.storage.engine.(forked); shared {
		_, err := s.SyncSources(files, f.turns, guard)
		return err
	}
	_, err := s.SyncGuarded(files, guard)
	return err
}

// ForkReads returns the machine that reads a source, and whether that is the one of the fork.
func (s *Store) ForkReads(source string) (reader string, here bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.records[source].Reader, s.sources.reading[source]
}

// forkOf is the input of a fork besides stored pairs.
type forkOf struct {
	cfg      Config
	table    *table
	newest   time.Time
	declared declarations
	outcomes outcomes
	turns    []SourceTurn // of the sources that this machine reads
	revision uint64
}

// fill puts the objects into a fork, and registers what they hold.
func (c *forkOf) fill(fork *Store) ([]*record.Record, error) {
	fork.table, fork.outcomes, fork.numbers.newest = c.table, c.outcomes, c.newest
	for key, svc := range inOrder(c.table.index.Services()) {
		if err := fork.hold(svc); err != nil {
			return nil, fmt.Errorf("hold what Service %s has: %w", key, err)
		}
	}
	for ref, r := range c.table.records {
		fork.declared.noteOwner(ref, Owner{}, r.Owner)
	}
	return nil, nil
}

// forked is the engine of a fork of a store that other machines write to.
type forked struct {
	engine.Alone
	of    engine.Shared
	turns []SourceTurn // of the sources that this machine reads
}

// Sealing implements engine.Shared; so do Tries and Rolls. The other methods are those of a store of one machine.
func (f forked) Sealing() error { return f.of.Sealing() }
func (f forked) Tries() error   { return f.of.Tries() }
func (f forked) Rolls() error   { return f.of.Rolls() }

// copyTo writes what a fork needs to an empty engine.
func (s *Store) copyTo(memory engine.Engine) (c forkOf, err error) {
	defer s.look()()
	head, isTimed := s.PendingHead(pending.Timed)
	switch {
	case s.reserves:
		return c, ErrForkReserved
	case isTimed && (head.Files || head.Back != nil):
		return c, ErrForkTimed
	}
	c = forkOf{cfg: s.cfg, table: s.table.clone(), newest: s.numbers.newest, declared: s.declared, revision: s.feed.revision}
	c.declared.byObject, c.declared.duplicates, c.declared.troubled = maps.Clone(s.declared.byObject), maps.Clone(s.declared.duplicates), maps.Clone(s.declared.troubled)
	c.declared.undeclared, c.declared.held = make(map[string]map[object.Ref]struct{}, len(s.declared.undeclared)), maps.Clone(s.declared.held)
	for path, refs := range s.declared.undeclared {
		c.declared.undeclared[path] = maps.Clone(refs)
	}
	c.outcomes = outcomes{maps.Clone(s.outcomes.notes), maps.Clone(s.outcomes.waiting)}
	var t engine.Transaction
	if s.storage.shared != nil {
		if t, err = s.pairs(); err != nil {
			return c, err
		}
		for name := range s.sources.reading {
			r := s.sources.records[name]
			c.turns = append(c.turns, SourceTurn{name, r.Reader, r.Instance, r.Generation})
		}
		return c, memory.Commit(t)
	}
	for _, prefix := range []string{headKey, pending.Timed.Prefix(), pending.Staged.Prefix()} {
		pairs, err := s.storage.engine.Load(prefix)
		if err != nil {
			return c, err
		}
		t.Puts = append(t.Puts, pairs...)
	}
	t.CompareKey = headKey
	return c, memory.Commit(t)
}

// pairs are the stored pairs of the store as it is, without the objects: the engine of several machines may have newer ones. The
// state of the writer must be held.
func (s *Store) pairs() (t engine.Transaction, err error) {
	t.CompareKey = headKey
	t.Puts = append(t.Puts, engine.Pair{Key: headKey, Revision: s.feed.revision})
	u := sourcesUpdate{records: s.sources.records, files: s.sources.files}
	if err := u.addTo(&t, s.feed.revision); err != nil {
		return t, err
	}
	for _, set := range s.pending.sets {
		if err := set.AddAll(s.feed.revision, &t); err != nil {
			return t, err
		}
	}
	timed := s.pending.timed()
	if timed.Head == nil {
		return t, nil
	}
	value, err := json.Marshal(pending.LocalEnd{ID: timed.EndID(), Of: timed.Ends.Wall, Here: timed.Ends})
	t.Puts = append(t.Puts, engine.Pair{Key: timed.Kind.EndKey(), Value: value, Revision: s.feed.revision})
	return t, err
}

// SeeAs has the store ask the snapshot of the host that another one has now.
func (s *Store) SeeAs(other *Store) { s.SetHost(other.hostNow()) }

// Files are the files that were read last.
func (s *Store) Files() manifest.Files {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.declared.files
}

// Owned is an object with its owner.
type Owned struct {
	Object object.Object
	Owner  Owner
}

// Everything returns all objects as they are now: two that are the same pointer are the same version.
func (s *Store) Everything() map[object.Ref]Owned {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[object.Ref]Owned, len(s.table.records))
	for ref, r := range s.table.records {
		all[ref] = Owned{r.Object, r.Owner}
	}
	return all
}

// Held are the objects that no file has a document for any more and that are not removed (Decision).
func (s *Store) Held() map[object.Ref]Decision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.declared.held)
}
