package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/reread"
)

// SyncFiles makes the objects that belong to files equal to these files, in one commit. It only examines files that are not the same pointers as in
// the previous call, and objects that wait for values that were released. Documents that cannot be accepted do not affect the others; Problems
// reports them. The error is that of the commit: nothing has changed then, and the call may be repeated. The caller must not change the files
// afterwards.
func (s *Store) SyncFiles(files manifest.Files) (SyncResult, error) { return s.SyncGuarded(files, nil) }

// UnstoredError means that changes of files could not be committed, so that the objects stored before stay in force.
type UnstoredError struct {
	Files []string // paths of the files with such changes, sorted
	cause error
}

func (e *UnstoredError) Error() string { return "sync files: " + e.cause.Error() }
func (e *UnstoredError) Unwrap() error { return e.cause }

// SyncGuarded is SyncFiles with a guard that may hold removals; with a nil guard all objects that no file declares any more are removed.
func (s *Store) SyncGuarded(files manifest.Files, guard RemovalGuard) (result SyncResult, err error) {
	return decided(s, func() (SyncResult, error) { return s.syncFiles(files, guard, nil) })
}

// syncFiles makes one attempt of SyncGuarded. sourced has the changes of sources for the same commit, nil if the files belong to no source.
func (s *Store) syncFiles(files manifest.Files, guard RemovalGuard, sourced *sourcesUpdate) (SyncResult, error) {
	files, err := s.takeFiles(files)
	if err != nil {
		return SyncResult{}, fmt.Errorf("sync files: %w", err)
	}
	t := s.begin()
	t.sourced = sourced
	refs := slices.AppendSeq(t.readFiles(files), maps.Keys(s.sources.stale))
	if !s.declared.synced {
		refs = slices.AppendSeq(refs, maps.Keys(s.outcomes.waiting))
	}
	refs = slices.AppendSeq(refs, maps.Keys(s.declared.held))
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

// unstored returns the paths of the files that the changes of a transaction come from, sorted, each once.
func (t *transaction) unstored() (paths []string) {
	for _, c := range t.changes {
		if owner := c.ownerOf(); (c.next != nil || c.remove) && owner.File != "" {
			paths = append(paths, owner.File)
		}
	}
	return sortedOnce(paths)
}

// verbStatus is the journal's verb for a status that a controller writes to an object that it does not own.
const verbStatus = "status"

// Generate creates, replaces and deletes objects of a controller, all in one commit or not at all. Unchanged objects are not written, and objects to
// be deleted need not exist. The objects in statuses may have any owner. Only their status is stored, and only if the stored object still has the
// same resourceVersion; if it does not, the controller will compute the status again. Errors: *OwnedError if an object in puts or deletes has another
// owner; object.Errors if an object is invalid; else those of the engine.
func (s *Store) Generate(controller string, puts []object.Object, deletes []object.Ref, statuses ...object.Object) (result SyncResult, err error) {
	return decided(s, func() (SyncResult, error) { return s.generate(controller, puts, deletes, statuses) })
}

// generate makes one attempt of Generate.
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
		if old == nil || old.Object.GetMeta().ResourceVersion != o.GetMeta().ResourceVersion {
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
	// sealMost is the greatest number of documents in a file that is sealed: its first change after a start has to
	// decode all of them, some 20 us each.
	sealMost = 1_000
	// sealAtOnce is the number of seals that one commit writes, at most.
	sealAtOnce = 4_000
)

// Seal writes a seal for each file that can be sealed and is not sealed yet. It is called at the end of a start and when the process ends. So files
// that change in between have to be decoded after a crash. It returns the sealed files without decoded documents; they replace the decoded files to
// save memory.
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
	for file := range s.declared.files.All() {
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
		sealed = append(sealed, manifest.Sealed(file.Path, hash, names, l))
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

// sealable returns the hash of a file's stored copy, if that is in the engine and has no seal.
func (c *copies) sealable(path string) (hash manifest.Hash, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, has := c.written[path]
	return w.hash, has && !w.sealed
}

// settled reports whether all objects of a file are stored exactly as it declares them, without warnings,
// and returns their names and versions.
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

// LastGood stores the last valid content (copy) of each file, for use when the file cannot be read later, also after a restart. A copy is usually
// written in the next commit of objects, so that it needs no commit of its own. Large copies, and those shortly after others, wait for Flush; this
// keeps commits of objects small.
type LastGood struct{ s *Store }

// LastGood returns the storage for the last valid contents of files.
func (s *Store) LastGood() LastGood { return LastGood{s} }

// Load returns all stored files, by path: the content of each, or if it is sealed, the sealed file, which is not decoded.
func (l LastGood) Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error) {
	if contents, sealed, err = l.load(); err != nil {
		err = fmt.Errorf("load last good copies of files: %w", err)
	}
	return contents, sealed, err
}

func (l LastGood) load() (map[string][]byte, map[string]*manifest.File, error) {
	seals, err := l.loadSeals()
	if err != nil {
		return nil, nil, err
	}
	contents, sealed, written := map[string][]byte{}, make(map[string]*manifest.File, len(seals)), make(map[string]writtenCopy, len(seals))
	isOther := func(key string, sum engine.Sum) bool {
		path := strings.TrimPrefix(key, filePrefix)
		one, has := seals[path]
		if !has || one.sum != sum {
			return true // it is of another text
		}
		sealed[path], written[path] = one.file, writtenCopy{one.file.Hash, true}
		return false
	}
	err = l.s.storage.engine.Scan(filePrefix, isOther, func(pairs []engine.Pair) error {
		hashes := make([]manifest.Hash, len(pairs))
		parallel.Do(len(pairs), parallel.Share, func(i int) { hashes[i] = sha256.Sum256(pairs[i].Value) })
		for i, pair := range pairs {
			path := strings.TrimPrefix(pair.Key, filePrefix)
			contents[path], written[path] = slices.Clone(pair.Value), writtenCopy{hashes[i], false}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	c := &l.s.storage.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = written
	return contents, sealed, nil
}

// Put sets the stored copy of a file; nil removes it. It does not block: the content is durable
// after Flush at the latest. The caller must not change the content afterwards.
func (l LastGood) Put(path string, content []byte) {
	c := &l.s.storage.copies
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(path, fileCopy{content: content})
}

// Flush returns when all copies given to Put are durable, or with an error. Large amounts take
// several commits, since each needs memory for its whole content and delays commits of
// objects.
func (l LastGood) Flush() error {
	for more := true; more; {
		var err error
		if more, err = l.flushSome(); err != nil {
			return fmt.Errorf("keep copies of files: %w", err)
		}
	}
	return nil
}

func (l LastGood) flushSome() (more bool, err error) {
	s := l.s
	s.writer.state.Lock()
	defer s.writer.state.Unlock()
	return s.storage.copies.take(), s.write(engine.Transaction{}, s.feed.revision)
}

// A seal is stored in addition to the copy of a file. It records that this program, with these settings, accepted the objects of exactly this text
// without a warning, and the versions of the stored objects. So a start need not decode the file and compare its objects, which takes long on a box
// with many files. Only files with objects that depend on nothing else are sealed: those of at most sealMost documents, all of them EndpointSlices,
// or Services with no allocated values but cluster IPs.
type seal struct {
	By      string       `json:"by"` // see sealedBy
	Hash    []byte       `json:"hash"`
	Objects []object.Ref `json:"objects"` // names of the objects, in the order of the text
	// Copy is the engine.Sum of the stored copy of the file, a text with Hash. While the copy has this sum, it need not be read. Seals of older
	// programs lack it.
	Copy []byte `json:"copy,omitempty"`
	// Versions are the resourceVersions of the objects when the seal was written. An object that was stored again since may come from another text,
	// program or setting.
	Versions []string `json:"versions"`
}

// loadSeals returns the sealed files whose objects still have the recorded versions, with the Sums of their copies.
func (l LastGood) loadSeals() (map[string]sealedCopy, error) {
	by := l.s.sealedBy()
	if by == "" {
		return nil, nil
	}
	sealed := map[string]sealedCopy{}
	err := l.s.storage.engine.Scan(sealPrefix, nil, func(pairs []engine.Pair) error {
		files := make([]sealedCopy, len(pairs))
		parallel.Do(len(pairs), parallel.Share, func(i int) {
			pair, one := pairs[i], seal{}
			if !reread.Into(pair.Value, &one) {
				one = seal{}
				if json.Unmarshal(pair.Value, &one) != nil {
					return
				}
			}
			var hash manifest.Hash
			var sum engine.Sum
			if one.By != by || copy(hash[:], one.Hash) != len(hash) || copy(sum[:], one.Copy) != len(sum) || !l.s.areStored(&one) {
				return // another program judged it, or its objects were stored again
			}
			files[i] = sealedCopy{manifest.Sealed(strings.Clone(strings.TrimPrefix(pair.Key, sealPrefix)), hash, one.Objects, l), sum}
		})
		for _, f := range files {
			if f.file != nil {
				sealed[f.file.Path] = f
			}
		}
		return nil
	})
	return sealed, err
}

// sealedCopy is a sealed file, with the Sum that its copy had when it was sealed.
type sealedCopy struct {
	file *manifest.File
	sum  engine.Sum
}

// Copy implements manifest.Copies.
func (l LastGood) Copy(path string) *manifest.File {
	pairs, err := l.s.storage.engine.Load(filePrefix + path)
	if err != nil || len(pairs) == 0 || pairs[0].Key != filePrefix+path { // others may begin with its path
		return nil
	}
	f := manifest.Decode(path, pairs[0].Value, manifest.DefaultLimits())
	f.Hash = sha256.Sum256(pairs[0].Value)
	return f
}

// sealedBy returns a text that identifies the program and all settings that affect how documents are
// validated; "" if the program has no name, so that nothing is sealed.
func (s *Store) sealedBy() string {
	if s.cfg.Program == "" {
		return ""
	}
	c := &s.cfg
	text, err := json.Marshal([]any{c.Program, c.ClusterIPRanges, c.NodePorts, c.NodePortSpace, c.Pools, c.Objects, c.LegacyIPs, c.Pinned})
	if err != nil {
		return "" // a setting that JSON has no form for
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// areStored reports whether the objects of a seal still have the versions that it recorded.
func (s *Store) areStored(one *seal) bool {
	if len(one.Versions) != len(one.Objects) {
		return false
	}
	for i, name := range one.Objects {
		if o, _ := s.Get(refInFile(name)); o == nil || o.GetMeta().ResourceVersion != one.Versions[i] {
			return false
		}
	}
	return true
}

// copies has the copies of files that are stored or wait to be. It has a lock of its own, so
// that Put does not wait for a commit under way.
type copies struct {
	mu      sync.Mutex
	pending map[string]fileCopy // copies that wait for a commit, by path
	size    int                 // total size of the contents in pending, in bytes
	rode    time.Time           // when copies were last committed together with objects
	writing map[string]fileCopy // copies in the commit under way, by path
	// written has the copies in the engine; nil until they were loaded.
	written map[string]writtenCopy
}

// writtenCopy describes a copy that is in the engine.
type writtenCopy struct {
	hash   manifest.Hash
	sealed bool // the engine has its seal, too
}

// fileCopy is the copy of a file to be written.
type fileCopy struct {
	content []byte // nil means that the copy is removed
	hash    manifest.Hash
}

// wait reports whether any copies wait for a commit.
func (c *copies) wait() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) > 0
}

func (c *copies) put(path string, file fileCopy) {
	if c.pending == nil {
		c.pending = map[string]fileCopy{}
	}
	c.size += len(file.content) - len(c.pending[path].content)
	c.pending[path] = file
}

// take moves waiting copies, up to flushAtOnce bytes, to the next commit. It reports whether more are left.
func (c *copies) take() (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size <= flushAtOnce {
		c.writing, c.pending, c.size = c.pending, nil, 0
		return false
	}
	c.writing = map[string]fileCopy{}
	size := 0
	for _, path := range slices.Sorted(maps.Keys(c.pending)) { // neighbors share pages
		file := c.pending[path]
		if size += len(file.content); size > flushAtOnce && len(c.writing) > 0 {
			break
		}
		c.writing[path] = file
		c.size -= len(file.content)
		delete(c.pending, path)
	}
	return true
}

// addTo adds the copies of this commit to a transaction, except those that equal the ones in the engine. A commit of objects takes waiting copies
// along if they have at most rideAlong bytes, unless another one did so less than rideEvery ago.
func (c *copies) addTo(t *engine.Transaction, revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.writing == nil && len(c.pending) > 0 && c.size <= rideAlong && now.Sub(c.rode) >= rideEvery {
		c.writing, c.pending, c.size, c.rode = c.pending, nil, 0, now
	}
	for path, file := range c.writing {
		was, has := c.written[path]
		if file.content != nil {
			file.hash = sha256.Sum256(file.content)
		}
		switch {
		case has && file.hash == was.hash, !has && file.content == nil && c.written != nil:
			delete(c.writing, path)
		case file.content == nil:
			t.Deletes = append(t.Deletes, filePrefix+path, sealPrefix+path)
		default:
			c.writing[path] = file
			t.Puts = append(t.Puts, engine.Pair{Key: filePrefix + path, Value: file.content, Revision: revision})
		}
	}
}

// finish records the result of a commit with copies. After an error they wait for the next one, unless there
// is a newer copy of the same path.
func (c *copies) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for path, file := range c.writing {
			if _, newer := c.pending[path]; !newer {
				c.put(path, file)
			}
		}
		c.writing = nil
		return
	}
	for path, file := range c.writing {
		switch {
		case c.written == nil:
		case file.content == nil:
			delete(c.written, path)
		default:
			c.written[path] = writtenCopy{hash: file.hash}
		}
	}
	c.writing = nil
}

const (
	// rideAlong is the maximum total size, in bytes, of copies that are written in a commit of objects.
	rideAlong = 64 << 10
	// rideEvery is the minimum time between two commits of objects with copies. A copy has the content of a whole file, and is written with the
	// whole page of the engine that it is in.
	rideEvery = 500 * time.Millisecond
	// flushAtOnce bounds one commit that has only copies, in bytes.
	flushAtOnce = 4 << 20
)
