package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Run serves until ctx is done and returns nil then. The rules stay in the kernel: see
// Down. An error says why it could not start, or what it cannot go on without.
func Run(ctx context.Context, cfg Config, log *slog.Logger) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	memory := newMemory()
	calmMonitor()
	closers := closers{}
	defer func() { err = errors.Join(err, closers.close()) }()

	// The data directory first: its lock tells a second instance from the first
	// before anything is touched.
	engine, err := store.OpenFile(cfg.DataDir)
	if err != nil {
		return err
	}
	closers.add(engine.Close)
	brake := &brake{off: cfg.AllowMassRemoval}
	storeConfig := cfg.storeConfig()
	storeConfig.Hold = func(r store.Removals) bool { return brake.hold(r, time.Now()) }
	storeConfig.Merge = func(live, document object.Object) (object.Object, error) {
		return rest.MergeFile(live, document, time.Now())
	}
	storeConfig.NodePort = newPortCheck(&cfg).check
	storeConfig.ExternalIP = (&externalCheck{cfg: &cfg, read: node.Read}).check
	objects, err := store.Open(engine, storeConfig)
	if err != nil {
		return err
	}
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return err
	}
	closers.add(k.Close)

	m := metrics.New(cfg.Version)
	a := &assembly{cfg: cfg, log: log, grants: newGrants(), store: objects, kernel: k, metrics: m, brake: brake, memory: memory, barriers: make(chan chan struct{}), releases: make(chan chan int)}
	if len(cfg.Manifests) > 0 {
		if a.watcher, err = watch.New(watch.Config{Dirs: cfg.Manifests, LastGood: objects.LastGood(), Log: log}); err != nil {
			return err
		}
	}
	a.state = newPublished(objects.Revisions, a.rescan, a.release, a.firstStatus())
	a.events = newRecorder(objects, cfg.NodeName, log)
	a.events.gives = len(cfg.LoadBalancerPools) > 0
	access, err := cfg.openAPI(objects, a.state, m, log, a.grants, &closers)
	if err != nil {
		return err
	}
	var scrape net.Listener
	if cfg.MetricsListen != "" {
		if scrape, err = metrics.Listen(cfg.MetricsListen); err != nil {
			return err
		}
		closers.add(ignoreClosed(scrape.Close))
	}
	if len(cfg.DNSListen) > 0 {
		names := cfg.dnsConfig()
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
	return a.serve(ctx, access, scrape)
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

// assembly is the running appliance: the parts that its tasks share.
type assembly struct {
	cfg      Config
	log      *slog.Logger
	store    *store.Store
	kernel   *kernel.Conn
	watcher  *watch.Watcher // nil when there is nothing to watch
	dns      *dns.Server    // nil when it is off
	metrics  *metrics.Metrics
	state    *published
	events   *recorder
	brake    *brake
	grants   *grants
	memory   *memory // nil: it is not ours
	barriers chan chan struct{}
	releases chan chan int
}

// serve runs the tasks. The first one that fails ends all; a panic ends the process.
func (a *assembly) serve(ctx context.Context, access *access, scrape net.Listener) error {
	tasks, ctx := errgroup.WithContext(ctx)
	facts, err := node.Watch(ctx, a.log)
	if err != nil {
		return err
	}
	changes, err := follow(ctx, a.kernel.Watch, a.log)
	if err != nil {
		return err
	}
	in := inputs{facts: facts, changes: changes, accepted: a.store.Changed(), barriers: a.barriers, releases: a.releases}
	recheck := time.NewTicker(occupiedEvery)
	defer recheck.Stop()
	in.recheck = recheck.C
	if a.watcher != nil {
		in.snapshots = a.watcher.Snapshots()
		tasks.Go(func() error { return a.watcher.Run(ctx) })
	}
	l := a.loop()
	l.kernel.readEarly()
	if cleaner, err := conntrack.New(conntrack.Options{Log: a.log}); err != nil {
		l.flows = untracked{err}
	} else {
		l.flows = cleaner
		a.metrics.Connections(func() metrics.Connections { return numbers(cleaner.Stats()) })
		tasks.Go(func() error { return cleaner.Run(ctx) })
	}
	host := make(chan []checkup.Finding)
	in.host, in.beats = host, l.watchdog.beats
	tasks.Go(func() error { return a.watchHost(ctx, host, access.validity) })
	tasks.Go(func() error { return l.watchdog.run(ctx) })
	in.hosted = l.hosted.changed
	tasks.Go(func() error { return l.hosted.run(ctx) })
	if a.dns != nil {
		l.names = &names{server: a.dns, store: a.store}
		tasks.Go(func() error { return a.dns.Run(ctx) })
	}
	tasks.Go(func() error { return l.run(ctx, in) })
	access.serve(ctx, tasks, a.log)
	tasks.Go(func() error { return a.events.run(ctx) })
	if scrape != nil {
		tasks.Go(func() error { return api.Serve(ctx, scrape, a.metrics.Handler(a.state), a.log, a.metrics.APIPanicked) })
	}
	tasks.Go(func() error {
		<-ctx.Done()
		a.notify(daemon.SdNotifyStopping)
		return nil
	})
	err = tasks.Wait()
	if err != nil {
		a.log.Error("stopped; the rules stay in force", "err", err)
		return err
	}
	a.log.Info("stopped; the rules stay in force")
	return nil
}

func (a *assembly) loop() *loop {
	hosted := newListeners(a.log)
	planner := newPlanner()
	planner.served, planner.grants = hosted.record, a.grants
	planner.occupied = newOccupied(a.log)
	dog := a.watchdog()
	planner.progress = func() { dog.steps.Add(1) }
	return &loop{
		cfg: a.cfg, log: a.log, store: a.store, metrics: a.metrics, state: a.state,
		controllers: a.cfg.controllers(a.store),
		cluster:     a.cfg.cluster(a.store),
		planner:     planner,
		hosted:      hosted,
		kernel:      &programmer{kernel: a.kernel, log: a.log},
		reporter:    &reporter{log: a.log, where: a.store.Location, events: a.events},
		status:      a.firstStatus(),
		brake:       a.brake,
		now:         time.Now,
		sentinel:    a.kernel.HoldSentinel,
		watchdog:    dog,
		onReady: func() {
			a.notify(daemon.SdNotifyReady)
			go a.memory.settle()
		},
	}
}

// watchdog tells systemd that we live, three times in the period that it wants that in.
func (a *assembly) watchdog() *watchdog {
	period, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		a.log.Warn("the watchdog of systemd is not served", "err", err)
	}
	return &watchdog{
		beats: make(chan struct{}), every: period / 3, log: a.log,
		tell: func() { a.notify(daemon.SdNotifyWatchdog) },
		exit: func() { os.Exit(stuckExit) },
	}
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
		Reason: "starting", Problems: []wire.Problem{}, Sources: sources(a.cfg.Manifests, nil),
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
func (a *assembly) release(ctx context.Context) (services int, err error) {
	released := make(chan int, 1)
	select {
	case a.releases <- released:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case services = <-released:
		return services, nil
	case <-ctx.Done():
		return 0, ctx.Err()
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
	programmer := &programmer{kernel: k, log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	have, err := programmer.read()
	if err != nil {
		return err
	}
	if len(have) > 0 {
		nothing := nft.NewCompiler().From
		if _, err := programmer.program(replacement(have, nothing), nothing); err != nil {
			return err
		}
	}
	return k.DropSentinel()
}
