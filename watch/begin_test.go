package watch

import (
	"os"
	"path/filepath"
	"testing"
)

// What is watched before it is read for the first time need not be read again.
func TestFirstReadingIsWatched(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := New(Config{LastGood: NewMemory(), Dirs: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.tree.close()
	s := w.tree.sources[0]
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	w.tree.connect()
	wk := s.newWalk(false)
	wk.begin = w.tree.begin
	if _, err := wk.run(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Dir(below), below} {
		if id, watched := w.tree.watching[path]; !watched || id != wk.dirs[path] {
			t.Errorf("%s is not watched", path)
		}
	}
	if w.tree.watch(s, wk.dirs) {
		t.Error("there are watches that were not there before: all is read again")
	}
	// One that came meanwhile is.
	if err := os.Mkdir(filepath.Join(below, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if wk, err = s.walk(); err != nil {
		t.Fatal(err)
	}
	if !w.tree.watch(s, wk.dirs) {
		t.Error("a directory that came is not watched")
	}
}
