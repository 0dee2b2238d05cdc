package reconcile

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft/nfttest/fake"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

// rig is a loop on a store in memory and a kernel that is none; the test plays the
// watcher and the host.
type rig struct {
	*Loop
	t        testing.TB
	cfg      config.Config
	store    *store.Store
	metrics  *metrics.Metrics
	board    *Board
	removals *RemovalGuard
	hosts    *control.HostAddresses
	grants   *Grants
	kernel   *fake.Kernel
	engine   *faulty.Memory
	shared   bool // from the next start on, the store is one that other machines write to
	files    map[string]*manifest.File
	ready    int
	// settleFrom is that of the box.
	settleFrom int
	held       int // how often the sentinel was held
	clock      time.Time
	logged     strings.Builder
	// configure, unless nil, changes the configuration before each start.
	configure func(*config.Config)
	fault     func(engine.Transaction) faulty.Fault // of the disk, from the next start on
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, kernel: fake.New(), engine: faulty.NewMemory(), files: map[string]*manifest.File{}}
	r.clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.start()
	return r
}

// start is a new process on the same store and kernel.
func (r *rig) start() {
	r.t.Helper()
	r.cfg = config.Default()
	r.cfg.NodeName, r.cfg.Manifests = "gw1", []string{"manifests"}
	if r.configure != nil {
		r.configure(&r.cfg)
	}
	r.engine = r.engine.Reopen()
	r.engine.Inject(r.fault)
	r.removals = NewRemovalGuard(false)
	cfg := r.cfg.Store()
	cfg.Clock = func() time.Time { return r.clock }
	var in engine.Engine = r.engine
	if r.shared {
		in = r.engine.Alone()
	}
	objects, err := store.Open(in, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&r.logged, nil))
	r.store, r.metrics = objects, metrics.New("test")
	r.board = NewBoard(objects.Revisions, func(context.Context) error { return nil }, nil, r.removals, wire.Status{Reason: "starting"})
	orphans, err := FindOrphans(objects, r.kernel.Read, r.cfg.Box(nil), false, log)
	if err != nil {
		r.t.Fatal(err)
	}
	r.hosts = control.NewHostAddresses(r.cfg.IsSetAside, objects, control.NodeOwner)
	r.grants = NewGrants(nil, nil)
	r.Loop = New(Options{
		Accepted: Accepted{Store: objects, Watching: true, Removals: r.removals, DataDir: r.cfg.DataDir},
		Target: Target{
			Kernel: r.kernel, Orphans: orphans, Addresses: r.hosts,
			Host: func(facts *node.Facts) Host {
				box := r.cfg.Box(facts)
				box.SettleFrom = r.settleFrom
				return Host{Facts: facts, Box: box, Resolve: r.cfg.ResolveFacts(facts, r.hosts.IsVIP), Loopback: r.cfg.LoopbackAddresses(facts)}
			},
			HostProblems: func(facts *node.Facts) []manifest.Problem { return r.cfg.OverlapProblems(facts, r.hosts.IsVIP) },
			HoldSentinel: func() error { r.held++; return nil },
		},
		Controllers: Controllers{
			Cluster: control.NewClusterObjects(r.cfg.ClusterObjects(), objects, r.hosts), Endpoints: control.NewEndpoints(r.cfg.EndpointsFacts(), objects),
		},
		Parts: []Part{r.grants}, Log: log, Clock: func() time.Time { return r.clock },
		Publisher: &Publisher{
			Board: r.board, Metrics: r.metrics, Dirs: r.cfg.Manifests, Status: wire.Status{Reason: "starting"},
			Reporter: NewReporter(log, objects.Location, nil, nil),
		},
		Watchdog: NewWatchdog(WatchdogOptions{Calls: &SlowCalls{}, Log: log}),
		OnReady:  func() { r.ready++ },
	})
	r.planner.occupied = nil
	early := make(chan reading, 1)
	early <- <-r.applier.early // before a test gives it another kernel, or has it fail
	r.applier.early = early
}

// watch gives the loop another watchdog.
func (r *rig) watch(w *Watchdog) {
	r.opts.Watchdog = w
	r.planner.progress = w.progress
}
