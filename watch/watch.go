package watch

import (
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
	// gather is how long there must be no events before the files are looked at: longer
	// than the steps of a rename dance, shorter than anyone notices. A file that was
	// renamed into place is not waited for.
	gather = 10 * time.Millisecond
	// Between two snapshots are at least paceLeast, in which several changes become one, and
	// restFor times as long as the last one took, up to paceMost: making one costs a copy of
	// the list of files. While a thousand files change in a second, one of them waits for
	// little more than the disk, and all of them take half a CPU.
	paceLeast = 4 * time.Millisecond
	paceMost  = 50 * time.Millisecond
	restFor   = 20
	// poll is how often directories are looked at that send no events: those that are
	// unavailable, and all of them when there are no watches.
	poll = time.Second
)

// Config is what a Watcher needs to know. Its zero value watches nothing.
type Config struct {
	// Dirs are the directories, none inside another.
	Dirs []string
	// Limits are those of each file; zero fields have manifest.DefaultLimits.
	Limits manifest.Limits
	// LastGood keeps good contents over a restart; nil keeps them in memory only.
	LastGood LastGood
	// Settle is how long a file that is written in place must be quiet. 0 is 100 ms.
	Settle time.Duration
	// SettleCap is how long a file that is never quiet is waited for. 0 is 2 s.
	SettleCap time.Duration
	// Rescan is the time between two full readings of the directories. 0 is 10 s.
	Rescan time.Duration
	// Log is slog.Default() when nil.
	Log *slog.Logger
}

// Validate returns everything that is wrong, joined.
func (c Config) Validate() error {
	var errs []error
	for name, d := range map[string]time.Duration{"Settle": c.Settle, "SettleCap": c.SettleCap, "Rescan": c.Rescan} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("watch: %s is %v; it must not be negative", name, d))
		}
	}
	var dirs []string
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
	return errors.Join(errs...)
}

// within reports whether path is dir or inside of it. Both are clean.
func within(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// A Watcher watches directories. Make it with New, start it with Run, once.
// It has more than 15 fields: they are the state of one loop, and what tests replace of it.
type Watcher struct {
	cfg       Config
	log       *slog.Logger
	snapshots chan *Snapshot
	// open makes the source of events; tests have their own.
	open   func() (notifier, error)
	gather time.Duration // see the constant; tests have their own
	// requests are those of Rescan.
	requests chan chan struct{}

	// What follows belongs to Run.
	sources  []*source
	files    map[string]*file
	good     manifest.Files   // what is in force of them
	bad      map[string]*file // those of them with a problem
	waiting  map[string]*file // those of files with a change that has not settled
	saver    *saver
	notify   notifier // nil when there is none
	noWatch  error    // why directories are polled
	watching map[string]identity

	dirty      map[string]eventHint // paths with events
	dirtySince time.Time            // of the first of the events; zero: none
	dirtyLast  time.Time            // of the last
	sure       bool                 // some of them were renamed into place
	unsure     bool                 // what an event was about may go on, in other paths, too
	nextPoll   time.Time
	nextRescan time.Time
	held       time.Time // since when settled changes wait for vanished files

	lost bool  // events were, since the directories were read last
	look *look // a reading of the directories beside the loop; nil: none
	// looked has a look that is done, and readDir reads a directory for it; tests have their own.
	looked  chan *look
	readDir func(*walk) (*walk, error)

	large     int64         // asideBytes; tests have their own
	aside     *aside        // files that are being read beside the loop; nil: none
	asideRead chan struct{} // has a value when they are read

	asked          []request // that are not answered yet
	changed        bool      // since the last snapshot
	began          time.Time // when the oldest change of a file that is in none was noticed
	previous       *Snapshot
	nextSnapshotAt time.Time

	scans, reads, overflows, published atomic.Uint64
}

// New checks the configuration. It does not touch the directories.
func New(cfg Config) (*Watcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for d, value := range map[*time.Duration]time.Duration{&cfg.Settle: defaultSettle, &cfg.SettleCap: defaultSettleCap, &cfg.Rescan: defaultRescan} {
		if *d == 0 {
			*d = value
		}
	}
	if cfg.LastGood == nil {
		cfg.LastGood = NewMemory()
	}
	w := &Watcher{
		cfg:       cfg,
		log:       cfg.Log,
		snapshots: make(chan *Snapshot, 1),
		open:      openNotifier,
		gather:    gather,
		large:     asideBytes,
		asideRead: make(chan struct{}, 1),
		looked:    make(chan *look, 1),
		readDir:   (*walk).run,
		requests:  make(chan chan struct{}),
		files:     map[string]*file{},
		bad:       map[string]*file{},
		waiting:   map[string]*file{},
		watching:  map[string]identity{},
		dirty:     map[string]eventHint{},
	}
	if w.log == nil {
		w.log = slog.Default()
	}
	for _, dir := range cfg.Dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("watch: directory %q: %w", dir, err)
		}
		w.sources = append(w.sources, &source{dir: abs})
	}
	w.saver = newSaver(cfg.LastGood)
	return w, nil
}

// Snapshots has the newest snapshot that was not received yet: a newer one replaces it.
// The first comes when every directory was read, or found unavailable, once. The channel
// is never closed.
func (w *Watcher) Snapshots() <-chan *Snapshot { return w.snapshots }

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
	defer w.close()

	w.changed = true // also nothing is worth a first snapshot
	w.rescan(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		w.settle(now)
		w.publish(now)
		w.answer()
		timer.Reset(w.next(now).Sub(now))
		var events <-chan fsnotify.Event
		var errs <-chan error
		if w.notify != nil {
			events, errs = w.notify.events(), w.notify.errors()
		}
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
			w.changed = true
		case <-w.asideRead:
			w.takeAside(time.Now())
		case l := <-w.looked:
			w.takeLook(l, time.Now())
		case done := <-w.requests:
			w.rescan(time.Now())
			w.ask(done)
		case <-timer.C:
		}
		w.work(time.Now())
	}
}

// Rescan reads the directories once more and returns when what they held at the time of
// the call is in a snapshot, which may be an unread or an earlier one. It waits for
// files that are being written, for each at most SettleCap.
func (w *Watcher) Rescan(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case w.requests <- done:
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

// A request is somebody who waits for what the directories held at a moment.
type request struct {
	done  chan struct{}
	waits map[*file]*change // that had not settled by then
}

// ask notes a request; all directories have just been read.
func (w *Watcher) ask(done chan struct{}) {
	r := request{done, make(map[*file]*change, len(w.waiting))}
	for _, f := range w.waiting {
		r.waits[f] = f.change
	}
	w.asked = append(w.asked, r)
}

// answer ends the requests whose changes are all in a snapshot, whatever has changed since.
func (w *Watcher) answer() {
	if w.changed {
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

// work does what is due.
func (w *Watcher) work(now time.Time) {
	if !now.Before(w.nextRescan) {
		if !w.lookBeside(now) {
			w.rescan(now)
			return
		}
	}
	if !now.Before(w.nextPoll) {
		w.pollSources(now)
	}
	if !w.dirtySince.IsZero() && !now.Before(w.checkAt()) {
		w.check(now)
	}
}

// next is when there is something to do if nothing happens.
func (w *Watcher) next(now time.Time) time.Time {
	next := w.nextRescan
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	earlier(w.nextPoll)
	if w.changed {
		earlier(w.nextSnapshotAt)
	}
	if !w.dirtySince.IsZero() {
		earlier(w.checkAt())
	}
	for _, f := range w.waiting {
		// Those that are ready already wait for others, see settle.
		if ready := f.change.ready(w.cfg); ready.After(now) {
			earlier(ready)
		}
	}
	for _, s := range w.sources {
		switch waits := len(w.waiting) > 0; {
		case waits && s.locked:
			earlier(now.Add(gitPoll))
		case waits && s.unlocked.Add(w.cfg.Settle).After(now):
			earlier(s.unlocked.Add(w.cfg.Settle))
		}
		if !s.lost.IsZero() && s.state != StateUnavailable {
			earlier(s.lost.Add(w.cfg.Settle))
		}
	}
	if !w.held.IsZero() {
		earlier(w.held.Add(w.cfg.Settle))
	}
	return next
}
