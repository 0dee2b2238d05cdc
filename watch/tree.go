package watch

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// A Notifier sends events of directories.
type Notifier interface {
	Events() <-chan fsnotify.Event
	Errors() <-chan error
	Add(dir string) error
	Remove(dir string) error
	// WatchList returns the directories that still send events: the kernel drops those that are deleted, moved or unmounted.
	WatchList() []string
	Close() error
}

// eventBuffer bounds the events that wait for the loop; more wait in the kernel, whose queue has
// 16,384 (fs.inotify.max_queued_events).
const eventBuffer = 1024

// inotify is the Notifier of the kernel.
type inotify struct{ w *fsnotify.Watcher }

func openInotify() (Notifier, error) {
	w, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		return nil, err
	}
	return inotify{w}, nil
}

func (n inotify) Events() <-chan fsnotify.Event { return n.w.Events }
func (n inotify) Errors() <-chan error          { return n.w.Errors }
func (n inotify) Add(dir string) error          { return n.w.Add(dir) }
func (n inotify) Remove(dir string) error       { return n.w.Remove(dir) }
func (n inotify) WatchList() []string           { return n.w.WatchList() }
func (n inotify) Close() error                  { return n.w.Close() }

// A tree has the sources, and the notifier of events in them.
type tree struct {
	sources []*source
	// open is Config.Notifier.
	open     func() (Notifier, error)
	notify   Notifier            // nil when there is none
	noEvents error               // why directories are polled
	watching map[string]identity // directories
}

// sourceOf is the source that a path belongs to, or nil.
func (t *tree) sourceOf(path string) *source {
	for _, s := range t.sources {
		if within(s.dir, path) {
			return s
		}
	}
	return nil
}

// channels returns the channels of the notifier; nil when there is none.
func (t *tree) channels() (<-chan fsnotify.Event, <-chan error) {
	if t.notify == nil {
		return nil, nil
	}
	return t.notify.Events(), t.notify.Errors()
}

// connect makes the notifier if there is none.
func (t *tree) connect() {
	t.noEvents = nil
	if t.notify != nil {
		return
	}
	n, err := t.open()
	if err != nil {
		t.noEvents = fmt.Errorf("no file events: %w", err)
		return
	}
	t.notify = n
}

// disconnect drops the notifier.
func (t *tree) disconnect() {
	if t.notify != nil {
		_ = t.notify.Close()
		t.notify = nil
	}
	clear(t.watching)
}

// watch makes the watched directories those that are read: dirs of s, and what the other
// sources have. It reports whether there is a watch that was not there before.
//
// Old watches go first: the kernel has one watch for an inode, and fsnotify one name
// for it, so that a directory that was renamed cannot be watched under its new name
// before the old one is forgotten.
func (t *tree) watch(s *source, dirs map[string]identity) (more bool) {
	if t.notify == nil || t.noEvents != nil {
		return false
	}
	wanted := maps.Clone(dirs)
	for _, other := range t.sources {
		if other != s {
			maps.Copy(wanted, other.dirs)
		}
		if info, err := os.Stat(other.parent); err == nil {
			wanted[other.parent] = versionOf(info).identity
		}
	}
	live := map[string]bool{}
	for _, dir := range t.notify.WatchList() {
		live[dir] = true
	}
	for dir, id := range t.watching {
		if wanted[dir] != id || !live[dir] {
			_ = t.notify.Remove(dir)
			delete(t.watching, dir)
		}
	}
	for dir, id := range wanted {
		if _, ok := t.watching[dir]; ok {
			continue
		}
		switch err := t.notify.Add(dir); {
		case err == nil:
			t.watching[dir], more = id, true
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOMEM):
			t.noEvents = fmt.Errorf("watch %s: %w", dir, err)
			return false
		}
		// Any other error is the directory's, and reading it has the same.
	}
	return more
}

// begin watches a directory that is about to be read for the first time, so that it need not be read again for that.
// When it takes another one's place meanwhile, the parent directory sends an event, which was watched before it. What
// cannot be watched is left to watch.
func (t *tree) begin(dir string, id identity) {
	if t.notify == nil || t.noEvents != nil {
		return
	}
	if _, watched := t.watching[dir]; !watched && t.notify.Add(dir) == nil {
		t.watching[dir] = id
	}
}

// close lets go of everything that is open.
func (t *tree) close() {
	t.disconnect()
	for _, s := range t.sources {
		s.close()
	}
}
