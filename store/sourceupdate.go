package store

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// sourcesUpdate has the changes of a commit to sources.
type sourcesUpdate struct {
	records map[string]Source
	files   map[string]sourceFile
	gone    map[string]bool // paths
	fresh   map[string]bool // the sources that are read from now on
	// forgotten is a source that is none any more; "": there is none.
	forgotten string
}

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

// linesOf are the lines at which the objects of a file start.
func linesOf(f *manifest.File) map[string]int {
	f = f.Opened()
	lines := make(map[string]int, len(f.Documents))
	size := 0
	for i := range f.Documents {
		d := &f.Documents[i]
		name := lineKey(refInFile(object.RefOf(d.Object)))
		if _, twice := lines[name]; twice {
			continue
		}
		lines[name] = d.Line
		if size += len(name) + 10; size > mostLines {
			return nil
		}
	}
	return lines
}

func lineKey(ref object.Ref) string { return ref.Kind + "/" + ref.Namespace + "/" + ref.Name }

// addTo makes the update part of a transaction.
func (u *sourcesUpdate) addTo(out *engine.Transaction, revision uint64) error {
	put := func(key string, value any) error {
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode %s: %w", key, err)
		}
		out.Puts = append(out.Puts, engine.Pair{Key: key, Value: text, Revision: revision})
		return nil
	}
	for name, r := range u.records {
		if err := put(sourcePrefix+name, r); err != nil {
			return err
		}
	}
	for path, f := range u.files {
		if err := put(sourceKey(path), f); err != nil {
			return err
		}
	}
	for path := range u.gone {
		out.Deletes = append(out.Deletes, sourceKey(path))
	}
	if u.forgotten != "" {
		out.Deletes = append(out.Deletes, sourcePrefix+u.forgotten)
	}
	return nil
}

// isEmpty reports whether nothing of it is stored.
func (u *sourcesUpdate) isEmpty() bool {
	return u == nil || len(u.records)+len(u.files)+len(u.gone) == 0 && u.forgotten == ""
}

// publish makes an update visible. mu of the Store must be held.
func (all *sources) publish(u *sourcesUpdate) {
	if u == nil {
		return
	}
	for name, r := range u.records {
		all.records[name] = r
	}
	for path, f := range u.files {
		all.setFile(path, &f)
	}
	for path := range u.gone {
		all.setFile(path, nil)
	}
	for name := range u.fresh {
		all.reading[name] = true
	}
	if u.forgotten != "" {
		delete(all.records, u.forgotten)
		all.changed++
	}
}

// setFile sets what is known of a file; nil: it is not there.
func (all *sources) setFile(path string, f *sourceFile) {
	name := SourceOf(path)
	if f == nil {
		delete(all.files, path)
		delete(all.of[name], path)
		return
	}
	all.files[path] = *f
	if all.of[name] == nil {
		all.of[name] = map[string]bool{}
	}
	all.of[name][path] = true
}

func newSources() sources {
	return sources{
		records: map[string]Source{}, files: map[string]sourceFile{}, of: map[string]map[string]bool{}, reading: map[string]bool{},
		stale: map[object.Ref]struct{}{},
	}
}

// load takes stored pairs.
func (all *sources) load(pairs []engine.Pair) error {
	for _, p := range pairs {
		name, relative, isFile := strings.Cut(strings.TrimPrefix(p.Key, sourcePrefix), "/")
		var err error
		if isFile {
			var f sourceFile
			if err = json.Unmarshal(p.Value, &f); err == nil {
				all.setFile(SourcePath(name, relative), &f)
			}
		} else {
			r := Source{}
			err = json.Unmarshal(p.Value, &r)
			r.Name = name
			all.records[name] = r
		}
		if err != nil {
			return fmt.Errorf("read stored %s: %w", p.Key, err)
		}
	}
	return nil
}

// remove takes back stored pairs.
func (all *sources) remove(keys []string) {
	for _, key := range keys {
		if name, relative, isFile := strings.Cut(strings.TrimPrefix(key, sourcePrefix), "/"); isFile {
			all.setFile(SourcePath(name, relative), nil)
		} else {
			delete(all.records, name)
		}
	}
}

// isSourceKey reports whether a key of the engine is of a source.
func isSourceKey(key string) bool { return strings.HasPrefix(key, sourcePrefix) }

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

// isReadElsewhere reports whether an object of a file is another machine's to change.
func (s *Store) isReadElsewhere(owner Owner) bool {
	return s.storage.shared != nil && owner.File != "" && !s.sources.reading[SourceOf(owner.File)]
}

// position returns the line and column of an object's field in a file; of a file that another machine reads, or that
// was not read yet, the line of the object; 0 when it is not known.
func (s *Store) position(ref object.Ref, path, field string) (line, column int) {
	if line, column = s.declared.position(ref, path, field); line == 0 {
		line = s.sources.files[path].Lines[lineKey(ref)]
	}
	return line, column
}

// ReadElsewhere is the machine that reads the file of an object, when that is another one; "" otherwise.
func (s *Store) ReadElsewhere(ref object.Ref) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.table.records[ref]; r != nil && s.isReadElsewhere(r.owner) {
		return s.sources.records[SourceOf(r.owner.File)].Reader
	}
	return ""
}

// readsAnew reports whether the objects of a file are compared with files for the first time.
func (t *transaction) readsAnew(path string) bool {
	if t.s.storage.shared == nil {
		return !t.s.declared.synced
	}
	return t.sourced != nil && t.sourced.fresh[SourceOf(path)]
}
