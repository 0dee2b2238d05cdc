package watch

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// drainMost bounds the events that are taken before the loop looks at the time.
const drainMost = 1000

// drain takes an event, and those behind it.
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
	s := w.tree.sourceOf(ev.Name)
	if s == nil || ev.Name != s.dir && ignored(filepath.Base(ev.Name)) {
		return
	}
	w.events.add(ev, time.Now())
}

// check looks at the paths that events were about.
func (w *Watcher) check(now time.Time) {
	quiet := w.events.quiet(now)
	hints := w.events.take(now)
	whole := map[*source]bool{}
	for path, h := range hints {
		s := w.tree.sourceOf(path)
		if whole[s] {
			continue
		}
		seen, ok := s.look(path)
		switch {
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

// failed deals with an error of the notifier: what it did not tell must be
// looked for.
func (w *Watcher) failed(err error) {
	if errors.Is(err, fsnotify.ErrEventOverflow) {
		w.counts.overflows.Add(1)
	}
	w.log.Warn("file events were lost; reading all directories", "err", err)
	w.rescanSoon()
}

// died drops a notifier that ended; the next reading opens another.
func (w *Watcher) died() {
	w.tree.disconnect()
	w.log.Warn("file events ended; reading all directories")
	w.rescanSoon()
}

// rescanSoon leaves time for more of the same to happen.
func (w *Watcher) rescanSoon() {
	w.schedule.lost = true
	if soon := time.Now().Add(w.cfg.Settle); soon.Before(w.schedule.rescan) {
		w.schedule.rescan = soon
	}
}
