package appliance

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/admission"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/routes"
	"svcctl.io/svcctl/appliance/story"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Run serves until ctx is done and returns nil then. The rules stay in the kernel: see
// Down. An error says why it could not start, or what it cannot go on without. When the cause is
// handover.ErrRequested, it executes the program anew in place of the process, which is handed what is relayed.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	drain := &drain{}
	ctx, release := drain.before(ctx)
	defer release()
	a, err := run(ctx, cfg, log, drain)
	if a != nil && a.endRelay != nil {
		a.endRelay()
	}
	if err != nil || a == nil || !handover.IsRequested(ctx) {
		return err
	}
	return a.handOver()
}

// run is Run without the hand-over at the end. It returns what has run; nil: it was stopped before.
func run(ctx context.Context, cfg config.Config, log *slog.Logger, drain *drain) (a *assembly, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	state, err := handover.State()
	if err != nil {
		log.Error("what the program before has handed over is lost", "err", err)
	}
	// The relay comes first and ends last: connections of the program before go on at once, and those that are
	// handed over pause only for the rest of the start.
	var objects *store.Store // opened before the relay is told of any Service
	held := &heldBack{}
	secret := func(key string) *object.Secret { return cmp.Or(held.objects(), objects).InForce().Secret(key) }
	relayed := parts.NewRelay(log, secret, state, handover.Kept())
	drain.relay.Store(relayed)
	memory := newMemory()
	memory.begin()
	calmMonitor()
	closers := closers{}
	defer func() { err = errors.Join(err, closers.close()) }()

	// The data directory first: its lock tells a second instance from the first
	// before anything is touched.
	calls := &reconcile.SlowCalls{}
	engine, shared, err := openEngine(&cfg, calls, log)
	if err != nil {
		return nil, err
	}
	closers.add(engine.Close)
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return nil, err
	}
	closers.add(k.Close)
	before := takeTotals(cfg.DataDir, log)
	k.Tally().Restore(before.Counters)
	if err := k.HoldSentinel(); errors.Is(err, kernel.ErrPermission) {
		return nil, fmt.Errorf("another svcctl serves in this network namespace: stop it first: %w", err)
	} else if err != nil {
		log.Warn("established connections are not protected from a foreign flush of the ruleset", "err", err)
	}
	if shared != nil {
		if err := awaitFleet(ctx, &cfg, shared, firstStatus(&cfg, k.Probe()), log); ctx.Err() != nil {
			return nil, nil // it is to stop
		} else if err != nil {
			return nil, err
		}
	}
	removals := reconcile.NewRemovalGuard(cfg.AllowMassRemoval)
	storeConfig := cfg.Store()
	storeConfig.Program = programID()
	if objects, err = store.Open(engine, storeConfig); err != nil {
		return nil, err
	}
	cfg.ObjectPools = &config.ObjectPools{}
	if shared != nil {
		if hasTables(k) { // they may be newer than the replica; a kernel without any gets the replica at once
			shared.CatchUp(ctx)
		}
		objects.TakeOver()
	}
	hosts := control.NewHostAddresses(cfg.IsSetAside, objects, cfg.NodeOwner())
	admitted := admission.New(&cfg, objects, hosts.IsVIP)
	admitted.Look(nil) // before anybody is given an address
	hears := cfg.Services.HearsFlows()
	if cfg.Services.Traffic != config.TrafficOff && !k.Probe().Counters {
		log.Warn("connections and refusals are not counted: the kernel lacks counters of elements, or CONFIG_NFT_OBJREF; --traffic off ends this message")
		cfg.Services.Traffic = config.TrafficOff
	}
	orphans, err := reconcile.FindOrphans(objects, k.Read, cfg.Box(nil), cfg.AllowMassRemoval, log)
	if err != nil {
		return nil, err
	}

	past := history.Open(cfg.DataDir, cfg.NodeName, time.Now(), log)
	closers.add(past.Close)

	m := metrics.New(cfg.Version)
	m.LogDropped(cfg.Log.Queue.Dropped)
	announced := announcements.New(cfg.AnnouncedRanges())
	pools := newPools(&cfg, objects, announced)
	if _, err := pools.Sync(); err != nil { // before anybody is given an address
		log.Warn("addresses of pools are given later", "err", err) // the fleet may be away, or the disk be full
	}
	m.Announcements(func() metrics.Announcements { return announcementMetrics(announced) })
	m.Pools(func() []metrics.Pool { return poolMetrics(objects) })
	held.pools = pools
	a = &assembly{cfg: cfg, log: log, held: held, announced: announced, pools: pools, grants: reconcile.NewGrants(announced.IsSeenTo), store: objects, kernel: k, metrics: m, removals: removals, orphans: orphans, hosts: hosts, admission: admitted, memory: memory, calls: calls, history: past, barriers: make(chan chan struct{}), releases: make(chan chan wire.Released), trials: make(chan reconcile.TrialAsk)}
	if len(cfg.Manifests) > 0 {
		if a.watcher, err = watch.New(watch.Config{Dirs: cfg.ManifestDirs(), LastGood: objects.LastGood(), Log: log}); err != nil {
			return nil, err
		}
	}
	var counted func() (nft.Totals, error)
	if cfg.Services.Traffic != config.TrafficOff {
		counted = k.Counts
		m.Refusals(k.Refusals)
	}
	a.bridged = parts.NewBridged(a.grants)
	a.traffic = traffic.NewAnswers(a.grants.Served, counted)
	a.traffic.Unchanged(a.grants.Changes)
	if hears {
		a.flows = parts.NewFlows(cfg.Services.ConnectionLog, relayed.EndpointsOf, log)
		if before.Flows != nil {
			a.flows.Book().Restore(before.Flows)
		}
		a.traffic.Follow(a.flows.Book(), a.flows.Hear)
		m.Flows(func() metrics.Flows { return flowMetrics(a.flows) })
	}
	a.board = reconcile.NewBoard(objects.Revisions, a.rescan, a.release, removals, firstStatus(&cfg, k.Probe()))
	a.board.OfTrial(func() *wire.Trial {
		state, is := objects.Trial()
		if !is {
			return nil
		}
		return reconcile.TrialStatus(&state, deadline.Now())
	})
	a.board.OfRollout(func() *wire.Rollout { return rolloutStatus(objects) })
	events := control.RecorderConfig{Host: cfg.NodeName, Assigns: len(cfg.Addresses.LoadBalancerPools) > 0, Log: log}
	if shared != nil {
		a.joinFleet(shared)
		events.Quiet = func() bool { return !shared.HasTurn() }
	}
	a.events = control.NewRecorder(objects, events)
	if a.member != nil {
		a.member.events = a.events
	}
	asks := prober.New(prober.Options{Log: log, SourcePorts: prober.Ports(cfg.Services.HealthCheckSourcePorts)})
	a.checks = parts.NewHealth(asks, a.events, log)
	a.suspicion = newSuspicion(a)
	a.checks.History, a.suspicion.History = past, past
	a.suspicion.Book().Restore(before.Failures)
	a.relay = relayed
	a.grants.CountRelayed(a.relay.Load)
	a.traffic.CountRelayed(a.relay.Load, relayedClients(a.relay))
	m.Relay(func() metrics.Relay { return relayMetrics(a.relay) })
	m.RelayedTLS(func() metrics.RelayedTLS { return tlsMetrics(a.relay) })
	m.HealthChecks(func() metrics.HealthChecks { return healthMetrics(asks.Stats(), a.checks.FailingOpen()) })
	a.foreseer = newForeseer(a)
	views := apiserver.Views{Look: admitted.Look, Conditions: a.board.Conditions(), Grants: a.grants, Checks: a.checks, Probe: newProbes(a).ask, Traffic: a.traffic, Trace: story.NewTeller(a.grants.Served, wayTo).Trace, Announced: a.announced, Changes: changes{a}, Rollouts: rollouts{a}, Plan: a.foreseer.Plan, Certificates: a.relay.CertificatesOf, Bridged: a.bridged.Of, Unrouted: unrouted}
	if a.member != nil {
		a.member.lookAtTrial() // before anything is programmed
		views.Fleet, views.Keys = a.member, sharedKeys{a.member.engine}
		views.Commits, views.Forward = leafCommits(&cfg, shared), leafForward(&cfg, shared)
	}
	server, err := apiserver.Open(&cfg, objects, a.board, views, m, log)
	if err != nil {
		return nil, err
	}
	closers.add(server.Close)
	var scrape net.Listener
	if cfg.API.MetricsListen != "" {
		if scrape, err = metrics.Listen(cfg.API.MetricsListen); err != nil {
			return nil, err
		}
		closers.add(ignoreClosed(scrape.Close))
	}
	if len(cfg.DNS.Listen) > 0 {
		names := cfg.DNSServer()
		names.Count = m.DNSAnswers(dns.Results)
		if a.dns, err = dns.Listen(names, log); err != nil {
			return nil, err
		}
		closers.add(a.dns.Close)
	}
	defer a.leaveTotals()
	return a, a.serve(ctx, server, scrape)
}

// hasTables reports whether the kernel may have tables of ours.
func hasTables(k *kernel.Conn) bool {
	chains, err := k.BaseChains()
	return err != nil || slices.ContainsFunc(chains, func(c kernel.BaseChain) bool { return c.Table == nft.TableName })
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

// programID is the build ID that the linker gave this program: a hash of all that went into it
// (cmd/internal/buildid). It is "" when that cannot be read.
func programID() string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	note := f.Section(".note.go.buildid")
	if note == nil {
		return ""
	}
	id, err := note.Data()
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", id)
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
