package watch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/manifest"
)

// The reasons of problems in a Snapshot. Files that cannot be parsed have the reasons of package manifest instead.
const (
	ReasonUnreadable  = "Unreadable"           // a file or directory cannot be opened or read, or is not a regular file
	ReasonUnavailable = "DirectoryUnavailable" // a watched directory is missing, or became empty unexpectedly
	ReasonPolling     = "Polling"              // warning: directories cannot be watched; changes are found by polling
	ReasonNotSaved    = "LastGoodNotSaved"     // warning: last good contents could not be stored, and would be missing after a restart
)

// A Snapshot has the content of all directories at one moment. It is immutable.
type Snapshot struct {
	// Files has the files by absolute path, each with its last good content: Err is nil in all of
	// them. The same pointer as in an earlier snapshot means the same content.
	Files manifest.Files
	// Problems has the problems of whole files and of directories, sorted by path. Those of single
	// documents are in Files.
	Problems []manifest.Problem
	// Sources are the directories, as configured.
	Sources []Source
	// Noticed is the time at which the oldest change was noticed that the receiver has not seen in an earlier snapshot; the zero Time if there is
	// none.
	Noticed time.Time
}

// A Source is the state of one watched directory.
type Source struct {
	Dir   string // absolute
	State State
	// Err is the reason why the directory is unavailable or polled; nil if it is watched.
	Err error
	// Files counts its files in the snapshot.
	Files int
}

// State is the state of a directory.
type State string

// The states of a directory.
const (
	StateWatching    State = "Watching"    // changes are noticed at once
	StatePolling     State = "Polling"     // changes are noticed within a second
	StateUnavailable State = "Unavailable" // its last good files are in force
)

// publish publishes a snapshot if one is due and differs from the previous one. The first waits until all directories were read.
func (w *Watcher) publish(now time.Time) {
	if !w.out.due(now) {
		return
	}
	if w.out.previous == nil && !w.readOnce() {
		w.out.next = now.Add(paceMost)
		return
	}
	w.out.publish(w.snapshot, now)
	w.settling.started = true
	w.settling.shrink()
}

// readOnce reports whether every directory, and every file found in the first reading, has been read.
func (w *Watcher) readOnce() bool {
	for _, s := range w.tree.sources {
		if s.state == "" {
			return false
		}
	}
	for _, f := range w.settling.waiting {
		if !f.taken {
			return false
		}
	}
	return true
}

func (w *Watcher) snapshot() *Snapshot {
	w.contents.good = w.contents.good.Updated(w.contents.changed)
	w.contents.changed = map[string]*manifest.File{}
	out := &Snapshot{Files: w.contents.good}
	for _, f := range w.contents.bad {
		out.Problems = append(out.Problems, *f.problem())
	}
	for _, s := range w.tree.sources {
		src := Source{Dir: s.dir, State: s.state, Files: s.good}
		if s.state == StateUnavailable {
			src.Err = s.err
			out.Problems = append(out.Problems, manifest.Problem{File: s.dir, Reason: ReasonUnavailable,
				Message: fmt.Sprintf("the directory is unavailable: %v; %s", s.err, remembered(s.good))})
		} else if w.tree.noEvents != nil {
			src.State, src.Err = StatePolling, w.tree.noEvents
			out.Problems = append(out.Problems, manifest.Problem{File: s.dir, Reason: ReasonPolling, Warning: true,
				Message: fmt.Sprintf("changes are found by looking every %v: %v; raise fs.inotify.max_user_watches or max_user_instances", poll, w.tree.noEvents)})
		}
		out.Sources = append(out.Sources, src)
		out.Problems = append(out.Problems, s.problems...)
		out.Problems = append(out.Problems, s.gitProblems()...)
	}
	if err := w.saver.err(); err != nil {
		out.Problems = append(out.Problems, manifest.Problem{File: "last good copies", Reason: ReasonNotSaved, Warning: true,
			Message: fmt.Sprintf("not saved, tried again every %v: %v", w.cfg.Rescan, err)})
	}
	slices.SortFunc(out.Problems, func(a, b manifest.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return out
}

func (s *Snapshot) equal(other *Snapshot) bool {
	same := true
	s.Files.Changes(other.Files, func(_, _ *manifest.File) { same = false })
	return same && slices.Equal(s.Problems, other.Problems) &&
		slices.EqualFunc(s.Sources, other.Sources, func(a, b Source) bool {
			sameErr := errors.Is(a.Err, b.Err) || a.Err != nil && b.Err != nil && a.Err.Error() == b.Err.Error()
			return a.Dir == b.Dir && a.State == b.State && a.Files == b.Files && sameErr
		})
}

// remembered returns the end of a message about an unavailable directory, of which the given number of files stay in force.
func remembered(files int) string {
	switch files {
	case 0:
		return "nothing is known of what was in it"
	case 1:
		return "the last content of its one file stays in force"
	}
	return fmt.Sprintf("the last content of its %d files stays in force", files)
}

// identity is the device and inode that a path leads to.
type identity struct{ dev, ino uint64 }

// version changes whenever a file is written to, replaced, or touched.
type version struct {
	identity
	size         int64
	mtime, ctime int64 // nanoseconds since 1970
}

type stateKind uint8

const (
	unseen   stateKind = iota // not looked at since the start
	gone                      // nothing is there
	regular                   // a file
	unusable                  // something that cannot be read
)

// A fileState is the state of a path when it was read last.
type fileState struct {
	kind    stateKind
	version version // zero unless kind is regular
	// linked is set for a symbolic link. shared is set for a symbolic link and for a file with several hard links: a write through another path sends
	// no event for this one.
	linked, shared bool
	why            string // the reason if kind is unusable
}

func (s fileState) same(other fileState) bool {
	return s.kind == other.kind && s.version == other.version && s.why == other.why
}

// A file is the state of a manifest's path in a source. The path may no longer exist.
type file struct {
	path   string
	source *source
	// seen is the last state that was handled: its content was read, or its problem recorded.
	seen fileState
	// hash is the SHA-256 of the content that was read last; broken is the problem of that content,
	// nil when it is good.
	hash   manifest.Hash
	broken *manifest.Problem
	// good is the last good content, which LastGood has too.
	good *manifest.File
	// taken is set once the file was handled after the start. counted is set while source.good includes the file.
	taken, counted bool
	// aside is set while the file is being read concurrently with the loop.
	aside bool
	// change is the newer state of the file while it has not settled, else nil.
	change *change
}

// A change is a new state of a path that has not settled yet: it may still be changing.
type change struct {
	seen        fileState
	first, last time.Time // when the path changed first and last
	// complete is set when no writer can be changing the file any more, so that the change settles at once.
	complete bool
	// lacking: the content lacks an object of the last good one, so the change only settles after SettleCap.
	lacking bool
}

// problem returns why the file's present state is not in force, or nil.
func (f *file) problem() *manifest.Problem {
	var p manifest.Problem
	switch {
	case f.seen.kind == unusable:
		p = manifest.Problem{File: f.path, Reason: ReasonUnreadable, Message: f.seen.why}
	case f.broken != nil:
		p = *f.broken
	default:
		return nil
	}
	if f.good.HasObjects() {
		p.Message += "; its last good content stays in force"
	} else {
		p.Message += "; there is no earlier good content of it"
	}
	return &p
}

// contents has the last good content of each file, and the files with a problem.
type contents struct {
	good    manifest.Files            // the last good content of each file, as of the last snapshot
	changed map[string]*manifest.File // last good contents that are new since that snapshot, by path; nil for a removed file
	bad     map[string]*file          // files with a problem, by path
	silent  map[string]bool           // paths that can change without an event: unreadable files, and those with other names
}

// note updates the maps for one file.
func (c *contents) note(f *file) {
	if f.good != nil {
		c.changed[f.path] = f.good
		if !f.counted {
			f.counted = true
			f.source.good++
		}
	}
	if c.bad[f.path] = f; f.problem() == nil {
		delete(c.bad, f.path)
	}
	if delete(c.silent, f.path); f.seen.kind == unusable || f.seen.shared {
		c.silent[f.path] = true
	}
}

// forget removes a file that is gone.
func (c *contents) forget(f *file) {
	delete(c.bad, f.path)
	delete(c.silent, f.path)
	c.changed[f.path] = nil
	if f.counted {
		f.counted = false
		f.source.good--
	}
}

// LastGood stores the last good content of every file, which is used when a file is broken at the next start. Paths are absolute.
type LastGood interface {
	// Load returns every file that was put, by path: the content or, for files that were sealed
	// (manifest.File), the sealed file with its Hash.
	Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error)
	// Put sets the content to keep for a path; nil removes it. Put does not wait for a disk, so that
	// an implementation can write the content in one commit with the objects in it. The caller does
	// not change the content afterwards.
	Put(path string, content []byte)
	// Flush returns when all that was put is durable. Its error is reported, and the call
	// repeated later.
	Flush() error
}

// A saver stores last good contents in a goroutine of its own: the loop must not wait for a disk.
type saver struct {
	to      LastGood
	wake    chan struct{}
	full    chan struct{} // has a value when more than flushBytes bytes wait
	changed chan struct{} // has a value when the result of err has changed
	waiting atomic.Int64  // bytes that were put since the last flush

	mu   sync.Mutex
	last error
}

func newSaver(to LastGood) *saver {
	return &saver{to: to, wake: make(chan struct{}, 1), full: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// put sets the content to store for a path; nil removes it. The newest call wins.
func (s *saver) put(path string, content []byte) {
	s.to.Put(path, content)
	if s.waiting.Add(int64(len(content))) > flushBytes {
		signal(s.full)
	}
	signal(s.wake)
}

// retry tries again to store contents if that failed last time.
func (s *saver) retry() {
	if s.err() != nil {
		signal(s.wake)
	}
}

// err returns the error of the last attempt to store contents; nil if it succeeded.
func (s *saver) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// flushAfter is how long contents wait to be written in the commit of another change. Contents that change
// no object, as when a comment was edited, cause at most two commits a second.
const flushAfter = 500 * time.Millisecond

// flushBytes is the total size of waiting contents at which they are written at once. It bounds the memory at a start, when all files are put.
const flushBytes = 4 << 20

// run stores contents until stop is closed, and then those that still wait.
func (s *saver) run(stop <-chan struct{}) {
	for {
		select {
		case <-s.wake:
		case <-stop:
			s.flush()
			return
		}
		select {
		case <-time.After(flushAfter):
		case <-s.full:
		case <-stop:
		}
		s.flush()
	}
}

func (s *saver) flush() {
	select { // what was put until now goes now
	case <-s.wake:
	default:
	}
	s.waiting.Store(0)
	err := s.to.Flush()
	s.mu.Lock()
	defer s.mu.Unlock()
	if (err == nil) != (s.last == nil) || err != nil && err.Error() != s.last.Error() {
		s.last = err
		signal(s.changed)
	}
}

// signal makes sure that the next receive from a channel of capacity one succeeds.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// settling has the files of all sources, and decides which of their changes have settled. It does no I/O and reads no clock: callers pass the states
// of paths and the time.
type settling struct {
	settle, most time.Duration    // Config.Settle and SettleCap
	files        map[string]*file // by path
	waiting      map[string]*file // the files with a change that has not settled, by path
	held         time.Time        // since when settled changes wait because other files are vanishing; zero if none wait
	// started reports that there was a first snapshot.
	started bool
}

func newSettling(settle, most time.Duration) settling {
	return settling{settle: settle, most: most, files: map[string]*file{}, waiting: map[string]*file{}}
}

// observe records a change if the observed state of a path differs from the one handled last, and discards the pending change if they are equal. If
// the path is gone in both states, it returns the file, which the caller has to forget; else nil.
func (st *settling) observe(s *source, path string, seen fileState, h eventHint, now time.Time) *file {
	f := st.files[path]
	if f == nil {
		if seen.kind == gone {
			return nil
		}
		f = &file{path: path, source: s, seen: fileState{kind: gone}}
		st.files[path] = f
	}
	if f.seen.same(seen) {
		st.done(f)
		if seen.kind == gone {
			return f
		}
		return nil
	}
	c := f.change
	if c != nil && c.seen.same(seen) {
		c.complete = c.complete || f.isComplete(seen, h)
		return nil
	}
	last := now.Add(-min(age(seen, now), st.settle))
	if c == nil {
		c = &change{first: last}
		f.change = c
		st.waiting[path] = f
	}
	c.seen, c.last, c.lacking = seen, last, false
	if st.started {
		s.active = now
	}
	c.complete = f.isComplete(seen, h)
	return nil
}

// done removes the pending change of a file.
func (st *settling) done(f *file) {
	f.change = nil
	delete(st.waiting, f.path)
}

// drop discards the pending changes of the files of a source.
func (st *settling) drop(s *source) {
	for _, f := range st.waiting {
		if f.source == s {
			st.done(f)
		}
	}
}

// ready returns the changed files that have settled, sorted by path. It leaves out those of sources that wait
// for git, and those with pending events, unless the change is complete or older than SettleCap. While other
// files are vanishing, which may be part of the same change, it returns none, for at most Config.Settle.
func (st *settling) ready(git map[*source]bool, events map[string]eventHint, now time.Time) (ready []*file) {
	vanishing := false
	for _, f := range st.waiting {
		if f.aside || git[f.source] {
			continue
		}
		_, goesOn := events[f.path]
		goesOn = goesOn && !f.change.complete && now.Before(f.change.first.Add(st.most))
		if !goesOn && !f.change.ready(st.settle, st.most).After(now) {
			ready = append(ready, f)
		} else if f.change.seen.kind != regular {
			vanishing = true
		}
	}
	if vanishing && len(ready) > 0 {
		if st.held.IsZero() {
			st.held = now
		}
		if now.Before(st.held.Add(st.settle)) {
			return nil
		}
	}
	st.held = time.Time{}
	slices.SortFunc(ready, func(a, b *file) int { return cmp.Compare(a.path, b.path) })
	return ready
}

// next calls earlier with each time after now at which a change settles.
func (st *settling) next(now time.Time, earlier func(time.Time)) {
	for _, f := range st.waiting {
		// Those that are ready already wait for others.
		if ready := f.change.ready(st.settle, st.most); ready.After(now) {
			earlier(ready)
		}
	}
	if !st.held.IsZero() {
		earlier(st.held.Add(st.settle))
	}
}

// shrink replaces st.waiting when it is empty: a map never frees its memory, and ranging over it visits all of it.
func (st *settling) shrink() {
	if len(st.waiting) == 0 {
		st.waiting = map[string]*file{}
	}
}

// changes returns the changes that have not settled, by file.
func (st *settling) changes() map[*file]*change {
	all := make(map[*file]*change, len(st.waiting))
	for _, f := range st.waiting {
		all[f] = f.change
	}
	return all
}

// ready returns the time at which a change has settled.
func (c *change) ready(settle, most time.Duration) time.Time {
	switch quiet, latest := c.last.Add(settle), c.first.Add(most); {
	case c.complete:
		return c.last
	case c.seen.kind != regular:
		return quiet
	case c.lacking || latest.Before(quiet):
		return latest
	default:
		return quiet
	}
}

// age returns the time since a file's last change. Only the kernel sets the change time; if the
// clock was set back meanwhile, the age is 0.
func age(s fileState, now time.Time) time.Duration {
	if s.kind != regular {
		return 0
	}
	return max(0, now.Sub(time.Unix(0, s.version.ctime)))
}

// isComplete reports whether the file certainly has its final content, because it was moved or linked to its path, not written there.
func (f *file) isComplete(seen fileState, h eventHint) bool {
	switch another := seen.version.identity != f.seen.version.identity; seen.kind {
	case gone:
		// Links are switched, not edited.
		return f.seen.linked || h.switched
	case regular:
		// A file that was renamed or linked to this name from elsewhere has content that was not
		// written here. When it was changed, by that, after it was last written, it is sure at
		// once. That is not seen of both within one tick of the kernel's clock (4 ms), so then an
		// event of a writer is waited for.
		arrived := h.created && !h.written && another && seen.version.size > 0 && (seen.version.ctime > seen.version.mtime || h.quiet)
		// One that was written after it was moved here is like any that is edited; and
		// nothing is moved here to be empty, so that is a writer at its beginning.
		moved := h.moved && !h.written && seen.version.size > 0
		return moved || arrived || (seen.linked || h.switched) && another
	default:
		return false
	}
}

// The time between two snapshots is restFor times the duration that the last one took to make, because each copies the list of files. It is at least
// paceLeast, so that changes are combined, and at most paceMost. With a thousand changed files a second, each change waits for little more than the
// disk, and all of them together take half a CPU.
const (
	paceLeast = 4 * time.Millisecond
	paceMost  = 50 * time.Millisecond
	restFor   = 20
)

// publisher hands out snapshots, the newest one only.
type publisher struct {
	snapshots chan *Snapshot // of capacity one
	changed   bool           // something has changed since the last snapshot
	began     time.Time      // when the oldest change was noticed that no snapshot has; zero if there is none
	previous  *Snapshot      // the last snapshot; nil if there was none
	next      time.Time      // earliest time of the next snapshot
	published atomic.Uint64
}

// change records the time of a change that the next snapshot has to contain.
func (p *publisher) change(began time.Time) {
	p.changed = true
	if p.began.IsZero() || began.Before(p.began) {
		p.began = began
	}
}

// due reports whether a snapshot is to be made.
func (p *publisher) due(now time.Time) bool { return p.changed && !now.Before(p.next) }

// publish publishes the snapshot that make returns, if it differs from the one before.
func (p *publisher) publish(make func() *Snapshot, now time.Time) {
	began := time.Now()
	next := make()
	next.Noticed = p.began
	p.changed, p.began = false, time.Time{}
	if p.previous != nil && next.equal(p.previous) {
		return
	}
	pace := min(paceMost, max(paceLeast, restFor*time.Since(began)))
	p.previous, p.next = next, now.Add(pace)
	p.published.Add(1)
	select { // Only this goroutine sends: after taking an unread one there is room.
	case unread := <-p.snapshots:
		if !unread.Noticed.IsZero() {
			next.Noticed = unread.Noticed
		}
	default:
	}
	p.snapshots <- next
}
