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

// An export consists of lines of JSON: an ExportHeader, an exportedPair for each pair of the engine, and an exportEnd. Lines with objects can be read
// with jq; the other pairs are only meant for Import.
const (
	exportFormat  = "svcctl export"
	exportVersion = 1
	// maxExportLine is the maximum length of a line, in bytes. The longest lines hold the copy of a file, which has up to 64 MiB and is encoded in
	// base64.
	maxExportLine = 128 << 20
)

// ExportHeader is the first line of an export.
type ExportHeader struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Program string    `json:"program"` // the version of svcctl that wrote the export
	Time    time.Time `json:"time"`
	// Revision is the revision of the store. Pairs and Objects are the numbers of pairs and of objects in the export.
	Revision uint64 `json:"revision"`
	Pairs    int    `json:"pairs"`
	Objects  int    `json:"objects"`
}

// exportedPair is the line with one pair. A JSON value is included as JSON, any other value in base64.
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

// Export writes the whole content of the store at one point in time: objects with their owners, UIDs and allocations, copies of files, the journal,
// and a trial that is under way. Writes to the store do not wait for w. Keys and certificates of the API are not in the store, and so not in the
// export.
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

// isCompact reports whether a value is JSON in the form that the encoder writes.
func isCompact(value []byte) bool {
	var b bytes.Buffer
	return json.Compact(&b, value) == nil && bytes.Equal(b.Bytes(), value)
}

// everything returns all pairs to be exported, and the revision of the head. The objects may include a
// concurrent commit of another machine that the journal does not have yet.
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

// isExported reports whether an export includes the pair of a key. It excludes seals, which only save a start some work,
// reservations, which depend on the kernel, and the engine's own records.
func isExported(key string) bool {
	return key == headKey || slices.ContainsFunc([]string{record.ObjectPrefix, filePrefix, journalPrefix, pending.Timed.Prefix()}, func(prefix string) bool {
		return strings.HasPrefix(key, prefix)
	})
}

// ErrNotEmpty means that an export cannot be restored, because there are objects already.
var ErrNotEmpty = errors.New("the data directory has Services or endpoints already")

// Import replaces the content of an engine by that of an export, in one transaction. It refuses an export that is
// truncated, was changed, or has a newer version, and writes nothing then. If the engine has objects, the error is
// ErrNotEmpty unless replace is set.
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
		ref, _ := record.RefOfKey(pair.Key)
		if !replace && slices.Contains([]string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod}, ref.Kind) { // the dataplane depends on it
			return header, ErrNotEmpty
		}
		if !come[pair.Key] {
			t.Deletes = append(t.Deletes, pair.Key)
		}
	}
	return header, e.Commit(t)
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

// add adds a line and its line feed to a checksum.
func add(sum hash.Hash, line []byte) {
	sum.Write(line)
	sum.Write([]byte("\n"))
}

// readPair decodes one line, and checks that the store can read the pair.
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

// ForRestore returns the value that the record of a source or a trial gets in a fleet when the objects of a data directory replace those of the
// fleet. value is the record in the directory, and the parameter now is the record in the fleet; each is nil if there is none. A nil result deletes
// the record. A source takes the file generation from the directory, and its reader from the fleet. The directory's trial replaces that of the fleet,
// and its full time limit starts again.
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

// restoreSource returns the fleet's record of a source with the file generation of the restored one.
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

// KnowsKey reports whether this program can read the kind of data that is stored under a key of the engine.
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

// IsSecretKey reports whether a key of the engine is that of a Secret, or of the version that a Secret had before a trial
// or a rollout. A fleet stores such values encrypted.
func IsSecretKey(key string) bool {
	return strings.HasPrefix(pending.ObjectOfKey(key), record.ObjectPrefix+object.KindSecret+"/")
}

// ForShared converts the stored object of a single box for a fleet. It returns nil for an object that the fleet does not get: the Node of the box,
// which nodeOwner owns. named maps the path of a file to the source that becomes the owner of its objects; for "" the owner is the API.
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

// These are the errors of Store.Fork.
var (
	// ErrForkTimed means that no fork can be made, because a trial of files is under way, or files are held back after a trial was undone.
	ErrForkTimed = errors.New("a trial of files is under way, or what one has tried is held: `svcctl confirm`, or take it back, first")
	// ErrForkReserved means that no fork can be made, because addresses or ports are reserved for frontends that the kernel still serves but no
	// object declares.
	ErrForkReserved = errors.New("the kernel serves what no object declares, and its addresses are reserved: see `svcctl confirm --removals`")
)

// Fork returns a copy of the store in memory, on which changes can be tried, and the revision that was copied: objects with their owners,
// values and ages, and the declarations of files. The objects are shared, the indexes are copied. Nothing is written to disk. The copy uses
// the current snapshot of the host. In a fleet it includes all commits of other boxes that have arrived.
func (s *Store) Fork() (fork *Store, revision uint64, err error) {
	defer s.look()()
	switch head, isTimed := s.PendingHead(pending.Timed); {
	case s.reserves:
		return nil, 0, ErrForkReserved
	case isTimed && (head.Files || head.Back != nil):
		return nil, 0, ErrForkTimed
	}
	memory, revision := engine.NewMemory(), s.feed.revision
	if err := memory.Commit(engine.Transaction{CompareKey: headKey, Puts: []engine.Pair{{Key: headKey, Revision: revision}}}); err != nil {
		return nil, 0, err
	}
	var in engine.Engine = memory
	if s.storage.shared != nil {
		of := forked{Alone: engine.Alone{Memory: memory}, of: s.storage.shared}
		for name := range s.sources.reading {
			r := s.sources.records[name]
			of.turns = append(of.turns, SourceTurn{name, r.Reader, r.Instance, r.Generation})
		}
		in = of
	}
	cfg := s.cfg
	cfg.Program = "" // it seals nothing
	fork, err = open(in, cfg, func(fork *Store) ([]*record.Record, error) {
		s.copyTo(fork)
		for v, owner := range s.allocator.all {
			if s.table.records[object.ServiceRef(owner)] == nil {
				continue // of a trial or a rollout
			}
			request, _ := s.allocator.requestOf(v, owner)
			if err := fork.allocator.hold(v, request); err != nil {
				return nil, fmt.Errorf("hold what Service %s has: %w", owner, err)
			}
		}
		fork.allocator.begin()
		return nil, nil
	})
	if err == nil {
		fork.SetHost(s.hostNow())
	}
	return fork, revision, err
}

// SyncFork applies files to a fork like SyncGuarded. In a fleet it applies only the sources that this machine reads.
func (s *Store) SyncFork(files manifest.Files, guard RemovalGuard) error {
	if f, shared := s.storage.engine.(forked); shared {
		return s.SyncSources(files, f.turns, guard)
	}
	_, err := s.SyncGuarded(files, guard)
	return err
}

// ForkReads returns the machine that reads a source, and whether that is the machine of the fork.
func (s *Store) ForkReads(source string) (reader string, here bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sources.records[source].Reader, s.sources.reading[source]
}

// forked is the engine of a fork whose original store belongs to a fleet.
type forked struct {
	engine.Alone
	of    engine.Shared
	turns []SourceTurn // the turns (read permissions) of the sources that this machine reads
}

// Sealing returns the reason why secret pairs cannot be committed to the fleet, nil if they can. Sealing, Tries (trials) and Rolls (rollouts) ask the
// engine of the original store, so that a fork refuses what the fleet would refuse. All other methods are those of engine.Alone.
func (f forked) Sealing() error { return f.of.Sealing() }
func (f forked) Tries() error   { return f.of.Tries() }
func (f forked) Rolls() error   { return f.of.Rolls() }

// copyTo copies the state to a fork, without stored pairs and the values that are held in the allocator.
func (s *Store) copyTo(fork *Store) {
	d, o, of := s.declared, s.outcomes, s.sources
	d.byObject, d.duplicates, d.troubled, d.held, d.undeclared = maps.Clone(d.byObject), maps.Clone(d.duplicates), maps.Clone(d.troubled), maps.Clone(d.held), index.CloneMaps(d.undeclared)
	fork.outcomes = outcomes{maps.Clone(o.notes), maps.Clone(o.waiting)}
	fork.sources = sources{maps.Clone(of.records), maps.Clone(of.files), index.CloneMaps(of.of), maps.Clone(of.reading), of.changed, maps.Clone(of.stale)}
	fork.table, fork.declared, fork.allocator.vanished, fork.numbers.newest = s.table.clone(), d, d.held, s.numbers.newest
	for k, set := range s.pending.sets {
		fork.pending.sets[k] = set.Clone()
	}
}

// SeeAs sets the host snapshot of the store to the current one of another store.
func (s *Store) SeeAs(other *Store) { s.SetHost(other.hostNow()) }

// Files returns the files that were read last.
func (s *Store) Files() manifest.Files {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.declared.files
}

// Owned is an object with its owner.
type Owned = record.Record

// Track starts to record the changes that Tracked returns.
func (s *Store) Track() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.before = map[object.Ref]*Owned{}
}

// Tracked returns the objects that were set or removed since the call of Track. The first element is the object as of that call (nil if absent), the
// second is the object as it is now (nil if removed). The second may be packed, see Selected.
func (s *Store) Tracked() map[object.Ref][2]*Owned {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[object.Ref][2]*Owned, len(s.table.before))
	for ref, before := range s.table.before {
		all[ref] = [2]*Owned{before, s.table.records[ref]}
	}
	return all
}

// Held returns the objects that no file declares any more but that are not removed until the user decides, each with the pending Decision.
func (s *Store) Held() map[object.Ref]Decision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.declared.held)
}
