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

// A fileState is the state of a path at a look.
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
	// seen is the state that was handled last.
	seen fileState
	// hash is the SHA-256 of the content that was read last; broken is the problem of that content,
	// nil when it is good.
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
