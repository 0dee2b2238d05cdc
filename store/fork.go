package store

import (
	"errors"
	"maps"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Errors of Fork.
var (
	// ErrForkShared says that other machines write to the store.
	ErrForkShared = errors.New("the boxes of a fleet change each other's objects: what one of them would do is not known beforehand")
	// ErrForkTrial says that a trial of files is under way, or files are held since one went back.
	ErrForkTrial = errors.New("a trial of files is under way, or what one has tried is held: `svcctl confirm`, or take it back, first")
	// ErrForkReserved says that values are reserved for what the kernel serves and no object declares.
	ErrForkReserved = errors.New("the kernel serves what no object declares, and its addresses are reserved: see `svcctl release`")
)

// Fork is a copy of the store in memory, for what would become of changes: objects with their owners, values and ages,
// and what files declare. It takes the memory and the time of opening the store. Nothing of the copy is stored, and
// revision is that of the store it was made of. The snapshot of the host is the one of now.
func (s *Store) Fork() (fork *Store, revision uint64, err error) {
	memory := engine.NewMemory()
	cfg, files, revision, err := s.copyTo(memory)
	if err != nil {
		return nil, 0, err
	}
	cfg.Program = "" // it seals nothing
	if fork, err = Open(memory, cfg); err != nil {
		return nil, 0, err
	}
	fork.SetHost(s.hostNow())
	keep := func(Removals) func(string) Decision { return func(string) Decision { return Keep } }
	if _, err := fork.SyncGuarded(files, keep); err != nil {
		return nil, 0, err
	}
	return fork, revision, nil
}

// copyTo writes what a fork needs to an empty engine.
func (s *Store) copyTo(memory engine.Engine) (cfg Config, files manifest.Files, revision uint64, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	head, isTrial := s.TrialHead()
	switch {
	case s.storage.shared != nil:
		return cfg, nil, 0, ErrForkShared
	case s.reserves:
		return cfg, nil, 0, ErrForkReserved
	case isTrial && (head.Files || head.Back != nil):
		return cfg, nil, 0, ErrForkTrial
	}
	var t engine.Transaction
	for _, prefix := range []string{headKey, objectPrefix, trialPrefix, rolloutPrefix} {
		pairs, err := s.storage.engine.Load(prefix)
		if err != nil {
			return cfg, nil, 0, err
		}
		t.Puts = append(t.Puts, pairs...)
	}
	t.CompareKey = headKey
	return s.cfg, s.declared.files, s.feed.revision, memory.Commit(t)
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
		all[ref] = Owned{r.object, r.owner}
	}
	return all
}

// Held are the objects that no file has a document for any more and that are not removed (Decision).
func (s *Store) Held() map[object.Ref]Decision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.declared.held)
}
