package watch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// A notifier tells what happens in directories.
type notifier interface {
	events() <-chan fsnotify.Event
	errors() <-chan error
	add(dir string) error
	remove(dir string) error
	// watched are the directories that still send events: the kernel drops those that
	// are deleted, moved or unmounted.
	watched() []string
	close() error
}

// eventBuffer is how many events wait for the loop before they wait in the kernel, whose
// queue has 16,384 (fs.inotify.max_queued_events).
const eventBuffer = 1024

// drainMost bounds the events that are taken before the loop looks at the time.
const drainMost = 1000

type inotify struct{ *fsnotify.Watcher }

func openNotifier() (notifier, error) {
	w, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		return nil, err
	}
	return inotify{w}, nil
}

func (n inotify) events() <-chan fsnotify.Event { return n.Events }
func (n inotify) errors() <-chan error          { return n.Errors }
func (n inotify) add(dir string) error          { return n.Add(dir) }
func (n inotify) remove(dir string) error       { return n.Remove(dir) }
func (n inotify) watched() []string             { return n.WatchList() }
func (n inotify) close() error                  { return n.Close() }

// An eventHint is what the events said about a path since it was last looked at.
type eventHint struct {
	created bool // appeared, by whatever means
	moved   bool // was renamed to this name inside of the watched directories
	written bool // was written to, or its mode or times were changed, since
	quiet   bool // and that is all: there were no more events for a moment
	// switched is no event: a link on the way to it leads elsewhere than before.
	switched bool
}

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
	s := w.sourceOf(ev.Name)
	if s == nil || ev.Name != s.dir && ignored(filepath.Base(ev.Name)) {
		return
	}
	h := w.dirty[ev.Name]
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
	w.dirty[ev.Name] = h
	switch manifest := isManifest(filepath.Base(ev.Name)); {
	case manifest && h.moved:
		w.sure = true
	case manifest && !ev.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename):
		// It is written to, which is its own affair.
	default: // A link or directory that is moved is often one step of several.
		w.unsure = true
	}
	w.dirtyLast = time.Now()
	if w.dirtySince.IsZero() {
		w.dirtySince = w.dirtyLast
	}
}

// sourceOf is the source that a path belongs to, or nil.
func (w *Watcher) sourceOf(path string) *source {
	for _, s := range w.sources {
		if within(s.dir, path) {
			return s
		}
	}
	return nil
}

// ignored tells the names that never matter: editors' and other programs' temporary
// files. A name that starts with two dots may be the link that a ConfigMap mount is
// switched with.
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

// isManifest tells by its name whether a file is read.
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

// checkAt is when to look at them: at once, if there are files that were renamed into
// place, for these are complete, unless there is more to it; else when all are.
func (w *Watcher) checkAt() time.Time {
	if w.sure && !w.unsure {
		return w.dirtySince
	}
	return w.gathered()
}

// gathered is when there were no more events for a moment, or there is no end of them.
func (w *Watcher) gathered() time.Time {
	quiet, latest := w.dirtyLast.Add(w.gather), w.dirtySince.Add(w.cfg.Settle)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// check looks at the paths that events were about.
func (w *Watcher) check(now time.Time) {
	quiet := !now.Before(w.dirtyLast.Add(w.gather))
	dirty := w.takeDirty(now)
	whole := map[*source]bool{}
	for path, h := range dirty {
		s := w.sourceOf(path)
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
	for _, s := range w.sources {
		if whole[s] {
			w.scan(s, dirty, now)
		}
	}
}

// takeDirty gives the paths to look at, which are forgotten.
func (w *Watcher) takeDirty(now time.Time) map[string]eventHint {
	all, early := w.dirty, w.sure && !w.unsure && now.Before(w.gathered())
	w.sure = false
	if early { // those that are being written to go on to gather
		moved := map[string]eventHint{}
		for path, h := range all {
			if h.moved {
				moved[path] = h
				delete(all, path)
			}
		}
		if len(all) > 0 {
			return moved
		}
		all = moved
	}
	w.dirty, w.dirtySince, w.unsure = map[string]eventHint{}, time.Time{}, false
	return all
}

// failed deals with an error of the source of events: what it did not tell must be
// looked for.
func (w *Watcher) failed(err error) {
	if errors.Is(err, fsnotify.ErrEventOverflow) {
		w.overflows.Add(1)
	}
	w.log.Warn("file events were lost; reading all directories", "err", err)
	w.rescanSoon()
}

// died drops a source of events that ended; the next reading opens another.
func (w *Watcher) died() {
	_ = w.notify.close()
	w.notify = nil
	clear(w.watching)
	w.log.Warn("file events ended; reading all directories")
	w.rescanSoon()
}

// rescanSoon leaves time for more of the same to happen.
func (w *Watcher) rescanSoon() {
	w.lost = true
	if soon := time.Now().Add(w.cfg.Settle); soon.Before(w.nextRescan) {
		w.nextRescan = soon
	}
}

// openNotify makes the source of events if there is none.
func (w *Watcher) openNotify() {
	w.noWatch = nil
	if w.notify != nil {
		return
	}
	n, err := w.open()
	if err != nil {
		w.noWatch = fmt.Errorf("no file events: %w", err)
		return
	}
	w.notify = n
}

// arm makes the watched directories those that are read: dirs of s, and what the other
// sources have. It reports whether there is a watch that was not there before.
//
// Old watches go first: the kernel has one watch for an inode, and fsnotify one name
// for it, so that a directory that was renamed cannot be watched under its new name
// before the old one is forgotten.
func (w *Watcher) arm(s *source, dirs map[string]identity) (more bool) {
	if w.notify == nil || w.noWatch != nil {
		return false
	}
	wanted := maps.Clone(dirs)
	for _, other := range w.sources {
		if other != s {
			maps.Copy(wanted, other.dirs)
		}
		if info, err := os.Stat(other.parent); err == nil {
			wanted[other.parent] = versionOf(info).identity
		}
	}
	live := map[string]bool{}
	for _, dir := range w.notify.watched() {
		live[dir] = true
	}
	for dir, id := range w.watching {
		if wanted[dir] != id || !live[dir] {
			_ = w.notify.remove(dir)
			delete(w.watching, dir)
		}
	}
	for dir, id := range wanted {
		if _, ok := w.watching[dir]; ok {
			continue
		}
		err := w.notify.add(dir)
		switch {
		case err == nil:
			w.watching[dir], more = id, true
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOMEM):
			w.noWatch = fmt.Errorf("watch %s: %w", dir, err)
			return false
		}
		// Any other error is the directory's, and reading it has the same.
	}
	return more
}
