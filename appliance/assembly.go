package appliance

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/admission"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/routes"
	"svcctl.io/svcctl/appliance/sourceset"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// assembly is the running appliance: what its tasks share. It has more than 15 fields: one for each
// thing that is opened before the tasks start.
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
	admission *admission.Check
	grants    *reconcile.Grants
	bridged   *parts.Bridged
	checks    *parts.Health
	relay     *parts.Relay
	suspicion *parts.Suspicion
	flows     *parts.Flows // nil: nobody listens
	endRelay  func()       // once it runs
	announced *announcements.Book
	member    *member // nil: the box is one of its own
	held      *heldBack
	pools     *objectPools
	memory    *memory // nil: it is not ours
	history   *history.Book
	calls     *reconcile.SlowCalls
	barriers  chan chan struct{}
	releases  chan chan wire.Released
	trials    chan reconcile.TrialAsk
	foreseer  *foreseer
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
	in := reconcile.Inputs{Facts: facts, Changes: monitor.changes, Barriers: a.barriers, Releases: a.releases, Trials: a.trials, Foresees: a.foreseer.asks, Findings: findings}
	flows := parts.NewConntrack(a.log)
	balance := parts.NewBalance(a.log)
	if stats := flows.Stats(); stats != nil {
		a.metrics.Connections(func() metrics.Connections { return connectionMetrics(stats()) })
	}
	// What follows the Services. A new one is a line here.
	sets := parts.NewSourceSets(sourceSetFiles(a.cfg.Services.SourceSets))
	fullness := parts.NewFullness(a.log)
	follows := []reconcile.Part{
		a.grants, a.bridged, sets, a.checks, a.suspicion, balance, flows, fullness, a.relay, parts.NewHealthPorts(a.log),
		parts.NewAnnouncements(a.announced, a.store, a.cfg.NodeName, a.events, a.pools.Problems, a.grants.Unanswered),
	}
	if a.flows != nil {
		follows = append(follows, a.flows)
	}
	if a.dns != nil {
		follows = append(follows, parts.NewDNS(a.dns, func() *store.Store { return cmp.Or(a.held.objects(), a.store) }))
	}
	dog := a.watchdog()
	loop := a.loop(ctx, dog, follows, sets, balance, fullness)
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
		{Name: "history", Run: a.history.Run},
		{Name: "status line of systemd", Run: a.tellStatus},
		{Name: "notify systemd of the end", Run: func(ctx context.Context) error {
			<-ctx.Done()
			state := daemon.SdNotifyStopping
			if handover.IsRequested(ctx) {
				state = daemon.SdNotifyReloading
			}
			a.notifySoon(state)
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
func (a *assembly) loop(ctx context.Context, dog *reconcile.Watchdog, follows []reconcile.Part, sets *parts.SourceSets, balance *parts.Balance, fullness *parts.Fullness) *reconcile.Loop {
	cluster, endpoints, pools := a.controllers()
	return reconcile.New(reconcile.Options{
		Store: a.store, InForce: a.held.objects, Kernel: a.calls.Kernel(a.kernel), Log: a.log,
		Host:      func(facts *node.Facts) reconcile.Host { return a.hostFor(&a.cfg, facts) },
		Watching:  a.watcher != nil,
		Files:     a.member.files(),
		Cluster:   cluster,
		Pools:     pools,
		Endpoints: endpoints,
		Parts:     follows,
		SourceSet: sets.Lookup,
		Removals:  a.removals,
		Orphans:   a.orphans,
		Checks:    a.checks,
		Full:      fullness.Full,
		Dead:      a.suspicion.Book().Dead,
		Relays:    a.relay,
		Tuner:     balance,
		Addresses: placedHost{a.hosts, a.admission},
		HostProblems: func(facts *node.Facts) []manifest.Problem {
			return slices.Concat(a.cfg.OverlapProblems(facts, a.hosts.IsVIP), a.cfg.FamilyProblems(facts), a.member.problems())
		},
		DataDir: a.cfg.DataDir,
		Publisher: &reconcile.Publisher{
			Board: a.board, Metrics: a.metrics, Dirs: a.cfg.ManifestDirs(), Named: a.member.named(), Status: firstStatus(&a.cfg, a.kernel.Probe()),
			Reporter: reconcile.NewReporter(a.log, a.store.Location, a.events, a.history),
		},
		Watchdog:     dog,
		NodePorts:    reconcile.PortRange(a.cfg.Addresses.NodePortRange),
		HoldSentinel: a.kernel.HoldSentinel,
		OnReady: func() {
			go a.notify(ctx, daemon.SdNotifyReady)
			go a.settle(ctx)
		},
	})
}

// controllers returns the controllers that the loop runs. In a fleet they run in a task of their
// own, and the loop only notifies them.
func (a *assembly) controllers() (cluster interface{ Sync(*node.Facts) error }, endpoints reconcile.Endpoints, pools reconcile.Pools) {
	of := a.cfg.ClusterObjects()
	if a.cfg.IsLeaf() {
		of.TellNode = tellNode(a.member.engine)
	}
	objects, slices := control.NewClusterObjects(of, a.store, a.hosts), control.NewEndpoints(a.cfg.EndpointsFacts(), a.store)
	if a.member == nil {
		return objects, slices, a.pools
	}
	a.member.beside = control.NewBeside(objects, slices, a.pools.Pools, a.store, a.member.HasTurn, a.log)
	return a.member.beside.AsCluster(), a.member.beside.AsEndpoints(), a.member.beside.AsPools()
}

// joinFleet wires what tells of the fleet. The store must be open.
func (a *assembly) joinFleet(shared *fleet.Engine) {
	a.member = &member{cfg: &a.cfg, engine: shared, store: a.store, held: a.held, log: a.log}
	a.member.sources = a.member.newReader(a.removals, a.log)
	a.board.OfFleet(a.member.State)
	a.metrics.Fleet(a.member.metrics)
	shared.ReportAs(a.member.report(a.board))
}

// sourceSetFiles returns the files of --source-set.
func sourceSetFiles(sets []config.SourceSet) (files []sourceset.File) {
	for _, s := range sets {
		files = append(files, sourceset.File{Name: s.Name, Path: s.File})
	}
	return files
}

// hostOf derives from the facts of the host what the loop plans for.
func hostOf(cfg *config.Config, facts *node.Facts, isVIP func(netip.Addr) bool) reconcile.Host {
	return reconcile.Host{Facts: facts, Box: cfg.Box(facts), Resolve: cfg.ResolveFacts(facts, isVIP), Loopback: cfg.LoopbackAddresses(facts)}
}

// hostFor is hostOf with what the kernel can do.
func (a *assembly) hostFor(cfg *config.Config, facts *node.Facts) reconcile.Host {
	host := hostOf(cfg, facts, a.hosts.IsVIP)
	features := a.kernel.Probe()
	host.Resolve.NoTimeouts, host.Resolve.NoRates, host.Resolve.NoConnectionCounts = !features.Timeout, !features.Limit, !features.ConnLimit
	return host
}

// settle gives back what the start took, once the copies of files that it made are on disk: what is sealed need
// not be held any more.
func (a *assembly) settle(ctx context.Context) {
	if err := a.store.LastGood().Flush(); err != nil {
		a.log.Debug("copies of files are not kept yet", "err", err) // the watcher tries again, and says so
	}
	if sealed := a.seal(); len(sealed) > 0 && a.watcher != nil {
		if err := a.watcher.TakeSealed(ctx, sealed); err == nil {
			_ = a.sync(ctx) // of an error ctx is the reason
		}
	}
	a.memory.settle()
}

// seal spares the next start the files that nothing is to be said about.
func (a *assembly) seal() (sealed []*manifest.File) {
	sealed, err := a.store.LastGood().Seal()
	if err != nil {
		a.log.Debug("the next start reads all files anew", "err", err)
	}
	return sealed
}

// watchdog sends WATCHDOG=1 to systemd three times in each period of its watchdog.
func (a *assembly) watchdog() *reconcile.Watchdog {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		a.log.Warn("the watchdog of systemd is not served", "err", err)
	}
	return reconcile.NewWatchdog(reconcile.WatchdogOptions{
		Calls: a.calls, DataDir: a.cfg.DataDir, Log: a.log,
		Every: period / 3, Tell: func() { a.notifySoon(daemon.SdNotifyWatchdog) },
		Exit: func() {
			a.cfg.Log.Queue.Flush(time.Second)
			os.Exit(stuckExit)
		},
	})
}

// stuckExit is the exit code of a process that its own watchdog ends.
const stuckExit = 1

// notifyPatience bounds the wait for systemd to read a state, but that of being ready: the start fails without it.
const notifyPatience = time.Second

// notify sends a state to systemd, if NOTIFY_SOCKET is set.
func (a *assembly) notify(ctx context.Context, state string) {
	if err := handover.Notify(ctx, state); err != nil {
		a.log.Warn("systemd cannot be notified", "state", state, "err", err)
	}
}

// notifySoon is notify with a bounded wait.
func (a *assembly) notifySoon(state string) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyPatience)
	defer cancel()
	a.notify(ctx, state)
}

// firstStatus is the status before the loop has done anything.
func firstStatus(cfg *config.Config, features kernel.Features) wire.Status {
	s := wire.Status{
		Version: cfg.Version, NodeName: cfg.NodeName, Packaged: checkup.Packaged(), Started: time.Now().UTC(),
		Reason: "starting", Problems: []wire.Problem{}, Sources: reconcile.Sources(cfg.ManifestDirs(), nil),
	}
	s.Kernel = wire.Kernel{Release: features.Release, Features: features.Present(), Missing: features.Missing()}
	return s
}
