package appliance

import (
	"cmp"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/admission"
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
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/watch"
)

// claimed holds the parts that decide which addresses and ports this box may allocate: from the host, from the rules of an earlier run, and
// from pools.
type claimed struct {
	hosts     *control.HostAddresses
	admission *admission.Check
	orphans   *reconcile.Orphans // nil if there are none
	announced *announcements.Registry
	pools     *objectPools
}

// claim finds the addresses and ports in use by the host and by rules of an earlier run, before any is allocated to a Service.
func claim(o *opened) (*claimed, error) {
	hosts := control.NewHostAddresses(o.cfg.IsSetAside, o.store, o.cfg.NodeOwner())
	admitted := admission.New(o.cfg, o.store, hosts.IsVIP)
	admitted.Look(nil)
	orphans, err := reconcile.FindOrphans(o.store, o.kernel.Read, o.cfg.Box(nil), o.cfg.AllowMassRemoval, o.log)
	if err != nil {
		return nil, err
	}
	announced := announcements.New(o.cfg.AnnouncedRanges())
	pools := newPools(o.cfg, o.store, announced)
	if _, err := pools.Sync(); err != nil {
		o.log.Warn("addresses of pools are given later", "err", err) // the fleet may be away, or the disk be full
	}
	return &claimed{hosts: hosts, admission: admitted, orphans: orphans, announced: announced, pools: pools}, nil
}

// assembly has the parts of the appliance, built but not yet listening or running.
type assembly struct {
	*opened
	*claimed
	metrics  *metrics.Metrics
	watcher  *watch.Watcher // nil when there is nothing to watch
	requests requests
	removals *reconcile.RemovalGuard
	board    *reconcile.Board
	events   *control.Recorder
	held     *previousView
	member   *member // nil if the box is not in a fleet
	grants   *reconcile.Grants
	slices   *control.Endpoints // run by the loop, or by member
	parts    followers
	traffic  *traffic.Queries
}

// followers are those Parts of the reconcile loop that other parts refer to.
type followers struct {
	bridged   *parts.Bridged
	checks    *parts.Health
	relay     *parts.Relay
	suspicion *parts.Suspicion
	flows     *parts.Flows // nil: ended connections are not reported
	discovers *parts.Discovered
}

// build creates the parts of the appliance. None of them runs or listens yet, except for the relay.
func build(o *opened, at *claimed, relay *parts.Relay) (*assembly, error) {
	cfg, log, objects := o.cfg, o.log, o.store
	var watcher *watch.Watcher
	if len(cfg.Manifests) > 0 {
		var err error
		if watcher, err = watch.New(watch.Config{Dirs: cfg.ManifestDirs(), LastGood: objects.LastGood(), Log: log}); err != nil {
			return nil, err
		}
	}
	requests := requests{watcher, make(chan reconcile.Request)}
	removals := reconcile.NewRemovalGuard(cfg.AllowMassRemoval)
	board := reconcile.NewBoard(objects.Revisions, requests.rescan, requests.release, removals, firstStatus(cfg, o.kernel.Probe()))
	board.OfTrial(func() *wire.Trial {
		state, is := objects.Pending(pending.Timed)
		if !is {
			return nil
		}
		return reconcile.TrialStatus(&state, deadline.Now())
	})
	board.OfRollout(func() *wire.Rollout { return rolloutStatus(objects) })
	recorder := control.RecorderConfig{Host: cfg.NodeName, Assigns: len(cfg.Addresses.LoadBalancerPools) > 0, Log: log}
	if o.fleet != nil {
		recorder.Quiet = func() bool { return !o.fleet.HasTurn() }
	}
	events := control.NewRecorder(objects, recorder)
	held := &previousView{pools: at.pools}
	endpoints := control.NewEndpoints(o.cfg.EndpointsFacts(), o.store)
	member := newMember(o, at, held, endpoints, removals, events)
	if member != nil {
		board.OfFleet(member.State)
		o.fleet.ReportAs(member.report(board))
		member.checkTrial() // before anything is programmed
	}

	grants := reconcile.NewGrants(at.announced.HasAnnouncer, relay.Load)
	var counted func() (nft.Totals, error)
	if cfg.Services.Traffic != config.TrafficOff {
		counted = o.kernel.Counts
	}
	answers := traffic.NewQueries(grants.Of, grants.Since, grants.Served, counted)
	if counted != nil {
		answers.Remember(cfg.DataDir, cfg.NodeName, log)
	}
	answers.CountRelayed(relay.Load, relayedClients(relay))
	var flows *parts.Flows
	if o.readsFlows {
		flows = parts.NewFlows(cfg.Services.ConnectionLog, relay.EndpointsOf, log)
		if o.before.Flows != nil {
			flows.Totals().Restore(o.before.Flows)
		}
		answers.Follow(flows.Totals(), flows.Update)
	}
	asks := prober.New(prober.Options{Log: log, SourcePorts: prober.Ports(cfg.Services.HealthCheckSourcePorts)})
	checks := parts.NewHealth(asks, events, log)
	suspicion := newSuspicion(answers, grants, checks, counted != nil, log)
	checks.History, suspicion.History = o.history, o.history
	suspicion.Book().Restore(o.before.Failures)
	answers.Judge(suspicion.Book().Failures, checks.State, board.Conditions().Judged)
	a := &assembly{
		opened: o, claimed: at, metrics: metrics.New(cfg.Version), watcher: watcher, requests: requests, removals: removals,
		board: board, events: events, held: held, member: member, grants: grants, traffic: answers, slices: endpoints,
		parts: followers{bridged: parts.NewBridged(grants), checks: checks, relay: relay, suspicion: suspicion, flows: flows, discovers: parts.NewDiscovered(o.store, o.providers)},
	}
	a.count(asks)
	return a, nil
}

// newMember returns the part of the appliance that joins a fleet; nil if the box is not in a fleet.
func newMember(o *opened, at *claimed, held *previousView, slices *control.Endpoints, removals *reconcile.RemovalGuard, events *control.Recorder) *member {
	if o.fleet == nil {
		return nil
	}
	m := &member{
		cfg: o.cfg, engine: o.fleet, store: o.store, held: held, events: events, log: o.log,
		beside: control.NewBeside(newCluster(o, at), slices, at.pools.Pools, o.store, o.fleet.HasTurn, o.log),
	}
	m.sources = m.newReader(removals, o.log)
	return m
}

// newCluster returns the controller of cluster objects. On a leaf it passes the Node of this box to a core box, which stores it.
func newCluster(o *opened, at *claimed) *control.ClusterObjects {
	of := o.cfg.ClusterObjects()
	if o.cfg.IsLeaf() {
		of.ReportNode = func(node *object.Node) error { // a core box keeps it
			text, err := json.Marshal(node)
			if err == nil {
				o.fleet.SetNode(text)
			}
			return err
		}
	}
	return control.NewClusterObjects(of, o.store, at.hosts)
}

// shown returns the store from which the loop plans. It is a copy without the changes of a trial (see previousView) while the trial has ended but is
// not rolled back in the fleet yet.
func (a *assembly) shown() *store.Store { return cmp.Or(a.held.objects(), a.store) }

// listeners are the listeners of the appliance, except for those of the relay.
type listeners struct {
	api    *apiserver.Server
	scrape net.Listener // nil: metrics are served only by the API
	dns    *dns.Server  // nil if DNS is off
}

// views returns the data sources of the API.
func (a *assembly) views() apiserver.Views {
	views := apiserver.Views{
		Look: a.admission.Look, Conditions: a.board.Conditions(), Grants: a.grants, Checked: a.parts.checks.State, NotStored: a.board.NotStored,
		History: a.history, Traffic: a.traffic, Trace: story.NewTracer(a.grants.Served, wayTo).Trace, Announced: a.announced,
		Certificates: a.parts.relay.CertificatesOf, Bridged: a.parts.bridged.Of, Unrouted: unrouted,
		Endpoints: slices.Concat(changes{a}.endpoints(), rollouts{a}.endpoints(), a.member.endpoints(), []api.Endpoint{
			api.Handle(wire.Plan.Operation, (&foreseer{a: a, turn: make(chan struct{}, 1)}).serve), api.Answer(wire.Probe, (&probes{ports: a.grants.Of, state: a.parts.checks.State, log: a.log}).probe),
		}),
	}
	if a.fleet != nil {
		views.Keys = sharedKeys{a.fleet}
		switch {
		case a.cfg.IsLeaf():
			views.Forward = a.fleet
		case a.cfg.Fleet.LeafCACert != "":
			views.Commits = a.fleet.Commits(func(r *http.Request) string { return auth.From(r.Context()).BoxName() })
		}
	}
	return views
}

// listen opens the listeners. Requests are answered once serve runs.
func (a *assembly) listen(closers *closers) (l listeners, err error) {
	if l.api, err = apiserver.Open(a.cfg, a.store, backend{a.board, a.parts.discovers}, a.views(), a.metrics, a.log); err != nil {
		return l, err
	}
	closers.add(l.api.Close)
	if a.cfg.API.MetricsListen != "" {
		if l.scrape, err = metrics.Listen(a.cfg.API.MetricsListen); err != nil {
			return l, err
		}
		closers.add(ignoreClosed(l.scrape.Close))
	}
	if len(a.cfg.DNS.Listen) > 0 {
		names := a.cfg.DNSServer()
		names.Count = a.metrics.DNSAnswers(dns.Results)
		if l.dns, err = dns.Listen(names, a.log); err != nil {
			return l, err
		}
		closers.add(l.dns.Close)
	}
	return l, nil
}

// serve runs all tasks until ctx is done or one of them fails. The relay is left running; endRelay ends it, and is nil if it does not run.
func (a *assembly) serve(ctx context.Context, l listeners) (endRelay func(), err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	facts, err := node.Watch(ctx, a.log)
	if err != nil {
		return nil, err
	}
	findings := make(chan []checkup.Finding)
	in := a.requests.inputs(reconcile.Inputs{Facts: facts, Changes: a.monitor.changes, Findings: findings})

	dog := a.watchdog()
	loop, follows := a.loop(ctx, dog, l.dns)
	endRelay = startRelay(ctx, a.parts.relay, a.log)
	// The watchdog outlives ctx: the loop may be stuck when the process is to stop.
	watched, ended := context.WithCancel(context.WithoutCancel(ctx))
	tasks := []task.Task{
		{Name: "reconcile", Run: func(ctx context.Context) error {
			defer ended()
			return loop.Run(ctx, in)
		}},
		{Name: "nf_tables monitor", Run: a.monitor.Run},
		{Name: "watchdog", Run: func(context.Context) error { return dog.Run(watched) }},
		{Name: "listening programs", Run: loop.WatchPorts},
		{Name: "host settings", Run: func(ctx context.Context) error { return a.watchHost(ctx, findings, l.api.Validity) }},
		{Name: "events", Run: a.events.Run},
		{Name: "history", Run: a.history.Run},
		{Name: "status line of systemd", Run: a.showStatus},
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
	if a.cfg.Services.Traffic != config.TrafficOff {
		tasks = append(tasks, task.Task{Name: "traffic history", Run: func(ctx context.Context) error {
			return a.traffic.Record(ctx, a.cfg.DataDir, a.cfg.NodeName, a.log)
		}})
	}
	tasks = append(tasks, a.member.tasks(loop.Wake)...)
	for _, p := range follows {
		if p != reconcile.Part(a.parts.relay) { // which runs already
			tasks = append(tasks, task.Task{Name: p.Name(), Run: p.Run})
		}
	}
	tasks = append(tasks, l.api.Tasks(a.log)...)
	if a.watcher != nil {
		tasks = append(tasks, task.Task{Name: "manifests", Run: a.watcher.Run})
	}
	if n := a.cfg.AnnounceTable; n != 0 {
		tasks = append(tasks, task.Task{Name: "announce table", Run: func(ctx context.Context) error {
			return routes.Run(ctx, n, a.announced.Follow, a.log)
		}})
	}
	if l.scrape != nil {
		tasks = append(tasks, task.Task{Name: "metrics", Run: func(ctx context.Context) error {
			return api.Serve(ctx, l.scrape, a.metrics.Handler(a.board, a.traffic.Pages()), a.log, a.metrics.APIPanicked)
		}})
	}
	err = task.Run(ctx, a.log, tasks...)
	a.seal()
	if err != nil {
		a.log.Error("stopped; the rules stay in force", "err", err)
		return endRelay, err
	}
	a.log.Info("stopped; the rules stay in force")
	return endRelay, nil
}

// loop returns the reconcile loop, and the Parts that are notified by it.
func (a *assembly) loop(ctx context.Context, dog *reconcile.Watchdog, names *dns.Server) (*reconcile.Loop, []reconcile.Part) {
	conns := parts.NewConntrack(a.log)
	if stats := conns.Stats(); stats != nil {
		a.metrics.Scraped("conntrack", func(to metrics.Samples) { connectionSamples(stats(), to) })
	}
	// What follows the Services. A new one is a line here.
	follows := []reconcile.Part{
		a.grants, a.parts.bridged, parts.NewSourceSets(sourceSetFiles(a.cfg.Services.SourceSets)), a.parts.checks, a.parts.suspicion,
		parts.NewBalance(a.log), conns, parts.NewFullness(a.log), a.parts.discovers, parts.NewEgress(a.traffic.Leave), a.parts.relay, parts.NewHealthPorts(a.log),
		parts.NewAnnouncements(a.announced, a.store, a.cfg.NodeName, a.events, a.history, a.pools.Problems, a.grants.Unanswered, a.grants.Changes),
	}
	if a.parts.flows != nil {
		follows = append(follows, a.parts.flows)
	}
	if names != nil {
		follows = append(follows, parts.NewDNS(names, a.shown))
	}
	opts := reconcile.Options{
		Accepted: reconcile.Accepted{
			Store: a.store, InForce: a.held.objects, Watching: a.watcher != nil, Files: a.member.files(), Removals: a.removals, DataDir: a.cfg.DataDir,
		},
		Target: reconcile.Target{
			Kernel: a.calls.Kernel(a.kernel), Early: a.early, Orphans: a.orphans, Addresses: placedHost{a.hosts, a.admission},
			Host: func(facts *node.Facts) reconcile.Host { return a.hostFor(a.cfg, facts) },
			HostProblems: func(facts *node.Facts) []manifest.Problem {
				return slices.Concat(a.cfg.OverlapProblems(facts, a.hosts.IsVIP), a.cfg.FamilyProblems(facts), a.cfg.InterfaceProblems(facts), a.member.problems(), a.fast.problems())
			},
			NodePorts: store.PortRange(a.cfg.Addresses.NodePortRange), HoldSentinel: a.kernel.HoldSentinel,
		},
		Parts: follows, Log: a.log, Watchdog: dog,
		Publisher: &reconcile.Publisher{
			Board: a.board, Metrics: a.metrics, Dirs: a.cfg.ManifestDirs(), Named: a.member.named(), Status: firstStatus(a.cfg, a.kernel.Probe()),
			Reporter: reconcile.NewReporter(a.log, a.store.Location, a.events, a.history),
		},
		OnReady: func() {
			go a.notify(ctx, daemon.SdNotifyReady)
			go a.settle(ctx)
			go a.traffic.Begin()
		},
	}
	// In a fleet the controllers run in a task of their own, and the loop only notifies them.
	if m := a.member; m != nil {
		opts.Cluster, opts.Endpoints, opts.Pools = control.LoopCluster{Beside: m.beside}, control.LoopEndpoints{Beside: m.beside}, control.LoopPools{Beside: m.beside}
	} else {
		opts.Cluster, opts.Endpoints, opts.Pools = newCluster(a.opened, a.claimed), a.slices, a.pools
	}
	return reconcile.New(opts), follows
}

// sourceSetFiles returns the files of --source-set.
func sourceSetFiles(sets []config.SourceSet) (files []sourceset.File) {
	for _, s := range sets {
		files = append(files, sourceset.File{Name: s.Name, Path: s.File})
	}
	return files
}

// hostFor returns the host as the loop needs it: facts and configuration, limited to the features of this kernel.
func (a *assembly) hostFor(cfg *config.Config, facts *node.Facts) reconcile.Host {
	host := reconcile.Host{Facts: facts, Box: cfg.Box(facts), Resolve: cfg.ResolveFacts(facts, a.hosts.IsVIP), Loopback: cfg.LoopbackAddresses(facts)}
	features := a.kernel.Probe()
	host.Resolve.NoTimeouts, host.Resolve.NoRates, host.Resolve.NoConnectionCounts = !features.Timeout, !features.Limit, !features.ConnLimit
	a.fast.limit(&host)
	return host
}

// settle frees memory that only startup needs. It waits until the copies of manifest files are on disk and marks them as valid (see seal), so that
// the watcher can drop the content of these files. It then packs the store.
func (a *assembly) settle(ctx context.Context) {
	unmapFiles() // before sealing maps pages of the database, on top of those of the program that its start needed
	if err := a.store.LastGood().Flush(); err != nil {
		a.log.Debug("copies of files are not kept yet", "err", err) // the watcher tries it again, and logs it
	}
	if sealed := a.seal(); len(sealed) > 0 && a.watcher != nil {
		if err := a.watcher.TakeSealed(ctx, sealed); err == nil {
			_ = a.requests.sync(ctx) // of an error ctx is the reason
		}
	}
	a.store.Pack()
	// The last tasks of the start end meanwhile, so that what they used is freed too: the second scan for stale connections has an item for each
	// frontend, and writing the first Events maps pages of the program that are not used again.
	if task.Sleep(ctx, 2*time.Second) {
		freeMemory()
		collectSteadily()
	}
}

// seal marks the stored copies of files without problems as valid, so that the next start can skip decoding these files. It returns the
// marked files.
func (a *assembly) seal() (sealed []*manifest.File) {
	sealed, err := a.store.LastGood().Seal()
	if err != nil {
		a.log.Debug("the next start decodes all files", "err", err)
	}
	return sealed
}

// watchdog returns the watchdog of the loop. While the loop runs it sends WATCHDOG=1 to systemd three times in each period of systemd's
// watchdog.
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

// stuckExit is the exit code of a process that the watchdog ends.
const stuckExit = 1

// notifyPatience is the longest wait for systemd to read a state. READY=1 has no limit, because the start fails without it.
const notifyPatience = time.Second

// notify sends a state to systemd, if NOTIFY_SOCKET is set.
func (a *assembly) notify(ctx context.Context, state string) {
	if err := handover.Notify(ctx, state); err != nil {
		a.log.Warn("systemd cannot be notified", "state", state, "err", err)
	}
}

// notifySoon sends a state to systemd, and waits for notifyPatience at most.
func (a *assembly) notifySoon(state string) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyPatience)
	defer cancel()
	a.notify(ctx, state)
}

// firstStatus returns the status before the first step of the loop.
func firstStatus(cfg *config.Config, features kernel.Features) wire.Status {
	s := wire.Status{
		Version: cfg.Version, NodeName: cfg.NodeName, Packaged: checkup.Packaged(), Started: time.Now().UTC(),
		Reason: "starting", Problems: []wire.Problem{}, Sources: reconcile.Sources(cfg.ManifestDirs(), nil),
	}
	s.Kernel = wire.Kernel{Release: features.Release, Features: features.Present(), Missing: features.Missing()}
	return s
}
