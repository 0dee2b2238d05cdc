package watch

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// While a large file is read, changes of others go ahead; but nothing vanishes, for it may
// be in there, and what settled together with it is seen together with it.
func TestLargeFileIsReadAside(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	put := func(name, object string, length int) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\n#%s\n", object, strings.Repeat("x", length))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := New(Config{LastGood: NewMemory(), Dirs: []string{dir}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.tree.close()
	w.tree.open, w.background.large = newSilent().open, 2_000
	// look does what Run does, when all that was written has settled.
	look := func() {
		now = now.Add(time.Minute)
		w.rescan(now)
		now = now.Add(time.Second)
		w.settle(now)
	}
	// want compares what the files say, one object each.
	want := func(objects string) {
		t.Helper()
		var got []string
		for _, name := range []string{"large", "together", "other", "lacking", "gone"} {
			if file := w.snapshot().Files.Get(filepath.Join(dir, name+".yaml")); file != nil {
				got = append(got, file.Documents[0].Object.GetMeta().Name)
			}
		}
		if strings.Join(got, " ") != objects {
			t.Errorf("the files say %q, want %q", strings.Join(got, " "), objects)
		}
	}
	put("large.yaml", "a1", 2_000)
	put("together.yaml", "b1", 0)
	put("other.yaml", "c", 0)
	put("lacking.yaml", "d1", 0)
	put("gone.yaml", "e1", 0)
	look()
	want("a1 b1 c d1 e1") // the first snapshot waits for all
	w.out.previous = w.snapshot()
	w.settling.started = true

	put("large.yaml", "a1", 3_000)
	put("together.yaml", "b2", 0)
	look()
	put("other.yaml", "c", 1)
	put("lacking.yaml", "d2", 0)
	path := filepath.Join(dir, "lacking.yaml")
	seen, _ := w.tree.sources[0].look(path)
	w.observe(w.tree.sources[0], path, seen, eventHint{moved: true}, now) // else it would wait anyway
	if err := os.Remove(filepath.Join(dir, "gone.yaml")); err != nil {
		t.Fatal(err)
	}
	before := w.out.previous.Files.Get(filepath.Join(dir, "other.yaml"))
	look()
	if w.background.current == nil || len(w.background.current.files) != 2 {
		t.Fatal("the large file, and the one that settled with it, are not read aside")
	}
	want("a1 b1 c d1 e1")
	if w.snapshot().Files.Get(filepath.Join(dir, "other.yaml")) == before {
		t.Error("another file waits for the large one")
	}
	<-w.background.done
	w.takeAside(now)
	want("a1 b2 c d1 e1")
	w.settle(now)
	want("a1 b2 c d2")
	if len(w.settling.waiting) > 0 {
		t.Errorf("%d files wait for nothing", len(w.settling.waiting))
	}
}
