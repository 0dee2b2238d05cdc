package sourceset

import (
	"context"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is for how long nothing must happen to a file before it is read, rescan how often
// files are compared without an event.
const (
	settle = 300 * time.Millisecond
	rescan = 10 * time.Second
)

// File is a set's file.
type File struct{ Name, Path string }

// Take gets the new content of a set. It never waits.
type Take func(name string, prefixes []netip.Prefix)

// Reader reads files, and tells what is new in them.
type Reader struct {
	files []file

	mu     sync.Mutex
	broken map[string]error // by set: why its newest content is not in force
}

type file struct {
	File
	seen stamp // when it was read; the zero value, which no file has: not yet
}

// stamp has what the system says of a file that is not the same after a change of it.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
	missing      string
}

// NewReader reads nothing yet.
func NewReader(files []File) *Reader {
	r := &Reader{broken: map[string]error{}}
	for _, f := range files {
		r.files = append(r.files, file{File: f})
	}
	return r
}

// Broken gives, by set, why the newest content of its file is not in force.
func (r *Reader) Broken() map[string]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.broken)
}

// Scan reads the files that changed since they were looked at last. It reports whether what
// Broken gives is another one than before.
func (r *Reader) Scan(take Take) (changed bool) {
	for i := range r.files {
		f := &r.files[i]
		now := stampOf(f.Path)
		if now == f.seen {
			continue
		}
		prefixes, err := ReadFile(f.Path)
		if err == nil && stampOf(f.Path) != now {
			// It was written to meanwhile: an event, or the next look, finds it again.
			f.seen = stamp{}
			continue
		}
		f.seen = now
		if err == nil {
			take(f.Name, prefixes)
		}
		changed = r.note(f.Name, err) || changed
	}
	return changed
}

// note keeps why a set's file is refused, nil if it is not.
func (r *Reader) note(name string, err error) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.broken[name]
	if err == nil {
		delete(r.broken, name)
		return before != nil
	}
	r.broken[name] = err
	return before == nil || before.Error() != err.Error()
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{missing: err.Error()}
	}
	s, is := info.Sys().(*syscall.Stat_t)
	if !is {
		return stamp{missing: fs.ErrInvalid.Error()}
	}
	return stamp{uint64(s.Dev), s.Ino, s.Size, s.Mtim, s.Ctim, ""}
}

// Run reads files as they change, until ctx is done. changed, which never waits, is called when
// what Broken gives is another one than before. Without fsnotify files are compared every 10
// seconds alone.
func (r *Reader) Run(ctx context.Context, take Take, changed func()) error {
	events, watcher := r.watch()
	if watcher != nil {
		defer watcher.Close()
	}
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	quiet := time.NewTimer(0) // what changed before it was watched
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events:
			if !ok {
				events = nil
			}
			quiet.Reset(settle)
			continue
		case <-tick.C:
		case <-quiet.C:
		}
		if r.Scan(take) {
			changed()
		}
	}
}

// watch begins to hear of the directories of the files: a file that is replaced is another one.
func (r *Reader) watch() (<-chan fsnotify.Event, *fsnotify.Watcher) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil
	}
	for _, f := range r.files {
		_ = w.Add(filepath.Dir(f.Path)) // without it the file is compared now and then
	}
	return w.Events, w
}
