package watch

import (
	"time"

	"svcctl.io/svcctl/store/manifest"
)

// identity is which file or directory a path leads to.
type identity struct{ dev, ino uint64 }

// version changes whenever a file is written to, replaced, or touched.
type version struct {
	identity
	size         int64
	mtime, ctime int64 // nanoseconds since 1970
}

type stateKind uint8

const (
	unseen   stateKind = iota // not looked at since the start
	gone                      // nothing is there
	regular                   // a file
	unusable                  // something that cannot be read
)

// A fileState is what was seen at a path.
type fileState struct {
	kind    stateKind
	version version // of a regular file
	linked  bool    // the path is a symbolic link
	why     string  // not usable
}

func (s fileState) same(other fileState) bool {
	return s.kind == other.kind && s.version == other.version && s.why == other.why
}

// A file is a path that is, or was, in a directory.
type file struct {
	path   string
	source *source
	// seen is what was last dealt with.
	seen fileState
	// hash is the SHA-256 of the content that was read last; broken is what is wrong
	// with that content, nil when it is good.
	hash   manifest.Hash
	broken *manifest.Problem
	// good is the last good content, which LastGood has too.
	good *manifest.File
	// taken is set when the file was dealt with once since the start.
	taken bool
	// aside is set while it is being read beside the loop.
	aside bool
	// change is not nil while there is something else to see than seen.
	change *change
}

// A change is something new at a path that has not settled.
type change struct {
	seen        fileState
	first, last time.Time // when it began, and when it was last different
	// complete: no writer can be at work on it any more.
	complete bool
	// lacking: an object is missing that was there; not believed before the cap.
	lacking bool
}

// ready is when a change may be taken for what it is.
func (c *change) ready(cfg Config) time.Time {
	quiet, latest := c.last.Add(cfg.Settle), c.first.Add(cfg.SettleCap)
	switch {
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

// problem is why the file's present state is not what is in force, or nil.
func (f *file) problem() *manifest.Problem {
	var p manifest.Problem
	switch {
	case f.seen.kind == unusable:
		p = manifest.Problem{File: f.path, Reason: ReasonUnreadable, Message: f.seen.why}
	case f.broken != nil:
		p = *f.broken
	default:
		return nil
	}
	if f.good != nil {
		p.Message += "; its last good content stays in force"
	} else {
		p.Message += "; there is no earlier good content of it"
	}
	return &p
}

// observe compares what is at a path with what was dealt with there.
func (w *Watcher) observe(s *source, path string, seen fileState, h eventHint, now time.Time) {
	f := w.files[path]
	if f == nil {
		if seen.kind == gone {
			return
		}
		f = &file{path: path, source: s, seen: fileState{kind: gone}}
		w.files[path] = f
	}
	if f.seen.same(seen) {
		f.change = nil
		delete(w.waiting, path)
		if seen.kind == gone {
			w.forget(f)
		}
		return
	}
	c := f.change
	if c != nil && c.seen.same(seen) {
		c.complete = c.complete || f.isComplete(seen, h)
		return
	}
	last := now.Add(-min(age(seen, now), w.cfg.Settle))
	if c == nil {
		c = &change{first: last}
		f.change = c
		w.waiting[path] = f
	}
	c.seen, c.last, c.lacking = seen, last, false
	if w.previous != nil {
		s.active = now
	}
	c.complete = f.isComplete(seen, h)
}

// age is how long a file has been as it is. Only the kernel sets the change time; if the
// clock was set back meanwhile, the file is as new as can be.
func age(s fileState, now time.Time) time.Duration {
	if s.kind != regular {
		return 0
	}
	return max(0, now.Sub(time.Unix(0, s.version.ctime)))
}

// isComplete reports whether what is seen came there in one piece.
func (f *file) isComplete(seen fileState, h eventHint) bool {
	another := seen.version.identity != f.seen.version.identity
	switch seen.kind {
	case gone:
		// Links are switched, not edited.
		return f.seen.linked || h.switched
	case regular:
		// A file that was renamed or linked to this name from elsewhere has something in it
		// that nobody wrote here. When it was changed, by that, after it was last written,
		// it is sure at once. That is not seen of both within one tick of the kernel's
		// clock (4 ms), so then an event of a writer is waited for.
		arrived := h.created && !h.written && another && seen.version.size > 0 && (seen.version.ctime > seen.version.mtime || h.quiet)
		// One that was written after it was moved here is like any that is edited; and
		// nothing is moved here to be empty, so that is a writer at its beginning.
		moved := h.moved && !h.written && seen.version.size > 0
		return moved || arrived || (seen.linked || h.switched) && another
	default:
		return false
	}
}
