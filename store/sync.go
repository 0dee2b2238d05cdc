package store

import (
	"encoding/json"
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
	return decided(s, func() (SyncResult, error) { return s.syncFiles(files, guard, nil) })
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
	t.base.released = !maps.Equal(held, s.declared.held) // the pending Services get another reason
	t.removes = false                                    // files examined from here on were not decided upon
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
		if owner := c.ownerOf(); (c.next != nil || c.remove) && owner.File != "" {
			paths = append(paths, owner.File)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// verbStatus is the verb of the journal for a status that a controller writes to the object of another owner.
const verbStatus = "status"

// Generate makes, replaces and removes the objects of a controller, all in one commit, or none of
// it. Unchanged objects are left alone, and objects to be removed may be gone
// already. Of statuses, objects of any owner, the status is stored, if the object is there. Errors:
// *OwnedError when one of puts and deletes has another owner by now; object.Errors when one is not
// valid; else those of the engine.
func (s *Store) Generate(controller string, puts []object.Object, deletes []object.Ref, statuses ...object.Object) (result SyncResult, err error) {
	return decided(s, func() (SyncResult, error) { return s.generate(controller, puts, deletes, statuses) })
}

// generate is Generate once.
func (s *Store) generate(controller string, puts []object.Object, deletes []object.Ref, statuses []object.Object) (SyncResult, error) {
	t := s.begin()
	owner := Owner{Controller: controller}
	for _, o := range puts {
		ref := refInFile(object.RefOf(o))
		c := &change{ref: ref, old: s.table.get(ref), owner: owner}
		if c.old != nil && c.old.Owner != owner {
			return SyncResult{}, fmt.Errorf("generate %s: %w", ref, &OwnedError{Ref: ref, Owner: c.old.Owner})
		}
		if c.proposeFrom(s, o); c.err != nil {
			return SyncResult{}, fmt.Errorf("generate %s: %w", ref, c.err)
		}
		t.changes[ref] = c
	}
	for _, ref := range deletes {
		old := s.table.get(ref)
		if old == nil {
			continue
		}
		if old.Owner != owner {
			return SyncResult{}, fmt.Errorf("remove generated %s: %w", ref, &OwnedError{Ref: ref, Owner: old.Owner})
		}
		t.changes[ref] = &change{ref: ref, old: old, owner: owner, remove: true}
	}
	by := &Caller{User: "svcctl", Manager: controller, Verb: verbStatus}
	for _, o := range statuses {
		ref := refInFile(object.RefOf(o))
		old := s.table.get(ref)
		if old == nil || old.Object.GetMeta().UID != o.GetMeta().UID {
			continue
		}
		c := &change{ref: ref, old: old, owner: old.Owner, by: by}
		if _, err := c.proposeStatus(o); err != nil {
			return SyncResult{}, fmt.Errorf("the status of %s: %w", ref, err)
		}
		t.noteWritten(c)
		t.changes[ref] = c
	}
	result, err := t.run()
	if err != nil {
		return SyncResult{}, fmt.Errorf("write what the %s controller generates: %w", controller, err)
	}
	return result, nil
}

const (
	// sealMost bounds the documents of a sealed file: the first change of it after a start has to decode all of
	// them, some 20 us each.
	sealMost = 1_000
	// sealAtOnce bounds the seals of one commit.
	sealAtOnce = 4_000
)

// Seal writes the seals of files that have none. It is called when a start is over and at the
// end: changes in between are read again after a crash. The Files that it returns equal
// those that were sealed, and hold no documents: they may take their places.
func (l LastGood) Seal() (sealed []*manifest.File, err error) {
	for more := true; more; {
		var some []*manifest.File
		if some, more, err = l.sealSome(); err != nil {
			return sealed, fmt.Errorf("seal copies of files: %w", err)
		}
		sealed = append(sealed, some...)
	}
	return sealed, nil
}

func (l LastGood) sealSome() (sealed []*manifest.File, more bool, err error) {
	s := l.s
	s.writer.state.Lock()
	defer s.writer.state.Unlock()
	by := s.sealedBy()
	if by == "" || !s.declared.synced {
		return nil, false, nil
	}
	var seals []seal
	var copies []string // their keys
	decode := l.decode
	for _, file := range s.declared.files {
		hash, has := s.storage.copies.sealable(file.Path)
		if !has || hash != file.Hash || isSealed(file) {
			continue
		}
		names, versions, settled := s.settled(file)
		if !settled {
			continue
		}
		seals = append(seals, seal{By: by, Hash: hash[:], Objects: names, Versions: versions})
		copies = append(copies, filePrefix+file.Path)
		sealed = append(sealed, manifest.Sealed(file.Path, hash, names, decode))
		if more = len(seals) >= sealAtOnce; more {
			break
		}
	}
	if len(seals) == 0 {
		return nil, false, nil
	}
	sums, err := s.storage.engine.Sums(copies)
	if err != nil {
		return nil, false, err
	}
	var out engine.Transaction
	for i := range seals {
		seals[i].Copy = sums[i][:]
		value, err := json.Marshal(seals[i])
		if err != nil {
			return nil, false, err
		}
		out.Puts = append(out.Puts, engine.Pair{Key: sealPrefix + sealed[i].Path, Value: value, Revision: s.feed.revision})
	}
	if err := s.write(out, s.feed.revision); err != nil {
		return nil, false, err
	}
	s.storage.copies.mu.Lock()
	defer s.storage.copies.mu.Unlock()
	for _, f := range sealed {
		if w, has := s.storage.copies.written[f.Path]; has && w.hash == f.Hash {
			s.storage.copies.written[f.Path] = writtenCopy{f.Hash, true}
		}
	}
	return sealed, more, nil
}

// sealable is the hash of the copy of a file that is durable and has no seal.
func (c *copies) sealable(path string) (hash manifest.Hash, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, has := c.written[path]
	return w.hash, has && !w.sealed
}

// settled reports whether all objects of a file are stored as it has them, without warnings, and returns
// their names and versions.
func (s *Store) settled(file *manifest.File) (names []object.Ref, versions []string, settled bool) {
	if file.Err != nil || len(file.Problems) > 0 || len(file.Documents) > sealMost || len(s.declared.duplicates[file.Path]) > 0 {
		return nil, nil, false
	}
	for i := range file.Documents {
		name := object.RefOf(file.Documents[i].Object)
		ref := refInFile(name)
		if !s.isSettled(ref, file.Path) {
			return nil, nil, false
		}
		names, versions = append(names, name), append(versions, s.table.get(ref).Object.GetMeta().ResourceVersion)
	}
	return names, versions, true
}
