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

// Board makes the newest status, and the revision that is in the kernel, available to other goroutines. It implements api.Backend.
type Board struct {
	accepted func() (accepted, concerning uint64) // store.Revisions: the newest revision, and the newest that affects the kernel
	rescan   func(context.Context) error
	release  func(context.Context) (wire.Released, error)
	guard    *RemovalGuard // nil if removals are never delayed or held
	live

	conditions *Conditions

	mu         sync.Mutex
	status     wire.Status      // without Problems and Verdict.Groups
	reporter   *Reporter        // lists the problems; nil until publish is called
	unstored   []*manifest.File // manifest files whose objects could not be stored; nil if there are none
	failure    error            // error of the last step: why the accepted objects are not in the kernel
	programmed uint64           // the kernel holds every change up to this store revision
	settled    uint64           // number (removalState.batch) of the last RemovalGuard wait that has ended with its decision stored
	changed    chan struct{}    // closed and replaced when the status changes
}

// live holds the functions that return the parts of the status that change between steps of the loop.
type live struct {
	fleet   func() wire.Fleet  // nil if the box belongs to no fleet
	trial   func() *wire.Trial // nil if the box has no trials
	rollout func() *wire.Rollout
}

// NewBoard returns a Board whose status is first until the loop publishes one. accepted is store.Revisions. rescan reads the manifests once more.
// release confirms held removals. guard is the guard that delays and holds removals, or nil.
func NewBoard(accepted func() (uint64, uint64), rescan func(context.Context) error, release func(context.Context) (wire.Released, error), guard *RemovalGuard, first wire.Status) *Board {
	return &Board{accepted: accepted, rescan: rescan, release: release, guard: guard, status: first, changed: make(chan struct{}), conditions: &Conditions{
		revisions: accepted, ready: map[string]time.Time{}, stored: map[string]time.Time{}, changed: make(chan struct{}),
	}}
}

// Conditions returns the conditions Ready and Programmed of all Services.
func (b *Board) Conditions() *Conditions { return b.conditions }

// OfFleet sets the function that returns the state of the box in its fleet. It must be called before the status is requested.
func (b *Board) OfFleet(state func() wire.Fleet) { b.fleet = state }

// OfTrial sets the function that returns the trial of manifests to show in the status. This is the trial under way, or a trial that has ended but
// still holds files back; nil if there is neither. OfTrial must be called before the status is requested. Each Status calls state, since a trial
// changes without a step of the loop.
func (b *Board) OfTrial(state func() *wire.Trial) { b.trial = state }

// OfRollout sets the function that returns the rollout under way, nil if there is none. It must be called before the status is requested.
func (b *Board) OfRollout(state func() *wire.Rollout) { b.rollout = state }

// publish replaces the status. programmed is the newest revision in the kernel, failure is the error of the last step, and unstored holds the
// manifest files whose objects could not be stored.
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

// NotStored returns the file and line that declare an object that could not be stored, with the error. It returns nil if no such file declares ref.
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

// brief returns the status without its problems, and the Reporter that lists the problems, nil if no status was published yet.
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

// upTo returns the revision up to which the kernel is current. programmed is the newest revision in the kernel, accepted the newest revision of all,
// and concerning the newest one that affects the kernel. If programmed includes concerning, the kernel is current up to accepted.
func upTo(programmed, accepted, concerning uint64) uint64 {
	if programmed >= concerning {
		return max(programmed, accepted)
	}
	return programmed
}

// Healthy implements api.Health. It always returns nil, since the watchdog handles a stuck loop.
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

// heldError reports that the removal of Services is held: they stay in force, though no manifest declares them, until the removal is confirmed.
type heldError struct{ services int }

func (e heldError) Error() string {
	return fmt.Sprintf("everything else is in the kernel, but the removal of %s is held: "+
		"put the files back, or remove with `svcctl confirm --removals` (`svcctl status` has the reason)", wire.Count(e.services, "Service"))
}

// Synced implements api.Backend. For revision 0 it first rescans the watched directories, so that changes of their files before the call are
// included, and it returns an error if removals are held. It waits for pending decisions about removals.
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

// until blocks until the function holds returns true. If ctx is done first, it returns the error of b.why. It calls holds with b.mu locked.
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

// why returns the error for a wait that ctx ended: the reason why the kernel is not current, or ctx.Err() if there is none.
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

// selectView sets l.shown, the store whose objects are planned from now on. It reports whether that store is a different one than before.
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

// allServices returns the keys of the Services in the store and of the planned Services. A key may occur twice.
func (l *Loop) allServices() []string {
	return append(l.planner.known(), l.shown.InForce().Services()...)
}

// reasonCertificate is the Reason of problems with the certificate of the API server.
const reasonCertificate = "Certificate"

// Publisher publishes the state of the loop as status, metrics and log lines.
type Publisher struct {
	Board   *Board
	Metrics *metrics.Metrics
	// Reporter merges the problems from all sources into one list.
	Reporter *Reporter
	// Dirs are the manifest directories.
	Dirs []string
	// Named adds to each directory its state as a source of the fleet; nil if the box belongs to no fleet.
	Named func([]wire.Source)
	// Status is the status published last. Its initial value is the status before the first step. A step updates only some of its fields.
	Status wire.Status

	foreign  uint64          // number of changes of our tables by other programs
	snapshot *watch.Snapshot // the manifests in which problems are located by file and line
	settled  bool            // Reporter.History has dropped the previous process's problems that no longer exist
}

// publish updates the status and the metrics after a step of the loop. start is when the step began, done holds its transactions, err is its error.
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

// becomeReady sets the status to ready and logs it, unless it is ready already. It is called after a step that has applied everything.
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

// fileProblems returns the problems that concern files or the host rather than objects.
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

// hostProblems converts findings of the host checkup to problems. All are warnings, since they prevent no object from being in force, except errors
// of the API server's certificate.
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

// Sources returns the state of every manifest directory. s is nil while the directories are read for the first time.
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
