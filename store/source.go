package store

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// A source is a directory of manifests with a name, which machines that share a store may each have. One
// machine at a time reads it for all: its files are those that objects come from. The path of such a file is
// NAME:relative/path, the same on every machine.
//
// The reader is a stored record, and each commit of files is decided on it: a machine that has not learned yet
// of a new reader changes nothing.

// sourcePrefix begins two kinds of engine keys: source/NAME for the record of a source, and source/NAME/relative/path for the record of a file in
// force.
const sourcePrefix = "source/"

// mostLines is the maximum size, in bytes, of the line numbers in the stored record of a file. If they need more, they are not stored.
const mostLines = 256 << 10

// Source is the stored record of a source, shared by all machines.
type Source struct {
	Name string `json:"-"`
	// Reader is the machine that reads the source, and Instance identifies its data directory; "" allows any data directory.
	Reader   string `json:"reader"`
	Instance string `json:"instance,omitempty"`
	// Generation is the number of the directory's content, set by the program that writes the directory; 0 if there is none.
	Generation uint64    `json:"generation,omitempty"`
	Since      time.Time `json:"since"`
	// Files counts the files in force.
	Files int `json:"-"`
}

// sourceFile is the stored record of a source's file, shared by all machines.
type sourceFile struct {
	Hash string `json:"hash"` // manifest.Hash in hexadecimal digits
	// Lines has the line at which each object begins, by kind/namespace/name; nil when there are too many.
	Lines map[string]int `json:"lines,omitempty"`
}

// sources has the records of all sources, and which of them this machine reads. Store.mu guards it.
type sources struct {
	records map[string]Source
	files   map[string]sourceFile      // by path
	of      map[string]map[string]bool // set of file paths, by source
	reading map[string]bool            // the sources that this machine reads and has read completely
	// changed increases whenever SyncSources has work to do although no file has changed.
	changed uint64
	stale   map[object.Ref]struct{} // declared objects that other machines have changed
}

// SourceTurn is a machine's request to read the source Name: the machine's name in the fleet, its data directory, and the generation of its files.
type SourceTurn struct {
	Name, Box, Instance string
	Generation          uint64
}

// SourceVerdict is the decision on a SourceTurn: why the machine may not read the source. It may if neither Behind nor Given nor Differs is set.
type SourceVerdict struct {
	// Behind is set when the machine's files have a lower generation than those in force. Differs is the first file that differs from the one in
	// force.
	Behind  bool
	Differs string
	// Given is set when TakeSource has assigned the source to another machine, Reader, which has not begun to read it.
	Given bool
	// Reader is the machine that reads the source, or to which it is assigned; "" if there is none.
	Reader string
}

// OK reports whether the machine may read the source.
func (v SourceVerdict) OK() bool { return !v.Behind && !v.Given && v.Differs == "" }

// SourcePath returns the path of a source's file as it appears in owners and problems: "name:relative/path".
func SourcePath(name, relative string) string { return name + ":" + relative }

// SourceOf returns the name of the source that a path belongs to; "" for the path of a local file.
func SourceOf(path string) string {
	if strings.HasPrefix(path, "/") {
		return ""
	}
	name, _, found := strings.Cut(path, ":")
	if !found {
		return ""
	}
	return name
}

func sourceKey(path string) string {
	name, relative, _ := strings.Cut(path, ":")
	return sourcePrefix + name + "/" + relative
}

func (all *sources) judge(turn SourceTurn, files manifest.Files) SourceVerdict {
	r, known := all.records[turn.Name]
	verdict := SourceVerdict{Reader: r.Reader}
	switch {
	case !known, r.Reader == turn.Box && (r.Instance == turn.Instance || r.Instance == ""):
		return verdict
	case r.Instance == "":
		verdict.Given = true
	}
	switch first := all.differs(turn.Name, files); {
	case first == "", r.Generation > 0 && turn.Generation > r.Generation:
	case turn.Generation > 0 && turn.Generation < r.Generation:
		verdict.Behind, verdict.Differs = true, first
	default:
		verdict.Differs = first
	}
	return verdict
}

// differs returns the path of the first file of a source that differs from the one in force, or that exists only on one side; "" if there is none.
func (all *sources) differs(name string, files manifest.Files) (first string) {
	note := func(path string) {
		if first == "" || path < first {
			first = path
		}
	}
	count := 0
	for _, f := range ofSource(files, name) {
		count++
		if is, known := all.files[f.Path]; !known || is.Hash != hex.EncodeToString(f.Hash[:]) {
			note(f.Path)
			break
		}
	}
	if first == "" && count == len(all.of[name]) {
		return ""
	}
	for path := range all.of[name] {
		if files.Get(path) == nil {
			note(path)
		}
	}
	return first
}

// ofSource returns the files of one source among files.
func ofSource(files manifest.Files, name string) []*manifest.File {
	return slices.DeleteFunc(slices.Collect(files.All()), func(f *manifest.File) bool { return SourceOf(f.Path) != name })
}

// sourcesUpdate has the changes of sources in one commit.
type sourcesUpdate struct {
	records map[string]Source
	files   map[string]sourceFile
	gone    map[string]bool // the paths of removed files
	fresh   map[string]bool // the sources that are read from now on
	// forgotten is the name of a source to be removed; "" if there is none.
	forgotten string
}

// linesOf returns the line at which each object of a file begins; nil if there are too many.
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

// addTo adds the update to a transaction.
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

// isEmpty reports whether the update stores nothing.
func (u *sourcesUpdate) isEmpty() bool {
	return u == nil || len(u.records)+len(u.files)+len(u.gone) == 0 && u.forgotten == ""
}

// publish makes an update visible to readers. Store.mu must be held.
func (all *sources) publish(u *sourcesUpdate) {
	if u == nil {
		return
	}
	maps.Copy(all.records, u.records)
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

// setFile sets the record of a file; nil removes it.
func (all *sources) setFile(path string, f *sourceFile) {
	if f == nil {
		delete(all.files, path)
		index.Drop(all.of, SourceOf(path), path)
		return
	}
	all.files[path] = *f
	index.Put(all.of, SourceOf(path), path, true)
}

func newSources() sources {
	return sources{
		records: map[string]Source{}, files: map[string]sourceFile{}, of: map[string]map[string]bool{}, reading: map[string]bool{},
		stale: map[object.Ref]struct{}{},
	}
}

// follow takes over the records of sources and of their files from f, a commit of another machine or the content loaded at a start. It reports whether
// f has any.
func (all *sources) follow(f *engine.Followed) (has bool, err error) {
	for _, key := range f.Deletes {
		rest, is := strings.CutPrefix(key, sourcePrefix)
		has = has || is
		if name, relative, isFile := strings.Cut(rest, "/"); is && isFile {
			all.setFile(SourcePath(name, relative), nil)
		} else if is {
			delete(all.records, name)
		}
	}
	for _, p := range f.Puts {
		rest, is := strings.CutPrefix(p.Key, sourcePrefix)
		if !is {
			continue
		}
		has = true
		if name, relative, isFile := strings.Cut(rest, "/"); isFile {
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
			return has, fmt.Errorf("read stored %s: %w", p.Key, err)
		}
	}
	return has, nil
}

// isSourceKey reports whether an engine key is that of a source or of one of its files.
func isSourceKey(key string) bool { return strings.HasPrefix(key, sourcePrefix) }

// Sources returns all sources that some box has read, sorted by name.
func (s *Store) Sources() (all []Source) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(s.sources.records)) {
		r := s.sources.records[name]
		r.Files = len(s.sources.of[name])
		all = append(all, r)
	}
	return all
}

// SourcesChanged returns a counter that increases when SyncSources has work to do although no file has changed.
func (s *Store) SourcesChanged() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.changed
}

// JudgeSource decides whether a machine with these files may read a source. It may if no machine has read the source before; if it read the source
// last, with the same data directory; or if TakeSource has assigned the source to it. It also may if its files equal those in force or have a higher
// generation, unless TakeSource has assigned the source to another machine that has not begun to read it.
func (s *Store) JudgeSource(turn SourceTurn, files manifest.Files) SourceVerdict {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.judge(turn, files)
}

// TakeSource assigns a source to a machine, whatever files that machine has. The assignment takes effect when the machine reads the source.
func (s *Store) TakeSource(name, box string) error {
	return s.change(func() error {
		r := s.sources.records[name]
		if r.Reader == box && r.Instance == "" {
			return nil
		}
		r.Name, r.Reader, r.Instance, r.Since = name, box, "", s.now()
		t := s.begin()
		t.sourced = &sourcesUpdate{records: map[string]Source{name: r}}
		if _, err := t.run(); err != nil {
			return fmt.Errorf("give source %s to %s: %w", name, box, err)
		}
		return nil
	})
}

// ErrNoSource means that no box has read a source of that name.
var ErrNoSource = errors.New("no box has read a source of that name")

// ForgetSource deletes the record of a source. It fails if this machine reads the source. The objects of the files of the source stay, and belong to
// the API from then on. It returns their number. Errors: ErrNoSource.
func (s *Store) ForgetSource(name string) (objects int, err error) {
	err = s.change(func() error {
		if _, known := s.sources.records[name]; !known {
			return ErrNoSource
		}
		if s.sources.reading[name] {
			return errors.New("this box reads it")
		}
		t := s.begin()
		t.sourced = &sourcesUpdate{gone: maps.Clone(s.sources.of[name]), forgotten: name}
		var all []*change
		for ref, r := range s.table.records {
			if SourceOf(r.Owner.File) == name {
				c := &change{ref: ref, old: r.Whole(), waits: s.outcomes.waits(ref)}
				c.next = object.DeepCopy(c.old.Object)
				all = append(all, c)
			}
		}
		slices.SortFunc(all, func(a, b *change) int { return record.CompareRefs(a.ref, b.ref) })
		if err := t.encode(all...); err != nil {
			return err
		}
		for _, c := range all { // nothing is given or taken
			c.record.Withheld = c.old.Withheld
			if c.record.Withheld {
				c.notes = append(c.notes, s.outcomes.notes[c.ref]...)
			}
			t.settled.add(c, s.allocator.mark())
		}
		objects = len(all)
		_, err := t.run()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget source %s: %w", name, err)
	}
	return objects, nil
}

// SyncSources is SyncGuarded for sources. turns has the requests of this machine to read sources, which it decides on as JudgeSource does. SyncSources
// makes the objects of the sources that the machine may read equal to the files, in one commit with the record of the reader. The objects of other
// sources do not change. All paths are those of sources (SourcePath). The error is that of the commit, and nothing has changed then.
// engine.ErrConflict means that another machine committed first, and the call has to be repeated.
func (s *Store) SyncSources(files manifest.Files, turns []SourceTurn, guard RemovalGuard) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.follow()
	taken := map[string]*manifest.File{}
	reads := map[string]SourceTurn{}
	for _, turn := range turns {
		if s.sources.judge(turn, files).OK() {
			reads[turn.Name] = turn
			for _, f := range ofSource(files, turn.Name) {
				taken[f.Path] = f
			}
		}
	}
	mine := manifest.FilesOf(taken)
	for name := range maps.Clone(s.sources.reading) {
		if turn, still := reads[name]; !still || s.sources.records[name].Reader != turn.Box {
			s.letSource(name)
		}
	}
	_, err := s.syncFiles(mine, guard, s.updateSources(reads, mine))
	if errors.Is(err, engine.ErrConflict) {
		s.storage.lost.Add(1)
	}
	return err
}

// updateSources returns the changes to the records of the sources that this machine reads, with the given files.
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
		if hash := hex.EncodeToString(is.Hash[:]); s.sources.files[is.Path].Hash != hash {
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

// takeOverSources updates the source records from a commit of another machine (f), and marks the declared objects that the commit changes as stale.
// The caller must hold s.writer.
func (s *Store) takeOverSources(f *engine.Followed, changes []*change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems.Store(nil)
	moved, err := s.sources.follow(f)
	if err != nil {
		return err
	}
	for _, c := range changes {
		if len(s.declared.byObject[c.ref]) > 0 {
			s.sources.stale[c.ref] = struct{}{}
		}
	}
	if moved || len(s.sources.stale) > 0 || f.Reload {
		s.sources.changed++
	}
	return nil
}

// letSource makes this machine stop reading a source: it drops the declarations of the source, and keeps the objects. The writer must be held.
func (s *Store) letSource(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems.Store(nil)
	delete(s.sources.reading, name)
	t, gone := s.begin(), map[string]*manifest.File{}
	for _, file := range ofSource(s.declared.files, name) {
		gone[file.Path], t.duplicates[file.Path] = nil, nil
		declarations, _ := readDeclarations(file)
		for _, d := range declarations.all {
			t.setDeclaration(d.ref, file.Path, nil)
		}
	}
	s.declared.update(s.declared.files.Updated(gone), t.declarations, t.duplicates)
	for ref := range t.declarations {
		notes := slices.DeleteFunc(slices.Clone(s.outcomes.notes[ref]), func(n note) bool { return SourceOf(n.path) == name })
		s.outcomes.set(ref, notes, s.outcomes.waits(ref))
		owner := record.OwnerOf(s.table.records[ref])
		s.declared.noteOwner(ref, owner, owner)
	}
	for ref := range s.declared.held {
		if r := s.table.records[ref]; r != nil && SourceOf(r.Owner.File) == name {
			delete(s.declared.held, ref)
		}
	}
	s.sources.changed++
}

// isReadElsewhere reports whether, in a fleet, an owner is a file that this machine does not read, so that it must not change the object.
func (s *Store) isReadElsewhere(owner Owner) bool {
	return s.storage.shared != nil && owner.File != "" && !s.sources.reading[SourceOf(owner.File)]
}

// position returns the line and column of an object's field in a file. If another machine reads the file, or it has not been read yet, it returns the
// line of the object; 0 means unknown.
func (s *Store) position(ref object.Ref, path, field string) (line, column int) {
	if line, column = s.declared.position(ref, path, field); line == 0 {
		line = s.sources.files[path].Lines[lineKey(ref)]
	}
	return line, column
}

// ReadElsewhere returns the machine that reads the file of an object, if that is not this one; else "".
func (s *Store) ReadElsewhere(ref object.Ref) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.table.records[ref]; r != nil && s.isReadElsewhere(r.Owner) {
		return s.sources.records[SourceOf(r.Owner.File)].Reader
	}
	return ""
}

// readsAnew reports whether this transaction is the first in which this machine compares the objects of a file with the file: the first since the
// start or, in a fleet, since this machine began to read the source.
func (t *transaction) readsAnew(path string) bool {
	if t.s.storage.shared == nil {
		return !t.s.declared.synced
	}
	return t.sourced != nil && t.sourced.fresh[SourceOf(path)]
}
