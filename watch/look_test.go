package watch

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// lookBubble is bubble with a look that returns what it read when held is closed.
func lookBubble(t *testing.T, files map[string]string, test func(h *harness, held chan struct{})) {
	t.Helper()
	dir := put(t, t.TempDir(), files)
	synctest.Test(t, func(t *testing.T) {
		w, err := New(Config{LastGood: NewMemory(), Dirs: []string{dir}, Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		held := make(chan struct{})
		w.looks.readDir = func(wk *walk) (*walk, error) {
			wk, err := wk.run()
			<-held
			return wk, err
		}
		h := run(t, w, dir, newSilent())
		defer h.stop()
		test(h, held)
	})
}

// Changes are taken as soon as ever while all files are looked at, and what the look has seen
// before them is not taken for news.
func TestChangesDuringALook(t *testing.T) {
	lookBubble(t, map[string]string{"a.yaml": services("a"), "b.yaml": services("b"), "gone.yaml": services("x")}, func(h *harness, held chan struct{}) {
		h.is(h.next(), "a.yaml: a, b.yaml: b, gone.yaml: x")
		time.Sleep(defaultRescan + time.Second)
		if n := h.w.Stats().Scans; n < 2 {
			h.Fatalf("no look after %v: %d scans", defaultRescan, n)
		}
		h.write("a.yaml", services("a", "more"))
		h.is(h.within(90*time.Millisecond, 120*time.Millisecond), "a.yaml: a more, b.yaml: b, gone.yaml: x")
		h.write("c.yaml", services("c"))
		h.is(h.within(90*time.Millisecond, 120*time.Millisecond), "a.yaml: a more, b.yaml: b, c.yaml: c, gone.yaml: x")
		h.remove("gone.yaml")
		h.is(h.within(90*time.Millisecond, 120*time.Millisecond), "a.yaml: a more, b.yaml: b, c.yaml: c")
		reads := h.w.Stats().Reads
		close(held)
		h.none(5 * time.Second)
		if n := h.w.Stats().Reads - reads; n > 0 {
			h.Errorf("%d files were read once more", n)
		}
		// What no event told of is found all the same.
		must(h.T, os.WriteFile(h.path("b.yaml"), []byte(services("b", "late")), 0o644))
		h.is(h.next(), "a.yaml: a more, b.yaml: b late, c.yaml: c")
	})
}

// A look that takes longer than the time between two is the only one, and what it has seen counts.
func TestLookThatTakesLong(t *testing.T) {
	lookBubble(t, map[string]string{"a.yaml": services("a")}, func(h *harness, held chan struct{}) {
		h.is(h.next(), "a.yaml: a")
		scans := h.w.Stats().Scans
		must(h.T, os.WriteFile(h.path("a.yaml"), []byte(services("a", "late")), 0o644)) // no event tells of it
		h.none(5*defaultRescan + time.Second)
		if n := h.w.Stats().Scans - scans; n != 1 {
			h.Errorf("%d readings of the directory at once", n)
		}
		close(held)
		h.is(h.within(0, 120*time.Millisecond), "a.yaml: a late")
	})
}

// A look finds directories that came and went without events.
func TestLookFindsDirectories(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a"), "sub/b.yaml": services("b")}, func(h *harness) {
		h.next()
		must(h.T, os.RemoveAll(h.path("sub")))
		put(h.T, h.dir, map[string]string{"new/c.yaml": services("c")})
		h.is(h.within(9*time.Second, 10200*time.Millisecond), "a.yaml: a, c.yaml: c")
		h.write("new/c.yaml", services("c", "more"))
		h.is(h.within(90*time.Millisecond, 120*time.Millisecond), "a.yaml: a, c.yaml: c more")
	})
}

// A look that began before all directories were read has nothing new to tell.
func TestLookThatIsOvertaken(t *testing.T) {
	lookBubble(t, map[string]string{"a.yaml": services("a"), "sub/b.yaml": services("b")}, func(h *harness, held chan struct{}) {
		h.next()
		time.Sleep(defaultRescan + time.Second)
		must(h.T, os.Rename(h.path("sub"), h.path("other")))
		h.send("other", fsnotify.Create)
		h.is(h.next(), "a.yaml: a, b.yaml: b")
		scans := h.w.Stats().Scans
		close(held)
		h.none(5 * time.Second)
		if n := h.w.Stats().Scans - scans; n > 0 {
			h.Errorf("%d readings of a directory that was read since", n)
		}
	})
}

// Where inotify reports every change, a look is due every five minutes; one within 10 s while a file cannot be read, a directory is not
// watched, or another one has taken its place.
func Test1148_looks_at_a_local_filesystem_are_rare(t *testing.T) {
	dir := put(t, t.TempDir(), map[string]string{"a.yaml": services("a"), "sub/b.yaml": services("b")})
	w, err := New(Config{LastGood: NewMemory(), Dirs: []string{dir}, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer w.tree.close()
	now := time.Now()
	w.rescan(now)
	s := w.tree.sources[0]
	if !s.isLocal(slices.Sorted(slices.Values(w.tree.notify.WatchList()))) {
		t.Skip("files for tests are not on a local filesystem")
	}
	looked := func(after time.Duration) bool {
		t.Helper()
		scans := w.Stats().Scans
		if w.looks.current != nil {
			t.Fatal("a look is under way")
		}
		now = now.Add(after)
		if !w.lookBeside(now) {
			return true
		}
		if w.looks.current != nil {
			w.takeLook(<-w.looks.done, now)
		}
		return w.Stats().Scans > scans
	}
	for range 3 {
		if looked(defaultRescan) {
			t.Error("a look at directories that are watched")
		}
	}
	if !looked(lookRarely) || looked(defaultRescan) {
		t.Errorf("no look after %v, or one soon after it", lookRarely)
	}
	f := w.settling.files[filepath.Join(dir, "a.yaml")]
	read := f.seen
	handled := func(state fileState) {
		f.seen = state
		w.contents.note(f)
	}
	handled(fileState{kind: unusable, version: read.version}) // as when there are no file descriptors left
	if !looked(defaultRescan) {
		t.Error("no look while a file cannot be read")
	}
	if handled(read); looked(defaultRescan) {
		t.Error("a look when it can be read")
	}
	must(t, os.Link(filepath.Join(dir, "a.yaml"), filepath.Join(dir, ".a")))
	must(t, os.Symlink(".a", filepath.Join(dir, "link.yaml")))
	for _, name := range []string{"a.yaml", "link.yaml"} { // what is written to .a sends no event of them
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if handled(fileStateOf(info, name != "a.yaml")); !looked(defaultRescan) {
			t.Errorf("no look at %s, which has another name", name)
		}
	}
	handled(read)
	gone := &file{path: filepath.Join(dir, "gone.yaml"), source: f.source, seen: fileState{kind: unusable}}
	w.contents.note(gone)
	if w.contents.forget(gone); looked(defaultRescan) {
		t.Error("a look for a file that could not be read and is gone")
	}
	must(t, os.Remove(filepath.Join(dir, "link.yaml")))
	must(t, os.Remove(filepath.Join(dir, ".a")))
	must(t, w.tree.notify.Remove(filepath.Join(dir, "sub")))
	if !looked(defaultRescan) || !s.isLocal(slices.Sorted(slices.Values(w.tree.notify.WatchList()))) {
		t.Error("a directory that is not watched is not looked at")
	}
	must(t, os.Rename(filepath.Join(dir, "sub"), filepath.Join(dir, "other")))
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	if !looked(defaultRescan) {
		t.Error("no look at a directory that has taken the place of another one")
	}
}
