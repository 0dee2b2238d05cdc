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
	// settle is the time that a file must be unchanged before it is read: a file that is written in place is empty or incomplete at first.
	settle = 300 * time.Millisecond
	// atMost is the longest time that Start waits for files that are being written.
	atMost = 2 * time.Second
	// rescan is the interval at which files are checked without an fsnotify event. It is also the time that a file must stay empty before its set
	// becomes empty: the program that writes it may be slow.
	rescan = 10 * time.Second
)

// File is the name of a source set and the path of its file.
type File struct{ Name, Path string }

// Take receives the new content of the set with this name. It must not block.
type Take func(name string, prefixes []netip.Prefix)

// Reader reads the files of source sets, at the start and when they change.
type Reader struct {
	files []file

	mu     sync.Mutex
	broken map[string]error // the error that keeps the newest content of a file from use, by name of the set
}

type file struct {
	File
	read   stamp     // the stamp of the content that was read last; zero if none was read
	err    error     // the error in that content; nil if it was taken
	last   stamp     // the stamp at the last check
	since  time.Time // the time of the check that first found last
	moving time.Time // the time of the check that first found the file changing; zero if it is not
	empty  bool      // the last content taken has no prefixes
}

// stamp holds the attributes of a file from stat(2) that reveal a change.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
	missing      string
}

// NewReader returns a Reader of these files. It reads none of them until Start is called.
func NewReader(files []File) *Reader {
	r := &Reader{broken: map[string]error{}}
	for _, f := range files {
		r.files = append(r.files, file{File: f})
	}
	return r
}

// Broken returns the errors of the files whose newest content is not used, keyed by the name of the source set.
func (r *Reader) Broken() map[string]error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.broken)
}

// Start reads all files for the first time. It waits up to atMost for files that are being written. Run reads those that still change after that
// time.
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

// look reads the files that have changed and are no longer being written. changed reports whether the result of Broken changed. again is the time
// after which a file must be checked again, 0 if none must.
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

// look reads the file if it has changed and is no longer being written. again is the time after which look must be called once more; if it is 0, the
// next event suffices. err is the error that keeps the newest content from use.
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

// quiet returns the time for which the file has been unchanged. It is the longer of the times since its ctime, which only the kernel sets, and since
// the change was first seen: the clocks of a file server and of this host may differ.
func (f *file) quiet(now time.Time) time.Duration {
	seen := now.Sub(f.since)
	if f.last.missing != "" {
		return seen
	}
	return max(seen, now.Sub(time.Unix(f.last.ctime.Unix())))
}

// note records the error of a set's file, nil if there is none. changed reports whether it differs from the previous error.
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

// follow checks the files after events, after an overflow of the event queue, and every rescan, until ctx is done.
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

// lookAgain checks all files and calls changed if the result of Broken changed. It returns the time until the next check, 0 if only an event requires
// one.
func (r *Reader) lookAgain(take Take, changed func()) time.Duration {
	isNew, again := r.look(time.Now(), take)
	if isNew {
		changed()
	}
	return again
}

// watch watches the directories of the files rather than the files, because a file may be replaced by another inode. It returns nil channels if
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

// maxFile is the maximum size of a file in bytes, enough for a million prefixes.
const maxFile = 48 << 20

// maxShown is the maximum number of bytes of a line that an error quotes.
const maxShown = 60

// ReadFile returns the prefixes in a file. If a line is invalid, the error has the number and text of the first such line.
func ReadFile(path string) ([]netip.Prefix, error) {
	data, err := watch.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Parse returns the prefixes in the content of a file. If a line is invalid, the error has the number and text of the first such line.
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
