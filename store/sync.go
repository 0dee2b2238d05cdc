package store

import (
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// SyncFiles makes the objects that belong to files equal to these files. It looks only
// at the files that are not the same pointers as in the previous call, and at objects
// that wait for something that was released. All it changes is one commit; what cannot be
// accepted is among Problems afterwards, and does not keep the rest from being accepted.
// The error is that of the commit: nothing has changed then, and the call may be repeated.
// The files are kept, and may not be changed.
func (s *Store) SyncFiles(files manifest.Files) (SyncResult, error) { return s.SyncGuarded(files, nil) }

// UnstoredError means that the changes of files could not be committed: what was stored before is in force.
type UnstoredError struct {
	Files []string // their paths, sorted
	cause error
}

func (e *UnstoredError) Error() string { return "sync files: " + e.cause.Error() }
func (e *UnstoredError) Unwrap() error { return e.cause }

// SyncGuarded is SyncFiles with a guard that may hold removals; nil removes what no file has a document for.
func (s *Store) SyncGuarded(files manifest.Files, guard RemovalGuard) (result SyncResult, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() (err error) {
		result, err = s.syncFiles(files, guard, nil)
		return err
	})
	return result, err
}

// syncFiles is SyncGuarded once. sourced is what it changes of sources; nil: the files are of no source.
func (s *Store) syncFiles(files manifest.Files, guard RemovalGuard, sourced *sourcesUpdate) (SyncResult, error) {
	files, err := s.takeFiles(files)
	if err != nil {
		return SyncResult{}, fmt.Errorf("sync files: %w", err)
	}
	t := s.begin()
	t.sourced = sourced
	refs := t.readFiles(files)
	for ref := range s.sources.stale {
		refs = append(refs, ref)
	}
	if !s.declared.synced {
		for ref := range s.outcomes.waiting {
			refs = append(refs, ref)
		}
	}
	for ref := range s.declared.held {
		refs = append(refs, ref)
	}
	t.removes = true
	t.examine(refs...)
	held := t.holdRemovals(guard)
	s.allocator.vanished = held
	t.base.released = !maps.Equal(held, s.declared.held) // who waits for a value of theirs is told otherwise
	t.removes = false                                    // what is examined from here on was not decided upon
	result, err := t.run()
	if err != nil {
		s.allocator.vanished = s.declared.held
		return SyncResult{}, &UnstoredError{Files: t.unstored(), cause: err}
	}
	s.declared.synced, s.declared.held = true, held
	clear(s.sources.stale)
	return result, nil
}

// unstored are the files that the changes of a transaction come from, sorted.
func (t *transaction) unstored() (paths []string) {
	for _, c := range t.changes {
		owner := c.owner
		if c.remove {
			owner = c.old.owner
		}
		if (c.next != nil || c.remove) && owner.File != "" {
			paths = append(paths, owner.File)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// Generate makes, replaces and removes the objects of a controller, all in one commit, or none of
// it. Objects that are the same as they were are left alone, and what is to be removed may be gone
// already. Errors: *OwnedError when one of them has another owner by now; object.Errors when one is
// not valid; else those of the engine.
func (s *Store) Generate(controller string, puts []object.Object, deletes []object.Ref) (result SyncResult, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() (err error) {
		result, err = s.generate(controller, puts, deletes)
		return err
	})
	return result, err
}

// generate is Generate once.
func (s *Store) generate(controller string, puts []object.Object, deletes []object.Ref) (SyncResult, error) {
	t := s.begin()
	owner := Owner{Controller: controller}
	for _, o := range puts {
		ref := refInFile(object.RefOf(o))
		c := &change{ref: ref, old: s.table.records[ref], owner: owner}
		if c.old != nil && c.old.owner != owner {
			return SyncResult{}, fmt.Errorf("generate %s: %w", ref, &OwnedError{Ref: ref, Owner: c.old.owner})
		}
		if c.proposeFrom(s, o); c.err != nil {
			return SyncResult{}, fmt.Errorf("generate %s: %w", ref, c.err)
		}
		t.changes[ref] = c
	}
	for _, ref := range deletes {
		old := s.table.records[ref]
		if old == nil {
			continue
		}
		if old.owner != owner {
			return SyncResult{}, fmt.Errorf("remove generated %s: %w", ref, &OwnedError{Ref: ref, Owner: old.owner})
		}
		t.changes[ref] = &change{ref: ref, old: old, owner: owner, remove: true}
	}
	result, err := t.run()
	if err != nil {
		return SyncResult{}, fmt.Errorf("write what the %s controller generates: %w", controller, err)
	}
	return result, nil
}

// takeFiles are the files that are taken of those that were found.
func (s *Store) takeFiles(found manifest.Files) (manifest.Files, error) {
	taken, let := s.trial.effective(found)
	return taken, s.letFiles(let)
}

// letFiles forgets files that are held no longer, and with the last one the trial.
func (s *Store) letFiles(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	var out engine.Transaction
	for _, path := range paths {
		out.Deletes = append(out.Deletes, trialFilePrefix+path)
	}
	over := len(paths) == len(s.trial.held)
	if over {
		out.Deletes = s.trial.keys()
	}
	if err := s.write(out, s.feed.revision); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range paths {
		delete(s.trial.held, path)
		delete(s.trial.files, path)
	}
	if over {
		s.trial = trial{}
	}
	return nil
}
