package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/store/manifest"
)

// The defaults of Config.
const (
	defaultSettle    = 100 * time.Millisecond
	defaultSettleCap = 2 * time.Second
	defaultRescan    = 10 * time.Second
)

const (
	// gather is how long no event must arrive before the changed files are examined: longer than the steps of a replacement by renames, shorter than
	// anyone notices. A file that was renamed into place is examined at once.
	gather = 10 * time.Millisecond
	// poll is the interval at which directories without events are read: those that are unavailable, and all of them if they cannot be watched.
	poll = time.Second
	// lookRarely is the interval at which files on a local filesystem are examined without an event. inotify reports every change to them except
	// writes through mmap(2).
	lookRarely = 5 * time.Minute
)

// Config configures a Watcher. Its zero value watches nothing.
type Config struct {
	// Dirs lists the directories, none inside another.
	Dirs []string
	// Limits bounds each file; zero fields have manifest.DefaultLimits.
	Limits manifest.Limits
	// LastGood keeps good contents over a restart.
	LastGood LastGood
	// Settle is how long a file that is written in place must not change before it is read. 0 means 100 ms.
	Settle time.Duration
	// SettleCap is the maximum wait for a file that keeps changing. 0 means 2 s.
	SettleCap time.Duration
	// Rescan is the time between two full readings of the directories, where inotify may not report every change. 0 is 10 s.
	Rescan time.Duration
	// Log is slog.Default() when nil.
	Log *slog.Logger
	// Notifier opens the source of events; nil means inotify.
	Notifier func() (Notifier, error)
}

// directories returns the absolute paths of Dirs, or all that is wrong with them.
func (c *Config) directories() (dirs []string, err error) {
	var errs []error
	for _, dir := range c.Dirs {
		abs, err := filepath.Abs(dir)
		if dir == "" {
			err = errors.New("the path is empty")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("watch: directory %q: %w", dir, err))
			continue
		}
		for _, other := range dirs {
			if within(other, abs) || within(abs, other) {
				errs = append(errs, fmt.Errorf("watch: directories %s and %s overlap; give only the outer one", other, abs))
			}
		}
		dirs = append(dirs, abs)
	}
	return dirs, errors.Join(errs...)
}

// within reports whether path is dir or inside of it. Both are clean.
func within(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// A Watcher watches directories. Create it with New, and call Run once.
type Watcher struct {
	cfg Config
	log *slog.Logger
	// requests has the requests of Rescan.
	requests chan chan struct{}
	sealings chan sealing // receives the requests of TakeSealed
	counts   counts

	// Only the goroutine of Run uses the fields below.
	tree       tree
	events     events
	settling   settling
	contents   contents
	saver      *saver
	schedule   schedule
	looks      looks
	background background
	asked      []request // requests that are not answered yet
	out        publisher
}

// schedule has the times at which directories are read without an event.
type schedule struct {
	poll, rescan time.Time
	full         time.Time // when all directories are read, even if inotify reports every change in them
	lost         bool      // events were lost since the directories were last read
}

// counts has counters of the Watcher's work.
type counts struct{ scans, reads, overflows atomic.Uint64 }

// New checks the configuration. It does not touch the directories.
func New(cfg Config) (*Watcher, error) {
	dirs, err := cfg.directories()
	if err != nil {
		return nil, err
	}
	for d, value := range map[*time.Duration]time.Duration{&cfg.Settle: defaultSettle, &cfg.SettleCap: defaultSettleCap, &cfg.Rescan: defaultRescan} {
		*d = cmp.Or(*d, value)
	}
	if cfg.Notifier == nil {
		cfg.Notifier = openInotify
	}
	w := &Watcher{
		cfg:        cfg,
		log:        cmp.Or(cfg.Log, slog.Default()),
		requests:   make(chan chan struct{}),
		sealings:   make(chan sealing),
		tree:       tree{open: cfg.Notifier, watching: map[string]identity{}},
		events:     events{gather: gather, settle: cfg.Settle},
		settling:   newSettling(cfg.Settle, cfg.SettleCap),
		contents:   contents{changed: map[string]*manifest.File{}, bad: map[string]*file{}, silent: map[string]bool{}},
		looks:      looks{done: make(chan *look, 1), readDir: (*walk).run},
		background: background{large: asideBytes, done: make(chan struct{}, 1)},
		out:        publisher{snapshots: make(chan *Snapshot, 1)},
	}
	for _, dir := range dirs {
		w.tree.sources = append(w.tree.sources, &source{dir: dir})
	}
	w.saver = newSaver(cfg.LastGood)
	return w, nil
}

// Snapshots returns a channel that has the newest snapshot until it is received: a newer one replaces it. The first comes when every directory was
// read, or found unavailable, once. The channel is never closed.
func (w *Watcher) Snapshots() <-chan *Snapshot { return w.out.snapshots }

// Run watches until the context is done, and then returns nil once the last good
// contents are saved. It returns an error only when those cannot be loaded.
func (w *Watcher) Run(ctx context.Context) error {
	if err := w.load(); err != nil {
		return err
	}
	saved := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(saved)
		w.saver.run(stop)
	}()
	defer func() { close(stop); <-saved }()
	defer w.tree.close()

	w.out.changed = true // also nothing is worth a first snapshot
	w.rescan(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		w.settle(now)
		w.publish(now)
		w.answer()
		timer.Reset(w.next(now).Sub(now))
		events, errs := w.tree.channels()
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-events:
			w.drain(ev, ok, events)
		case err, ok := <-errs:
			if ok {
				w.failed(err)
			} else {
				w.died()
			}
		case <-w.saver.changed:
			w.out.changed = true
		case <-w.background.done:
			w.takeAside(time.Now())
		case l := <-w.looks.done:
			w.takeLook(l, time.Now())
		case s := <-w.sealings:
			w.takeSealed(s)
		case done := <-w.requests:
			w.rescan(time.Now())
			w.asked = append(w.asked, request{done, w.settling.changes()})
		case <-timer.C:
		}
		w.work(time.Now())
	}
}

// Rescan reads the directories again and returns when there is a snapshot of what they held
// at the time of the call, even if nobody has received it. If nothing changed, that is an
// earlier one. It waits for files that are being written, for each at most SettleCap.
func (w *Watcher) Rescan(ctx context.Context) error {
	done := make(chan struct{})
	return await(ctx, w.requests, done, done)
}

// await sends a request to the loop and returns when the loop has closed done.
func await[T any](ctx context.Context, loop chan<- T, request T, done <-chan struct{}) error {
	select {
	case loop <- request:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A request is a call of Rescan or TakeSealed that waits for a snapshot. done is closed to end it.
type request struct {
	done  chan struct{}
	waits map[*file]*change // changes that had not settled at that moment
}

// answer ends the requests whose changes (request.waits) are all in a snapshot. Later changes do not matter.
func (w *Watcher) answer() {
	if w.out.changed {
		return
	}
	w.asked = slices.DeleteFunc(w.asked, func(r request) bool {
		maps.DeleteFunc(r.waits, func(f *file, c *change) bool { return f.change != c })
		if len(r.waits) > 0 {
			return false
		}
		close(r.done)
		return true
	})
}

// work reads directories and checks paths with events, as far as these are due.
func (w *Watcher) work(now time.Time) {
	if !now.Before(w.schedule.rescan) {
		if !w.lookBeside(now) {
			w.rescan(now)
			return
		}
	}
	if !now.Before(w.schedule.poll) {
		w.pollSources(now)
	}
	if !w.events.none() && !now.Before(w.events.due()) {
		w.check(now)
	}
}

// next returns the time at which the loop has work to do even if nothing happens.
func (w *Watcher) next(now time.Time) time.Time {
	next := w.schedule.rescan
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	earlier(w.schedule.poll)
	if w.out.changed {
		earlier(w.out.next)
	}
	if !w.events.none() {
		earlier(w.events.due())
	}
	w.settling.next(now, earlier)
	for _, s := range w.tree.sources {
		switch waits := len(w.settling.waiting) > 0; {
		case waits && s.git.locked:
			earlier(now.Add(gitPoll))
		case waits && s.git.unlocked.Add(w.cfg.Settle).After(now):
			earlier(s.git.unlocked.Add(w.cfg.Settle))
		}
		if !s.lost.IsZero() && s.state != StateUnavailable {
			earlier(s.lost.Add(w.cfg.Settle))
		}
	}
	return next
}

// An eventHint sums up the events of a path since the path was last examined.
type eventHint struct {
	created bool // the path was created, or something was moved to it
	moved   bool // was renamed to this name inside of the watched directories
	written bool // its content, mode or times were changed, after it was created or moved if it was
	quiet   bool // no event of any path followed within gather
	// switched does not come from an event: a symbolic link in the path now leads to another directory.
	switched bool
}

// events collects the events since paths were last examined. It reads no clock: callers pass the time.
type events struct {
	hints       map[string]eventHint // by path
	first, last time.Time            // of the first and the last event; first is zero if there are none
	renamed     bool                 // some manifests were renamed into place
	structural  bool                 // something was created, moved or removed: related events of other paths may follow

	gather time.Duration // the constant gather
	settle time.Duration // Config.Settle
}

// add notes an event about a path of a source.
func (e *events) add(ev fsnotify.Event, now time.Time) {
	h := e.hints[ev.Name]
	if ev.Has(fsnotify.Create) {
		// fsnotify keeps to itself where a file was renamed from, but not that it was: such
		// an event differs from one with the same name and operation.
		h = eventHint{created: true, moved: ev != fsnotify.Event{Name: ev.Name, Op: ev.Op}}
	}
	if ev.Has(fsnotify.Write) {
		h.written, h.moved = true, false
	}
	if ev.Has(fsnotify.Chmod) {
		h.written = true
	}
	if e.hints == nil {
		e.hints = map[string]eventHint{}
	}
	e.hints[ev.Name] = h
	switch manifest := isManifest(filepath.Base(ev.Name)); {
	case manifest && h.moved:
		e.renamed = true
	case manifest && !ev.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename):
		// It is written to, which is its own affair.
	default: // A link or directory that is moved is often one step of several.
		e.structural = true
	}
	e.last = now
	if e.first.IsZero() {
		e.first = now
	}
}

// none reports whether there are no paths to examine.
func (e *events) none() bool { return e.first.IsZero() }

// due returns the time at which the paths are to be examined. If files were moved into place, and nothing else was created, moved or removed, that is
// the time of the first event, because such files are complete. Otherwise it is the time until which more events are waited for (gathered).
func (e *events) due() time.Time {
	if e.renamed && !e.structural {
		return e.first
	}
	return e.gathered()
}

// gathered returns the time until which more events are waited for: e.gather after the last event, but at most e.settle after the first.
func (e *events) gathered() time.Time {
	quiet, latest := e.last.Add(e.gather), e.first.Add(e.settle)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// quiet reports whether there were no events for e.gather.
func (e *events) quiet(now time.Time) bool { return !now.Before(e.last.Add(e.gather)) }

// take removes and returns the hints of the paths that are to be examined now.
func (e *events) take(now time.Time) map[string]eventHint {
	if early := e.renamed && !e.structural && now.Before(e.gathered()); !early {
		return e.takeAll()
	}
	e.renamed = false
	moved := map[string]eventHint{}
	for path, h := range e.hints {
		if h.moved {
			moved[path] = h
			delete(e.hints, path)
		}
	}
	if len(e.hints) == 0 {
		e.takeAll()
	}
	return moved // those that are being written to go on to gather
}

// takeAll returns all hints and removes them.
func (e *events) takeAll() map[string]eventHint {
	all := e.hints
	*e = events{gather: e.gather, settle: e.settle}
	return all
}

// ignored reports whether a name is that of a temporary file of an editor or another program. A name
// that starts with two dots may be the link that a ConfigMap mount is switched with.
func ignored(name string) bool {
	switch {
	case strings.HasPrefix(name, ".."):
		return false
	case strings.HasPrefix(name, "."), strings.HasSuffix(name, "~"), strings.HasSuffix(name, ".swp"),
		strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#"), name == "4913":
		return true
	}
	return false
}

// isManifest reports whether a file with this name is read as a manifest.
func isManifest(name string) bool {
	if ignored(name) || strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// drainMost is the maximum number of events that are processed before the loop does other work.
const drainMost = 1000

// drain adds an event, and those that are queued after it, at most drainMost.
func (w *Watcher) drain(ev fsnotify.Event, ok bool, events <-chan fsnotify.Event) {
	for range drainMost {
		if !ok {
			w.died()
			return
		}
		w.event(ev)
		select {
		case ev, ok = <-events:
		default:
			return
		}
	}
}

func (w *Watcher) event(ev fsnotify.Event) {
	if s := w.tree.sourceOf(ev.Name); s == nil || ev.Name != s.dir && ignored(filepath.Base(ev.Name)) {
		return
	}
	w.events.add(ev, time.Now())
}

// check stats the paths of the queued events that are due, and records what changed there. Directories whose content cannot be derived
// from single paths are scanned as a whole.
func (w *Watcher) check(now time.Time) {
	quiet := w.events.quiet(now)
	hints := w.events.take(now)
	whole := map[*source]bool{}
	for path, h := range hints {
		s := w.tree.sourceOf(path)
		if whole[s] {
			continue
		}
		switch seen, ok := s.look(path); {
		case !ok:
			whole[s] = true
		case isManifest(filepath.Base(path)):
			h.quiet = quiet
			w.observe(s, path, seen, h, now)
		}
	}
	for _, s := range w.tree.sources {
		if whole[s] {
			w.scan(s, hints, now)
		}
	}
}

// failed handles an error of the notifier, which may have lost events: all directories are
// read again.
func (w *Watcher) failed(err error) {
	if errors.Is(err, fsnotify.ErrEventOverflow) {
		w.counts.overflows.Add(1)
	}
	w.log.Warn("file events were lost; reading all directories", "err", err)
	w.rescanSoon()
}

// died closes a notifier that sends no more events. The next rescan opens another one.
func (w *Watcher) died() {
	w.tree.disconnect()
	w.log.Warn("file events ended; reading all directories")
	w.rescanSoon()
}

// rescanSoon schedules a rescan after Config.Settle, since more errors may follow.
func (w *Watcher) rescanSoon() {
	w.schedule.lost = true
	if soon := time.Now().Add(w.cfg.Settle); soon.Before(w.schedule.rescan) {
		w.schedule.rescan = soon
	}
}
