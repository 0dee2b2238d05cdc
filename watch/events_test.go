package watch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests of this file have real events and real time: a moment is longer than what
// the watcher needs to settle.
const moment = 300 * time.Millisecond

// long is a settling time for what must not be waited for: the test gives up long before.
const long = time.Hour

func settleIn(d time.Duration) option { return func(c *Config) { c.Settle, c.SettleCap = d, 2*d } }

// TestSaves replays what editors and tools do to save a file. Each makes one snapshot.
func TestSaves(t *testing.T) {
	const old, text = "old", "new"
	for name, c := range map[string]struct {
		save  func(h *harness, text string)
		quick bool
	}{
		"in place":     {func(h *harness, text string) { h.write("a.yaml", text) }, false},
		"rename over":  {func(h *harness, text string) { h.write(".a.yaml.tmp", text); h.rename(".a.yaml.tmp", "a.yaml") }, true},
		"moved inside": {func(h *harness, text string) { h.write("tmp", text); h.rename("tmp", "a.yaml") }, true},
		"moved in": {func(h *harness, text string) {
			outside := filepath.Join(h.TempDir(), "x")
			must(h.T, os.WriteFile(outside, []byte(text), 0o644))
			time.Sleep(20 * time.Millisecond) // more than a tick of the file system's clock
			must(h.T, os.Rename(outside, h.path("a.yaml")))
		}, true},
		"vim": {func(h *harness, text string) { // backup, new file, no backup kept
			h.write(".a.yaml.swp", "x")
			h.write("4913", "")
			h.remove("4913")
			h.backup("a.yaml")
			h.write("a.yaml", text)
			h.remove("a.yaml~")
			h.remove(".a.yaml.swp")
		}, false},
		"vim, slowly": {func(h *harness, text string) {
			h.backup("a.yaml")
			time.Sleep(30 * time.Millisecond)
			h.write("a.yaml", text[:10])
			time.Sleep(30 * time.Millisecond)
			h.add("a.yaml", text[10:])
			h.remove("a.yaml~")
		}, false},
		"emacs": {func(h *harness, text string) { // lock, autosave, backup kept
			must(h.T, os.Symlink("user@host.123", h.path(".#a.yaml")))
			h.write("#a.yaml#", text)
			h.backup("a.yaml")
			h.write("a.yaml", text)
			h.remove("#a.yaml#")
			h.remove(".#a.yaml")
		}, false},
		"sed -i": {func(h *harness, text string) { h.write("sedAbCdEf", text); h.rename("sedAbCdEf", "a.yaml") }, true},
		"git": {func(h *harness, text string) { // lock file, unlink, create
			h.write(".git.lock", "x")
			h.remove("a.yaml")
			h.write("a.yaml", text)
			h.remove(".git.lock")
		}, false},
		"delete and move": {func(h *harness, text string) { h.write("tmp", text); h.remove("a.yaml"); h.rename("tmp", "a.yaml") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settle := 5 * defaultSettle // a busy machine lets an editor pause for longer than it wants
			if c.quick {
				settle = long
			}
			h := start(t, t.TempDir(), nil, settleIn(settle))
			h.is(h.next(), "")
			c.save(h, services(old))
			h.is(h.next(), "a.yaml: old")
			c.save(h, services(old, text))
			h.is(h.next(), "a.yaml: old new")
			h.none(moment)
		})
	}
}

// backup renames a file away, as editors do with the old content.
func (h *harness) backup(name string) {
	if _, err := os.Stat(h.path(name)); err == nil {
		h.rename(name, name+"~")
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	h := start(t, put(t, t.TempDir(), map[string]string{"a.yaml": services("a"), "b.yaml": services("b")}), nil)
	h.next()
	h.remove("a.yaml")
	h.is(h.next(), "b.yaml: b")
	h.none(moment)
}

// configMap writes a directory as the kubelet mounts a ConfigMap, or changes it: the
// files in a directory of their own, a link ..data to that, links ..data/NAME.
func configMap(t *testing.T, dir, generation string, files map[string]string) {
	t.Helper()
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	put(t, filepath.Join(dir, generation), files)
	must(t, os.Symlink(generation, filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		if _, err := os.Lstat(filepath.Join(dir, top)); err != nil {
			must(t, os.Symlink(filepath.Join("..data", top), filepath.Join(dir, top)))
		}
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(dir, e.Name())); err != nil {
			must(t, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if before != "" {
		must(t, os.RemoveAll(filepath.Join(dir, before)))
	}
}

func TestConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := func(generation, last string) map[string]string {
		out := map[string]string{"sub/x" + generation + ".yaml": services("x" + generation), last + ".yaml": services(last)}
		for i := range 10 {
			out[fmt.Sprintf("f%d.yaml", i)] = services(fmt.Sprintf("s%d-%s", i, generation))
		}
		return out
	}
	configMap(t, dir, "..1", files("1", "p"))
	h := start(t, dir, nil, settleIn(long))
	if got := show(h.next()); strings.Count(got, "-1") != 10 || !strings.Contains(got, "p.yaml: p, x1.yaml: x1") {
		t.Fatalf("first: %s", got)
	}
	for i, last := range []string{"q", "q", "r"} {
		generation := fmt.Sprint(i + 2)
		configMap(t, dir, ".."+generation, files(generation, last))
		s := h.next()
		if got := show(s); strings.Count(got, "-"+generation) != 10 || !strings.Contains(got, last+".yaml: "+last+", x"+generation+".yaml: x"+generation) || len(s.Problems) > 0 {
			t.Errorf("generation %s: %s; %v", generation, got, s.Problems)
		}
		h.none(moment)
	}
}

// gathering starts a watcher that gathers files for so long, and never takes one as settled.
func gathering(t *testing.T, gather time.Duration) *harness {
	t.Helper()
	dir := t.TempDir()
	w, err := New(Config{LastGood: NewMemory(), Dirs: []string{dir}, Settle: long, SettleCap: long, Rescan: long, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	w.events.gather = gather
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); must(t, <-done) })
	h := &harness{T: t, dir: dir, w: w}
	h.is(h.next(), "")
	return h
}

// A file that is renamed into place is not waited for, not even for more of them.
func TestRenameIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	h := gathering(t, long)
	for i := range 3 {
		must(t, os.WriteFile(h.path(".a.tmp"), []byte(services(fmt.Sprint("a", i))), 0o644))
		must(t, os.Rename(h.path(".a.tmp"), h.path("a.yaml")))
		h.is(h.next(), fmt.Sprintf("a.yaml: a%d", i))
	}
}

// A file that comes complete by other means is waited for as long as others may come, and no longer.
func TestOthersAreGathered(t *testing.T) {
	t.Parallel()
	h := gathering(t, moment)
	must(t, os.WriteFile(h.path(".b.tmp"), []byte(services("b")), 0o644))
	began := time.Now()
	must(t, os.Link(h.path(".b.tmp"), h.path("b.yaml"))) // complete, but it does not look so at once
	if h.is(h.next(), "b.yaml: b"); time.Since(began) < moment {
		t.Error("a file that came by other means was not waited for")
	}
	elsewhere := filepath.Join(t.TempDir(), "c.yaml")
	must(t, os.WriteFile(elsewhere, []byte(services("c")), 0o644))
	must(t, os.Rename(elsewhere, h.path("c.yaml")))
	h.is(h.next(), "b.yaml: b, c.yaml: c")
}

// The directory itself may be a link that is turned.
func TestLinkToDirectory(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	put(t, base, map[string]string{"v1/a.yaml": services("a1"), "v1/b.yaml": services("b1"), "v2/a.yaml": services("a2"), "v2/c.yaml": services("c2")})
	dir := filepath.Join(base, "current")
	must(t, os.Symlink("v1", dir))
	h := start(t, dir, nil)
	h.is(h.next(), "a.yaml: a1, b.yaml: b1")
	must(t, os.Symlink("v2", dir+"_tmp"))
	must(t, os.Rename(dir+"_tmp", dir))
	h.is(h.next(), "a.yaml: a2, c.yaml: c2")
	h.none(moment)
	h.write("../v2/a.yaml", services("a2", "a3"))
	h.is(h.next(), "a.yaml: a2 a3, c.yaml: c2")
	h.none(moment)
}

func TestNewAndMovedDirectories(t *testing.T) {
	t.Parallel()
	h := start(t, put(t, t.TempDir(), map[string]string{"a.yaml": services("a")}), nil)
	h.next()
	must(t, os.MkdirAll(h.path("x/y"), 0o755))
	time.Sleep(50 * time.Millisecond) // real time: the directories are watched by then, or found later
	h.write("x/y/b.yaml", services("b"))
	h.is(h.next(), "a.yaml: a, b.yaml: b")
	h.rename("x", "z")
	h.is(h.next(), "a.yaml: a, b.yaml: b")
	h.none(moment)
	h.write("z/y/b.yaml", services("b", "c"))
	h.is(h.next(), "a.yaml: a, b.yaml: b c")
	h.none(moment)
}

// Thousands of files at once come in few snapshots.
func TestFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("large")
	}
	h := start(t, t.TempDir(), nil)
	h.next()
	const n = 1_000
	began := time.Now()
	for i := range n {
		must(t, os.WriteFile(h.path(fmt.Sprintf("f%d.yaml", i)), nil, 0o644))
	}
	t.Logf("written in %v", time.Since(began))
	deadline := time.Now().Add(time.Minute)
	for s := h.next(); len(slices.Collect(s.Files.All())) < n; s = h.next() {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d files", len(slices.Collect(s.Files.All())), n)
		}
	}
	t.Logf("all read in %v: %+v", time.Since(began), h.w.Stats())
}

// TestRenamedBesideWriter: a file that was renamed into place waits for no other one.
func TestRenamedBesideWriter(t *testing.T) {
	t.Parallel()
	h := start(t, t.TempDir(), nil, settleIn(long))
	h.is(h.next(), "")
	for _, name := range []string{"a", "b"} {
		h.write("."+name+".tmp", services(name))
		h.rename("."+name+".tmp", name+".yaml")
	}
	for got := ""; got != "a.yaml: a, b.yaml: b"; got = show(h.next()) {
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			if err := os.WriteFile(h.path("b.yaml"), []byte(services("b", "c")+strings.Repeat("#", n%7)), 0o644); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	time.Sleep(moment) // real time: the other file changes all the time
	h.write(".a.yaml.tmp", services("a", "x"))
	h.rename(".a.yaml.tmp", "a.yaml")
	h.is(h.next(), "a.yaml: a x, b.yaml: b")
	close(stop)
	<-stopped
}
