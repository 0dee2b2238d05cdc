package sourceset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/watch"
)

const (
	// settle is how long a file must be unchanged before it is read: one that is written in place is at first empty or incomplete.
	settle = 300 * time.Millisecond
	// atMost bounds how long Start waits for files that are being written.
	atMost = 2 * time.Second
	// rescan is the interval at which files are compared without an event. It is also how long a file that became empty must stay empty
	// before that counts: its writer may be slow.
	rescan = 10 * time.Second
)

// File is the name and the file of a source set.
type File struct{ Name, Path string }

// Take receives the new content of a set. It must not block.
type Take func(name string, prefixes []netip.Prefix)

// Reader reads the files of source sets, at the start and when they change.
type Reader struct {
	files []file

	mu     sync.Mutex
	broken map[string]error // by set: why its newest content is not in force
}

type file struct {
	File
	read   stamp     // of the content that was read last; zero, which no file has: none was read
	err    error     // why that content is not in force
	last   stamp     // at the last look
	since  time.Time // the time of the first look that found last
	moving time.Time // the time of the first look that found the file unsettled; zero: it is settled
	empty  bool      // the content in force has no prefix
}

// stamp has the attributes of a file from stat(2) by which a change is detected.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
	missing      string
}

// NewReader returns a Reader that has read nothing yet.
func NewReader(files []File) *Reader {
	r := &Reader{broken: map[string]error{}}
	for _, f := range files {
		r.files = append(r.files, file{File: f})
	}
	return r
}

// Broken returns, by set, the errors for which the newest content of a file is not in force.
func (r *Reader) Broken() map[string]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.broken)
}

// Start reads all files for the first time. It waits up to atMost for files that are being written; Run reads those that are not settled
// then.
func (r *Reader) Start(take Take) {
	end := time.Now().Add(atMost)
	for {
		_, again := r.look(time.Now(), take)
		if again == 0 || again > settle || !time.Now().Before(end) {
			return
		}
		time.Sleep(again)
	}
}

// look reads the files that have changed and are settled. It reports whether the result of Broken changed, and the time after which a file
// that is not settled must be looked at again, 0 if there is none.
func (r *Reader) look(now time.Time, take Take) (changed bool, again time.Duration) {
	for i := range r.files {
		f := &r.files[i]
		wait, err := f.look(now, take)
		changed = r.note(f.Name, err) || changed
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return changed, again
}

// look reads a file that has changed. It has to be called again after the duration again, or at the next event if that is 0; err is the
// reason that the newest content is not in force.
func (f *file) look(now time.Time, take Take) (again time.Duration, err error) {
	at := stampOf(f.Path)
	if at != f.last {
		f.last, f.since = at, now
	}
	missingAtStart := at.missing != "" && f.read == stamp{}
	switch {
	case at == f.read:
		f.moving = time.Time{}
		return 0, f.err
	case f.quiet(now) < settle && !missingAtStart:
		if f.moving.IsZero() {
			f.moving = now
		}
		if now.Sub(f.moving) >= rescan {
			return settle, fmt.Errorf("it has been changing for more than %v, so it may be half written: write a new file and rename it to this name", rescan)
		}
		return settle, f.err
	}
	f.moving = time.Time{}
	prefixes, err := ReadFile(f.Path)
	if _, is := errors.AsType[*fs.PathError](err); is {
		return 0, err // not of its content: it is read again at the next look
	}
	if err == nil && stampOf(f.Path) != at {
		return settle, f.err
	}
	if rest := rescan - f.quiet(now); err == nil && len(prefixes) == 0 && !f.empty && rest > 0 {
		return rest, fmt.Errorf("it is empty; that is taken when it has been so for %v, in case it is being written", rescan)
	}
	f.read, f.err = at, err
	if err == nil {
		f.empty = len(prefixes) == 0
		take(f.Name, prefixes)
	}
	return 0, err
}

// quiet returns for how long a file has been unchanged: by its ctime, which only the kernel sets, or by when the change was first seen,
// whichever is longer. The clocks of a file server and of this host may differ.
func (f *file) quiet(now time.Time) time.Duration {
	seen := now.Sub(f.since)
	if f.last.missing != "" {
		return seen
	}
	return max(seen, now.Sub(time.Unix(f.last.ctime.Unix())))
}

// note records the error of a set's file, nil if it has none, and reports whether it changed.
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

// Run reads files as they change, until ctx is done. It calls changed, which must not block, when the result of Broken changes. Without
// fsnotify it only compares the files every rescan.
func (r *Reader) Run(ctx context.Context, take Take, changed func()) error {
	events, lost, watcher := r.watch()
	if watcher != nil {
		defer watcher.Close()
	}
	r.follow(ctx, events, lost, take, changed)
	return nil
}

// follow looks at the files after events, after lost events, and every rescan, until ctx is done.
func (r *Reader) follow(ctx context.Context, events <-chan fsnotify.Event, lost <-chan error, take Take, changed func()) {
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	due, at := time.NewTimer(0), time.Now() // what changed before it was watched
	defer due.Stop()
	for {
		wait := settle
		select {
		case <-ctx.Done():
			return
		case _, open := <-events: // of any name in the directory: a symbolic link may lead through each
			if !open {
				events = nil
			}
		case _, open := <-lost: // some events, for the kernel's queue is bounded
			if !open {
				lost = nil
			}
		case <-tick.C:
			wait, at = r.lookAgain(take, changed), time.Time{}
		case <-due.C:
			wait, at = r.lookAgain(take, changed), time.Time{}
		}
		// Nothing puts a look off that is due earlier.
		if next := time.Now().Add(wait); wait > 0 && (at.IsZero() || next.Before(at)) {
			at = next
			due.Reset(wait)
		}
	}
}

// lookAgain looks at all files, calls changed if the result of Broken changed, and returns the time until the next look, 0 if only an event
// requires one.
func (r *Reader) lookAgain(take Take, changed func()) time.Duration {
	isNew, again := r.look(time.Now(), take)
	if isNew {
		changed()
	}
	return again
}

// watch watches the directories of the files rather than the files, since a replaced file is another inode. It returns nil channels if
// fsnotify is not available.
func (r *Reader) watch() (<-chan fsnotify.Event, <-chan error, *fsnotify.Watcher) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, nil, nil
	}
	for _, f := range r.files {
		_ = w.Add(filepath.Dir(f.Path)) // without it the file is compared now and then
	}
	return w.Events, w.Errors, w
}

// maxFile bounds the size of a file in bytes: it suffices for a million prefixes.
const maxFile = 48 << 20

// maxShown bounds the bytes of a line that an error quotes.
const maxShown = 60

// ReadFile returns the prefixes in a file. An error has the number and the text of the first invalid line.
func ReadFile(path string) ([]netip.Prefix, error) {
	data, err := watch.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Parse returns the prefixes in the content of a file. An error is about the first invalid line.
func Parse(data []byte) ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, 0, bytes.Count(data, []byte{'\n'})+1)
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := string(line)
		if i := strings.IndexAny(text, "#;"); i >= 0 {
			text = text[:i]
		}
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := parsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}

func parsePrefix(text string) (p netip.Prefix, err error) {
	if strings.Contains(text, "/") {
		p, err = netip.ParsePrefix(text)
	} else if addr, e := netip.ParseAddr(text); e == nil && addr.Zone() == "" {
		p = netip.PrefixFrom(addr, addr.BitLen())
	} else {
		err = fmt.Errorf("no address")
	}
	switch {
	case err != nil, p.Addr().Is4In6():
		text = text[:min(len(text), maxShown)]
		return p, fmt.Errorf("%q is no prefix and no address: write one a line, as 192.0.2.0/24 or 2001:db8::/32", text)
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits behind its length: write %s, or %s/%d for the one address", p, p.Masked(), p.Addr(), p.Addr().BitLen())
	}
	return p, nil
}
