package watch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/store/manifest"
)

// The reasons of a Snapshot's problems, beside those of package manifest, which the
// problems of files that cannot be parsed have.
const (
	ReasonUnreadable  = "Unreadable"           // a file or directory cannot be opened or read, or is no file
	ReasonUnavailable = "DirectoryUnavailable" // a watched directory is gone, or empty without a trace
	ReasonPolling     = "Polling"              // warning: no watches; changes are found by looking
	ReasonNotSaved    = "LastGoodNotSaved"     // warning: a restart would not know the last good content
)

// A Snapshot has the content of all directories at one moment. It is immutable.
type Snapshot struct {
	// Files has the files by absolute path, each with its last good content: Err is nil in all of
	// them. The same pointer as in an earlier snapshot means the same content.
	Files manifest.Files
	// Problems has the problems of whole files and of directories, sorted by path. Those of single
	// documents are in Files.
	Problems []manifest.Problem
	// Sources are the directories, as configured.
	Sources []Source
	// Noticed is the time at which the oldest change was noticed that is in no earlier snapshot
	// that was received; zero: there is none.
	Noticed time.Time
}

// A Source is a directory.
type Source struct {
	Dir   string // absolute
	State State
	// Err is why the directory is unavailable, or why it is polled.
	Err error
	// Files counts its files in the snapshot.
	Files int
}

// State is the state of a directory.
type State string

// The states of a directory.
const (
	StateWatching    State = "Watching"    // changes are noticed at once
	StatePolling     State = "Polling"     // changes are noticed within a second
	StateUnavailable State = "Unavailable" // its last good files are in force
)

// publish makes a snapshot if it would differ from the one before.
func (w *Watcher) publish(now time.Time) {
	if !w.out.due(now) {
		return
	}
	if w.out.previous == nil && !w.readOnce() {
		w.out.next = now.Add(paceMost)
		return
	}
	w.out.publish(w.snapshot, now)
	w.settling.started = true
	w.settling.shrink()
}

// readOnce reports whether every directory, and every file that was there, was read.
func (w *Watcher) readOnce() bool {
	for _, s := range w.tree.sources {
		if s.state == "" {
			return false
		}
	}
	for _, f := range w.settling.waiting {
		if !f.taken {
			return false
		}
	}
	return true
}

func (w *Watcher) snapshot() *Snapshot {
	out := &Snapshot{Files: slices.Clone(w.contents.good)}
	for _, f := range w.contents.bad {
		out.Problems = append(out.Problems, *f.problem())
	}
	for _, s := range w.tree.sources {
		src := Source{Dir: s.dir, State: s.state, Files: s.good}
		if s.state == StateUnavailable {
			src.Err = s.err
			out.Problems = append(out.Problems, manifest.Problem{File: s.dir, Reason: ReasonUnavailable,
				Message: fmt.Sprintf("the directory is unavailable: %v; %s", s.err, remembered(s.good))})
		} else if w.tree.noEvents != nil {
			src.State, src.Err = StatePolling, w.tree.noEvents
			out.Problems = append(out.Problems, manifest.Problem{File: s.dir, Reason: ReasonPolling, Warning: true,
				Message: fmt.Sprintf("changes are found by looking every %v: %v; raise fs.inotify.max_user_watches or max_user_instances", poll, w.tree.noEvents)})
		}
		out.Sources = append(out.Sources, src)
		out.Problems = append(out.Problems, s.problems...)
		out.Problems = append(out.Problems, s.gitProblems()...)
	}
	if err := w.saver.err(); err != nil {
		out.Problems = append(out.Problems, manifest.Problem{File: "last good copies", Reason: ReasonNotSaved, Warning: true,
			Message: fmt.Sprintf("not saved, tried again every %v: %v", w.cfg.Rescan, err)})
	}
	slices.SortFunc(out.Problems, func(a, b manifest.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return out
}

func (s *Snapshot) equal(other *Snapshot) bool {
	return slices.Equal(s.Files, other.Files) && slices.Equal(s.Problems, other.Problems) &&
		slices.EqualFunc(s.Sources, other.Sources, func(a, b Source) bool {
			sameErr := errors.Is(a.Err, b.Err) || a.Err != nil && b.Err != nil && a.Err.Error() == b.Err.Error()
			return a.Dir == b.Dir && a.State == b.State && a.Files == b.Files && sameErr
		})
}

// remembered describes what is kept of the files of a directory that is unavailable.
func remembered(files int) string {
	switch files {
	case 0:
		return "nothing is known of what was in it"
	case 1:
		return "the last content of its one file stays in force"
	}
	return fmt.Sprintf("the last content of its %d files stays in force", files)
}
