package appliance

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// How long the loop waits before it tries again what failed: the wait doubles from
// the first to the last.
const (
	retryFirst = 500 * time.Millisecond
	retryLast  = 30 * time.Second
)

// loop is the one owner of our tables. Everything that happens sets it dirty; a step
// then takes the newest state of everything and makes the kernel equal to it.
type loop struct {
	cfg         Config
	log         *slog.Logger
	store       *store.Store
	controllers *controllers
	cluster     *cluster
	planner     *planner
	kernel      *programmer
	metrics     *metrics.Metrics
	reporter    *reporter
	state       *published
	names       *names // nil without DNS
	hosted      *listeners
	flows       connections
	now         func() time.Time
	sentinel    func() error // kernel.Conn.HoldSentinel
	watchdog    *watchdog
	onReady     func() // called once, when the first step has succeeded

	// What has been heard of.
	snapshot *watch.Snapshot
	unsynced bool      // the snapshot is not in the store yet
	since    time.Time // when the oldest change of a manifest was noticed that is not programmed yet
	facts    *node.Facts
	moved    bool // the facts changed since the last plan
	tampered bool // somebody else touched our tables
	foreign  uint64
	again    []string // Services that wait for a port that a program has
	fight    interference
	brake    *brake // decides in the store's name, see run.go
	host     []checkup.Finding

	// What has been done.
	adopted    bool
	ahead      *nft.Transition // what was planned while the manifests were stored; nil: nothing, or it is taken
	planned    uint64          // the store's revision that the planner stands at
	programmed uint64
	result     store.SyncResult
	status     wire.Status
	wait       time.Duration // until a failed step is tried again; 0: it did not fail
	// retryRefused is when the Services that the kernel refuses are tried again, which
	// they were refusedWait before.
	retryRefused time.Time
	refusedWait  time.Duration
}

// inputs are the channels the loop listens to.
type inputs struct {
	snapshots <-chan *watch.Snapshot
	facts     <-chan node.Facts
	changes   <-chan kernel.Change
	accepted  <-chan struct{}      // the store has news
	recheck   <-chan time.Time     // look again which programs listen on this host
	hosted    <-chan struct{}      // the problems of the listeners are others
	barriers  <-chan chan struct{} // closed once all snapshots before it are in the store
	releases  <-chan chan int      // get how many held Services were let go
	host      <-chan []checkup.Finding
	beats     <-chan struct{} // the watchdog's
}

// run steps until ctx is done. Its error is one that no retry can mend.
func (l *loop) run(ctx context.Context, in inputs) error {
	retry := time.NewTimer(retryLast)
	retry.Stop()
	for {
		var barrier chan struct{}
		var release chan int
		select {
		case <-ctx.Done():
			return nil
		case s := <-in.snapshots:
			l.take(s)
		case f := <-in.facts:
			l.facts, l.moved = &f, true
		case c := <-in.changes:
			if !l.noticed(c) {
				continue
			}
		case <-in.accepted:
		case <-in.hosted:
		case <-in.recheck:
			if !l.recheck() {
				continue
			}
		case <-retry.C:
		case barrier = <-in.barriers:
		case release = <-in.releases:
		case l.host = <-in.host:
		case <-in.beats:
			continue
		}
		l.drain(in)
		if barrier != nil {
			l.syncFiles()
			close(barrier)
		}
		released := 0
		if release != nil {
			released = l.release()
		}
		l.step()
		if release != nil {
			release <- released
		}
		retry.Stop()
		if wait, needed := l.until(); needed {
			retry.Reset(wait)
		}
	}
}

// take notes a newer snapshot.
func (l *loop) take(s *watch.Snapshot) {
	l.snapshot, l.unsynced = s, true
	if l.since.IsZero() {
		l.since = s.Noticed
	}
}

// drain takes everything else that has been heard of already, so that one step serves all.
func (l *loop) drain(in inputs) {
	for {
		select {
		case s := <-in.snapshots:
			l.take(s)
		case f := <-in.facts:
			l.facts, l.moved = &f, true
		case c := <-in.changes:
			l.noticed(c)
		case <-in.accepted:
		case <-in.hosted:
		default:
			return
		}
	}
}

// step makes the kernel equal to what is accepted, as far as it can, and publishes
// how far that was.
func (l *loop) step() {
	start := time.Now()
	done, err := l.converge()
	switch {
	case err == nil:
		l.wait = 0
	case l.wait == 0:
		l.wait = retryFirst
	default:
		l.wait = min(2*l.wait, retryLast)
	}
	if err != nil {
		l.log.Error("not everything is programmed", "err", err, "retry", l.wait)
	}
	l.hosted.tell(err == nil && l.adopted)
	if l.names != nil {
		l.names.tell(l.facts, err == nil && l.adopted)
	}
	l.report(start, done, err)
	if err == nil && l.tampered {
		err = l.fight.away()
	}
	l.status.RulesAway = l.tampered
	l.state.keep(l.unstored())
	l.state.publish(l.status, l.programmed, err)
}

// converge is one round of store, plan and commit.
func (l *loop) converge() (committed, error) {
	l.watchdog.steps.Add(1)
	storeErr := l.syncFiles()
	l.hearNews()
	storeErr = errors.Join(storeErr, l.cluster.sync(l.facts))
	l.watchdog.steps.Add(1)
	if why := l.waitsFor(); why != "" {
		l.status.Ready, l.status.Reason = false, why
		return committed{}, storeErr
	}
	storeErr = errors.Join(storeErr, l.controllers.sync())
	tr, revision, err := l.plan()
	if err != nil {
		return committed{}, errors.Join(storeErr, err)
	}
	l.watchdog.steps.Add(1)
	var done committed
	if !tr.Empty() || l.kernel.generation == 0 {
		l.flows.Expect(l.planner.flows.Pending())
		done, err = l.kernel.program(tr, l.planner.compiler.From)
		if _, refused := refusal(err); refused {
			done, err = l.quarantine(err, tr.Forget)
		}
	}
	if err == nil {
		l.planner.settled()
		l.flows.Reconcile(l.planner.flows.Take())
		l.healed(done)
		l.programmed = revision
		if storeErr == nil {
			l.ready(done)
		}
	}
	return done, errors.Join(storeErr, err)
}

// waitsFor says what has to be heard of before anything may be programmed: what is
// not known yet must not look like nothing.
func (l *loop) waitsFor() string {
	switch {
	case l.facts == nil:
		return "the addresses of this host are not read yet"
	case l.snapshot == nil && len(l.cfg.Manifests) > 0:
		return "the manifests are not read yet"
	case l.unsynced:
		return "the manifests could not be stored yet"
	}
	return ""
}

// syncFiles makes the store's objects those of the newest snapshot.
func (l *loop) syncFiles() error {
	if at, due := l.brake.until(); due && !l.now().Before(at) {
		l.unsynced = true
	}
	if !l.unsynced {
		return nil
	}
	l.brake.look(l.snapshot.Sources)
	result, err := l.store.SyncFilesAhead(l.snapshot.Files, l.adoptAhead)
	if err != nil {
		l.dropAhead()
		return err
	}
	l.result, l.unsynced = result, false
	if l.ahead != nil {
		l.adopted, l.moved, l.planned = true, false, result.Revision
	}
	return nil
}

// unstored is what the files say, while that could not be stored.
func (l *loop) unstored() manifest.Files {
	if !l.unsynced {
		return nil
	}
	return l.snapshot.Files
}

// plan brings the planner to the store's newest revision.
func (l *loop) plan() (nft.Transition, uint64, error) {
	if !l.adopted {
		return l.adopt()
	}
	tampered := l.tampered && l.fight.mayHeal(l.now())
	changes := l.store.Changes(l.planned)
	changed := slices.Concat(changes.Services, l.refused(), l.again)
	if changes.All || l.moved {
		changed = append(changed, l.allServices()...)
	}
	var tr nft.Transition
	if l.moved {
		l.hosted.place(l.cfg.nodePortAddresses(l.facts), l.cfg.loopbackAddresses(l.facts))
		tr = l.planner.relocate(l.cfg.box(l.facts), l.cfg.resolveFacts(l.facts), l.store, changed)
	} else {
		tr = l.planner.update(l.store, changed)
	}
	l.moved, l.again, l.planned = false, nil, changes.Revision
	ahead := l.ahead
	l.ahead = nil
	if ahead != nil && tr.Empty() && !tampered {
		return *ahead, changes.Revision, nil
	}
	if tampered || ahead != nil {
		have, err := l.kernel.read()
		if err != nil {
			return tr, 0, err
		}
		forget := tr.Forget
		if ahead != nil {
			forget = slices.Concat(ahead.Forget, forget)
		}
		tr = l.planner.compiler.From(have)
		tr.Forget = forget
		l.tampered = false
		l.planner.flows.Restored()
	}
	return tr, changes.Revision, nil
}

// ready says once that everything is programmed.
func (l *loop) ready(done committed) {
	if l.status.Ready {
		return
	}
	l.status.Ready, l.status.Reason = true, ""
	total := l.planner.total
	l.log.Info("programmed", "services", len(l.planner.sizes), "frontends", total.frontends, "endpoints", total.endpoints,
		"operations", done.operations, "elements", done.elements, "dur", done.duration.Round(time.Microsecond))
	l.onReady()
}

// report brings the status and the metrics to where the loop stands.
func (l *loop) report(start time.Time, done committed, err error) {
	total := l.planner.total
	l.status.Counts = wire.Counts{
		Services: len(l.planner.sizes), ServicePorts: total.ports, Frontends: total.frontends,
		Endpoints: total.endpoints, VIPs: l.planner.compiler.VIPs(),
	}
	l.status.ForeignChanges, l.status.HeldRemovals = l.foreign, l.brake.held
	if done.transactions > 0 {
		l.status.LastTransaction = &wire.Transaction{
			At: done.at.UTC(), Duration: wire.Duration(done.duration),
			Operations: done.operations, Elements: done.elements, Generation: l.kernel.generation,
		}
		l.log.Debug("committed", "rev", l.programmed, "txn", l.kernel.generation, "operations", done.operations, "elements", done.elements, "dur", done.duration)
	}
	l.status.Sources = sources(l.cfg.Manifests, l.snapshot)
	l.status.Problems = l.reporter.report(l.fileProblems(), l.store.Problems(), slices.Concat(l.controllers.problems(), l.planner.allProblems(), l.hosted.problems(), l.flowProblems()))
	l.measure(start, done, err)
}

func (l *loop) measure(start time.Time, done committed, err error) {
	now := time.Now()
	sync := metrics.Sync{At: now, Duration: now.Sub(start), Noticed: l.since, Err: err}
	if err == nil {
		l.since = time.Time{}
	}
	if done.transactions > 0 {
		sync.Transaction = &metrics.Transaction{Operations: done.operations, Elements: done.elements}
	}
	l.metrics.Synced(sync)
	c := l.status.Counts
	l.metrics.Serves(metrics.Counts{Services: c.Services, ServicePorts: c.ServicePorts, VIPs: c.VIPs, Frontends: c.Frontends, Endpoints: c.Endpoints})
	errs := l.status.Errors()
	files := 0
	if l.snapshot != nil {
		files = len(l.snapshot.Problems)
	}
	l.metrics.Problems(errs, len(l.status.Problems)-errs, files)
	l.metrics.Held(l.brake.held, len(l.planner.left))
	accepted, concerning := l.store.Revisions()
	l.metrics.Revisions(accepted, upTo(l.programmed, accepted, concerning))
}

// sources is the state of every watched directory.
func sources(dirs []string, s *watch.Snapshot) []wire.Source {
	list := []wire.Source{}
	if s == nil {
		for _, dir := range dirs {
			list = append(list, wire.Source{Dir: dir, State: wire.SourceReading})
		}
		return list
	}
	for _, src := range s.Sources {
		w := wire.Source{Dir: src.Dir, State: wire.SourceOK, Files: src.Files}
		if src.Err != nil {
			w.Error = src.Err.Error()
		}
		if src.State == watch.StateUnavailable {
			w.State = wire.SourceUnavailable
		}
		list = append(list, w)
	}
	return list
}
