package store

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
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

// sourcesUpdate has the changes of a commit to sources.
type sourcesUpdate struct {
	records map[string]Source
	files   map[string]sourceFile
	gone    map[string]bool // paths
	fresh   map[string]bool // the sources that are read from now on
	// forgotten is a source that is none any more; "": there is none.
	forgotten string
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
