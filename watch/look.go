package watch

import (
	"maps"
	"time"
)

// A look is a reading of all directories beside the loop, in case that events did not come: it
// takes 5 µs for each file, in which changes would not be noticed.
type look struct {
	walks []*walk          // of the sources, in their order; nil: the directory could not be read
	older map[*source]bool // those that were read since it began
}

// looks has the look that is under way.
type looks struct {
	current *look      // nil: none
	done    chan *look // has one that is done
	// readDir reads a directory for one; tests have their own.
	readDir func(*walk) (*walk, error)
}

// lookBeside begins a look, unless there is one, if nothing is known that needs more than that.
func (w *Watcher) lookBeside(now time.Time) bool {
	if w.schedule.lost || w.tree.notify == nil || w.tree.noEvents != nil {
		return false
	}
	for _, s := range w.tree.sources {
		if s.root == nil || !s.trusted || s.state != StateWatching || !s.lost.IsZero() || len(s.problems) > 0 || s.moved() {
			return false
		}
	}
	w.schedule.rescan = now.Add(w.cfg.Rescan)
	w.saver.retry()
	if w.looks.current != nil {
		return true // it takes longer than this; others would only slow it down
	}
	l := &look{walks: make([]*walk, len(w.tree.sources)), older: map[*source]bool{}}
	for i, s := range w.tree.sources {
		w.counts.scans.Add(1)
		l.walks[i] = s.newWalk(false)
	}
	w.looks.current = l
	go func() {
		for i, wk := range l.walks {
			if _, err := w.looks.readDir(wk); err != nil {
				l.walks[i] = nil
			}
		}
		w.looks.done <- l
	}()
	return true
}

// takeLook deals with what a look has seen. Files and directories went on to change meanwhile: a
// difference is only a reason to look again.
func (w *Watcher) takeLook(l *look, now time.Time) {
	if w.looks.current != l {
		return // all directories were read since
	}
	w.looks.current = nil
	for i, s := range w.tree.sources {
		wk := l.walks[i]
		if l.older[s] {
			continue
		}
		if wk == nil || !w.sameDirs(s, wk) || w.tree.watch(s, wk.dirs) || !w.takeDifferences(s, wk, now) {
			w.scan(s, nil, now)
			continue
		}
		s.findGitLocks(wk.trees)
	}
	w.gitSources(now) // a lock that was left behind may have gone
}

// sameDirs reports whether a look at a source found the directories that are known, and could
// read all of them.
func (w *Watcher) sameDirs(s *source, wk *walk) bool {
	for _, switched := range wk.switched {
		if switched {
			return false
		}
	}
	return len(wk.unread) == 0 && (len(wk.found) > 0 || s.good == 0) && maps.Equal(wk.dirs, s.dirs) && maps.Equal(wk.linked, s.linked)
}

// takeDifferences looks again at the files that are not as they were dealt with, unless there
// are events that say the same. It is false when that takes more than a look at each.
func (w *Watcher) takeDifferences(s *source, wk *walk, now time.Time) bool {
	again := func(path string) bool {
		if _, told := w.events.hints[path]; told {
			return true
		}
		seen, ok := s.look(path)
		if ok {
			w.observe(s, path, seen, eventHint{}, now)
		}
		return ok
	}
	for path, seen := range wk.found {
		if f := w.settling.files[path]; (f == nil || !f.latest().same(seen)) && !again(path) {
			return false
		}
	}
	for path, f := range w.settling.files {
		if _, there := wk.found[path]; !there && f.source == s && f.latest().kind != gone && !again(path) {
			return false
		}
	}
	return true
}

// latest gives the last sight of the file, settled or not.
func (f *file) latest() fileState {
	if f.change != nil {
		return f.change.seen
	}
	return f.seen
}
