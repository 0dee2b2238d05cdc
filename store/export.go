package store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// An export is lines of JSON: an ExportHeader, one exportedPair for each pair of the engine, and an
// exportEnd. Objects are readable in it (jq); all else is for Import.
const (
	exportFormat  = "svcctl export"
	exportVersion = 1
	// maxExportLine bounds one line, in bytes: the largest file that is taken is 64 MiB at most, in base64.
	maxExportLine = 128 << 20
)

// ExportHeader is the first line of an export.
type ExportHeader struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Program string    `json:"program"` // the version of svcctl that made it
	Time    time.Time `json:"time"`
	// Revision is the store's revision; Pairs and Objects count what follows.
	Revision uint64 `json:"revision"`
	Pairs    int    `json:"pairs"`
	Objects  int    `json:"objects"`
}

// exportedPair is a pair, its value as JSON where it is some, else as base64.
type exportedPair struct {
	Key      string          `json:"key"`
	Revision uint64          `json:"revision"`
	JSON     json.RawMessage `json:"json,omitempty"`
	Data     []byte          `json:"data,omitempty"`
}

// exportEnd is the last line, with the SHA-256 of all before it.
type exportEnd struct {
	SHA256 string `json:"sha256"`
}

// Export writes everything that is stored, as of one moment: objects with their owners, uids and allocations, the copies of
// files, the journal, and a trial that is under way. Writers do not wait for w. Keys and certificates of the API are not in the
// store, and so not in the export.
func (s *Store) Export(w io.Writer, program string) error {
	pairs, revision, err := s.everything()
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	header := ExportHeader{Format: exportFormat, Version: exportVersion, Program: program, Time: s.now(), Revision: revision, Pairs: len(pairs)}
	for _, pair := range pairs {
		if strings.HasPrefix(pair.Key, record.ObjectPrefix) {
			header.Objects++
		}
	}
	buffered := bufio.NewWriter(w)
	sum := sha256.New()
	lines := json.NewEncoder(io.MultiWriter(buffered, sum))
	lines.SetEscapeHTML(false)
	if err := lines.Encode(header); err != nil {
		return err
	}
	for _, pair := range pairs {
		line := exportedPair{Key: pair.Key, Revision: pair.Revision}
		if strings.HasPrefix(pair.Key, record.ObjectPrefix) && isCompact(pair.Value) {
			line.JSON = pair.Value
		} else {
			line.Data = pair.Value
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(buffered).Encode(exportEnd{hex.EncodeToString(sum.Sum(nil))}); err != nil {
		return err
	}
	return buffered.Flush()
}

// isCompact reports whether a value is JSON that comes out of the encoder as it is.
func isCompact(value []byte) bool {
	var b bytes.Buffer
	return json.Compact(&b, value) == nil && bytes.Equal(b.Bytes(), value)
}

// everything returns all pairs that an export keeps, and the revision of the head. A concurrent commit of
// another machine may be among the objects, and not in the journal yet.
func (s *Store) everything() ([]engine.Pair, uint64, error) {
	defer s.look()()
	if err := s.flush(); err != nil {
		return nil, 0, err
	}
	all, err := s.storage.engine.Load("")
	if err != nil {
		return nil, 0, err
	}
	pairs, revision := all[:0], s.feed.revision
	for _, pair := range all {
		if !isExported(pair.Key) {
			continue
		}
		if pair.Key == headKey {
			revision = pair.Revision
		}
		pairs = append(pairs, pair)
	}
	return pairs, revision, nil
}

// isExported reports whether an export has the record of a key. Seals only spare a start some work, reservations depend
// on the kernel, and an engine's own records are of no use to another one.
func isExported(key string) bool {
	return key == headKey || slices.ContainsFunc([]string{record.ObjectPrefix, filePrefix, journalPrefix, pending.Timed.Prefix()}, func(prefix string) bool {
		return strings.HasPrefix(key, prefix)
	})
}

// ErrNotEmpty means that an export cannot be restored, because there are objects already.
var ErrNotEmpty = errors.New("the data directory has Services or endpoints already")

// Import makes the content of an engine that of an export, in one transaction. An export that is cut short, was
// changed, or is of a newer version is refused, and nothing is written then. Objects that are there are
// replaced only if replace is set; else the error is ErrNotEmpty.
func Import(e engine.Engine, r io.Reader, replace bool) (ExportHeader, error) {
	header, pairs, err := readExport(r)
	if err != nil {
		return header, err
	}
	have, err := e.Load("")
	if err != nil {
		return header, err
	}
	t := engine.Transaction{CompareKey: headKey, Puts: pairs}
	come := make(map[string]bool, len(pairs))
	for _, pair := range pairs {
		come[pair.Key] = true
	}
	for _, pair := range have {
		if pair.Key == headKey {
			t.CompareRevision = pair.Revision
		}
		if isServed(pair.Key) && !replace {
			return header, ErrNotEmpty
		}
		if !come[pair.Key] {
			t.Deletes = append(t.Deletes, pair.Key)
		}
	}
	return header, e.Commit(t)
}

// isServed reports whether a key is of an object that traffic may depend on.
func isServed(key string) bool {
	ref, _ := record.RefOfKey(key)
	return slices.Contains([]string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod}, ref.Kind)
}

// readExport reads and checks an export.
func readExport(r io.Reader) (header ExportHeader, pairs []engine.Pair, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxExportLine)
	sum := sha256.New()
	number := 0
	next := func() ([]byte, error) {
		number++
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			return nil, fmt.Errorf("line %d: it ends here and is cut short", number)
		}
		return lines.Bytes(), nil
	}
	line, err := next()
	if err != nil {
		return header, nil, err
	}
	if json.Unmarshal(line, &header) != nil || header.Format != exportFormat {
		return header, nil, fmt.Errorf("line 1: this is no export of svcctl: make one with `svcctl admin export`")
	}
	if header.Version != exportVersion {
		return header, nil, fmt.Errorf("line 1: the export is of version %d, and this program reads version %d: restore with the svcctl that made it (%s)", header.Version, exportVersion, header.Program)
	}
	add(sum, line)
	for range header.Pairs {
		if line, err = next(); err != nil {
			return header, nil, err
		}
		pair, err := readPair(line)
		if err != nil {
			return header, nil, fmt.Errorf("line %d: %w", number, err)
		}
		add(sum, line)
		pairs = append(pairs, pair)
	}
	if line, err = next(); err != nil {
		return header, nil, err
	}
	var end exportEnd
	if json.Unmarshal(line, &end) != nil || end.SHA256 != hex.EncodeToString(sum.Sum(nil)) {
		return header, nil, fmt.Errorf("line %d: the checksum is not that of the lines before: the export was changed or damaged", number)
	}
	if lines.Scan() {
		return header, nil, fmt.Errorf("line %d: something follows the end of the export", number+1)
	}
	return header, pairs, nil
}

// add adds a line to a checksum.
func add(sum hash.Hash, line []byte) {
	sum.Write(line)
	sum.Write([]byte("\n"))
}

// readPair reads one pair, and checks that the store will be able to.
func readPair(line []byte) (engine.Pair, error) {
	var p exportedPair
	if err := json.Unmarshal(line, &p); err != nil {
		return engine.Pair{}, err
	}
	pair := engine.Pair{Key: p.Key, Revision: p.Revision, Value: p.Data}
	if p.JSON != nil {
		pair.Value = p.JSON
	}
	if !isExported(p.Key) {
		return pair, fmt.Errorf("%q is not the key of anything that this program stores", p.Key)
	}
	if strings.HasPrefix(p.Key, record.ObjectPrefix) {
		if _, err := record.Decode(pair); err != nil {
			return pair, err
		}
	}
	return pair, nil
}

// ForRestore returns the stored record of a source or a trial after the objects of a data directory have taken the place of
// those of a fleet. value is the directory's, nil for none, and now the fleet's, nil for none; nil: there is none afterwards.
//
// Sources have the files of the directory, as its objects have, and the reader of the fleet. Of trials the directory's
// is under way, with its whole time from now on.
func ForRestore(key string, value, now []byte, nodeOwner string, named func(path string) string) ([]byte, error) {
	switch {
	case key == pending.Timed.HeadKey():
		return restoreTimed(value)
	case strings.HasPrefix(key, pending.Timed.FilePrefix()):
		return nil, nil // of a trial of files, which its head refuses
	case strings.HasPrefix(key, pending.Timed.Prefix()):
		if len(value) == 0 || engine.IsSealed(value) {
			return value, nil
		}
		return ForShared(pending.ObjectOfKey(key), value, nodeOwner, named)
	case isSourceKey(key) && !strings.Contains(strings.TrimPrefix(key, sourcePrefix), "/"):
		return restoreSource(value, now)
	}
	return value, nil
}

// restoreSource returns the record of a source.
func restoreSource(value, now []byte) ([]byte, error) {
	if now == nil {
		return value, nil
	}
	var restored, current Source
	err := json.Unmarshal(now, &current)
	if err == nil && value != nil {
		err = json.Unmarshal(value, &restored)
	}
	if err != nil {
		return nil, fmt.Errorf("read the stored source: %w", err)
	}
	current.Generation = restored.Generation
	return json.Marshal(&current)
}

// KnowsKey reports whether a key of the engine is of a kind that this program can read.
func KnowsKey(key string) bool {
	key = pending.ObjectOfKey(key)
	rest, isObject := strings.CutPrefix(key, record.ObjectPrefix)
	if !isObject {
		return true
	}
	kind, _, _ := strings.Cut(rest, "/")
	_, known := record.New(kind)
	return known
}

// IsSecretKey reports whether a key of the engine is of an object that is secret, or of what it was before a trial or a
// rollout: a fleet has it sealed.
func IsSecretKey(key string) bool {
	return strings.HasPrefix(pending.ObjectOfKey(key), record.ObjectPrefix+object.KindSecret+"/")
}

// ForShared returns a stored object of a single box as a fleet keeps it, nil if it does not. What files declared
// becomes the source's that named gives for the path of the file, and the API's when that is none (""); the Node that the
// box made of itself stays behind.
func ForShared(key string, value []byte, nodeOwner string, named func(path string) string) ([]byte, error) {
	r, err := record.Decode(engine.Pair{Key: key, Value: value})
	if err != nil {
		return nil, err
	}
	switch {
	case r.Owner.Controller == nodeOwner:
		return nil, nil
	case r.Owner.File == "" || SourceOf(r.Owner.File) != "":
		return value, nil
	}
	entry, _, err := (&record.Record{Object: r.Object, Owner: Owner{File: named(r.Owner.File)}, Created: r.Created, Asked: r.Asked}).Encode()
	if err != nil {
		return nil, err
	}
	return entry[engine.EntryHeader:], nil
}

// Errors of Fork.
var (
	// ErrForkTimed means that a trial of files is under way, or files are held since one went back.
	ErrForkTimed = errors.New("a trial of files is under way, or what one has tried is held: `svcctl confirm`, or take it back, first")
	// ErrForkReserved means that values are reserved for frontends that the kernel serves and no object declares.
	ErrForkReserved = errors.New("the kernel serves what no object declares, and its addresses are reserved: see `svcctl confirm --removals`")
)

// Fork returns a copy of the store in memory, for what would become of changes: objects with their owners, values and ages,
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

// Files returns the files that were read last.
func (s *Store) Files() manifest.Files {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.declared.files
}

// Owned is an object with its owner.
type Owned = record.Record

// Everything returns all objects as they are now, which may be packed (see Selected): two that are the same pointer are the same version.
func (s *Store) Everything() map[object.Ref]*Owned {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.table.records)
}

// Held returns the objects that no file has a document for any more and that are not removed (Decision).
func (s *Store) Held() map[object.Ref]Decision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.declared.held)
}
