package watch

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"svcctl.io/svcctl/store/manifest"
)

// A silent notifier has only the events that a test sends. Its channels belong to the
// bubble of testing/synctest that it is made in.
type silent struct {
	ev chan fsnotify.Event
	er chan error

	mu              sync.Mutex
	dirs            map[string]bool
	adds            map[string]int
	openErr, addErr error
	successor       *silent // is opened when this one is used up
}

func newSilent() *silent {
	return &silent{ev: make(chan fsnotify.Event), er: make(chan error), dirs: map[string]bool{}, adds: map[string]int{}}
}

func (n *silent) Events() <-chan fsnotify.Event { return n.ev }
func (n *silent) Errors() <-chan error          { return n.er }
func (n *silent) Complete() bool                { return false }
func (n *silent) Close() error                  { return nil }

func (n *silent) open() (Notifier, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.successor != nil {
		return n.successor, nil
	}
	return n, n.openErr
}

func (n *silent) Add(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addErr == nil {
		n.dirs[dir] = true
		n.adds[dir]++
	}
	return n.addErr
}

func (n *silent) Remove(dir string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.dirs, dir)
	return nil
}

func (n *silent) WatchList() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.dirs))
}

// fail sets what opening and adding return from now on.
func (n *silent) fail(open, add error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.openErr, n.addErr = open, add
}

// A harness is a running Watcher of one directory.
type harness struct {
	*testing.T
	dir    string
	w      *Watcher
	notify *silent // nil with real events
	stop   func()
}

type option func(*Config)

func lastGood(l LastGood) option { return func(c *Config) { c.LastGood = l } }

// start runs a Watcher of dir. With a silent notifier it must be called in a bubble.
func start(t *testing.T, dir string, notify *silent, options ...option) *harness {
	t.Helper()
	cfg := Config{Dirs: []string{dir}, LastGood: NewMemory(), Log: slog.New(slog.DiscardHandler)}
	for _, o := range options {
		o(&cfg)
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, w, dir, notify)
}

// run is start for a Watcher that is made already.
func run(t *testing.T, w *Watcher, dir string, notify *silent) *harness {
	t.Helper()
	if notify != nil {
		w.tree.open = notify.open
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	h := &harness{T: t, dir: dir, w: w, notify: notify, stop: func() { cancel(); <-done }}
	if notify == nil {
		t.Cleanup(h.stop)
	}
	return h
}

// next is the next snapshot.
func (h *harness) next() *Snapshot {
	h.Helper()
	patience := 15 * time.Second
	if h.notify == nil {
		patience = time.Minute // real time, which a busy machine needs
	}
	select {
	case s := <-h.w.Snapshots():
		return s
	case <-time.After(patience):
		h.Fatal("no snapshot")
		return nil
	}
}

// within fails unless the next snapshot comes in time; it is for bubbles.
func (h *harness) within(least, most time.Duration) *Snapshot {
	h.Helper()
	began := time.Now()
	s := h.next()
	if took := time.Since(began); took < least || took > most {
		h.Errorf("snapshot after %v, want %v to %v", took, least, most)
	}
	return s
}

// none fails if there is a snapshot in some time.
func (h *harness) none(d time.Duration) {
	h.Helper()
	select {
	case s := <-h.w.Snapshots():
		h.Errorf("unexpected snapshot: %s", show(s))
	case <-time.After(d):
	}
}

// is checks the objects of a snapshot, as "a.yaml: web db, b.yaml: x".
func (h *harness) is(s *Snapshot, want string) {
	h.Helper()
	if got := show(s); got != want {
		h.Errorf("snapshot %q, want %q", got, want)
	}
}

func show(s *Snapshot) string {
	var files []string
	for f := range s.Files.All() {
		text := filepath.Base(f.Path) + ":"
		for _, d := range f.Documents {
			text += " " + d.Object.GetMeta().Name
		}
		files = append(files, text)
	}
	return strings.Join(files, ", ")
}

func (h *harness) path(name string) string { return filepath.Join(h.dir, name) }

func (h *harness) write(name, content string) {
	h.Helper()
	must(h.T, os.WriteFile(h.path(name), []byte(content), 0o644))
	h.send(name, fsnotify.Write)
}

// add appends to a file.
func (h *harness) add(name, content string) {
	h.Helper()
	f, err := os.OpenFile(h.path(name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(h.T, err)
	_, err = f.WriteString(content)
	must(h.T, err)
	must(h.T, f.Close())
	h.send(name, fsnotify.Write)
}

func (h *harness) remove(name string) {
	h.Helper()
	must(h.T, os.RemoveAll(h.path(name)))
	h.send(name, fsnotify.Remove)
}

func (h *harness) rename(from, to string) {
	h.Helper()
	must(h.T, os.Rename(h.path(from), h.path(to)))
	h.send(from, fsnotify.Rename)
	h.send(to, fsnotify.Create)
}

// send sends an event, when they are the test's.
func (h *harness) send(name string, op fsnotify.Op) {
	if h.notify != nil {
		h.notify.ev <- fsnotify.Event{Name: h.path(name), Op: op}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// services is the text of a file with some Services.
func services(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  ports:\n  - port: 80\n", name)
	}
	return b.String()
}

func put(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return dir
}

// problem is the one problem of a snapshot, which must contain all words.
func (h *harness) problem(s *Snapshot, words ...string) manifest.Problem {
	h.Helper()
	if len(s.Problems) != 1 {
		h.Fatalf("%d problems: %v", len(s.Problems), s.Problems)
	}
	for _, word := range words {
		if !strings.Contains(s.Problems[0].String(), word) {
			h.Errorf("problem %q does not say %q", s.Problems[0], word)
		}
	}
	return s.Problems[0]
}

// Stats count what a Watcher did since it started.
type Stats struct {
	Scans     uint64 // full readings of a directory
	Reads     uint64 // files read
	Overflows uint64 // times the kernel dropped events
	Snapshots uint64 // snapshots published
}

// Stats is safe to call at any time.
func (w *Watcher) Stats() Stats {
	return Stats{Scans: w.counts.scans.Load(), Reads: w.counts.reads.Load(), Overflows: w.counts.overflows.Load(), Snapshots: w.out.published.Load()}
}

// Memory is a LastGood that forgets when the program ends. It is safe for concurrent
// use; make it with NewMemory.
type Memory struct {
	mu       sync.Mutex
	contents map[string][]byte
}

// NewMemory has no contents.
func NewMemory() *Memory { return &Memory{contents: map[string][]byte{}} }

// Load is a copy of all contents.
func (m *Memory) Load() (contents map[string][]byte, sealed map[string]*manifest.File, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.contents), nil, nil
}

// Put takes effect at once.
func (m *Memory) Put(path string, content []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content == nil {
		delete(m.contents, path)
	} else {
		m.contents[path] = content
	}
}

// Flush never fails.
func (m *Memory) Flush() error { return nil }
