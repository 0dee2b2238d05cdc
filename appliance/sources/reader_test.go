package sources

import (
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// turns has the turn of source lb for who wants it, unless another box holds it.
type turns struct {
	willing map[string]bool
	holder  string    // another box
	vacant  time.Time // since when nobody has it, if nobody has
}

func (t *turns) Want(willing map[string]bool) { t.willing = willing }

func (t *turns) Turn(source string) Turn {
	if t.holder == "" && t.willing[source] {
		return Turn{Holder: "a", Mine: true}
	}
	return Turn{Holder: t.holder, Vacant: t.vacant}
}

func (t *turns) Changed() <-chan struct{} { return nil }

// reading is the Reader of a box with one directory.
type reading struct {
	*Reader
	t     *testing.T
	turns *turns
	store *store.Store
	dir   string
}

// readerOf makes the Reader of box a, whose data directory is this instance.
func readerOf(t *testing.T, objects *store.Store, instance string) *reading {
	t.Helper()
	r := &reading{t: t, turns: &turns{}, store: objects, dir: t.TempDir()}
	r.Reader = New(Config{
		Dirs: []Dir{{Name: "lb", Path: r.dir}}, Box: "a", Instance: instance, Store: objects, Turns: r.turns,
		Failed: func() {}, Wake: func() {}, Log: slog.New(slog.DiscardHandler),
	})
	return r
}

// has makes the directory one with some Services, each in a file, and reads it.
func (r *reading) has(services ...string) {
	r.t.Helper()
	snapshot := &watch.Snapshot{Sources: []watch.Source{{Dir: r.dir, State: watch.StateWatching, Files: len(services)}}}
	files := map[string]*manifest.File{}
	for _, name := range services {
		text := []byte("apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {ports: [{port: 80}]}\n")
		f := manifest.Decode(filepath.Join(r.dir, name+".yaml"), text, manifest.DefaultLimits())
		f.Hash = sha256.Sum256(text)
		files[f.Path] = f
	}
	snapshot.Files = manifest.FilesOf(files)
	r.takes(snapshot)
}

func (r *reading) takes(snapshot *watch.Snapshot) {
	r.t.Helper()
	if err := errors.Join(r.Sync(snapshot), r.sync(true)); err != nil {
		r.t.Fatal(err)
	}
}

// generation writes the number of the content, which is looked at without another snapshot.
func (r *reading) generation(text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, GenerationFile), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := r.sync(true); err != nil {
		r.t.Fatal(err)
	}
}

// reads checks whether the box wants to read, and which problem it has; "" is none.
func (r *reading) reads(what string, want bool, reason string) {
	r.t.Helper()
	if got := r.turns.willing["lb"]; got != want {
		r.t.Errorf("%s: the box wants to read: %v", what, got)
	}
	got := ""
	for _, p := range r.Problems() {
		got += p.Reason
	}
	if got != reason {
		r.t.Errorf("%s: problems %v, want %q", what, r.Problems(), reason)
	}
}

func (r *reading) stored(name string) bool {
	o, _ := r.store.Get(serviceRef(name))
	return o != nil
}

func serviceRef(name string) object.Ref {
	return object.Ref{Kind: object.KindService, Namespace: "default", Name: name}
}

func opened(t *testing.T) *store.Store {
	t.Helper()
	objects, err := store.Open(engine.Alone{Memory: engine.NewMemory()}, store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// A directory that is empty does not begin, nor one that is not there; nothing is taken of one that goes away later.
func TestWhatIsNotThereIsNotRead(t *testing.T) {
	r := readerOf(t, opened(t), "x")
	r.takes(&watch.Snapshot{Sources: []watch.Source{{Dir: r.dir, State: watch.StateUnavailable}}})
	r.reads("a directory that is away", false, "")
	r.has()
	r.reads("an empty directory that nobody has read", false, "")
	if all := r.store.Sources(); len(all) > 0 {
		t.Errorf("the source has begun: %v", all)
	}
	done := false
	r.After(func() { done = true })
	r.has("web")
	r.reads("a directory with a file", true, "")
	if !r.stored("web") || !done {
		t.Errorf("web is stored: %v, who waits is told: %v", r.stored("web"), done)
	}
	r.takes(&watch.Snapshot{Sources: []watch.Source{{Dir: r.dir, State: watch.StateUnavailable}}})
	r.reads("a directory that has gone away", false, "")
	if !r.stored("web") {
		t.Error("what a directory said that went away has gone")
	}
	if r.store.ReadElsewhere(serviceRef("web")) == "" {
		t.Error("the box still reads a directory that has gone away")
	}
	r.has()
	r.reads("a directory that was emptied", true, "")
	if r.stored("web") {
		t.Error("what a directory says no more is there")
	}
}

// Of boxes that have something else, the one with the higher generation may read.
func TestGenerationOfADirectory(t *testing.T) {
	objects := opened(t)
	first := readerOf(t, objects, "x")
	first.has("web")
	first.generation("7\n")
	first.has("web", "www")
	if all := objects.Sources(); len(all) != 1 || all[0].Generation != 7 {
		t.Fatalf("sources %+v", all)
	}
	other := readerOf(t, objects, "y")
	other.turns.holder = "b"
	other.has("web")
	other.reads("another content without a generation", false, ReasonDiffers)
	other.generation("6")
	other.reads("an older content", false, ReasonBehind)
	other.generation("seven")
	other.reads("a generation that is no number", false, ReasonDiffers)
	other.generation("8")
	other.reads("a newer content", true, "")
	if !other.stored("www") {
		t.Error("a box without the turn has changed something")
	}
	other.turns.holder = ""
	other.has("web")
	if other.stored("www") || objects.Sources()[0].Generation != 8 {
		t.Errorf("with the turn: www is stored: %v, sources %+v", other.stored("www"), objects.Sources())
	}
}

// That nobody may read a source is a problem after a while, with what to do about it.
func TestSourceWithoutAReader(t *testing.T) {
	objects := opened(t)
	readerOf(t, objects, "x").has("web")
	r := readerOf(t, objects, "y")
	r.turns.vacant = time.Now()
	r.has("www")
	r.reads("nobody has read it for a moment", false, ReasonDiffers)
	r.turns.vacant = time.Now().Add(-patience - time.Second)
	r.has("www")
	r.reads("nobody has read it for longer", false, ReasonNoReader)
	if p := r.Problems(); len(p) == 1 && (p[0].Warning || !strings.Contains(p[0].Message, "`svcctl fleet source take lb --box a`")) {
		t.Errorf("%+v", p[0])
	}
	if err := objects.TakeSource("lb", "c"); err != nil {
		t.Fatal(err)
	}
	r.has("www")
	if p := r.Problems(); len(p) != 1 || !strings.Contains(p[0].Message, "it was given to c") {
		t.Errorf("%+v", p)
	}
}
