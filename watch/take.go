package watch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// load reads the last good contents that an earlier process has stored.
func (w *Watcher) load() error {
	contents, sealed, err := w.cfg.LastGood.Load()
	if err != nil {
		return fmt.Errorf("watch: load the last good contents: %w", err)
	}
	paths := slices.AppendSeq(slices.Collect(maps.Keys(contents)), maps.Keys(sealed))
	slices.Sort(paths)
	loaded := make([]*file, len(paths))
	parallel.Do(len(paths), 1, func(i int) {
		path := paths[i]
		s := w.tree.sourceOf(path)
		if s == nil {
			return
		}
		if good := sealed[path]; good != nil {
			loaded[i] = &file{path: path, source: s, hash: good.Hash, good: good}
			return
		}
		content := contents[path]
		f := &file{path: path, source: s, hash: sha256.Sum256(content)}
		if parsed := manifest.Decode(path, content, w.cfg.Limits); parsed.Err == nil {
			parsed.Hash = f.hash
			f.good = parsed
		} else {
			f.broken = parsed.Err
			w.log.Warn("last good content is no longer good", "problem", parsed.Err.String())
		}
		loaded[i] = f
	})
	for i, path := range paths {
		if loaded[i] == nil {
			w.saver.put(path, nil) // of a directory that is not watched any more
		} else {
			w.settling.files[path] = loaded[i]
			w.contents.note(loaded[i])
		}
	}
	return nil
}

// sealing is a request of TakeSealed. done is closed when a snapshot has the sealed files.
type sealing struct {
	files []*manifest.File
	done  chan struct{}
}

// TakeSealed replaces files by the given sealed ones with the same path and Hash, so that the watcher no longer holds their documents. It returns
// when a snapshot has the sealed files, even if nobody has received it.
func (w *Watcher) TakeSealed(ctx context.Context, files []*manifest.File) error {
	s := sealing{files, make(chan struct{})}
	return await(ctx, w.sealings, s, s.done)
}

// takeSealed handles a request of TakeSealed in the loop.
func (w *Watcher) takeSealed(s sealing) {
	for _, sealed := range s.files {
		if f := w.settling.files[sealed.Path]; f != nil && f.good != nil && f.good.Hash == sealed.Hash {
			f.good = sealed
			w.contents.note(f)
			w.out.changed = true
		}
	}
	w.asked = append(w.asked, request{done: s.done})
}

// settle reads the changed files that have settled.
func (w *Watcher) settle(now time.Time) {
	var git map[*source]bool
	if len(w.settling.waiting) > 0 {
		git = w.gitSources(now)
	}
	ready := w.settling.ready(git, w.events.hints, now)
	w.dropLost(now)
	if len(ready) == 0 {
		return
	}
	ready = w.setAside(ready)
	for len(ready) > 0 {
		n := atOnce(ready, chunkFiles)
		some := ready[:n]
		ready = ready[n:]
		contents, fetches := make([]content, len(some)), w.fetches(some)
		parallel.Do(len(some), 1, func(i int) { contents[i] = fetches[i]() })
		for i, f := range some {
			w.take(f, contents[i], now)
		}
	}
}

// chunkFiles and chunkBytes are the maximum number and total size of files that are read before they are processed. They bound the memory for their
// texts.
const (
	chunkFiles = 512
	chunkBytes = 64 << 20
)

// atOnce returns how many of the first files are read at once: at most the given number (most), and together at most chunkBytes. The first file may
// be larger.
func atOnce(files []*file, most int) int {
	n, size := 0, int64(0)
	for n < min(len(files), most) {
		if size += files[n].change.seen.version.size; n > 0 && size > chunkBytes {
			break
		}
		n++
	}
	return n
}

// observe records a change if the state of a path differs from the one handled last. It forgets the file if the path is gone in both states.
func (w *Watcher) observe(s *source, path string, seen fileState, h eventHint, now time.Time) {
	if f := w.settling.observe(s, path, seen, h, now); f != nil {
		w.forget(f)
	}
}

// forget removes a file that is gone.
func (w *Watcher) forget(f *file) {
	delete(w.settling.files, f.path)
	w.contents.forget(f)
}

// take handles a change that has settled: it uses the content that was read, records a problem, or removes a file that is gone.
func (w *Watcher) take(f *file, now content, at time.Time) {
	switch f.change.seen.kind {
	case gone:
		if w.background.current != nil {
			return // what was in it may be in one that is being read
		}
		w.forget(f)
		w.saver.put(f.path, nil)
		w.out.change(f.change.first)
		w.settling.done(f) // the waiting caller has it
	case unusable:
		w.log.Warn("manifest cannot be read", "file", f.path, "reason", f.change.seen.why)
		w.done(f)
	case regular:
		w.read(f, now, at)
	}
}

// done records the state of a change as handled.
func (w *Watcher) done(f *file) {
	// The same content with another date is nothing new, unless it was out of reach.
	if f.seen.kind == unusable || f.change.seen.kind == unusable {
		w.out.change(f.change.first)
	}
	f.seen, f.taken = f.change.seen, true
	w.settling.done(f)
	w.contents.note(f)
}

// content is the result of reading a file.
type content struct {
	data []byte // empty if the file had this content already; nil if it could not be read
	seen fileState
	hash manifest.Hash
	next *manifest.File // data decoded; nil if the file had this content already
	err  error
}

// fetches returns a function for each file that reads it, in the state that was observed last. The functions do not modify the files, and may run
// concurrently with the loop.
func (w *Watcher) fetches(files []*file) []func() content {
	all := make([]func() content, len(files))
	for i, f := range files {
		root, seen, before := f.source.root, f.change.seen, *f
		all[i] = func() content { return w.fetch(root, seen, &before) }
	}
	return all
}

// fetch reads and decodes f, which was observed in the state seen, below the source's directory root.
func (w *Watcher) fetch(root *os.Root, seen fileState, f *file) (c content) {
	if seen.kind != regular {
		return c
	}
	w.counts.reads.Add(1)
	var room *[]byte
	var to []byte
	if f.hash != (manifest.Hash{}) { // most are as they were
		room = rooms.Get().(*[]byte)
		defer rooms.Put(room)
		to = *room
	}
	c.data, c.seen, c.err = read(root, f.source.rel(f.path), seen, mostBytes(w.cfg.Limits), to)
	if c.err != nil || c.data == nil {
		return c
	}
	c.hash = sha256.Sum256(c.data)
	known := c.hash == f.hash || f.good != nil && c.hash == f.good.Hash
	if !known {
		c.next = w.parse(f, c.data)
		c.next.Hash = c.hash
	}
	if room != nil {
		if cap(c.data) <= mostRoom {
			*room = c.data[:0]
		}
		if known {
			c.data = []byte{}
		} else {
			c.data = slices.Clone(c.data)
		}
	}
	return c
}

// rooms has buffers for reading files that have probably not changed: their content is only hashed.
var rooms = sync.Pool{New: func() any { return new([]byte) }}

// mostRoom is the largest capacity, in bytes, of a buffer that is put into the pool rooms; larger ones are left to the garbage collector.
const mostRoom = 1 << 20

// read handles a changed file after its content was read. If the file has changed again, or lacks objects that it had before, read does not use the
// content yet, and the change settles later.
func (w *Watcher) read(f *file, now content, at time.Time) {
	c := f.change
	last := !at.Before(c.first.Add(w.cfg.SettleCap)) // not waiting any longer
	switch {
	case errors.Is(now.err, fs.ErrNotExist):
		w.observe(f.source, f.path, fileState{kind: gone}, eventHint{}, at)
		return
	case now.err != nil:
		w.observe(f.source, f.path, fileState{kind: unusable, why: reason(now.err)}, eventHint{}, at)
		return
	case now.data == nil || !now.seen.same(c.seen) && !last:
		w.observe(f.source, f.path, now.seen, eventHint{}, at)
		return
	}
	c.seen = now.seen
	switch {
	case now.hash == f.hash:
		w.done(f)
		return
	case f.good != nil && now.hash == f.good.Hash:
		f.hash, f.broken = now.hash, nil
		w.out.change(c.first)
		w.done(f)
		return
	}
	if now.next.Err == nil && (w.background.current != nil || !c.complete && !last) && lacks(now.next, f.good) {
		c.lacking = !c.complete
		return
	}
	f.hash, f.broken = now.hash, now.next.Err
	w.out.change(c.first)
	if now.next.Err != nil {
		w.log.Warn("manifest refused", "problem", now.next.Err.String(), "last_good", f.good != nil)
	} else {
		f.good = now.next
		w.saver.put(f.path, now.data)
	}
	w.done(f)
}

// parse decodes the new content of a file. Documents that are unchanged are shared with the last good content.
func (w *Watcher) parse(f *file, data []byte) *manifest.File {
	if f.good == nil {
		return manifest.Decode(f.path, data, w.cfg.Limits)
	}
	return f.good.Update(data, w.cfg.Limits)
}

// mostBytes returns the maximum size of a file in bytes.
func mostBytes(limits manifest.Limits) int {
	return cmp.Or(max(0, limits.Bytes), manifest.DefaultLimits().Bytes)
}

// sameObjects reports whether two files have the same objects in the same order.
func sameObjects(a, b *manifest.File) bool {
	return slices.EqualFunc(a.Documents, b.Documents, func(a, b manifest.Document) bool {
		return a.Object == b.Object || object.RefOf(a.Object) == object.RefOf(b.Object)
	})
}

// lacks reports whether a file (next) lacks an object that its previous version (before) has. An object with a problem in next is not missing.
func lacks(next, before *manifest.File) bool {
	if before == nil {
		return false
	}
	if before = before.Opened(); sameObjects(next, before) {
		return false
	}
	have := make(map[object.Ref]bool, len(next.Documents))
	for _, d := range next.Documents {
		have[object.RefOf(d.Object)] = true
	}
	for _, p := range next.Problems {
		have[p.Object] = true
	}
	return slices.ContainsFunc(before.Documents, func(d manifest.Document) bool {
		ref := object.RefOf(d.Object)
		if have[ref] {
			return false
		}
		ref.Namespace = cmp.Or(ref.Namespace, "default")
		return !have[ref]
	})
}

// asideBytes is the size from which a file is read concurrently with the loop: reading one of 30 MB takes
// several hundred milliseconds, in which changes in others would not be noticed.
const asideBytes = 1 << 20

// aside is a set of files that are read concurrently with the loop: a large one, and those that
// settled together with it. Files that changed together appear in one snapshot.
type aside struct {
	files    []*file
	seen     []fileState // the state of each file when reading began
	contents []content
}

// background has the files that are being read concurrently with the loop.
type background struct {
	current *aside        // the set that is being read; nil if there is none
	done    chan struct{} // has a value when the files of current were read
	large   int64         // asideBytes, or less in tests
}

// setAside starts to read files concurrently with the loop if one of them is large. It returns the files that
// the caller has to read itself: all of them before the first snapshot, when nothing else could be published
// sooner, and all but the large ones while an earlier set is being read.
func (w *Watcher) setAside(ready []*file) []*file {
	isLarge := func(f *file) bool { return f.change.seen.version.size >= w.background.large }
	if w.out.previous == nil || !slices.ContainsFunc(ready, isLarge) {
		return ready
	}
	if w.background.current != nil {
		return slices.DeleteFunc(ready, isLarge)
	}
	some := ready[:atOnce(ready, len(ready))] // the others wait for these
	a := &aside{files: some, contents: make([]content, len(some))}
	for _, f := range some {
		f.aside = true
		a.seen = append(a.seen, f.change.seen)
	}
	fetches := w.fetches(some)
	w.background.current = a
	go func() {
		parallel.Do(len(fetches), 1, func(i int) { a.contents[i] = fetches[i]() })
		w.background.done <- struct{}{}
	}()
	return nil
}

// takeAside handles the files that were read concurrently with the loop, in the state in which they
// were when reading began. A state that was seen since then is a new change. Files that were removed
// or created meanwhile, have their old state again, or were in a lost directory are left to settle.
func (w *Watcher) takeAside(now time.Time) {
	a := w.background.current
	w.background.current = nil
	for i, f := range a.files {
		f.aside = false
		if f.change == nil || f.change.seen.kind != a.seen[i].kind || errors.Is(a.contents[i].err, os.ErrClosed) {
			continue
		}
		newer := f.change.seen
		f.change.seen = a.seen[i]
		w.take(f, a.contents[i], now)
		if !newer.same(a.seen[i]) { // it was seen while it was read: that is what comes next
			w.observe(f.source, f.path, newer, eventHint{}, now)
		}
	}
}
