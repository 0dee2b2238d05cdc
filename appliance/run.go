package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/routes"
	"svcctl.io/svcctl/appliance/sourceset"
	"svcctl.io/svcctl/appliance/story"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Run serves until ctx is done and returns nil then. The rules stay in the kernel: see
// Down. An error says why it could not start, or what it cannot go on without. When the cause is
// handover.ErrRequested, it executes the program anew in place of the process, which is handed what is relayed.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	a, err := run(ctx, cfg, log)
	if a != nil && a.endRelay != nil {
		a.endRelay()
	}
	if err != nil || !handover.IsRequested(ctx) {
		return err
	}
	return a.handOver()
}

// run is Run without the hand-over at the end. It returns what has run.
func run(ctx context.Context, cfg config.Config, log *slog.Logger) (a *assembly, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	state, err := handover.State()
	if err != nil {
		log.Error("what the program before has handed over is lost", "err", err)
	}
	// The relay comes first and ends last: connections of the program before go on at once, and those that are
	// handed over rest only while nobody else holds things up.
	relayed := parts.NewRelay(log, state, handover.Kept())
	memory := newMemory()
	calmMonitor()
	closers := closers{}
	defer func() { err = errors.Join(err, closers.close()) }()

	// The data directory first: its lock tells a second instance from the first
	// before anything is touched.
	calls := &reconcile.SlowCalls{}
	engine, shared, err := openEngine(ctx, &cfg, calls, log)
	if err != nil {
		return nil, err
	}
	closers.add(engine.Close)
	removals := reconcile.NewRemovalGuard(cfg.AllowMassRemoval)
	storeConfig := cfg.Store()
	storeConfig.Program = programID()
	storeConfig.Hold = func(r store.Removals) func(string) store.Decision { return removals.Hold(r, time.Now()) }
	storeConfig.Merge = func(live, document object.Object) (object.Object, error) {
		return rest.MergeFile(live, document, time.Now())
	}
	storeConfig.NodePort = newPortCheck(&cfg).check
	addresses := &addressCheck{cfg: &cfg, read: node.Read}
	storeConfig.ExternalIP, storeConfig.Reserved, storeConfig.Avoid = addresses.external, addresses.reserved, addresses.onNetwork
	objects, err := store.Open(engine, storeConfig)
	if err != nil {
		return nil, err
	}
	cfg.ObjectPools = &config.ObjectPools{}
	if shared != nil {
		shared.CatchUp(ctx)
		objects.TakeOver()
	}
	addresses.hosts = control.NewHostAddresses(cfg.IsSetAside, objects, cfg.NodeOwner())
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return nil, err
	}
	closers.add(k.Close)
	hears := cfg.HearsFlows()
	if cfg.Traffic != config.TrafficOff && !k.Probe().Counters {
		log.Warn("connections and refusals are not counted: the kernel lacks counters of elements, or CONFIG_NFT_OBJREF; say --traffic off to be spared this")
		cfg.Traffic = config.TrafficOff
	}
	orphans, err := reconcile.FindOrphans(objects, k.Read, cfg.Box(nil), cfg.AllowMassRemoval, log)
	if err != nil {
		return nil, err
	}

	m := metrics.New(cfg.Version)
	m.LogDropped(cfg.LogQueue.Dropped)
	announced := announcements.New(cfg.AnnouncedRanges())
	pools := newPools(&cfg, objects, announced)
	if _, err := pools.Sync(); err != nil { // before anybody is given an address
		return nil, err
	}
	m.Announcements(func() metrics.Announcements { return announcementMetrics(announced) })
	m.Pools(func() []metrics.Pool { return poolMetrics(objects) })
	a = &assembly{cfg: cfg, log: log, announced: announced, pools: pools, grants: reconcile.NewGrants(announced.IsAnnounced), store: objects, kernel: k, metrics: m, removals: removals, orphans: orphans, hosts: addresses.hosts, memory: memory, calls: calls, barriers: make(chan chan struct{}), releases: make(chan chan wire.Released), trials: make(chan reconcile.TrialAsk)}
	if len(cfg.Manifests) > 0 {
		if a.watcher, err = watch.New(watch.Config{Dirs: cfg.Manifests, LastGood: objects.LastGood(), Log: log}); err != nil {
			return nil, err
		}
	}
	var counted func() (nft.Totals, error)
	if cfg.Traffic != config.TrafficOff {
		counted = k.Counts
		m.Refusals(k.Refusals)
	}
	a.traffic = traffic.NewAnswers(a.grants.Served, counted)
	a.traffic.Unchanged(a.grants.Changes)
	if hears {
		a.flows = parts.NewFlows(cfg.ConnectionLog, log)
		a.traffic.Follow(a.flows.Book(), a.flows.Hear)
		m.Flows(func() metrics.Flows { return flowMetrics(a.flows) })
	}
	a.board = reconcile.NewBoard(objects.Revisions, a.rescan, a.release, removals, a.firstStatus())
	events := control.RecorderConfig{Host: cfg.NodeName, Assigns: len(cfg.LoadBalancerPools) > 0, Log: log}
	if shared != nil {
		a.joinFleet(shared)
		events.Quiet = func() bool { return !shared.HasTurn() }
	}
	a.events = control.NewRecorder(objects, events)
	asks := prober.New(prober.Options{Log: log, SourcePorts: prober.Ports(cfg.HealthCheckSourcePorts)})
	a.checks = parts.NewHealth(asks, a.events, log)
	a.relay = relayed
	a.grants.CountRelayed(a.relay.Load)
	m.Relay(func() metrics.Relay { return relayMetrics(a.relay) })
	m.HealthChecks(func() metrics.HealthChecks { return healthMetrics(asks.Stats(), a.checks.FailingOpen()) })
	views := apiserver.Views{Grants: a.grants, Checks: a.checks, Traffic: a.traffic, Trace: story.NewTeller(a.grants.Served, wayTo).Trace, Announced: a.announced, Changes: changes{a}}
	if a.member != nil {
		views.Fleet = a.member
	}
	server, err := apiserver.Open(&cfg, objects, a.board, views, m, log)
	if err != nil {
		return nil, err
	}
	closers.add(server.Close)
	var scrape net.Listener
	if cfg.MetricsListen != "" {
		if scrape, err = metrics.Listen(cfg.MetricsListen); err != nil {
			return nil, err
		}
		closers.add(ignoreClosed(scrape.Close))
	}
	if len(cfg.DNSListen) > 0 {
		names := cfg.DNS()
		names.Count = m.DNSAnswers(dns.Results)
		if a.dns, err = dns.Listen(names, log); err != nil {
			return nil, err
		}
		closers.add(a.dns.Close)
	}
	if err := k.HoldSentinel(); errors.Is(err, kernel.ErrPermission) {
		return nil, fmt.Errorf("another svcctl serves in this network namespace: stop it first: %w", err)
	} else if err != nil {
		log.Warn("established connections are not protected from a foreign flush of the ruleset", "err", err)
	}
	return a, a.serve(ctx, server, scrape)
}

// assembly is the running appliance: what its tasks share. It has a field for each thing that is opened
// before the tasks start.
type assembly struct {
	cfg       config.Config
	log       *slog.Logger
	store     *store.Store
	kernel    *kernel.Conn
	watcher   *watch.Watcher // nil when there is nothing to watch
	dns       *dns.Server    // nil when it is off
	traffic   *traffic.Answers
	metrics   *metrics.Metrics
	board     *reconcile.Board
	events    *control.Recorder
	removals  *reconcile.RemovalGuard
	orphans   *reconcile.Orphans // nil: there are none
	hosts     *control.HostAddresses
	grants    *reconcile.Grants
	checks    *parts.Health
	relay     *parts.Relay
	flows     *parts.Flows // nil: nobody listens
	endRelay  func()       // once it runs
	announced *announcements.Book
	member    *member // nil: the box is one of its own
	pools     *objectPools
	memory    *memory // nil: it is not ours
	calls     *reconcile.SlowCalls
	barriers  chan chan struct{}
	releases  chan chan wire.Released
	trials    chan reconcile.TrialAsk
}

// serve runs the tasks until ctx is done or the first one fails.
func (a *assembly) serve(ctx context.Context, server *apiserver.Server, scrape net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	facts, err := node.Watch(ctx, a.log)
	if err != nil {
		return err
	}
	monitor, err := newMonitor(ctx, a.kernel.Watch, a.log)
	if err != nil {
		return err
	}
	findings := make(chan []checkup.Finding)
	in := reconcile.Inputs{Facts: facts, Changes: monitor.changes, Barriers: a.barriers, Releases: a.releases, Trials: a.trials, Findings: findings}
	flows := parts.NewConntrack(a.log)
	balance := parts.NewBalance(a.log)
	if stats := flows.Stats(); stats != nil {
		a.metrics.Connections(func() metrics.Connections { return connectionMetrics(stats()) })
	}
	// What follows the Services. A new one is a line here.
	sets := parts.NewSourceSets(sourceSetFiles(&a.cfg))
	fullness := parts.NewFullness(a.log)
	follows := []reconcile.Part{
		a.grants, sets, a.checks, balance, flows, fullness, a.relay, parts.NewHealthPorts(a.log),
		parts.NewAnnouncements(a.announced, a.store, a.cfg.NodeName, a.events, a.pools.Problems),
	}
	if a.flows != nil {
		follows = append(follows, a.flows)
	}
	if a.dns != nil {
		follows = append(follows, parts.NewDNS(a.dns, a.store))
	}
	dog := a.watchdog()
	loop := a.loop(dog, follows, sets, balance, fullness)
	// The watchdog outlives ctx: the loop may be stuck when the process is to stop.
	watched, ended := context.WithCancel(context.WithoutCancel(ctx))
	tasks := []task.Task{
		{Name: "reconcile", Run: func(ctx context.Context) error {
			defer ended()
			return loop.Run(ctx, in)
		}},
		{Name: "nf_tables monitor", Run: monitor.Run},
		{Name: "watchdog", Run: func(context.Context) error { return dog.Run(watched) }},
		{Name: "listening programs", Run: loop.WatchPorts},
		{Name: "host settings", Run: func(ctx context.Context) error { return a.watchHost(ctx, findings, server.Validity) }},
		{Name: "events", Run: a.events.Run},
		{Name: "status line of systemd", Run: a.tellStatus},
		{Name: "notify systemd of the end", Run: func(ctx context.Context) error {
			<-ctx.Done()
			if handover.IsRequested(ctx) {
				a.notify(daemon.SdNotifyReloading)
			} else {
				a.notify(daemon.SdNotifyStopping)
			}
			return nil
		}},
	}
	a.startRelay(ctx, loop.Wake)
	tasks = append(tasks, a.member.tasks(loop.Wake)...)
	for _, p := range follows {
		if p == reconcile.Part(a.relay) {
			continue // it ends later
		}
		tasks = append(tasks, task.Task{Name: p.Name(), Run: func(ctx context.Context) error { return p.Run(ctx, loop.Wake) }})
	}
	tasks = append(tasks, server.Tasks(a.log)...)
	if a.watcher != nil {
		in.Snapshots = a.watcher.Snapshots()
		tasks = append(tasks, task.Task{Name: "manifests", Run: a.watcher.Run})
	}
	if n := a.cfg.AnnounceTable; n != 0 {
		tasks = append(tasks, task.Task{Name: "announce table", Run: func(ctx context.Context) error {
			return routes.Run(ctx, n, a.announced.Follow, a.log)
		}})
	}
	if scrape != nil {
		tasks = append(tasks, task.Task{Name: "metrics", Run: func(ctx context.Context) error {
			return api.Serve(ctx, scrape, a.metrics.Handler(a.board, a.traffic.Pages()), a.log, a.metrics.APIPanicked)
		}})
	}
	err = task.Run(ctx, a.log, tasks...)
	a.seal()
	if err != nil {
		a.log.Error("stopped; the rules stay in force", "err", err)
		return err
	}
	a.log.Info("stopped; the rules stay in force")
	return nil
}

// loop makes the reconcile loop.
func (a *assembly) loop(dog *reconcile.Watchdog, follows []reconcile.Part, sets *parts.SourceSets, balance *parts.Balance, fullness *parts.Fullness) *reconcile.Loop {
	cluster, endpoints := a.controllers()
	return reconcile.New(reconcile.Options{
		Store: a.store, Kernel: a.calls.Kernel(a.kernel), Log: a.log,
		Host: func(facts *node.Facts) reconcile.Host {
			host := hostOf(&a.cfg, facts, a.hosts.IsVIP)
			features := a.kernel.Probe()
			host.Resolve.NoTimeouts, host.Resolve.NoRates, host.Resolve.NoConnectionCounts = !features.Timeout, !features.Limit, !features.ConnLimit
			return host
		},
		Watching:  a.watcher != nil,
		Cluster:   cluster,
		Pools:     a.pools,
		Endpoints: endpoints,
		Parts:     follows,
		SourceSet: sets.Lookup,
		Removals:  a.removals,
		Orphans:   a.orphans,
		Checks:    a.checks,
		Full:      fullness.Full,
		Relays:    a.relay,
		Tuner:     balance,
		Addresses: a.hosts,
		HostProblems: func(facts *node.Facts) []manifest.Problem {
			return append(a.cfg.OverlapProblems(facts, a.hosts.IsVIP), a.member.problems()...)
		},
		DataDir: a.cfg.DataDir,
		Publisher: &reconcile.Publisher{
			Board: a.board, Metrics: a.metrics, Dirs: a.cfg.Manifests, Status: a.firstStatus(),
			Reporter: &reconcile.Reporter{Log: a.log, Where: a.store.Location, Events: a.events},
		},
		Watchdog:     dog,
		NodePorts:    reconcile.PortRange(a.cfg.ServiceNodePortRange),
		HoldSentinel: a.kernel.HoldSentinel,
		OnReady: func() {
			a.notify(daemon.SdNotifyReady)
			go a.settle()
		},
	})
}

// controllers are those that the loop runs. In a fleet they run beside it, and it only tells them.
func (a *assembly) controllers() (cluster interface{ Sync(*node.Facts) error }, endpoints reconcile.Endpoints) {
	objects, slices := control.NewClusterObjects(a.cfg.ClusterObjects(), a.store, a.hosts), control.NewEndpoints(a.cfg.EndpointsFacts(), a.store)
	if a.member == nil {
		return objects, slices
	}
	a.member.beside = control.NewBeside(objects, slices, a.store, a.member.HasTurn, a.log)
	return a.member.beside.AsCluster(), a.member.beside.AsEndpoints()
}

// joinFleet wires what tells of the fleet. The store must be open.
func (a *assembly) joinFleet(shared *fleet.Engine) {
	a.member = &member{cfg: &a.cfg, engine: shared, store: a.store}
	a.board.OfFleet(a.member.State)
	a.metrics.Fleet(a.member.metrics)
	shared.ReportAs(a.member.report(a.board))
}

// sourceSetFiles are the files of --source-set.
func sourceSetFiles(cfg *config.Config) (files []sourceset.File) {
	for _, s := range cfg.SourceSets {
		files = append(files, sourceset.File{Name: s.Name, Path: s.File})
	}
	return files
}

// hostOf derives from the facts of the host what the loop plans for.
func hostOf(cfg *config.Config, facts *node.Facts, isVIP func(netip.Addr) bool) reconcile.Host {
	return reconcile.Host{Facts: facts, Box: cfg.Box(facts), Resolve: cfg.ResolveFacts(facts, isVIP), Loopback: cfg.LoopbackAddresses(facts)}
}

// settle gives back what the start took, once the copies of files that it made are on disk.
func (a *assembly) settle() {
	if err := a.store.LastGood().Flush(); err != nil {
		a.log.Debug("copies of files are not kept yet", "err", err) // the watcher tries again, and says so
	}
	a.seal()
	a.memory.settle()
}

// seal spares the next start the files that nothing is to be said about.
func (a *assembly) seal() {
	if err := a.store.LastGood().Seal(); err != nil {
		a.log.Debug("the next start reads all files anew", "err", err)
	}
}

// watchdog tells systemd that we live, three times in the period that it wants that in.
func (a *assembly) watchdog() *reconcile.Watchdog {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		a.log.Warn("the watchdog of systemd is not served", "err", err)
	}
	return reconcile.NewWatchdog(reconcile.WatchdogOptions{
		Calls: a.calls, DataDir: a.cfg.DataDir, Log: a.log,
		Every: period / 3, Tell: func() { a.notify(daemon.SdNotifyWatchdog) },
		Exit: func() {
			a.cfg.LogQueue.Flush(time.Second)
			os.Exit(stuckExit)
		},
	})
}

// stuckExit is the exit code of a process that its own watchdog ends.
const stuckExit = 1

// notify tells systemd, if it started us and wants to know.
func (a *assembly) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.log.Warn("systemd cannot be told", "state", state, "err", err)
	}
}

// firstStatus is the status before the loop has done anything.
func (a *assembly) firstStatus() wire.Status {
	features := a.kernel.Probe()
	s := wire.Status{
		Version: a.cfg.Version, NodeName: a.cfg.NodeName, Started: time.Now().UTC(),
		Reason: "starting", Problems: []wire.Problem{}, Sources: reconcile.Sources(a.cfg.Manifests, nil),
	}
	s.Kernel = wire.Kernel{Release: features.Release, Features: features.Present(), Missing: features.Missing()}
	return s
}

// Down removes everything this program has in the kernel. Connections that go through
// a VIP end with it.
func Down(context.Context) error {
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return err
	}
	defer k.Close()
	if err := reconcile.RemoveTables(k, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		return err
	}
	return errors.Join(k.DropSentinel(), routes.Clear())
}
