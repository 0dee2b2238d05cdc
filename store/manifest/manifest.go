package manifest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"hash/maphash"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unique"

	"svcctl.io/svcctl/store/object"
)

// A File is the decoded content of one file. It is immutable.
type File struct {
	Path string
	// Hash is the hash of the file's text, used to compare files. It is set by the reader of the file.
	Hash Hash
	// Documents are the valid objects, in the order of the text. They are empty in a sealed File; see Opened.
	Documents []Document
	// Err is set when the file as a whole cannot be used; Documents is empty then.
	Err *Problem
	// Problems are the problems of single documents, in the order of the text: warnings, and errors. A document with an error is not in Documents.
	Problems []Problem

	limits unique.Handle[Limits] // limits used for decoding; a handle, since nearly all files have the same ones
	units  []placed              // in the order of the text
	seal   *seal                 // set while the file is sealed (not decoded yet); nil if it is decoded
}

// A Hash is the SHA-256 of a text.
type Hash [sha256.Size]byte

// A Document is one object of a file.
type Document struct {
	// Object is shared by the Files that Update derived from each other. Do not modify it; copy it first.
	Object object.Object
	// Line is the first line of the object, from 1.
	Line int

	layout layout
}

// Position returns the line and column of a field of the object, from 1, or of its nearest ancestor that is in the text. Paths have the form that
// Kubernetes uses: "spec.ports[0].port", "metadata.labels[app.kubernetes.io/name]"; "" is the object itself.
func (d *Document) Position(field string) (line, column int) {
	below, column := d.layout.find(field)
	return d.Line + below, column
}

// Problem returns a Problem of one of the file's documents, at the place of the field.
func (f *File) Problem(d *Document, field, reason, message string) Problem {
	line, column := d.Position(field)
	return Problem{File: f.Path, Line: line, Column: column, Object: refOf(d.Object),
		Field: field, Reason: reason, Message: message}
}

// A unit is a decoded piece of text that does not depend on its position in the file: a YAML document, a JSON value or an item of a List in JSON. Its
// line numbers are relative to its first line.
type unit struct {
	documents []Document
	problems  []Problem
	count     int // number of objects, including invalid ones and those of kinds that are not served

	// The fields below are memory that the next unit reuses.
	path   path
	places layoutWriter
	last   *lastTexts
}

// placed is the position of a unit in a file, with the ranges of its documents and problems in the slices of the File.
type placed struct {
	key                 unitKey
	line                int32 // where the text starts in the file, from 1
	document, documents int32 // index of the first document in File.Documents, and the number of documents
	problem, problems   int32
	count               int32 // see unit.count
}

// unitKey identifies the text of a unit: two hashes with random seeds, and the column where it begins.
type unitKey struct {
	hashes [2]uint64
	column int
}

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// Decode decodes a file. path is used in messages. If its extension is .json, the text is JSON. Otherwise it is YAML, but a text that begins with {
// is first tried as JSON. data is not kept. Decode always returns a File, with the problems in it.
func Decode(path string, data []byte, limits Limits) *File {
	return (&File{Path: path}).Update(data, limits)
}

// Update decodes a new content of the same file. Documents with unchanged text keep their Object.
func (f *File) Update(data []byte, limits Limits) *File {
	limits = limits.orDefaults()
	f = f.Opened()
	w := workspaces.Get().(*workspace)
	defer w.free()
	r := &reading{path: f.Path, limits: limits, workspace: w}
	handle := unique.Make(limits)
	if f.limits == handle {
		r.old = f
	}
	if err := r.read(data); err != nil {
		return &File{Path: f.Path, Err: &Problem{File: f.Path, Line: err.line, Column: err.column,
			Reason: err.reason, Message: err.message}}
	}
	// Files are kept for long: what they hold is no longer than it needs to be.
	return &File{Path: f.Path, Documents: slices.Clone(r.documents), Problems: slices.Clone(r.problems), limits: handle, units: slices.Clone(r.units)}
}

// A reading is the state of decoding one text, such as in a call of Update.
type reading struct {
	path   string
	limits Limits
	old    *File // the previous content; nil when it was read under other limits
	next   int   // index of the unit of old that is expected next
	// apart is set if the text is only split into pieces and not decoded.
	apart  bool
	pieces []piece
	count  int // number of objects so far, including invalid ones and those of kinds that are not served

	*workspace
}

// A workspace is the reusable memory of a reading.
type workspace struct {
	yaml      yamlReader
	fresh     unit // the most recently decoded unit
	units     []placed
	documents []Document
	problems  []Problem
	// index maps the key of each unit to its position in units, and oldIndex to its position in the units of the old file. oldIndex is only filled
	// when a unit is not the one that comes next in the old file.
	index, oldIndex map[unitKey]int
}

// workspaces is a pool of workspaces, since most files are small and many of them are read at program start.
var workspaces = sync.Pool{New: func() any { return &workspace{index: map[unitKey]int{}, oldIndex: map[unitKey]int{}} }}

// largeWorkspace is the number of nodes or units above which a workspace is not reused.
const largeWorkspace = 20_000

// free returns a workspace to the pool, unless it is large. It keeps no references to decoded objects.
func (w *workspace) free() {
	if len(w.yaml.nodes.nodes.values) > largeWorkspace || len(w.units) > largeWorkspace {
		return
	}
	w.clear()
	clear(w.fresh.documents)
	clear(w.fresh.problems)
	w.yaml.text = ""
	workspaces.Put(w)
}

// clear drops what was decoded.
func (w *workspace) clear() {
	clear(w.documents)
	clear(w.problems)
	clear(w.index)
	clear(w.oldIndex)
	w.units, w.documents, w.problems = w.units[:0], w.documents[:0], w.problems[:0]
}

func (r *reading) read(data []byte) *refusal {
	if len(data) > r.limits.Bytes {
		return refuse(0, 0, ReasonLimit, "the file has %d bytes, more than the limit of %d; split it", len(data), r.limits.Bytes)
	}
	data, err := checkText(data)
	if err != nil {
		return err
	}
	if strings.EqualFold(filepath.Ext(r.path), ".json") {
		return r.readJSON(data)
	}
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		// JSON in a YAML file, as kubectl guesses it. What fails may still be YAML in
		// flow style, or JSON documents between YAML's separators.
		if err := r.readJSON(data); err == nil || err.reason == ReasonLimit {
			return err
		}
		r.clear()
		*r = reading{path: r.path, limits: r.limits, old: r.old, apart: r.apart, workspace: r.workspace}
	}
	return r.readYAML(data)
}

// A parsed is one document as a tree of nodes.
type parsed struct {
	root  *node
	flaws []flaw
}

// parse parses the text of a unit, which begins at a column. The result is valid until the next call.
func (r *reading) parse(text []byte, column int, isJSON bool) ([]parsed, *refusal) {
	if isJSON {
		return parseJSON(text, column, r.limits)
	}
	return r.parseYAML(text)
}

// add appends the documents of a unit that begins at line and column. It decodes the
// text unless the same text was decoded before.
func (r *reading) add(text []byte, line, column int, isJSON bool, as implied) *refusal {
	if len(text) > maxDocumentBytes {
		return refuse(line, column, ReasonLimit, "a document of %d bytes, more than the limit of %d; split it", len(text), maxDocumentBytes)
	}
	if r.apart {
		r.pieces = append(r.pieces, piece{text, line, column, isJSON, as})
		return nil
	}
	key := unitKey{[2]uint64{maphash.Bytes(seeds[0], text), maphash.Bytes(seeds[1], text)}, column}
	documents, problems, at, known := r.known(key)
	if !known {
		docs, err := r.parse(text, column, isJSON)
		if err != nil {
			err.line += line - 1
			return err
		}
		u := &r.fresh
		*u = unit{documents: u.documents[:0], problems: u.problems[:0], path: u.path, places: u.places, last: u.last}
		for _, doc := range docs {
			u.decode(r.path, doc, as)
		}
		documents, problems, at = u.documents, u.problems, placed{line: 1, count: int32(u.count)}
	}
	below := line - int(at.line)
	r.index[key] = len(r.units)
	r.units = append(r.units, placed{
		key: key, line: int32(line), count: at.count,
		document: int32(len(r.documents)), documents: int32(len(documents)),
		problem: int32(len(r.problems)), problems: int32(len(problems)),
	})
	r.count += int(at.count)
	if r.count > r.limits.Documents {
		return refuse(line, column, ReasonLimit, "more than %d documents; split the file", r.limits.Documents)
	}
	for _, d := range documents {
		d.Line += below
		r.documents = append(r.documents, d)
	}
	for _, p := range problems {
		if p.Line > 0 {
			p.Line += below
		}
		r.problems = append(r.problems, p)
	}
	return nil
}

// known returns the unit with the same text, if this file or its previous content has one.
func (r *reading) known(key unitKey) ([]Document, []Problem, placed, bool) {
	if i, ok := r.index[key]; ok {
		at := r.units[i]
		return at.documentsIn(r.documents), at.problemsIn(r.problems), at, true
	}
	if r.old == nil {
		return nil, nil, placed{}, false
	}
	at, ok := r.oldUnit(key)
	return at.documentsIn(r.old.Documents), at.problemsIn(r.old.Problems), at, ok
}

// oldUnit returns the unit of the previous content with a key. It first tries the unit that comes next in order.
func (r *reading) oldUnit(key unitKey) (placed, bool) {
	units := r.old.units
	i, ok := r.next, r.next < len(units) && units[r.next].key == key
	if !ok {
		if len(r.oldIndex) == 0 {
			for i := range units {
				r.oldIndex[units[i].key] = i
			}
		}
		i, ok = r.oldIndex[key]
	}
	if !ok {
		r.next++ // it may have taken the place of one
		return placed{}, false
	}
	r.next = i + 1
	return units[i], true
}

func (p placed) documentsIn(all []Document) []Document {
	return all[p.document : p.document+p.documents]
}

func (p placed) problemsIn(all []Problem) []Problem { return all[p.problem : p.problem+p.problems] }

// Renamed returns the same content as a file at another path.
func (f *File) Renamed(path string) *File {
	r := *f.Opened()
	r.Path, r.Hash = path, f.Hash
	if f.Err != nil {
		problem := *f.Err
		problem.File = path
		r.Err = &problem
	}
	r.Problems = slices.Clone(r.Problems)
	for i := range r.Problems {
		r.Problems[i].File = path
	}
	return &r
}

// Limits bound the memory and time for decoding one file. A zero field has its default.
type Limits struct {
	// Bytes is the maximum size of a file, in bytes.
	Bytes int
	// Documents is the maximum number of documents in a file, including items of Lists.
	Documents int
	// Depth is the maximum nesting depth of mappings and lists.
	Depth int
	// Keys is the maximum number of keys in one mapping.
	Keys int
	// Nodes is the maximum number of scalars, mappings and lists in one document. An item of a List in JSON counts as a document.
	Nodes int
	// Aliases is the most nodes that the aliases and merge keys of one document add.
	Aliases int
}

// The defaults of Limits. 50,000 objects of 600 bytes are 30 MB; the deepest path of a
// served kind has 7 levels; the largest object that Kubernetes allows, an EndpointSlice
// of 1,000 endpoints with every field set, has some 30,000 nodes. A parsed YAML node
// costs some 250 bytes and 0.4 µs, so the largest document that is parsed only to be
// refused costs about 50 MB and 100 ms.
const (
	defaultBytes     = 64 << 20
	defaultDocuments = 100_000
	defaultDepth     = 64
	defaultKeys      = 10_000
	defaultNodes     = 200_000
	defaultAliases   = 10_000
)

// maxDocumentBytes is the maximum length of one YAML document, JSON value or item of a List in JSON, in bytes. It exceeds the 1.5 MiB above which
// etcd, and therefore Kubernetes, refuses an object. Parsing takes 8 times the length in memory.
const maxDocumentBytes = 8 << 20

// DefaultLimits returns the default Limits: 64 MiB, 100,000 documents, depth 64, 10,000 keys per mapping, 200,000 nodes per document and 10,000 nodes
// added by aliases.
func DefaultLimits() Limits { return Limits{}.orDefaults() }

func (l Limits) orDefaults() Limits {
	or := func(n, value int) int { return cmp.Or(max(n, 0), value) }
	return Limits{
		Bytes: or(l.Bytes, defaultBytes), Documents: or(l.Documents, defaultDocuments), Depth: or(l.Depth, defaultDepth),
		Keys: or(l.Keys, defaultKeys), Nodes: or(l.Nodes, defaultNodes), Aliases: or(l.Aliases, defaultAliases),
	}
}

// Files is an immutable list of files sorted by path, with each path at most once. It consists of chunks: Updated shares unchanged chunks with the
// previous list, and Changes skips shared chunks.
type Files struct{ chunks []chunk }

// chunk is a part of the list, with 1 to chunkMost files.
type chunk []*File

const chunkMost = 256

// FilesOf returns the files of a map that has their paths as keys.
func FilesOf(files map[string]*File) Files { return Files{}.Updated(files) }

// Updated returns a copy of the list in which the files in with, which has paths as keys, are replaced or added. A nil file removes the path.
func (f Files) Updated(with map[string]*File) (next Files) {
	next.chunks = slices.Clone(f.chunks)
	for paths := slices.Sorted(maps.Keys(with)); len(paths) > 0; {
		if len(next.chunks) == 0 {
			next.chunks = []chunk{nil}
		}
		i, first := slices.BinarySearchFunc(next.chunks[1:], paths[0], func(c chunk, path string) int { return strings.Compare(c[0].Path, path) })
		if first {
			i++
		}
		old, to := next.chunks[i], len(paths)
		if i+1 < len(next.chunks) {
			to, _ = slices.BinarySearch(paths, next.chunks[i+1][0].Path)
		}
		merged := make(chunk, 0, len(old)+to)
		for _, path := range paths[:to] {
			n, there := old.find(path)
			if merged = append(merged, old[:n]...); with[path] != nil {
				merged = append(merged, with[path])
			}
			if old = old[n:]; there {
				old = old[1:]
			}
		}
		merged, paths = append(merged, old...), paths[to:]
		pieces := len(merged)/chunkMost + 1
		next.chunks = slices.Replace(next.chunks, i, i+1, slices.Collect(slices.Chunk(merged, len(merged)/pieces+1))...)
	}
	return next
}

// find returns the index of the file at a path, or the index at which it would be inserted. found reports whether it is present.
func (c chunk) find(path string) (i int, found bool) {
	return slices.BinarySearchFunc(c, path, func(file *File, path string) int { return strings.Compare(file.Path, path) })
}

// All iterates over the files, sorted by path.
func (f Files) All() iter.Seq[*File] {
	return func(yield func(*File) bool) {
		for _, c := range f.chunks {
			for _, file := range c {
				if !yield(file) {
					return
				}
			}
		}
	}
}

// Get returns the file at a path; nil when there is none.
func (f Files) Get(path string) *File {
	n, _ := slices.BinarySearchFunc(f.chunks, path, func(c chunk, path string) int { return strings.Compare(c[len(c)-1].Path, path) })
	if n < len(f.chunks) {
		if i, found := f.chunks[n].find(path); found {
			return f.chunks[n][i]
		}
	}
	return nil
}

// Changes calls each, in the order of paths, for every path whose file differs between the list before and f. The first argument of each is the file
// in before, the second the file in f. Either is nil if that list has no file at the path.
func (f Files) Changes(before Files, each func(was, is *File)) {
	is, was := f.chunks, before.chunks
	same := func(a, b chunk) bool { return len(a) == len(b) && &a[0] == &b[0] }
	for len(is) > 0 && len(was) > 0 && same(is[0], was[0]) {
		is, was = is[1:], was[1:]
	}
	for len(is) > 0 && len(was) > 0 && same(is[len(is)-1], was[len(was)-1]) {
		is, was = is[:len(is)-1], was[:len(was)-1]
	}
	for before, now := (Files{was}).flat(), (Files{is}).flat(); len(before)+len(now) > 0; {
		switch {
		case len(now) == 0 || len(before) > 0 && before[0].Path < now[0].Path:
			each(before[0], nil)
			before = before[1:]
		case len(before) == 0 || now[0].Path < before[0].Path:
			each(nil, now[0])
			now = now[1:]
		default:
			if before[0] != now[0] {
				each(before[0], now[0])
			}
			before, now = before[1:], now[1:]
		}
	}
}

// flat returns all files of the list as one chunk.
func (f Files) flat() chunk {
	if len(f.chunks) == 1 {
		return f.chunks[0]
	}
	return slices.Concat(f.chunks...)
}

// Copies decodes the stored copies of files.
type Copies interface {
	// Copy decodes the copy of the file at a path. It returns nil if there is no readable copy.
	Copy(path string) *File
}

// A seal holds the object names of a File that is not decoded yet, and the Copies from which it can be decoded.
type seal struct {
	names  []object.Ref
	copies Copies
	once   sync.Once
	opened *File
}

// Sealed returns a File without problems that is decoded from copies when its documents are first requested. names has the name of the object in each
// document.
func Sealed(path string, hash Hash, names []object.Ref, copies Copies) *File {
	return &File{Path: path, Hash: hash, seal: &seal{names: names, copies: copies}}
}

// Names returns the names of the objects in a sealed File, in the order of the text. ok is false if the File is not sealed,
// or nil.
func (f *File) Names() (names []object.Ref, ok bool) {
	if f == nil || f.seal == nil {
		return nil, false
	}
	return f.seal.names, true
}

// HasObjects reports whether some document was decoded to an object. A nil File has none.
func (f *File) HasObjects() bool {
	return f != nil && (len(f.Documents) > 0 || f.seal != nil && len(f.seal.names) > 0)
}

// Opened returns the File in decoded form. If the copy of a sealed File cannot be read, the result has no documents.
func (f *File) Opened() *File {
	if f.seal == nil {
		return f
	}
	f.seal.once.Do(func() {
		f.seal.opened = &File{Path: f.Path}
		if read := f.seal.copies.Copy(f.Path); read != nil && read.Hash == f.Hash {
			f.seal.opened = read
		}
	})
	return f.seal.opened
}

// Document returns the document at an index; nil if there is none, or the copy cannot be read.
func (f *File) Document(i int) *Document {
	if docs := f.Opened().Documents; i >= 0 && i < len(docs) {
		return &docs[i]
	}
	return nil
}

// Declares reports whether the File may have a document for an object. For a File that is not sealed, it always returns true. A name without a
// namespace matches any namespace.
func (f *File) Declares(ref object.Ref) bool {
	names, sealed := f.Names()
	return !sealed || slices.ContainsFunc(names, func(name object.Ref) bool {
		return name.Kind == ref.Kind && name.Name == ref.Name && (name.Namespace == "" || name.Namespace == ref.Namespace)
	})
}
