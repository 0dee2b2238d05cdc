package store

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
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
	return fork, c.revision, nil
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
	sources  sources
	pending  [2]*pending.Set
	turns    []SourceTurn // of the sources that this machine reads
	revision uint64
}

// fill puts the objects into a fork, and registers what they hold.
func (c *forkOf) fill(fork *Store) ([]*record.Record, error) {
	fork.table, fork.declared, fork.outcomes, fork.sources, fork.numbers.newest = c.table, c.declared, c.outcomes, c.sources, c.newest
	fork.allocator.vanished, fork.pending.sets = c.declared.held, c.pending
	for key, svc := range inOrder(c.table.index.Services()) {
		if err := fork.hold(svc); err != nil {
			return nil, fmt.Errorf("hold what Service %s has: %w", key, err)
		}
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
	switch head, isTimed := s.PendingHead(pending.Timed); {
	case s.reserves:
		return c, ErrForkReserved
	case isTimed && (head.Files || head.Back != nil):
		return c, ErrForkTimed
	}
	c = forkOf{cfg: s.cfg, table: s.table.clone(), newest: s.numbers.newest, revision: s.feed.revision}
	d, o, of := s.declared, s.outcomes, s.sources
	d.byObject, d.duplicates, d.troubled, d.held, d.undeclared = maps.Clone(d.byObject), maps.Clone(d.duplicates), maps.Clone(d.troubled), maps.Clone(d.held), index.CloneMaps(d.undeclared)
	c.outcomes = outcomes{maps.Clone(o.notes), maps.Clone(o.waiting)}
	c.declared, c.sources = d, sources{maps.Clone(of.records), maps.Clone(of.files), index.CloneMaps(of.of), maps.Clone(of.reading), of.changed, maps.Clone(of.stale)}
	for name := range s.sources.reading {
		r := s.sources.records[name]
		c.turns = append(c.turns, SourceTurn{name, r.Reader, r.Instance, r.Generation})
	}
	for k, set := range s.pending.sets {
		c.pending[k] = set.Clone()
	}
	return c, memory.Commit(engine.Transaction{CompareKey: headKey, Puts: []engine.Pair{{Key: headKey, Revision: s.feed.revision}}})
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

// Everything returns all objects as they are now, which may be packed (see Selected): two that are the same pointer are the same version.
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
