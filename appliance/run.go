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
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/sourceset"
	"svcctl.io/svcctl/appliance/story"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Run serves until ctx is done and returns nil then. The rules stay in the kernel: see
// Down. An error says why it could not start, or what it cannot go on without.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	memory := newMemory()
	calmMonitor()
	closers := closers{}
	defer func() { err = errors.Join(err, closers.close()) }()

	// The data directory first: its lock tells a second instance from the first
	// before anything is touched.
	engine, err := engine.OpenFile(cfg.DataDir)
	if err != nil {
		return err
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
	calls := &reconcile.SlowCalls{}
	objects, err := store.Open(calls.Engine(engine), storeConfig)
	if err != nil {
		return err
	}
	addresses.hosts = control.NewHostAddresses(cfg.IsSetAside, objects)
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return err
	}
	closers.add(k.Close)
	if cfg.Traffic == config.TrafficCounters && !k.Probe().Counters {
		log.Warn("connections and refusals are not counted: the kernel lacks counters of elements, or CONFIG_NFT_OBJREF; say --traffic off to be spared this")
		cfg.Traffic = config.TrafficOff
	}
	orphans, err := reconcile.FindOrphans(objects, k.Read, cfg.Box(nil), cfg.AllowMassRemoval, log)
	if err != nil {
		return err
	}

	m := metrics.New(cfg.Version)
	m.LogDropped(cfg.LogQueue.Dropped)
	announced := announcements.New(cfg.AnnouncedRanges())
	m.Announcements(func() metrics.Announcements { return announcementMetrics(announced) })
	a := &assembly{cfg: cfg, log: log, announced: announced, grants: reconcile.NewGrants(announced.IsAnnounced), store: objects, kernel: k, metrics: m, removals: removals, orphans: orphans, hosts: addresses.hosts, memory: memory, calls: calls, barriers: make(chan chan struct{}), releases: make(chan chan wire.Released)}
	if len(cfg.Manifests) > 0 {
		if a.watcher, err = watch.New(watch.Config{Dirs: cfg.Manifests, LastGood: objects.LastGood(), Log: log}); err != nil {
			return err
		}
	}
	var counted func() (nft.Totals, error)
	if cfg.Traffic == config.TrafficCounters {
		counted = k.Counts
		m.Refusals(k.Refusals)
	}
	a.traffic = traffic.NewAnswers(a.grants.Served, counted)
	a.board = reconcile.NewBoard(objects.Revisions, a.rescan, a.release, removals, a.firstStatus())
	a.events = control.NewRecorder(objects, control.RecorderConfig{Host: cfg.NodeName, Assigns: len(cfg.LoadBalancerPools) > 0, Log: log})
	asks := prober.New(prober.Options{Log: log, SourcePorts: prober.Ports(cfg.HealthCheckSourcePorts)})
	a.checks = parts.NewHealth(asks, a.events, log)
	a.relay = parts.NewRelay(log, objects.Secret)
	m.HealthChecks(func() metrics.HealthChecks { return healthMetrics(asks.Stats(), a.checks.FailingOpen()) })
	m.RelayedTLS(func() metrics.RelayedTLS { return tlsMetrics(a.relay) })
	views := apiserver.Views{Grants: a.grants, Checks: a.checks, Traffic: a.traffic, Trace: story.NewTeller(a.grants.Served).Trace, Announced: a.announced, Certificates: a.relay.CertificatesOf}
	server, err := apiserver.Open(&cfg, objects, a.board, views, m, log)
	if err != nil {
		return err
	}
	closers.add(server.Close)
	var scrape net.Listener
	if cfg.MetricsListen != "" {
		if scrape, err = metrics.Listen(cfg.MetricsListen); err != nil {
			return err
		}
		closers.add(ignoreClosed(scrape.Close))
	}
	if len(cfg.DNSListen) > 0 {
		names := cfg.DNS()
		names.Count = m.DNSAnswers(dns.Results)
		if a.dns, err = dns.Listen(names, log); err != nil {
			return err
		}
		closers.add(a.dns.Close)
	}
	if err := k.HoldSentinel(); errors.Is(err, kernel.ErrPermission) {
		return fmt.Errorf("another svcctl serves in this network namespace: stop it first: %w", err)
	} else if err != nil {
		log.Warn("established connections are not protected from a foreign flush of the ruleset", "err", err)
	}
	return a.serve(ctx, server, scrape)
}

// closers close what was opened, last one first.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c closers) close() error {
	var errs []error
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i]())
	}
	return errors.Join(errs...)
}

// ignoreClosed is for listeners, which their server closes as a rule.
func ignoreClosed(f func() error) func() error {
	return func() error {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
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
	announced *announcements.Book
	memory    *memory // nil: it is not ours
	calls     *reconcile.SlowCalls
	barriers  chan chan struct{}
	releases  chan chan wire.Released
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
	in := reconcile.Inputs{Facts: facts, Changes: monitor.changes, Barriers: a.barriers, Releases: a.releases, Findings: findings}
	flows := parts.NewConntrack(a.log)
	balance := parts.NewBalance(a.log)
	if stats := flows.Stats(); stats != nil {
		a.metrics.Connections(func() metrics.Connections { return connectionMetrics(stats()) })
	}
	// What follows the Services. A new one is a line here.
	sets := parts.NewSourceSets(sourceSetFiles(&a.cfg))
	follows := []reconcile.Part{
		a.grants, sets, a.checks, balance, flows, a.relay, parts.NewHealthPorts(a.log), parts.NewAnnouncements(a.announced),
	}
	if a.dns != nil {
		follows = append(follows, parts.NewDNS(a.dns, a.store))
	}
	dog := a.watchdog()
	loop := a.loop(dog, follows, sets, balance)
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
		{Name: "notify systemd of the end", Run: func(ctx context.Context) error {
			<-ctx.Done()
			a.notify(daemon.SdNotifyStopping)
			return nil
		}},
	}
	for _, p := range follows {
		tasks = append(tasks, task.Task{Name: p.Name(), Run: func(ctx context.Context) error { return p.Run(ctx, loop.Wake) }})
	}
	tasks = append(tasks, server.Tasks(a.log)...)
	if a.watcher != nil {
		in.Snapshots = a.watcher.Snapshots()
		tasks = append(tasks, task.Task{Name: "manifests", Run: a.watcher.Run})
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
func (a *assembly) loop(dog *reconcile.Watchdog, follows []reconcile.Part, sets *parts.SourceSets, balance *parts.Balance) *reconcile.Loop {
	return reconcile.New(reconcile.Options{
		Store: a.store, Kernel: a.calls.Kernel(a.kernel), Log: a.log,
		Host: func(facts *node.Facts) reconcile.Host {
			host := hostOf(&a.cfg, facts, a.hosts.IsVIP)
			host.Resolve.NoTimeouts = !a.kernel.Probe().Timeout
			return host
		},
		Watching:     a.watcher != nil,
		Cluster:      control.NewClusterObjects(a.cfg.ClusterObjects(), a.store, a.hosts),
		Endpoints:    control.NewEndpoints(a.cfg.EndpointsFacts(), a.store),
		Parts:        follows,
		SourceSet:    sets.Lookup,
		Removals:     a.removals,
		Orphans:      a.orphans,
		Checks:       a.checks,
		Relays:       a.relay,
		Tuner:        balance,
		Addresses:    a.hosts,
		HostProblems: func(facts *node.Facts) []manifest.Problem { return a.cfg.OverlapProblems(facts, a.hosts.IsVIP) },
		DataDir:      a.cfg.DataDir,
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

// rescan has the watched directories looked at once more and waits until what they
// held by then is in the store.
func (a *assembly) rescan(ctx context.Context) error {
	if a.watcher != nil {
		if err := a.watcher.Rescan(ctx); err != nil {
			return fmt.Errorf("read the manifests once more: %w", err)
		}
	}
	barrier := make(chan struct{})
	select {
	case a.barriers <- barrier:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-barrier:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release has the loop let go what vanished from the manifests.
func (a *assembly) release(ctx context.Context) (wire.Released, error) {
	released := make(chan wire.Released, 1)
	select {
	case a.releases <- released:
	case <-ctx.Done():
		return wire.Released{}, ctx.Err()
	}
	select {
	case what := <-released:
		return what, nil
	case <-ctx.Done():
		return wire.Released{}, ctx.Err()
	}
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
	return k.DropSentinel()
}
