package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/watch"
)

// Board publishes the newest status, and which revision is in the kernel, to other goroutines. It implements api.Backend.
type Board struct {
	accepted func() (accepted, concerning uint64) // store.Revisions
	rescan   func(context.Context) error
	release  func(context.Context) (wire.Released, error)
	guard    *RemovalGuard // nil: nothing is waited for or held
	live

	conditions *Conditions

	mu         sync.Mutex
	status     wire.Status      // without its problems, and their groups
	reporter   *Reporter        // nil until the first publish
	unstored   []*manifest.File // documents of files that could not be stored; nil: all are
	failure    error            // why the accepted objects are not in the kernel
	programmed uint64           // every change up to this revision is in the kernel
	settled    uint64           // the last RemovalGuard wait (removalState.batch) that has ended and whose decision is stored
	changed    chan struct{}    // closed when any of the above changes
}

// live has the sources of the parts of the status that change between steps of the loop.
type live struct {
	fleet   func() wire.Fleet  // nil: the box belongs to no fleet
	trial   func() *wire.Trial // nil: there are none
	rollout func() *wire.Rollout
}

// NewBoard returns a Board with the status first until the loop publishes one. accepted is store.Revisions; rescan reads the manifests once
// more, release ends holds, and guard has the removals that are waited for.
func NewBoard(accepted func() (uint64, uint64), rescan func(context.Context) error, release func(context.Context) (wire.Released, error), guard *RemovalGuard, first wire.Status) *Board {
	return &Board{accepted: accepted, rescan: rescan, release: release, guard: guard, status: first, changed: make(chan struct{}), conditions: &Conditions{
		revisions: accepted, ready: map[string]time.Time{}, stored: map[string]time.Time{}, changed: make(chan struct{}),
	}}
}

// Conditions returns the conditions of Services.
func (b *Board) Conditions() *Conditions { return b.conditions }

// OfFleet sets the source of the state of the box in its fleet. It must be called before the status is requested.
func (b *Board) OfFleet(state func() wire.Fleet) { b.fleet = state }

// OfTrial sets the source of the trial that is under way, or after which files are held; it returns nil when there is none. It must be set
// before the status is requested. The status reads it each time, as it changes without a step of the loop.
func (b *Board) OfTrial(state func() *wire.Trial) { b.trial = state }

// OfRollout sets the source of the rollout that is under way; it returns nil when there is none. It must be set before the status is
// requested.
func (b *Board) OfRollout(state func() *wire.Rollout) { b.rollout = state }

// publish replaces the status. programmed is the newest revision in the kernel, failure the error of the last step, unstored has the files
// whose objects could not be stored.
func (b *Board) publish(s wire.Status, reporter *Reporter, programmed uint64, failure error, unstored []*manifest.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.reporter, b.programmed, b.failure, b.unstored = s, reporter, programmed, failure, unstored
	b.conditions.programmed(programmed, s.RulesAway)
	if b.guard != nil {
		b.settled = b.guard.settled()
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// NotStored returns the file and line that declare an object that could not be stored, and why; nil
// if no file does.
func (b *Board) NotStored(ref object.Ref) *wire.NotStored {
	b.mu.Lock()
	files, failure := b.unstored, b.failure
	b.mu.Unlock()
	if failure == nil {
		return nil
	}
	for _, f := range files {
		if !f.Declares(ref) {
			continue
		}
		docs := f.Opened().Documents
		for i := range docs {
			d := &docs[i]
			declared := object.RefOf(d.Object)
			declared.Namespace = cmp.Or(declared.Namespace, "default")
			if declared == ref {
				return &wire.NotStored{File: f.Path, Line: d.Line, Why: failure.Error()}
			}
		}
	}
	return nil
}

// Status implements api.Backend.
func (b *Board) Status() wire.Status {
	s, reporter := b.brief()
	if reporter != nil {
		s.Problems, s.Verdict.Groups = reporter.list(s.Packaged)
		s.Verdict.Settling = b.conditions.settling()
	}
	return s
}

// brief returns the status without its problems, and the Reporter that lists these; nil if no status was published.
func (b *Board) brief() (wire.Status, *Reporter) {
	accepted, concerning := b.accepted()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	programmed := upTo(b.programmed, accepted, concerning)
	s.Revision = wire.Revision{Accepted: max(accepted, programmed), Programmed: programmed}
	s.Synced = s.Ready && b.failure == nil && programmed >= accepted && s.PendingRemovals == 0
	if b.trial != nil {
		s.Trial = b.trial()
	}
	if b.rollout != nil {
		s.Rollout = b.rollout()
	}
	if b.fleet != nil {
		f := b.fleet()
		s.Fleet = &f
		s.Synced = s.Synced && f.State == wire.FleetFollowing
	}
	switch {
	case b.failure != nil:
		s.Reason = b.failure.Error()
	case s.Fleet != nil && s.Fleet.State != wire.FleetFollowing:
		s.Reason = s.Fleet.Why
	case s.Ready && s.PendingRemovals > 0:
		s.Reason = fmt.Sprintf("%s vanished from the manifests, to be removed within %v, unless more vanish or they come back", wire.Count(s.PendingRemovals, "Service"), removalMost)
	}
	return s, b.reporter
}

// Changed returns a channel that is closed when the status may have changed since the call.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// upTo returns the revision up to which the kernel is current. Revisions after concerning, the last one that affects the kernel, count as
// programmed.
func upTo(programmed, accepted, concerning uint64) uint64 {
	if programmed >= concerning {
		return max(programmed, accepted)
	}
	return programmed
}

// Healthy implements api.Health. It always returns nil: a stuck loop is the watchdog's concern.
func (b *Board) Healthy() error { return nil }

// Ready implements api.Health.
func (b *Board) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.status.Ready:
		return nil
	case b.failure != nil:
		return b.failure
	}
	return errors.New(b.status.Reason)
}

// heldError is the error that removals are held: the state differs from the manifests until they are confirmed.
type heldError struct{ services int }

func (e heldError) Error() string {
	return fmt.Sprintf("everything else is in the kernel, but the removal of %s is held: "+
		"put the files back, or remove with `svcctl confirm --removals` (`svcctl status` has the reason)", wire.Count(e.services, "Service"))
}

// Synced implements api.Backend. For revision 0 it first rescans the watched directories, so that what was written to them before the call
// counts as accepted, and waits until removals from them are decided upon. It returns an error if these are held.
func (b *Board) Synced(ctx context.Context, revision uint64) error {
	files := revision == 0
	if files {
		if err := b.rescan(ctx); err != nil {
			return err
		}
	}
	if b.guard != nil {
		if wait := b.guard.pending(); wait > 0 {
			if err := b.until(ctx, func() bool { return b.settled >= wait }); err != nil {
				return err
			}
		}
	}
	if files {
		revision, _ = b.accepted()
	}
	held := 0
	err := b.until(ctx, func() bool {
		accepted, concerning := b.accepted()
		held = b.status.HeldRemovals
		return b.status.Ready && b.failure == nil && upTo(b.programmed, accepted, concerning) >= revision
	})
	if err == nil && files && held > 0 {
		return heldError{held}
	}
	return err
}

// until waits until holds returns true, or ctx is done. It calls holds with b.mu held.
func (b *Board) until(ctx context.Context, holds func() bool) error {
	for {
		b.mu.Lock()
		done, changed := holds(), b.changed
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return b.why(ctx)
		}
	}
}

// Release implements api.Backend.
func (b *Board) Release(ctx context.Context) (wire.Released, error) { return b.release(ctx) }

// why returns the error of a wait that ended before its condition held.
func (b *Board) why(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.failure != nil:
		return b.failure
	case !b.status.Ready:
		return errors.New(b.status.Reason)
	case b.status.PendingRemovals > 0:
		return fmt.Errorf("%s that vanished from the manifests: not removed yet", wire.Count(b.status.PendingRemovals, "Service"))
	}
	return ctx.Err()
}

// selectView sets l.shown, the store whose objects are planned from now on, and reports whether it is another one than before.
func (l *Loop) selectView() (others bool) {
	now := l.opts.Store
	if l.opts.InForce != nil {
		now = cmp.Or(l.opts.InForce(), now)
	}
	if others = now != l.shown; others {
		l.shown = now
		l.observed.moved = l.observed.facts != nil // the pools may be others
	}
	return others
}

// allServices returns the keys of the Services in the store, and of those that are planned already; some twice.
func (l *Loop) allServices() []string {
	keys := l.planner.known()
	for key := range l.shown.InForce().Services() {
		keys = append(keys, key)
	}
	return keys
}

// reasonCertificate is the reason of problems with the certificate of the API.
const reasonCertificate = "Certificate"

// Publisher publishes the state of the loop as status, metrics and log lines.
type Publisher struct {
	Board   *Board
	Metrics *metrics.Metrics
	// Reporter makes one list of the problems of all origins.
	Reporter *Reporter
	// Dirs are the manifest directories.
	Dirs []string
	// Named adds to each directory its state as a source of a fleet; nil: the box belongs to no fleet.
	Named func([]wire.Source)
	// Status is initially the status before the first step. Each step updates only some of its fields.
	Status wire.Status

	foreign  uint64          // foreign changes of our tables so far
	snapshot *watch.Snapshot // has the file and line of each problem
	settled  bool            // Reporter.History has dropped the problems of the previous process that are over
}

// publish updates the status and the metrics after a step that began at start and ended with err.
func (l *Loop) publish(start time.Time, done committed, err error) {
	pub := l.opts.Publisher
	if why := l.waitsFor(); why != "" {
		pub.Status.Ready, pub.Status.Reason = false, why
	}
	total := l.planner.total
	pub.Status.Counts = wire.Counts{
		Services: total.services, ServicePorts: total.ports, Frontends: total.frontends,
		Endpoints: total.endpoints, VIPs: l.planner.compiler.VIPs(),
	}
	pub.Status.ForeignChanges = pub.foreign
	pub.Status.HeldRemovals, pub.Status.PendingRemovals = l.opts.Removals.counts()
	pub.Status.UnknownFrontends = l.planner.orphans.frontends()
	if done.transactions > 0 {
		pub.Status.LastTransaction = &wire.Transaction{
			At: done.at.UTC(), Duration: wire.Duration(done.duration),
			Operations: done.operations, Elements: done.elements, Generation: l.applier.generation,
		}
		l.log.Debug("committed", "rev", l.applied, "txn", l.applier.generation, "operations", done.operations, "elements", done.elements, "dur", done.duration)
	}
	pub.Status.Sources = Sources(pub.Dirs, l.observed.snapshot)
	if pub.Named != nil {
		pub.Named(pub.Status.Sources)
	}
	l.report()
	l.measure(start, done, err)
	if err == nil && l.observed.tampered {
		err = fmt.Errorf("the rules are not in force: %s changed the tables of svcctl and keeps doing so, and they are put right at %s UTC",
			l.tamper.culprit, l.tamper.due().UTC().Format(time.TimeOnly))
	}
	if pub.Status.RulesAway = l.observed.tampered; pub.Status.RulesAway {
		pub.Status.Verdict.Text = "whether Services answer is not known: " + rulesAway
	}
	var unstored []*manifest.File
	for _, path := range l.observed.unstored {
		if file := l.observed.snapshot.Files.Get(path); file != nil {
			unstored = append(unstored, file)
		}
	}
	pub.Board.publish(pub.Status, pub.Reporter, l.applied, err, unstored)
}

// becomeReady sets the status to ready, and logs that, after the first step that has applied everything.
func (l *Loop) becomeReady(done committed) {
	status := &l.opts.Publisher.Status
	if status.Ready {
		return
	}
	status.Ready, status.Reason = true, ""
	total := l.planner.total
	l.log.Info("programmed", "services", total.services, "frontends", total.frontends, "endpoints", total.endpoints,
		"operations", done.operations, "elements", done.elements, "dur", done.duration.Round(time.Microsecond))
	l.opts.OnReady()
}

func (l *Loop) measure(start time.Time, done committed, err error) {
	pub := l.opts.Publisher
	now := time.Now()
	sync := metrics.Sync{At: now, Duration: now.Sub(start), Noticed: l.observed.since, Err: err}
	if err == nil {
		l.observed.since = time.Time{}
	}
	if done.transactions > 0 {
		sync.Transaction = &metrics.Transaction{Operations: done.operations, Elements: done.elements}
	}
	pub.Metrics.Synced(sync)
	pub.Metrics.Serves(pub.Status.Counts)
	files := 0
	if l.observed.snapshot != nil {
		files = len(l.observed.snapshot.Problems)
	}
	pub.Metrics.FileProblems(files)
	pub.Metrics.Held(pub.Status.HeldRemovals, len(l.planner.quarantine.left))
	accepted, concerning := l.opts.Store.Revisions()
	pub.Metrics.Revisions(accepted, upTo(l.applied, accepted, concerning))
}

// fileProblems returns the problems that are about files and the host, not objects.
func (l *Loop) fileProblems() []manifest.Problem {
	var problems []manifest.Problem
	if l.observed.snapshot != nil {
		problems = slices.Clone(l.observed.snapshot.Problems)
	}
	problems = append(problems, hostProblems(l.observed.findings)...)
	problems = append(problems, l.opts.HostProblems(l.observed.facts)...)
	if p, is := l.diskProblem(); is {
		problems = append(problems, p)
	}
	if p, fight := l.tamper.problem(); fight {
		problems = append(problems, p)
	}
	if p, engaged := l.opts.Removals.problem(); engaged {
		problems = append(problems, p)
	}
	if p, held := l.trialProblem(); held {
		problems = append(problems, p)
	}
	if p, held := l.planner.orphans.problem(l.opts.DataDir); held && l.adopted { // before, the files have not declared theirs
		problems = append(problems, p)
	}
	return problems
}

// hostProblems returns findings as problems. All but those of the API's certificate are warnings, since they keep no object from being in
// force.
func hostProblems(findings []checkup.Finding) []manifest.Problem {
	var problems []manifest.Problem
	for _, f := range findings {
		p := manifest.Problem{Reason: manifest.ReasonHost, Message: f.String(), Warning: true}
		if f.Check == checkup.Certificate { // clients refuse a bad one
			p.Reason, p.Warning = reasonCertificate, f.Level != checkup.Error
		}
		problems = append(problems, p)
	}
	return problems
}

// Sources returns the state of every manifest directory. s is nil while they are read for the first time.
func Sources(dirs []string, s *watch.Snapshot) []wire.Source {
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
