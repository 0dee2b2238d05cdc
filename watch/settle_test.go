package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// bubble runs a test with real files and no real time.
func bubble(t *testing.T, files map[string]string, test func(h *harness), options ...option) {
	t.Helper()
	dir := put(t, t.TempDir(), files)
	synctest.Test(t, func(t *testing.T) {
		h := start(t, dir, newSilent(), options...)
		defer h.stop()
		test(h)
	})
}

func TestFirstSnapshot(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"empty": {nil, ""},
		"files": {map[string]string{"a.yaml": services("web", "db"), "sub/deep/b.yml": services("x"), "c.json": "{}", "empty.yaml": "# nothing\n",
			"README.md": "x", ".hidden.yaml": services("no"), ".git/d.yaml": services("no"), "a.yaml~": services("no"), "a.yaml.swp": "x", "#a.yaml#": "x", "4913": "x"},
			"a.yaml: web db, c.json:, empty.yaml:, b.yml: x"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, c.files, func(h *harness) {
				s := h.within(0, 100*time.Millisecond)
				h.is(s, c.want)
				if len(s.Sources) != 1 || s.Sources[0].State != StateWatching || s.Sources[0].Files != len(slices.Collect(s.Files.All())) || s.Sources[0].Dir != h.dir {
					h.Errorf("sources %+v", s.Sources)
				}
				h.none(time.Minute)
			})
		})
	}
}

func TestNoDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, t.TempDir(), newSilent(), func(c *Config) { c.Dirs = nil })
		defer h.stop()
		if s := h.next(); len(slices.Collect(s.Files.All())) != 0 || len(s.Sources) != 0 {
			t.Errorf("snapshot %+v", s)
		}
	})
}

// A writer that writes a byte every 5 ms is done 100 ms after the last one.
func TestSlowWriter(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		h.is(h.next(), "a.yaml: web")
		h.write("a.yaml", "")
		text := services("web", "db")
		for i := range text {
			time.Sleep(5 * time.Millisecond)
			h.add("a.yaml", text[i:i+1])
			if i == 190 { // Waited for long enough by then: the cap is over.
				break
			}
			h.none(0)
		}
		h.is(h.within(90*time.Millisecond, 110*time.Millisecond), "a.yaml: web db")
		h.none(time.Minute)
	})
}

// A file that is cut off anywhere, for longer than a settled file is quiet, must not
// take the objects away that are still to be written.
func TestPausingWriter(t *testing.T) {
	text := services("web", "db")
	bubble(t, map[string]string{"a.yaml": text}, func(h *harness) {
		last := h.next()
		for i := range text {
			h.write("a.yaml", text[:i])
			time.Sleep(400 * time.Millisecond)
			h.write("a.yaml", text)
			time.Sleep(400 * time.Millisecond)
			select {
			case s := <-h.w.Snapshots():
				h.is(s, "a.yaml: web db")
				last = s
			default:
			}
		}
		if len(last.Problems) > 0 {
			h.Errorf("problems left: %v", last.Problems)
		}
		// A prefix that stays is believed, when the cap is over.
		h.write("a.yaml", services("web"))
		h.is(h.within(1900*time.Millisecond, 2010*time.Millisecond), "a.yaml: web")
	})
}

// A writer that is never quiet is read when the cap is over, and does not hold up files
// that are.
func TestRestlessWriter(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web"), "b.yaml": services("x")}, func(h *harness) {
		h.next()
		h.write("b.yaml", services("x", "y"))
		began := time.Now()
		var fast, capped time.Duration
		for i := range 100 {
			h.add("a.yaml", fmt.Sprintf("# %d\n", i)+services(fmt.Sprintf("s%d", i)))
			time.Sleep(50 * time.Millisecond)
			select {
			case s := <-h.w.Snapshots():
				got := show(s)
				if fast == 0 && strings.Contains(got, "b.yaml: x y") {
					fast = time.Since(began)
				}
				if capped == 0 && strings.Contains(got, "s1") {
					capped = time.Since(began)
				}
			default:
			}
		}
		if fast == 0 || fast > 200*time.Millisecond {
			h.Errorf("the quiet file was read after %v", fast)
		}
		if capped < 1900*time.Millisecond || capped > 2200*time.Millisecond {
			h.Errorf("the restless file was read after %v", capped)
		}
	})
}

// Ten thousand touches a second cost a look every 10 ms and a reading every cap, and
// change nothing; another file is as fast as ever.
func TestTouches(t *testing.T) {
	// 70 µs have no part in the time that files settle in: readings fall between the events.
	for _, every := range []time.Duration{100 * time.Microsecond, 70 * time.Microsecond} {
		t.Run(every.String(), func(t *testing.T) { testTouches(t, every) })
	}
}

func testTouches(t *testing.T, every time.Duration) {
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		first := h.next()
		before := h.w.Stats()
		const seconds = 6
		for i := range seconds * int(time.Second/every) {
			if i%50 == 0 {
				now := time.Now().Add(time.Duration(i))
				must(h.T, os.Chtimes(h.path("a.yaml"), now, now))
			}
			h.send("a.yaml", fsnotify.Chmod)
			time.Sleep(every)
		}
		h.none(0)
		after := h.w.Stats()
		if n := after.Reads - before.Reads; n > seconds/2+1 {
			h.Errorf("%d readings", n)
		}
		if n := after.Scans - before.Scans; n > 1 {
			h.Errorf("%d scans", n)
		}
		h.write("b.yaml", services("x"))
		s := h.within(90*time.Millisecond, 120*time.Millisecond)
		h.is(s, "a.yaml: web, b.yaml: x")
		if s.Files.Get(h.path("a.yaml")) != first.Files.Get(h.path("a.yaml")) {
			h.Error("the touched file is another one")
		}
	})
}

// Without any events, a full reading finds what changed.
func TestNoEvents(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web"), "gone.yaml": services("x")}, func(h *harness) {
		h.next()
		must(h.T, os.WriteFile(h.path("b.yaml"), []byte(services("y")), 0o644))
		must(h.T, os.Remove(h.path("gone.yaml")))
		h.is(h.within(9*time.Second, 10200*time.Millisecond), "a.yaml: web, b.yaml: y")
		h.none(time.Minute)
	})
}

func TestOnlyWhatChangedIsRead(t *testing.T) {
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("f%02d.yaml", i)] = services(fmt.Sprintf("s%d", i), "x")
	}
	bubble(t, files, func(h *harness) {
		first := h.next()
		before := h.w.Stats()
		h.write("f07.yaml", "# moved\n\n"+services("s7", "y"))
		second := h.next()
		after := h.w.Stats()
		if after.Reads-before.Reads > 2 || after.Scans != before.Scans {
			h.Errorf("%d readings, %d scans", after.Reads-before.Reads, after.Scans-before.Scans)
		}
		for f := range second.Files.All() {
			if same := f == first.Files.Get(f.Path); same == (f.Path == h.path("f07.yaml")) {
				h.Errorf("%s: same %t", f.Path, same)
			}
		}
		if first.Files.Get(h.path("f07.yaml")).Documents[0].Object != second.Files.Get(h.path("f07.yaml")).Documents[0].Object {
			h.Error("an unchanged document of a changed file is another object")
		}
		h.none(time.Minute)
	})
}

func TestBrokenFileKeepsItsLastGoodContent(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web"), "b.yaml": services("x")}, func(h *harness) {
		first := h.next()
		h.write("a.yaml", services("web")+"  - [\n")
		h.write("b.yaml", services("x", "y"))
		s := h.next()
		h.is(s, "a.yaml: web, b.yaml: x y")
		h.problem(s, "a.yaml:9:5", "could not be parsed", "its last good content stays in force")
		if s.Files.Get(h.path("a.yaml")) != first.Files.Get(h.path("a.yaml")) {
			h.Error("the last good file is another one")
		}
		h.write("a.yaml", services("web"))
		s = h.next()
		if len(s.Problems) > 0 || s.Files.Get(h.path("a.yaml")) != first.Files.Get(h.path("a.yaml")) {
			h.Errorf("after the repair: %v", s.Problems)
		}
		h.write("c.yaml", "[")
		h.problem(h.next(), "c.yaml:1", "there is no earlier good content of it")
		h.write("c.yaml", "[ ") // as bad as before
		h.none(time.Minute)
	})
}

// One bad document is not a bad file.
func TestBadDocument(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web", "db")}, func(h *harness) {
		h.next()
		h.write("a.yaml", services("web")+strings.Replace(services("db"), "port:", "prot:", 1))
		s := h.within(90*time.Millisecond, 120*time.Millisecond)
		h.is(s, "a.yaml: web")
		if len(s.Problems) != 0 || len(s.Files.Get(h.path("a.yaml")).Problems) != 1 {
			h.Errorf("problems %v, of the file %v", s.Problems, s.Files.Get(h.path("a.yaml")).Problems)
		}
	})
}

func TestNewestSnapshotReplacesAnUnreadOne(t *testing.T) {
	bubble(t, nil, func(h *harness) {
		time.Sleep(time.Second)
		for i := range 5 {
			h.write(fmt.Sprintf("f%d.yaml", i), services(fmt.Sprintf("s%d", i)))
			time.Sleep(time.Second)
		}
		h.is(h.next(), "f0.yaml: s0, f1.yaml: s1, f2.yaml: s2, f3.yaml: s3, f4.yaml: s4")
		h.none(time.Minute)
	})
}

// Directories come and go with their files.
func TestSubdirectories(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		h.next()
		put(h.T, h.dir, map[string]string{"team/x/b.yaml": services("b")})
		h.send("team", fsnotify.Create)
		h.is(h.within(100*time.Millisecond, 120*time.Millisecond), "a.yaml: web, b.yaml: b")
		if !slices.Contains(h.notify.WatchList(), h.path("team/x")) {
			h.Errorf("watched: %v", h.notify.WatchList())
		}
		h.remove("team")
		h.is(h.within(100*time.Millisecond, 120*time.Millisecond), "a.yaml: web")
	})
}

// What only appears was moved there if it was not written to since; what is created and
// written may be unfinished.
func TestArrival(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "x")
	must(t, os.WriteFile(outside, []byte(services("moved")), 0o644))
	time.Sleep(20 * time.Millisecond) // more than a tick of the file system's clock
	bubble(t, nil, func(h *harness) {
		h.next()
		must(h.T, os.Rename(outside, h.path("moved.yaml")))
		h.send("moved.yaml", fsnotify.Create)
		h.is(h.within(10*time.Millisecond, 60*time.Millisecond), "moved.yaml: moved")

		must(h.T, os.WriteFile(h.path("new.yaml"), []byte(services("new")), 0o644))
		h.send("new.yaml", fsnotify.Create)
		h.send("new.yaml", fsnotify.Write)
		h.is(h.within(100*time.Millisecond, 120*time.Millisecond), "moved.yaml: moved, new.yaml: new")

		// Within one tick of the clock, as programs do it.
		must(h.T, os.WriteFile(outside, []byte(services("soon")), 0o644))
		must(h.T, os.Rename(outside, h.path("soon.yaml")))
		h.send("soon.yaml", fsnotify.Create)
		h.is(h.within(10*time.Millisecond, 60*time.Millisecond), "moved.yaml: moved, new.yaml: new, soon.yaml: soon")
	})
}

// A file that turns out to have changed when it is read was not quiet, whatever the
// events said.
func TestChangeWithoutEvent(t *testing.T) {
	bubble(t, nil, func(h *harness) {
		h.next()
		h.write("a.yaml", services("web"))
		time.Sleep(60 * time.Millisecond)
		must(h.T, os.WriteFile(h.path("a.yaml"), []byte(services("web", "db")), 0o644))
		h.is(h.within(140*time.Millisecond, 160*time.Millisecond), "a.yaml: web db")
	})
}

// Watches are renewed when they got lost, and when another directory has the name.
func TestWatchesFollowDirectories(t *testing.T) {
	bubble(t, map[string]string{"sub/a.yaml": services("a")}, func(h *harness) {
		h.next()
		sub := h.path("sub")
		_ = h.notify.Remove(sub)
		time.Sleep(defaultRescan)
		if !slices.Contains(h.notify.WatchList(), sub) {
			h.Errorf("a lost watch: %v", h.notify.WatchList())
		}
		before := h.notify.adds[sub]
		must(h.T, os.Rename(sub, h.path("old")))
		put(h.T, h.dir, map[string]string{"sub/b.yaml": services("b")})
		h.send("sub", fsnotify.Create)
		h.is(h.next(), "a.yaml: a, b.yaml: b")
		if h.notify.adds[sub] != before+1 {
			h.Errorf("the watch of another directory: %v", h.notify.adds)
		}
	})
}

// Turning the link that the directory is, is seen where the link is.
func TestTurnedLink(t *testing.T) {
	base := put(t, t.TempDir(), map[string]string{"v1/a.yaml": services("a1"), "v1/b.yaml": services("b1"), "v2/a.yaml": services("a2")})
	dir := filepath.Join(base, "current")
	must(t, os.Symlink("v1", dir))
	synctest.Test(t, func(t *testing.T) {
		h := start(t, dir, newSilent())
		defer h.stop()
		h.within(100*time.Millisecond, 120*time.Millisecond) // the files are new
		if !slices.Contains(h.notify.WatchList(), base) {
			t.Errorf("watched: %v", h.notify.WatchList())
		}
		time.Sleep(200 * time.Millisecond)
		must(t, os.Remove(dir))
		must(t, os.Symlink("v2", dir))
		h.send("", fsnotify.Create)
		h.is(h.within(10*time.Millisecond, 20*time.Millisecond), "a.yaml: a2")
	})
}

// A snapshot says when the oldest change was noticed that no reader knows yet.
func TestNoticed(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		h.within(0, 100*time.Millisecond)
		time.Sleep(time.Minute)
		first := time.Now()
		h.write("a.yaml", services("web", "db"))
		h.send("a.yaml", fsnotify.Write)
		time.Sleep(time.Second) // a snapshot that is not taken
		h.write("a.yaml", services("web", "db", "x"))
		h.send("a.yaml", fsnotify.Write)
		time.Sleep(time.Second)
		if s := h.next(); s.Noticed.Before(first) || s.Noticed.After(first.Add(20*time.Millisecond)) {
			h.Errorf("noticed %v after the first change", s.Noticed.Sub(first))
		}
		second := time.Now()
		h.write("a.yaml", services("web", "db", "x", "y"))
		h.send("a.yaml", fsnotify.Write)
		if s := h.next(); s.Noticed.Before(second) || s.Noticed.After(time.Now()) {
			h.Errorf("noticed %v after the second change", s.Noticed.Sub(second))
		}
	})
}

// Who asks for what is there now does not wait for a writer that never pauses: what was
// written when it was asked is in force when a file that is never quiet is, at the latest.
func TestRescanBesideAWriterThatNeverPauses(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		h.next()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for n := 1; ; n++ {
				h.write("noise.yaml", strings.Repeat("#\n", n%100)+services("noise"))
				select {
				case <-stop:
					return
				case <-time.After(3 * time.Millisecond):
				}
			}
		}()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 2*defaultSettleCap)
		defer cancel()
		if err := h.w.Rescan(ctx); err != nil {
			h.Errorf("rescan: %v", err)
		}
		close(stop)
		<-stopped
	})
}

// Who asks while a file has gone is answered when that is in a snapshot.
func TestRescanWhileAFileHasGone(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("web"), "b.yaml": services("db")}, func(h *harness) {
		h.next()
		h.remove("b.yaml")
		time.Sleep(20 * time.Millisecond) // it was seen, and is not believed yet
		ctx, cancel := context.WithTimeout(context.Background(), 2*defaultSettleCap)
		defer cancel()
		if err := h.w.Rescan(ctx); err != nil {
			h.Errorf("who asks is not answered: %v", err)
		}
		h.is(h.next(), "a.yaml: web")
	})
}
