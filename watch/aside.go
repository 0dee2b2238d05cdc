package watch

import (
	"errors"
	"os"
	"slices"
	"time"

	"svcctl.io/svcctl/store/parallel"
)

// asideBytes is the size from which on a file is read beside the loop: reading one of 30 MB takes
// several hundred milliseconds, in which changes in others would not be noticed.
const asideBytes = 1 << 20

// An aside is files that are being read beside the loop: one that is large, and those that
// settled together with it, for what was changed together is to be seen together.
type aside struct {
	files    []*file
	seen     []fileState // what was seen when reading began
	contents []content
}

// background has the files that are being read beside the loop.
type background struct {
	current *aside        // nil: none
	done    chan struct{} // has a value when they are read
	large   int64         // asideBytes; tests have their own
}

// setAside begins to read some files beside the loop if one of them is large. Before the first
// snapshot there is nothing that could go ahead, and one large file after the other is enough:
// it gives those that are to be read here.
func (w *Watcher) setAside(ready []*file) []*file {
	isLarge := func(f *file) bool { return f.change.seen.version.size >= w.background.large }
	if w.out.previous == nil || !slices.ContainsFunc(ready, isLarge) {
		return ready
	}
	if w.background.current != nil {
		return slices.DeleteFunc(ready, isLarge)
	}
	some := ready[:atOnce(ready, len(ready))] // the others wait for these
	a := &aside{files: some, contents: make([]content, len(some))}
	for _, f := range some {
		f.aside = true
		a.seen = append(a.seen, f.change.seen)
	}
	fetches := w.fetches(some)
	w.background.current = a
	go func() {
		parallel.Do(len(fetches), 1, func(i int) { a.contents[i] = fetches[i]() })
		w.background.done <- struct{}{}
	}()
	return nil
}

// takeAside deals with the files that were read beside the loop, as what was seen of them when
// reading began; what was seen since comes after it. Those that are gone, or not gone any
// more, or as they were before, or whose directory was lost, are left to settle.
func (w *Watcher) takeAside(now time.Time) {
	a := w.background.current
	w.background.current = nil
	for i, f := range a.files {
		f.aside = false
		if f.change == nil || f.change.seen.kind != a.seen[i].kind || errors.Is(a.contents[i].err, os.ErrClosed) {
			continue
		}
		newer := f.change.seen
		f.change.seen = a.seen[i]
		w.take(f, a.contents[i], now)
		if !newer.same(a.seen[i]) { // it was seen while it was read: that is what comes next
			w.observe(f.source, f.path, newer, eventHint{}, now)
		}
	}
}
