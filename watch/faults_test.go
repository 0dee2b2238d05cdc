package watch

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/store/manifest"
)

// This file is long because every fault that a directory can have is one test here.

// A restart knows the last good content of a file that is broken by then.
func TestBrokenAtStart(t *testing.T) {
	dir, memory := t.TempDir(), NewMemory()
	text := services("web")
	synctest.Test(t, func(t *testing.T) {
		put(t, dir, map[string]string{"a.yaml": text, "b.yaml": services("x")})
		h := start(t, dir, newSilent(), lastGood(memory))
		h.next()
		h.stop()
		put(t, dir, map[string]string{"a.yaml": text[:len(text)-3] + "[", "c.yaml": "["})
		must(t, os.Remove(filepath.Join(dir, "b.yaml")))

		h = start(t, dir, newSilent(), lastGood(memory))
		s := h.next()
		h.is(s, "a.yaml: web")
		if len(s.Problems) != 2 || !strings.Contains(s.Problems[0].String(), "a.yaml:8:11: could not be parsed") ||
			!strings.Contains(s.Problems[1].String(), "no earlier good content") {
			t.Errorf("problems %v", s.Problems)
		}
		h.stop()
		if contents, _, _ := memory.Load(); len(contents) != 1 || string(contents[h.path("a.yaml")]) != text {
			t.Errorf("saved %q", contents)
		}
	})
}

// A restart with unchanged files writes nothing.
func TestNothingNewIsSaved(t *testing.T) {
	dir := put(t, t.TempDir(), map[string]string{"a.yaml": services("web"), "b.yaml": services("x")})
	disk := &disk{Memory: NewMemory()}
	synctest.Test(t, func(t *testing.T) {
		for range 2 {
			h := start(t, dir, newSilent(), lastGood(disk))
			h.next()
			h.send("a.yaml", fsnotify.Write)
			h.none(time.Minute)
			h.stop()
		}
	})
	if disk.saves != 2 || disk.removes != 0 {
		t.Errorf("%d saves, %d removes", disk.saves, disk.removes)
	}
}

// A disk counts, and fails when it is told to.
type disk struct {
	*Memory
	mu             sync.Mutex
	saves, removes int
	err            error
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *disk) Put(path string, content []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if content == nil {
		d.removes++
	} else {
		d.saves++
	}
	d.Memory.Put(path, content)
}

func (d *disk) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

func TestLastGoodCannotBeSaved(t *testing.T) {
	disk := &disk{Memory: NewMemory(), err: unix.ENOSPC}
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		s := h.next()
		h.is(s, "a.yaml: web")
		if len(s.Problems) == 0 {
			s = h.next()
		}
		if p := h.problem(s, "no space left on device", "not saved"); !p.Warning || p.Reason != ReasonNotSaved {
			h.Errorf("problem %+v", p)
		}
		disk.fail(nil)
		if s := h.within(0, 10100*time.Millisecond); len(s.Problems) != 0 {
			h.Errorf("problems %v", s.Problems)
		}
		if contents, _, _ := disk.Load(); len(contents) != 1 {
			h.Errorf("saved %q", contents)
		}
	}, lastGood(disk))
}

func TestLastGoodCannotBeLoaded(t *testing.T) {
	w, err := New(Config{LastGood: badLoad{NewMemory()}})
	must(t, err)
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "watch: load the last good contents: torn") {
		t.Errorf("Run: %v", err)
	}
}

type badLoad struct{ *Memory }

func (badLoad) Load() (map[string][]byte, map[string]*manifest.File, error) {
	return nil, nil, errors.New("torn")
}

// What was saved of a directory that is not watched any more is forgotten.
func TestForgottenDirectory(t *testing.T) {
	memory := NewMemory()
	memory.Put("/elsewhere/a.yaml", []byte(services("x")))
	bubble(t, nil, func(h *harness) {
		h.is(h.next(), "")
		h.stop()
		if contents, _, _ := memory.Load(); len(contents) != 0 {
			h.Errorf("kept %q", contents)
		}
	}, lastGood(memory))
}

// A directory that is away is not empty.
func TestUnavailable(t *testing.T) {
	for name, away := range map[string]func(h *harness) (back func()){
		"renamed": func(h *harness) func() {
			must(h.T, os.Rename(h.dir, h.dir+"-away"))
			return func() { must(h.T, os.Rename(h.dir+"-away", h.dir)) }
		},
		"deleted": func(h *harness) func() {
			must(h.T, os.RemoveAll(h.dir))
			return func() { put(h.T, h.dir, map[string]string{"a.yaml": services("web")}) }
		},
		"replaced by an empty one": func(h *harness) func() {
			must(h.T, os.Rename(h.dir, h.dir+"-away"))
			must(h.T, os.Mkdir(h.dir, 0o755))
			return func() { must(h.T, os.Remove(h.dir)); must(h.T, os.Rename(h.dir+"-away", h.dir)) }
		},
		"replaced by a file": func(h *harness) func() {
			must(h.T, os.Rename(h.dir, h.dir+"-away"))
			must(h.T, os.WriteFile(h.dir, nil, 0o644))
			return func() { must(h.T, os.Remove(h.dir)); must(h.T, os.Rename(h.dir+"-away", h.dir)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "manifests")
			put(t, dir, map[string]string{"a.yaml": services("web")})
			synctest.Test(t, func(t *testing.T) {
				h := start(t, dir, newSilent())
				defer h.stop()
				first := h.next()
				back := away(h)
				s := h.within(0, 1200*time.Millisecond)
				h.problem(s, dir, "the directory is unavailable", "the last content of its one file stays in force")
				if s.Sources[0].State != StateUnavailable || s.Sources[0].Err == nil || s.Files.Get(h.path("a.yaml")) != first.Files.Get(h.path("a.yaml")) {
					t.Errorf("%+v; %s", s.Sources, show(s))
				}
				h.none(30 * time.Second)
				back()
				s = h.within(0, 1200*time.Millisecond)
				if s.Sources[0].State != StateWatching || len(s.Problems) > 0 {
					t.Errorf("%+v; %v", s.Sources, s.Problems)
				}
				h.is(s, "a.yaml: web")
				h.write("b.yaml", services("b"))
				h.is(h.next(), "a.yaml: web, b.yaml: b")
			})
		})
	}
}

// A directory that is put in place of another within the settling time is never away.
func TestReplacedDirectory(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "manifests")
	put(t, base, map[string]string{"manifests/a.yaml": services("a"), "new/b.yaml": services("b")})
	synctest.Test(t, func(t *testing.T) {
		h := start(t, dir, newSilent())
		defer h.stop()
		h.next()
		must(t, os.Rename(dir, filepath.Join(base, "old")))
		h.send("", fsnotify.Rename)
		time.Sleep(50 * time.Millisecond)
		must(t, os.Rename(filepath.Join(base, "new"), dir))
		s := h.within(0, 400*time.Millisecond)
		h.is(s, "b.yaml: b")
		if len(s.Problems) > 0 {
			t.Errorf("problems %v", s.Problems)
		}
		h.none(time.Minute)
	})
}

// At the start, a directory that is away or empty has what it had in the run before; an
// empty file confirms that it was emptied.
func TestUnavailableAtStart(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"away":  func(*testing.T, string) {},
		"empty": func(t *testing.T, dir string) { must(t, os.MkdirAll(dir, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "manifests")
			memory := NewMemory()
			memory.Put(filepath.Join(dir, "a.yaml"), []byte(services("web")))
			prepare(t, dir)
			synctest.Test(t, func(t *testing.T) {
				h := start(t, dir, newSilent(), lastGood(memory))
				defer h.stop()
				s := h.within(0, time.Millisecond)
				h.is(s, "a.yaml: web")
				h.problem(s, "unavailable")
				put(t, dir, map[string]string{"none.yaml": ""})
				if s = h.within(0, 11*time.Second); show(s) == "a.yaml: web" { // the directory is back, the file not settled
					s = h.within(0, 110*time.Millisecond)
				}
				h.is(s, "none.yaml:")
				if len(s.Problems) > 0 {
					t.Errorf("problems %v", s.Problems)
				}
			})
		})
	}
}

// A directory that is emptied while it is watched is empty.
func TestEmptied(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a"), "b.yaml": services("b")}, func(h *harness) {
		h.next()
		h.remove("a.yaml")
		h.remove("b.yaml")
		s := h.within(100*time.Millisecond, 120*time.Millisecond)
		h.is(s, "")
		if len(s.Problems) > 0 {
			h.Errorf("problems %v", s.Problems)
		}
		h.none(time.Minute)
	})
}

// Events that the kernel dropped are made up for by reading everything.
func TestOverflow(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a")}, func(h *harness) {
		h.next()
		must(h.T, os.WriteFile(h.path("b.yaml"), []byte(services("b")), 0o644))
		h.notify.er <- fsnotify.ErrEventOverflow
		h.is(h.within(0, 250*time.Millisecond), "a.yaml: a, b.yaml: b")
		if n := h.w.Stats().Overflows; n != 1 {
			h.Errorf("%d overflows", n)
		}
	})
}

// The source of events may end; another is opened.
func TestEventsEnd(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a")}, func(h *harness) {
		h.next()
		h.notify.mu.Lock()
		h.notify.successor = newSilent()
		h.notify.mu.Unlock()
		close(h.notify.ev)
		time.Sleep(time.Second)
		h.notify = h.notify.successor
		h.write("b.yaml", services("b"))
		h.is(h.within(0, 120*time.Millisecond), "a.yaml: a, b.yaml: b")
	})
}

// Without watches the directories are polled, and that is said.
func TestWatchLimit(t *testing.T) {
	for name, limit := range map[string]func(n *silent, err error){
		"watches":   func(n *silent, err error) { n.fail(nil, err) },
		"instances": func(n *silent, err error) { n.fail(err, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := put(t, t.TempDir(), map[string]string{"a.yaml": services("a")})
			synctest.Test(t, func(t *testing.T) {
				n := newSilent()
				limit(n, unix.ENOSPC)
				h := start(t, dir, n, func(c *Config) { c.Rescan = time.Hour })
				defer h.stop()
				s := h.next()
				h.is(s, "a.yaml: a")
				if p := h.problem(s, "no space left on device", "fs.inotify.max_user_watches"); !p.Warning || s.Sources[0].State != StatePolling || s.Sources[0].Err == nil {
					t.Errorf("%+v %+v", p, s.Sources)
				}
				must(t, os.WriteFile(h.path("b.yaml"), []byte(services("b")), 0o644))
				h.is(h.within(0, 1200*time.Millisecond), "a.yaml: a, b.yaml: b")
				limit(n, nil)
				time.Sleep(time.Hour)
				if s = h.next(); s.Sources[0].State != StateWatching || len(s.Problems) > 0 {
					t.Errorf("%+v %v", s.Sources, s.Problems)
				}
			})
		})
	}
}

// What is no readable file is skipped with a reason, and never waited for.
func TestSpecialFiles(t *testing.T) {
	outside := filepath.Join(put(t, t.TempDir(), map[string]string{"x.yaml": services("no")}), "x.yaml")
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		want string // "" is no problem
	}{
		"fifo": {func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o644)) }, "not a file but a FIFO"},
		"link to fifo": {func(t *testing.T, path string) {
			must(t, unix.Mkfifo(path+".p", 0o644))
			must(t, os.Symlink("x.yaml.p", path))
		}, "a FIFO"},
		"socket":       {func(t *testing.T, path string) { listen(t, path) }, "a socket"},
		"device":       {func(t *testing.T, path string) { must(t, os.Symlink("/dev/zero", path)) }, "out of the watched directory"},
		"link to self": {func(t *testing.T, path string) { must(t, os.Symlink("x.yaml", path)) }, "leads to itself"},
		"link nowhere": {func(t *testing.T, path string) { must(t, os.Symlink("nowhere", path)) }, "leads nowhere"},
		"link outside": {func(t *testing.T, path string) { must(t, os.Symlink(outside, path)) }, "out of the watched directory"},
		"link upwards": {func(t *testing.T, path string) { must(t, os.Symlink("../../../../../../../../etc/passwd", path)) }, "out of the watched directory"},
		"loop of dirs": {func(t *testing.T, path string) { must(t, os.Symlink(".", filepath.Join(filepath.Dir(path), "loop"))) }, ""},
		"loop upwards": {func(t *testing.T, path string) {
			must(t, os.Mkdir(path+".d", 0o755))
			must(t, os.Symlink("..", path+".d/up"))
		}, ""},
		"second name":   {func(t *testing.T, path string) { must(t, os.Symlink("a.yaml", path)) }, ""},
		"dir with name": {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o755)) }, ""},
		"too large": {func(t *testing.T, path string) {
			must(t, os.WriteFile(path, nil, 0o644))
			must(t, os.Truncate(path, 1<<30))
		}, "1073741824 bytes, more than the limit of 67108864"},
		"too deep": {func(t *testing.T, path string) {
			must(t, os.MkdirAll(filepath.Join(filepath.Dir(path), strings.Repeat("d/", maxLevels+1)), 0o755))
		}, "more than 32 directories"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := put(t, t.TempDir(), map[string]string{"a.yaml": services("a")})
			synctest.Test(t, func(t *testing.T) {
				h := start(t, dir, newSilent())
				defer h.stop()
				h.next()
				c.make(t, h.path("x.yaml"))
				h.send("x.yaml", fsnotify.Create)
				h.send("loop", fsnotify.Create)
				h.send("d", fsnotify.Create)
				h.send("x.yaml.d", fsnotify.Create)
				if c.want == "" {
					h.none(time.Minute)
					return
				}
				s := h.next()
				h.is(s, "a.yaml: a")
				h.problem(s, c.want)
				h.none(time.Minute)
			})
		})
	}
}

func listen(t *testing.T, path string) {
	// The path of a socket is short; its directory's may not be.
	t.Chdir(filepath.Dir(path))
	l, err := net.Listen("unix", filepath.Base(path))
	must(t, err)
	t.Cleanup(func() { l.Close() })
}

// A file that turns into something else keeps its last good content.
func TestFileBecomesUnusable(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a")}, func(h *harness) {
		first := h.next()
		must(h.T, os.Remove(h.path("a.yaml")))
		must(h.T, unix.Mkfifo(h.path("a.yaml"), 0o644))
		h.send("a.yaml", fsnotify.Create)
		s := h.next()
		h.is(s, "a.yaml: a")
		h.problem(s, "a FIFO", "its last good content stays in force")
		must(h.T, os.Remove(h.path("a.yaml")))
		h.write("a.yaml", services("a"))
		if s = h.next(); len(s.Problems) > 0 || s.Files.Get(h.path("a.yaml")) != first.Files.Get(h.path("a.yaml")) {
			h.Errorf("%s; %v", show(s), s.Problems)
		}
	})
}

// child runs a test again in a process of its own, and returns true in there.
func child(t *testing.T, attr *syscall.SysProcAttr) bool {
	const mark = "SVCCTL_WATCH_TEST_CHILD"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), mark+"="+t.Name(), "TMPDIR="+childDir(t))
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// childDir is a directory that any user can work in.
func childDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "svcctl-watch-")
	must(t, err)
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// needRoot skips a test, or fails it when tests must not be skipped.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 {
		return
	}
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
		t.Fatal("needs root, and SVCCTL_REQUIRE_PRIVILEGED=1 forbids to skip it")
	}
	t.Skip("SKIPPED: needs root to mount a file system in a namespace of its own")
}

func TestPermissionDenied(t *testing.T) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		const nobody = 65534
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	if !child(t, attr) {
		return
	}
	bubble(t, map[string]string{"a.yaml": services("a"), "sub/b.yaml": services("b"), "c.yaml": services("c")}, func(h *harness) {
		h.next()
		must(h.T, os.Chmod(h.path("sub"), 0))
		h.send("sub", fsnotify.Chmod)
		s := h.next()
		h.is(s, "a.yaml: a, c.yaml: c, b.yaml: b")
		h.problem(s, "sub: the directory cannot be read: permission denied")
		must(h.T, os.Chmod(h.path("sub"), 0o755))
		h.send("sub", fsnotify.Chmod)
		h.next()

		must(h.T, os.Chmod(h.path("a.yaml"), 0))
		h.send("a.yaml", fsnotify.Chmod)
		s = h.next()
		h.is(s, "a.yaml: a, c.yaml: c, b.yaml: b")
		h.problem(s, "a.yaml: permission denied; its last good content stays in force")
		must(h.T, os.Chmod(h.path("a.yaml"), 0o644))
		if s = h.within(0, 11*time.Second); len(s.Problems) > 0 {
			h.Errorf("problems %v", s.Problems)
		}
		must(h.T, os.Chmod(h.dir, 0))
		h.problem(h.within(0, 11*time.Second), "the directory is unavailable: permission denied")
		must(h.T, os.Chmod(h.dir, 0o755))
	})
}

// The directory is a file system that is unmounted under the watcher, and mounted again.
func TestUnmounted(t *testing.T) {
	needRoot(t)
	if !child(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}) {
		return
	}
	must(t, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir := t.TempDir()
	mount := func() {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
		put(t, dir, map[string]string{"a.yaml": services("web")})
	}
	mount()
	h := start(t, dir, nil)
	h.is(h.next(), "a.yaml: web")
	must(t, unix.Unmount(dir, unix.MNT_DETACH))
	s := h.next()
	h.is(s, "a.yaml: web")
	h.problem(s, "unavailable", "it is empty and had files")
	mount()
	if s = h.next(); len(s.Problems) > 0 {
		t.Errorf("problems %v", s.Problems)
	}
	h.stop()
	must(t, unix.Unmount(dir, unix.MNT_DETACH))
}

// The kernel's own limit on watches, in a user namespace of the test's.
func TestWatchLimitOfTheKernel(t *testing.T) {
	needRoot(t)
	namespace := func() string {
		link, err := os.Readlink("/proc/self/ns/user")
		must(t, err)
		return link
	}
	const ours = "SVCCTL_WATCH_TEST_USER_NAMESPACE"
	if os.Getenv(ours) == "" {
		t.Setenv(ours, namespace())
	}
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	if !child(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root, Pdeathsig: syscall.SIGKILL}) {
		return
	}
	if namespace() == os.Getenv(ours) {
		t.Fatal("this is the machine's own user namespace; its limits are not for a test to change")
	}
	// Each user namespace has its own; /proc/sys/fs/inotify has the machine's.
	must(t, os.WriteFile("/proc/sys/user/max_inotify_watches", []byte("2"), 0))
	h := start(t, put(t, t.TempDir(), map[string]string{"x/a.yaml": services("a"), "y/b.yaml": services("b")}), nil)
	s := h.next()
	h.is(s, "a.yaml: a, b.yaml: b")
	h.problem(s, "no space left on device", "looking every 1s")
	h.write("y/b.yaml", services("b", "c"))
	h.is(h.next(), "a.yaml: a, b.yaml: b c")
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Dirs: []string{"/a/b", "", "/a", "/a/bc"}})
	for _, want := range []string{`directory "": the path is empty`, "/a/b and /a overlap", "/a and /a/bc overlap"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, dirs := range [][]string{nil, {"/a/b", "/a/bc"}} {
		if _, err := New(Config{Dirs: dirs}); err != nil {
			t.Error(err)
		}
	}
}

// TestUnavailableUnknown is about a directory that never was there.
func TestUnavailableUnknown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	synctest.Test(t, func(t *testing.T) {
		h := start(t, dir, newSilent())
		defer h.stop()
		h.problem(h.within(0, time.Millisecond), "unavailable", "nothing is known of what was in it")
	})
}
