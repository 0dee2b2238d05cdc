package watch

import (
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// An eventHint sums up the events of a path since it was last looked at.
type eventHint struct {
	created bool // appeared, by whatever means
	moved   bool // was renamed to this name inside of the watched directories
	written bool // was written to, or its mode or times were changed, since
	quiet   bool // and that is all: there were no more events for a moment
	// switched is no event: a link on the way to it leads elsewhere than before.
	switched bool
}

// events gathers the events since paths were last looked at. It is pure: callers give the time.
type events struct {
	hints       map[string]eventHint // by path
	first, last time.Time            // zero first: there are none
	renamed     bool                 // some manifests were renamed into place
	structural  bool                 // what an event was about may go on, in other paths, too

	gather time.Duration // see the constant
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

// none reports whether there is nothing to look at.
func (e *events) none() bool { return e.first.IsZero() }

// due returns the time to look at the paths: at once, if files were renamed into place, for these
// are complete, and nothing structural happened; else when all events are gathered.
func (e *events) due() time.Time {
	if e.renamed && !e.structural {
		return e.first
	}
	return e.gathered()
}

// gathered returns the time after which no more events are waited for: when there were none for
// e.gather, at most e.settle after the first.
func (e *events) gathered() time.Time {
	quiet, latest := e.last.Add(e.gather), e.first.Add(e.settle)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// quiet reports whether there were no events for a moment.
func (e *events) quiet(now time.Time) bool { return !now.Before(e.last.Add(e.gather)) }

// take gives the paths to look at, which are forgotten.
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

// takeAll gives all paths, which are forgotten.
func (e *events) takeAll() map[string]eventHint {
	all := e.hints
	*e = events{gather: e.gather, settle: e.settle}
	return all
}

// ignored reports whether a file never matters: those of editors and other programs that are
// temporary. A name that starts with two dots may be the link that a ConfigMap mount is switched
// with.
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

// isManifest reports by its name whether a file is read.
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
	if s := w.tree.sourceOf(ev.Name); s == nil || ev.Name != s.dir && ignored(filepath.Base(ev.Name)) {
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

// failed deals with an error of the notifier: the events that it lost must be
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
