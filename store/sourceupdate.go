package store

import (
	"encoding/hex"
	"slices"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// updateSources gives what reading some files changes.
func (s *Store) updateSources(reads map[string]SourceTurn, files manifest.Files) *sourcesUpdate {
	u := &sourcesUpdate{records: map[string]Source{}, files: map[string]sourceFile{}, gone: map[string]bool{}, fresh: map[string]bool{}}
	for name, turn := range reads {
		r := s.sources.records[name]
		if r.Reader != turn.Box || r.Instance != turn.Instance {
			r.Since = s.now()
		}
		r.Name, r.Reader, r.Instance, r.Generation = name, turn.Box, turn.Instance, turn.Generation
		if r != s.sources.records[name] {
			u.records[name] = r
		}
		if !s.sources.reading[name] {
			u.fresh[name] = true
		}
	}
	changed := func(is *manifest.File) {
		hash := hex.EncodeToString(is.Hash[:])
		if s.sources.files[is.Path].Hash != hash {
			u.files[is.Path] = sourceFile{hash, linesOf(is)}
		}
	}
	files.Changes(s.declared.files, func(was, is *manifest.File) {
		if is != nil {
			changed(is)
		} else if _, known := s.sources.files[was.Path]; known {
			u.gone[was.Path] = true
		}
	})
	for name := range u.fresh { // files that went while no box was reading
		for path := range s.sources.of[name] {
			if files.Get(path) == nil {
				u.gone[path] = true
			}
		}
	}
	return u
}

// takeOverSources takes over what a commit of another machine says of sources, and notes declared objects that it
// changes. The writer must be held.
func (s *Store) takeOverSources(f *engine.Followed, changes []*change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var puts []engine.Pair
	var deletes []string
	for _, p := range f.Puts {
		if isSourceKey(p.Key) {
			puts = append(puts, p)
		}
	}
	for _, key := range f.Deletes {
		if isSourceKey(key) {
			deletes = append(deletes, key)
		}
	}
	s.sources.remove(deletes)
	if err := s.sources.load(puts); err != nil {
		return err
	}
	for _, c := range changes {
		if len(s.declared.byObject[c.ref]) > 0 {
			s.sources.stale[c.ref] = struct{}{}
		}
	}
	if len(puts)+len(deletes)+len(s.sources.stale) > 0 || f.Reload {
		s.sources.changed++
	}
	return nil
}

// letSource ends the reading of a source: its files are not known any more, and its objects stay. The writer
// must be held.
func (s *Store) letSource(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sources.reading, name)
	gone := ofSource(s.declared.files, name)
	for _, file := range gone {
		declarations, _ := readDeclarations(file)
		for _, d := range declarations.all {
			ref := d.ref
			if s.declared.byObject[ref] = slices.DeleteFunc(slices.Clone(s.declared.byObject[ref]), func(c declaration) bool { return c.path == file.Path }); len(s.declared.byObject[ref]) == 0 {
				delete(s.declared.byObject, ref)
			}
			s.outcomes.notes[ref] = slices.DeleteFunc(slices.Clone(s.outcomes.notes[ref]), func(n note) bool { return n.path == file.Path })
			if len(s.outcomes.notes[ref]) == 0 {
				delete(s.outcomes.notes, ref)
			}
			owner := ownerOf(s.table.get(ref))
			s.declared.noteOwner(ref, owner, owner)
		}
		delete(s.declared.troubled, file.Path)
		delete(s.declared.duplicates, file.Path)
	}
	s.declared.files = slices.DeleteFunc(slices.Clone(s.declared.files), func(f *manifest.File) bool { return SourceOf(f.Path) == name })
	for ref := range s.declared.held {
		if r := s.table.records[ref]; r != nil && SourceOf(r.owner.File) == name {
			delete(s.declared.held, ref)
		}
	}
	s.sources.changed++
}
