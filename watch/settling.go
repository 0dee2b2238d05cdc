package watch

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// settling are the files of all sources, and which of their changes have settled. It is pure: it is
// given the state of paths, and the time.
type settling struct {
	settle, most time.Duration    // Config.Settle and SettleCap
	files        map[string]*file // by path
	waiting      map[string]*file // those of files with a change that has not settled
	held         time.Time        // since when settled changes wait for vanished files
	// started reports that there was a first snapshot.
	started bool
}

func newSettling(settle, most time.Duration) settling {
	return settling{settle: settle, most: most, files: map[string]*file{}, waiting: map[string]*file{}}
}

// observe compares the state of a path with the one that was handled. It gives the file when that
// is gone, and was before.
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

// done ends the change of a file.
func (st *settling) done(f *file) {
	f.change = nil
	delete(st.waiting, f.path)
}

// drop ends the changes of a source: nothing is known of its files any more.
func (st *settling) drop(s *source) {
	for _, f := range st.waiting {
		if f.source == s {
			st.done(f)
		}
	}
}

// ready gives the changed files that have settled, by path, but those of sources that wait for git, and
// those with events that were not looked at yet, unless they have waited for the most time. When files are
// vanishing at the same time, that may be one change of several files: it waits for them, but not for long.
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

// next gives the moments at which something settles, to earlier.
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

// shrink makes room: a map keeps its room, all of which is walked again and again.
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

// isComplete reports whether the content arrived in one piece.
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

// Between two snapshots are at least paceLeast, in which several changes become one, and
// restFor times as long as the last one took, up to paceMost: making one costs a copy of
// the list of files. While a thousand files change in a second, one of them waits for
// little more than the disk, and all of them take half a CPU.
const (
	paceLeast = 4 * time.Millisecond
	paceMost  = 50 * time.Millisecond
	restFor   = 20
)

// publisher hands out snapshots, the newest one only.
type publisher struct {
	snapshots chan *Snapshot // of capacity one
	changed   bool           // since the last snapshot
	began     time.Time      // when the oldest change of a file that is in none was noticed; zero: there is none
	previous  *Snapshot      // nil: there was none
	next      time.Time      // not before
	published atomic.Uint64
}

// change notes that there is something for a snapshot, which began at a time.
func (p *publisher) change(began time.Time) {
	p.changed = true
	if p.began.IsZero() || began.Before(p.began) {
		p.began = began
	}
}

// due reports whether a snapshot is to be made.
func (p *publisher) due(now time.Time) bool { return p.changed && !now.Before(p.next) }

// publish hands out what make gives, if it differs from the snapshot before.
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
