package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// noon is the time in a box; its objects are younger than its tables by 90 s.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// testBox is an appliance without a kernel: the real store and the real API.
type testBox struct {
	*fake
	*bench
	t      testing.TB
	dir    string // the working directory of commands
	home   string // the test's own
	store  *store.Store
	socket string
	setup  wire.Setup
	health health
	judged atomic.Bool // Services have the condition Ready
}

// judge computes the condition Ready from the EndpointSlices alone.
type judge struct{ b *testBox }

func (j judge) Of(svc *object.Service) ([]object.Condition, bool) {
	if !j.b.judged.Load() {
		return nil, true
	}
	status := "False"
	slices, _, _ := j.b.store.List(object.KindEndpointSlice, svc.Metadata.Namespace, 0)
	for _, o := range slices {
		if o.GetMeta().Labels[object.LabelServiceName] == svc.Metadata.Name {
			status = "True"
		}
	}
	return []object.Condition{{Type: wire.ConditionReady, Status: status, LastTransitionTime: noon, Reason: "Test"}}, true
}

func (j judge) Since(uint64) ([]string, uint64, bool) {
	return j.b.store.Services(), j.b.store.Revision(), true
}

func (j judge) Changed() <-chan struct{} {
	changed := make(chan struct{})
	time.AfterFunc(20*time.Millisecond, func() { close(changed) }) // real time: something changes from time to time
	return changed
}

func (b *testBox) Status() wire.Status {
	s := b.fake.status
	s.Revision = wire.Revision{Accepted: b.store.Revision(), Programmed: b.store.Revision()}
	return s
}

func (b *testBox) Release(ctx context.Context) (wire.Released, error) {
	return b.fake.Release(ctx)
}

func (b *testBox) Healthy() error { return nil }

func (b *testBox) Ready() error { return nil }

func (b *testBox) Synced(ctx context.Context, revision uint64) error {
	return b.fake.Synced(ctx, revision)
}

// newBox serves a store in memory, with the namespace default. more sets what else the API has.
func newBox(t testing.TB, more ...func(*api.Config)) *testBox {
	t.Helper()
	home, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	b := &testBox{fake: &fake{status: wellStatus()}, bench: newBench(), t: t, dir: t.TempDir(), home: home}
	b.status.NodeName = "gw1"
	uids := 0
	b.store, err = store.Open(engine.NewMemory(), store.Config{
		ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")},
		Pools:           []alloc.Pool{{First: netip.MustParseAddr("198.51.100.0"), Last: netip.MustParseAddr("198.51.100.7")}},
		Clock:           func() time.Time { return noon },
		NewUID:          func() string { uids++; return fmt.Sprintf("00000000-0000-4000-8000-%012d", uids) },
	})
	if err != nil {
		t.Fatal(err)
	}
	later := func() time.Time { return noon.Add(90 * time.Second) }
	b.Now = later
	log := slog.New(slog.DiscardHandler)
	objects := rest.New(rest.Config{Objects: b.store, Now: later, Log: log, Conditions: judge{b}})
	b.socket = filepath.Join(t.TempDir(), "s")
	cfg := api.Config{Socket: api.Socket{Path: b.socket}, Version: "v0.1.0", Objects: objects.Handler(), Endpoints: []api.Endpoint{
		api.Answer(wire.GetAllocations, func(*http.Request, wire.AllocationsQuery) (wire.Allocations, error) { return b.allocations(false), nil }),
		api.Answer(wire.Repair, func(*http.Request, wire.None) (wire.Allocations, error) { return b.allocations(true), nil }),
		api.Answer(wire.GetSetup, func(*http.Request, wire.None) (wire.Setup, error) { return b.setup, nil }),
		api.Answer(wire.GetHealth, func(_ *http.Request, q wire.ObjectQuery) (wire.Health, error) {
			return wire.Health{Endpoints: b.health.of(q.Namespace, q.Name)}, nil
		}),
	}}
	for _, set := range more {
		set(&cfg)
	}
	srv := api.New(cfg, b, log)
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() { cancel(); <-served })
	b.env = map[string]string{"SVCCTL_SOCKET": b.socket}
	namespace := &object.Namespace{TypeMeta: object.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, Metadata: object.ObjectMeta{Name: "default"}}
	if _, err := b.store.Write(store.Write{Ref: object.RefOf(namespace), Object: namespace, Create: true}); err != nil {
		t.Fatal(err)
	}
	t.Chdir(b.dir)
	return b
}

// allocations are those of the store.
func (b *testBox) allocations(repair bool) wire.Allocations {
	a := wire.Allocations{Disagreements: []wire.Disagreement{}}
	for _, d := range b.store.CheckPools(repair) {
		a.Disagreements = append(a.Disagreements, wire.Disagreement(d))
	}
	for _, p := range b.store.Pools(math.MaxInt) {
		pool := wire.Pool{Kind: p.Kind, Family: p.Family, Range: p.Range, Size: p.Size, Used: p.Used, Holders: []wire.Holder{}}
		for _, h := range p.Holders {
			pool.Holders = append(pool.Holders, wire.Holder(h))
		}
		a.Pools = append(a.Pools, pool)
	}
	return a
}

// file writes a file for commands.
func (b *testBox) file(name, content string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// declares has the appliance read a manifest of its own.
func (b *testBox) declares(path, content string) {
	b.t.Helper()
	files := map[string]*manifest.File{path: manifest.Decode(path, []byte(content), manifest.DefaultLimits())}
	if _, err := b.store.SyncFiles(manifest.FilesOf(files)); err != nil {
		b.t.Fatal(err)
	}
}

// session runs command lines and compares what a user at a terminal would see with a
// file in testdata/session. A line may be in the quotes of a shell.
func (b *testBox) session(name string, lines ...string) {
	b.t.Helper()
	var all strings.Builder
	for _, line := range lines {
		code := b.run(shellWords(line)...)
		fmt.Fprintf(&all, "$ svcctl %s\n%s%s", line, b.out.String(), b.err.String())
		if code != cli.ExitDone {
			fmt.Fprintf(&all, "[exit %d]\n", code)
		}
		all.WriteString("\n")
	}
	b.t.Chdir(b.home)
	golden(b.t, filepath.Join("session", name+".txt"), all.String())
	b.t.Chdir(b.dir)
}

// shellWords parts a line as a shell would, single quotes being the only ones.
func shellWords(line string) []string {
	var words []string
	word, quoted, begun := "", false, false
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				words = append(words, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(r), true
		}
	}
	if begun {
		words = append(words, word)
	}
	return words
}
