package store

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// A source is a directory of manifests with a name, which machines that share a store may each have. One
// machine at a time reads it for all: its files are those that objects come from. The path of such a file is
// NAME:relative/path, the same on every machine.
//
// Who reads is a stored record, and each commit of files is decided on it: a machine that does not know yet
// that another one has taken over changes nothing.

// sourcePrefix begins the keys source/NAME, of the record of a source, and
// source/NAME/relative/path, of the content of a file in force.
const sourcePrefix = "source/"

// mostLines bounds the stored form of a file, in bytes: of longer ones other machines know no lines.
const mostLines = 256 << 10

// Source is the stored record of a source, which all machines have.
type Source struct {
	Name string `json:"-"`
	// Reader is the machine that reads it, Instance its data directory; "" any that it has.
	Reader   string `json:"reader"`
	Instance string `json:"instance,omitempty"`
	// Generation is the number of the directory's content, set by the program that writes it; 0:
	// none.
	Generation uint64    `json:"generation,omitempty"`
	Since      time.Time `json:"since"`
	// Files counts the files in force.
	Files int `json:"-"`
}

// sourceFile is the stored record of a file, which all machines have.
type sourceFile struct {
	Hash string `json:"hash"` // manifest.Hash in hexadecimal digits
	// Lines has the first line of each object, by kind/namespace/name; nil when there are too many.
	Lines map[string]int `json:"lines,omitempty"`
}

// sources has the stored records of all sources, and which of them this store reads. mu of the Store guards it.
type sources struct {
	records map[string]Source
	files   map[string]sourceFile      // by path
	of      map[string]map[string]bool // the paths of a source
	reading map[string]bool            // SyncSources has brought in all of it
	// changed counts what SyncSources has to look at although no file has changed.
	changed uint64
	stale   map[object.Ref]struct{} // declared objects that other machines have changed
}

// SourceTurn is a machine that would read a source.
type SourceTurn struct {
	Name, Box, Instance string
	Generation          uint64
}

// SourceVerdict is why a machine may not read a source; the zero SourceVerdict: it may.
type SourceVerdict struct {
	// Behind is set when the content has a lower generation than the one in force; Differs names the first file that
	// differs from the one in force.
	Behind  bool
	Differs string
	// Given is set when the source was assigned to the Reader, which has not begun.
	Given bool
	// Reader is the machine that reads it.
	Reader string
}

// OK reports whether the machine may read the source.
func (v SourceVerdict) OK() bool { return !v.Behind && !v.Given && v.Differs == "" }

// SourcePath is the path of a file of a source.
func SourcePath(name, relative string) string { return name + ":" + relative }

// SourceOf is the name of the source that a path is in; "" for a path of a machine.
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

// SourcesChanged is another number when SyncSources has something to do although no file has changed.
func (s *Store) SourcesChanged() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.changed
}

// JudgeSource decides whether a machine with these files may read a source. The machine that read it last may, with
// the same data directory, and the one that TakeSource has named; else a machine whose files are those in force, or
// of a higher generation.
func (s *Store) JudgeSource(turn SourceTurn, files manifest.Files) SourceVerdict {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.judge(turn, files)
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
	first := all.differs(turn.Name, files)
	switch {
	case first == "", r.Generation > 0 && turn.Generation > r.Generation:
	case turn.Generation > 0 && turn.Generation < r.Generation:
		verdict.Behind, verdict.Differs = true, first
	default:
		verdict.Differs = first
	}
	return verdict
}

// differs is the first file that is not as it is in force; "": all are.
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

// ofSource are the files of one source among files.
func ofSource(files manifest.Files, name string) manifest.Files {
	from, _ := files.Find(name + ":")
	to, _ := files.Find(name + ";") // the next character
	return files[from:to]
}

// TakeSource gives the reading of a source to a machine, whatever it has in its directory. It takes
// effect when that machine reads it.
func (s *Store) TakeSource(name, box string) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.decide(func() error {
		r := s.sources.records[name]
		if r.Reader == box && r.Instance == "" {
			return nil
		}
		r.Name, r.Reader, r.Instance, r.Since = name, box, "", s.now()
		t := s.begin()
		t.sourced = &sourcesUpdate{records: map[string]Source{name: r}}
		_, err := t.run()
		if err != nil {
			return fmt.Errorf("give source %s to %s: %w", name, box, err)
		}
		return nil
	})
}

// ErrNoSource means that no box has read a source of that name.
var ErrNoSource = errors.New("no box has read a source of that name")

// ForgetSource drops the record of a source that no machine reads any more. What its files declared stays as it
// is, and belongs to the API from then on. It returns how many objects these are. Errors: ErrNoSource.
func (s *Store) ForgetSource(name string) (objects int, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	err = s.decide(func() error {
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
			if SourceOf(r.owner.File) == name {
				c := &change{ref: ref, old: r, waits: s.outcomes.waits(ref)}
				c.next = r.object.DeepCopy()
				all = append(all, c)
			}
		}
		slices.SortFunc(all, func(a, b *change) int { return compareRefs(a.ref, b.ref) })
		if err := t.encode(all...); err != nil {
			return err
		}
		for _, c := range all { // nothing is given or taken
			c.record.withheld = c.old.withheld
			if c.record.withheld {
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

// SyncSources is SyncGuarded for sources: objects of the files of those that this machine may read become equal to
// these files, in one commit with the record of who reads. Of a source that it may not read nothing changes, and
// the verdict says why; so does nothing of a source for which there is no turn. All paths are of sources. The
// error is that of the commit, when nothing has changed; ErrConflict of package engine says that another machine was
// first: the call is to be repeated.
func (s *Store) SyncSources(files manifest.Files, turns []SourceTurn, guard RemovalGuard) (verdicts map[string]SourceVerdict, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.follow()
	verdicts = make(map[string]SourceVerdict, len(turns))
	var mine manifest.Files
	reads := map[string]SourceTurn{}
	for _, turn := range turns {
		v := s.sources.judge(turn, files)
		if verdicts[turn.Name] = v; v.OK() {
			reads[turn.Name] = turn
			mine = append(mine, ofSource(files, turn.Name)...)
		}
	}
	slices.SortFunc(mine, func(a, b *manifest.File) int { return strings.Compare(a.Path, b.Path) })
	for name := range maps.Clone(s.sources.reading) {
		if turn, still := reads[name]; !still || s.sources.records[name].Reader != turn.Box {
			s.letSource(name)
		}
	}
	_, err = s.syncFiles(mine, guard, s.updateSources(reads, mine))
	if errors.Is(err, engine.ErrConflict) {
		s.storage.lost.Add(1)
	}
	return verdicts, err
}
