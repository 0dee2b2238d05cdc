package watch

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// rename renames a file that it makes, and gives the event of that: only fsnotify can make one.
func rename(t *testing.T, from, to string) fsnotify.Event {
	t.Helper()
	must(t, os.WriteFile(from, nil, 0o600))
	n, err := fsnotify.NewWatcher()
	must(t, err)
	defer n.Close()
	must(t, n.Add(filepath.Dir(to)))
	must(t, os.Rename(from, to))
	for ev := range n.Events {
		if ev.Name == to {
			return ev
		}
	}
	t.Fatal("no event of a rename")
	return fsnotify.Event{}
}

// When the paths of events are looked at, and which of them.
func TestEvents(t *testing.T) {
	const gather, settle = 10 * time.Millisecond, 100 * time.Millisecond
	start := time.Unix(1_000, 0)
	dir := t.TempDir()
	moved := rename(t, filepath.Join(dir, ".tmp"), filepath.Join(dir, "moved.yaml"))
	written := fsnotify.Event{Name: filepath.Join(dir, "written.yaml"), Op: fsnotify.Write}
	directory := fsnotify.Event{Name: filepath.Join(dir, "sub"), Op: fsnotify.Create}
	for _, c := range []struct {
		name  string
		all   []fsnotify.Event // a millisecond apart
		due   time.Duration
		taken string // when they are due; the rest is left
	}{
		{"none", nil, -1, ""},
		{"one that is written", []fsnotify.Event{written}, gather, "written.yaml"},
		{"written again", []fsnotify.Event{written, written}, gather + time.Millisecond, "written.yaml"},
		{"written without end", slices.Repeat([]fsnotify.Event{written}, 200), settle, "written.yaml"},
		{"renamed into place", []fsnotify.Event{moved}, 0, "moved.yaml"},
		{"renamed beside one that is written", []fsnotify.Event{moved, written}, 0, "moved.yaml"},
		{"renamed beside a directory", []fsnotify.Event{moved, directory}, gather + time.Millisecond, "moved.yaml sub"},
	} {
		e := events{gather: gather, settle: settle}
		for i, ev := range c.all {
			e.add(ev, start.Add(time.Duration(i)*time.Millisecond))
		}
		if c.due < 0 != e.none() {
			t.Errorf("%s: none is %v", c.name, e.none())
		}
		if e.none() {
			continue
		}
		if due := e.due().Sub(start); due != c.due {
			t.Errorf("%s: due after %v, want %v", c.name, due, c.due)
		}
		var taken []string
		for _, path := range slices.Sorted(maps.Keys(e.take(e.due()))) {
			taken = append(taken, filepath.Base(path))
		}
		if got := strings.Join(taken, " "); got != c.taken {
			t.Errorf("%s: %q are looked at, want %q", c.name, got, c.taken)
		}
		if left := len(e.hints) > 0; left == e.none() {
			t.Errorf("%s: %d are left, and none is %v", c.name, len(e.hints), e.none())
		}
	}
}
