package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// A failed step is tried again after a wait that doubles from retryFirst to retryLast.
const (
	retryFirst = 500 * time.Millisecond
	retryLast  = 30 * time.Second
)

// settleAfter is the time from the first change of a frontend in a large table until nft.Compiler.Settle is called for all changed frontends, and the
// minimum time between two such calls. It exceeds the time that any packet takes to pass the rules.
const settleAfter = 10 * time.Second

// observed holds the newest value of each input of the loop.
type observed struct {
	snapshot *watch.Snapshot
	unsynced bool      // the snapshot is not in the store yet
	since    time.Time // when the oldest manifest change that is not in the kernel yet was noticed; zero if there is none
	facts    *node.Facts
	moved    bool // the facts changed since the last plan
	tampered bool // another program changed our tables
	findings []checkup.Finding
	unstored []string // manifest files whose changes could not be stored; if there are any, unsynced is set
	disk     error    // disk error because of which nothing can be stored; nil if there is none
}

// Loop reconciles our tables in the kernel, which only it writes, with the store and the host. Every change of an input triggers a step, which reads
// the newest state of all inputs and brings the kernel to the state that they specify.
type Loop struct {
	opts     Options
	log      *slog.Logger
	observed observed
	planner  *planner
	applier  *applier
	tamper   tamperGuard
	wake     chan struct{} // signals that the problems of a Part or the states of needs have changed

	adopted bool          // the first plan was made
	planned uint64        // the store revision up to which all changes are planned
	shown   *store.Store  // the store whose objects are planned: Options.Store, or the result of Options.InForce
	applied uint64        // the store revision up to which all changes are in the kernel
	settles time.Time     // when the first problem that is still settling (Reporter.settling) starts to count; zero if none is settling
	wait    time.Duration // delay until the failed step is tried again; 0 if the last step did not fail

	mu      sync.Mutex
	changed []resolve.Need // needs whose state changed; takeChanged empties it
}

// New returns a Loop. It starts to read our tables from the kernel, so the caller must already watch for changes of nf_tables.
func New(opts Options) *Loop {
	if opts.Clock == nil {
		opts.Clock = time.Now
	}
	l := &Loop{
		opts: opts, log: opts.Log, shown: opts.Store, planner: newPlanner(), wake: make(chan struct{}, 1),
		applier: &applier{kernel: opts.Kernel, log: opts.Log, early: opts.Early},
	}
	l.planner.inUse = true
	l.planner.progress = opts.Watchdog.progress
	l.planner.occupied = newOccupied(opts.NodePorts, opts.Listening, opts.Log)
	l.planner.orphans = opts.Orphans
	for _, part := range opts.Parts {
		part.Attach(l.Changed)
		if a, is := part.(Answerer); is {
			l.planner.answerers = append(l.planner.answerers, a)
		}
		if t, is := part.(Tuner); is {
			l.planner.tuners = append(l.planner.tuners, t)
		}
	}
	l.withoutDirectories()
	if l.applier.early == nil {
		l.applier.early = ReadEarly(opts.Kernel)
	}
	return l
}

// withoutDirectories passes the removal of all manifest files to the RemovalGuard in the next step, if objects from manifests are stored but no
// directory is watched any more.
func (l *Loop) withoutDirectories() {
	if !l.opts.Watching && l.opts.Files == nil && l.opts.Store.HasUndeclared() {
		l.observed.snapshot, l.observed.unsynced = &watch.Snapshot{}, true
	}
}

// Wake makes the loop take a step. It does not block.
func (l *Loop) Wake() { task.Wake(l.wake) }

// Changed makes the loop take a step in which the Services with the given needs are planned again. It does not block.
func (l *Loop) Changed(needs ...resolve.Need) {
	l.mu.Lock()
	l.changed = append(l.changed, needs...)
	l.mu.Unlock()
	l.Wake()
}

func (l *Loop) takeChanged() (needs []resolve.Need) {
	l.mu.Lock()
	defer l.mu.Unlock()
	needs, l.changed = l.changed, nil
	return needs
}

// Run takes steps until ctx is done. Failed steps are retried.
func (l *Loop) Run(ctx context.Context, in Inputs) error {
	retry := time.NewTimer(retryLast)
	retry.Stop()
	for {
		l.opts.Watchdog.progress()
		var request Request
		select {
		case <-ctx.Done():
			return nil
		case s := <-in.Snapshots:
			l.take(s)
		case f := <-in.Facts:
			l.observed.facts, l.observed.moved = &f, true
		case c := <-in.Changes:
			if !l.onForeignChange(c) {
				continue
			}
		case <-l.opts.Store.Changed():
		case <-l.wake:
		case list := <-l.listening():
			l.takeListeners(list)
		case <-retry.C:
		case request = <-in.Requests:
		case l.observed.findings = <-in.Findings:
		case <-l.opts.Watchdog.asks:
			continue
		}
		l.drain(in)
		answer := func() {}
		if request != nil {
			answer = request(l)
		}
		l.step()
		answer()
		retry.Stop()
		if wait, needed := l.until(); needed {
			retry.Reset(wait)
		}
	}
}

// listening returns the channel on which portWatch sends the programs that listen on ports of Services, or on ports that Services wait for. It is nil
// if ports are not watched.
func (l *Loop) listening() <-chan []listener {
	if l.planner.occupied == nil || l.planner.occupied.watch == nil {
		return nil
	}
	return l.planner.occupied.watch.found
}

// WatchPorts finds programs that listen on ports of Services, until ctx is done. It runs in a goroutine of its own, concurrently with Run.
func (l *Loop) WatchPorts(ctx context.Context) error { return l.planner.occupied.watch.run(ctx) }

// take records a new snapshot of the manifests, to be stored by the next syncFiles.
func (l *Loop) take(s *watch.Snapshot) {
	l.observed.snapshot, l.observed.unsynced = s, true
	if l.observed.since.IsZero() {
		l.observed.since = s.Noticed
	}
}

// drain receives all pending inputs, so that one step handles them together.
func (l *Loop) drain(in Inputs) {
	for {
		l.opts.Watchdog.progress()
		select {
		case s := <-in.Snapshots:
			l.take(s)
		case f := <-in.Facts:
			l.observed.facts, l.observed.moved = &f, true
		case c := <-in.Changes:
			l.onForeignChange(c)
		case <-l.opts.Store.Changed():
		case <-l.wake:
		default:
			return
		}
	}
}

// step brings the kernel to the state that the accepted objects specify, as far as possible, and publishes the outcome.
func (l *Loop) step() {
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
	latest := l.opts.Clock().Add(settleAfter)
	if waits := l.planner.compiler.Unsettled(); !waits {
		l.applier.settle = time.Time{}
	} else if l.applier.settle.IsZero() || l.applier.settle.After(latest) { // after it when the clock was set back
		l.applier.settle = latest
	}
	err = l.noteUnstored(err)
	for _, p := range l.opts.Parts {
		p.Stepped(Step{Facts: l.observed.facts, Applied: done.applied})
	}
	l.publish(start, done, err)
}

// converge performs the work of one step: it stores the manifest files, plans the Services, and commits. It returns the statistics of the commit.
func (l *Loop) converge() (committed, error) {
	l.opts.Watchdog.progress()
	var storeErr error
	if !l.observed.tampered && l.applier.certain() { // rules of others do not wait for ours, nor for what fails below
		storeErr = l.renewFast()
	}
	if err := l.placeHost(); err != nil {
		return committed{}, errors.Join(storeErr, err)
	}
	storeErr = errors.Join(storeErr, l.endTrial(), l.syncFiles())
	select { // the loop's own writes below do not wake it
	case <-l.opts.Store.Changed():
	default:
	}
	storeErr = errors.Join(storeErr, l.opts.Cluster.Sync(l.observed.facts), l.syncPools())
	l.opts.Watchdog.progress()
	if l.waitsFor() != "" {
		return committed{}, storeErr
	}
	storeErr = errors.Join(storeErr, l.opts.Endpoints.Sync())
	tr, restored, revision, err := l.plan()
	if err != nil {
		return committed{}, errors.Join(storeErr, err)
	}
	l.opts.Watchdog.progress()
	done, err := l.apply(tr, restored)
	if err == nil {
		l.healed(done)
		l.applied = revision
		again, late := l.opts.Endpoints.Programmed(revision, l.planner.replanned())
		if again && storeErr == nil && late == nil { // else it is tried again later
			l.Wake()
		}
		storeErr = errors.Join(storeErr, late, l.renewFast(), l.settleOrphans())
		if storeErr == nil || !l.opts.Store.Blank() {
			l.becomeReady(done)
		}
	}
	return done, errors.Join(storeErr, err)
}

// syncPools applies changes of IPAddressPool objects to the pools of load balancer IPs. After a change, Services that depend on the host
// are planned again.
func (l *Loop) syncPools() error {
	if l.opts.Pools == nil {
		return nil
	}
	changed, err := l.opts.Pools.Sync()
	l.observed.moved = l.observed.moved || changed && l.observed.facts != nil
	return err
}

// apply passes the plan to the Parts, and commits the transition tr. restored is set if our rules were missing in the kernel.
func (l *Loop) apply(tr nft.Transition, restored bool) (committed, error) {
	l.notifyParts()
	if tr.Empty() && l.applier.certain() {
		if restored {
			l.applying(restored)
		}
		l.planner.quarantine.settled()
		l.endNeeds()
		return committed{applied: true}, nil
	}
	l.applying(restored)
	done, err := l.applier.apply(tr, l.planner.compiler.From)
	if isRefusal(err) {
		done, err = l.bisect(err, tr.Forget)
		l.notifyParts()
	}
	if err == nil {
		l.planner.quarantine.settled()
		l.endNeeds()
		done.applied = true
	}
	return done, err
}

// notifyParts passes to the Parts the Services whose plan changed since the last call, and the host if it changed.
func (l *Loop) notifyParts() {
	host, services := l.planner.takeUnsent()
	if host == nil && len(services) == 0 {
		return
	}
	for _, p := range l.opts.Parts {
		p.Planned(host, services)
	}
}

func (l *Loop) applying(restored bool) {
	for _, p := range l.opts.Parts {
		p.Applying(restored)
	}
}

// waitsFor returns a message that names the input that the loop waits for, or "" if there is none. Nothing is applied while the loop waits, so that
// an input that is not read yet is not mistaken for an empty one.
func (l *Loop) waitsFor() string {
	switch {
	case l.observed.facts == nil:
		return "the addresses of this host are not read yet"
	case l.observed.snapshot == nil && l.opts.Watching && l.opts.Files == nil:
		return "the manifests are not read yet"
	case l.observed.unsynced && !l.adopted && l.planner.orphans == nil && l.opts.Store.Blank():
		return "the manifests could not be stored yet" // stored objects are in force, whatever cannot be stored
	}
	return ""
}

// syncFiles stores the objects of the newest manifest snapshot, if they are not stored yet or a decision about removals is due.
func (l *Loop) syncFiles() error {
	if at, due := l.opts.Removals.until(); due && !l.opts.Clock().Before(at) {
		l.observed.unsynced = true
	}
	if !l.observed.unsynced {
		return nil
	}
	l.opts.Removals.look(l.observed.snapshot.Sources)
	if l.opts.Files != nil {
		l.observed.unsynced = false
		return l.opts.Files.Sync(l.observed.snapshot)
	}
	guard := func(r store.Removals) func(string) store.Decision { return l.opts.Removals.Hold(r, l.opts.Clock()) }
	l.observed.unstored = nil
	if _, err := l.opts.Store.SyncGuarded(l.observed.snapshot.Files, guard); err != nil {
		if unstored, is := errors.AsType[*store.UnstoredError](err); is {
			l.observed.unstored = unstored.Files
		}
		l.opts.Removals.Failed()
		return err
	}
	l.observed.unsynced = false
	return nil
}

// afterFiles calls done when the files of the newest snapshot are stored, or storing them has failed.
func (l *Loop) afterFiles(done func()) {
	if l.opts.Files != nil {
		l.opts.Files.After(done)
		return
	}
	done()
}

// until returns the longest time to wait before the next step. needed is false if no step is necessary until an input changes.
func (l *Loop) until() (wait time.Duration, needed bool) {
	now := l.opts.Clock()
	at := func(d time.Duration) {
		if d = max(d, time.Millisecond); !needed || d < wait {
			wait, needed = d, true
		}
	}
	if l.wait > 0 {
		at(l.wait)
	}
	if len(l.planner.quarantine.left) > 0 {
		at(l.planner.quarantine.retryAt.Sub(now))
	}
	if when, due := l.tamper.until(); due {
		at(when.Sub(now))
	}
	if when, due := l.opts.Removals.until(); due {
		at(when.Sub(now))
	}
	if l.tamper.renewal.asked {
		at(l.tamper.renewal.next.Sub(now))
	}
	if !l.settles.IsZero() {
		at(l.settles.Sub(now))
	}
	if !l.applier.settle.IsZero() && l.wait == 0 {
		at(l.applier.settle.Sub(now))
	}
	if left, pending := l.untilTrialEnds(); pending {
		at(left)
	}
	return wait, needed
}

// Options configure a Loop. Only New and the Loop read them; they do not change afterwards.
type Options struct {
	Accepted
	Controllers
	Target
	Parts     []Part
	Publisher *Publisher
	Watchdog  *Watchdog
	Log       *slog.Logger
	// Clock returns the current time. If nil, time.Now is used.
	Clock func() time.Time
	// Clocks reads the clocks that the deadlines of trials are based on. If nil, deadline.Now is used.
	Clocks func() deadline.Reading
	// OnReady is called once, after the first step that has applied everything.
	OnReady func()
}

// Accepted holds the store of the accepted objects, and how manifest files are stored in it.
type Accepted struct {
	Store *store.Store
	// InForce returns the store whose objects are planned. If it is nil or returns nil, the objects of Store are planned.
	InForce func() *store.Store
	// Watching is set if there are manifest directories. Nothing is applied before these were read.
	Watching bool
	// Files stores the manifests outside of the loop, as in a fleet. If nil, the loop stores them with Store.SyncGuarded.
	Files    Files
	Removals *RemovalGuard
	// DataDir is the path of the data directory. It is used only in the messages of problems.
	DataDir string
}

// Controllers write generated objects to the store in each step.
type Controllers struct {
	// Cluster.Sync is called in every step, Endpoints.Sync only in steps in which all inputs were read (waitsFor).
	Cluster   interface{ Sync(*node.Facts) error }
	Endpoints Endpoints
	// Pools applies IPAddressPool objects to the pools of load balancer IPs. It runs after Cluster. If it reports a change, the Services that depend
	// on the host are planned again. It is nil if pools are not configured by objects.
	Pools Pools
}

// Target holds the kernel that the Loop programs, and functions that derive its configuration from the host.
type Target struct {
	Kernel  Kernel
	Early   Early    // if nil, New calls ReadEarly
	Orphans *Orphans // nil if there are none
	// Host converts node.Facts to the form that plans use.
	Host      func(*node.Facts) Host
	Addresses Addresses
	// HostProblems returns a problem for each network of the host that conflicts with the configuration.
	HostProblems func(*node.Facts) []manifest.Problem
	// NodePorts is the range of node ports. Sockets that listen on any of them are looked up together.
	NodePorts store.PortRange
	// Listening returns the sockets of programs that listen on the given ports. If nil, it looks them up on this host.
	Listening func(*sockets.Ports) ([]sockets.Socket, error)
	// HoldSentinel keeps the NAT of established connections working if another program flushes the ruleset, see kernel.Conn.HoldSentinel.
	HoldSentinel func() error
}

// Files stores the manifests of the watched directories outside of the loop. Sync passes a snapshot without waiting until it is stored. After calls
// done once the last snapshot passed to Sync is stored, or storing it has failed.
type Files interface {
	Sync(*watch.Snapshot) error
	After(done func())
}

// Endpoints is the controller of generated EndpointSlices, and of the objects that serve Gateways.
type Endpoints interface {
	Sync() error
	// Ahead returns the EndpointSlices that Sync has computed and that are not stored yet, by Service. The kernel gets them first.
	Ahead() map[string][]*object.EndpointSlice
	// Programmed stores the EndpointSlices returned by Ahead. revision is the store revision that the kernel holds. planned holds the problems of the
	// Services planned since the last call, by Service. again is true if Sync must be called once more.
	Programmed(revision uint64, planned map[string][]resolve.Problem) (again bool, err error)
	Problems() []resolve.Problem
}

// Pools applies objects that define pools of load balancer IPs. Sync reports whether these pools changed.
type Pools interface {
	Sync() (changed bool, err error)
}

// Answerer is a Part that provides the states of needs (resolve.Need), on which plans depend.
type Answerer interface {
	// Meet provides what the Service "namespace/name" needs from this Part, and adds the states of these needs to o. It is called concurrently while
	// Services are planned, before the kernel has the plan.
	Meet(service string, d *resolve.Demand, o *resolve.Observed)
}

// Opener is an Answerer whose Meet opens listeners, or keeps copies of objects, which must be released later.
type Opener interface {
	Answerer
	// Foresee returns an Answerer for the objects of a plan that is only simulated. It opens nothing, and answers as if everything could be opened.
	Foresee(objs Objects) Answerer
	// Close releases what Meet opened or kept for a need that no Service has any more. It is called by the loop.
	Close(resolve.Need)
}

// Tuner is a Part that sets the weights of a port's endpoints at run time. Its method Tune is called concurrently.
type Tuner interface {
	// Tune sets Weights, Tables and Starting of a port that is balanced by open connections or has a slow start. slowStart is 0 if it has none.
	// served returns the ports that the kernel served before this process started; it is nil after the first plan.
	Tune(p *nft.ServicePort, slowStart time.Duration, served func() map[resolve.Frontend]*nft.ServicePort)
}

// Inputs are the channels that the loop receives from.
type Inputs struct {
	Snapshots <-chan *watch.Snapshot
	Facts     <-chan node.Facts
	Changes   <-chan kernel.Change
	Findings  <-chan []checkup.Finding
	Requests  <-chan Request
}

// Request is a question to the loop, which calls it between two steps. The function that it returns is called after the next step. The channels for
// answers must be buffered, so that the loop does not block.
type Request func(*Loop) (answer func())

// Barrier returns the Request to close done once the files of all earlier snapshots are stored.
func Barrier(done chan<- struct{}) Request {
	return func(l *Loop) func() {
		l.syncFiles()
		l.afterFiles(func() { close(done) })
		return func() {}
	}
}

// Release returns the Request to release held objects. The result is sent to done after the next step.
func Release(done chan<- wire.Released) Request {
	return func(l *Loop) func() {
		released := l.release()
		return func() { done <- released }
	}
}
