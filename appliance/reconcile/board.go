package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Board shows the newest status and which revision is in the kernel to other goroutines.
// It implements api.Backend. It has more than 15 fields: what the status is made of has one lock.
type Board struct {
	accepted func() (accepted, concerning uint64) // store.Revisions
	rescan   func(context.Context) error
	release  func(context.Context) (wire.Released, error)
	guard    *RemovalGuard      // nil: nothing is waited for or held
	fleet    func() wire.Fleet  // nil: the box is one of its own
	trial    func() *wire.Trial // nil: there are none
	rollout  func() *wire.Rollout

	conditions *Conditions

	mu         sync.Mutex
	status     wire.Status    // without its problems, and their groups
	reporter   *Reporter      // nil: nothing was published
	unstored   manifest.Files // documents of files that could not be stored; nil: all are
	failure    error          // why what was accepted is not in the kernel
	programmed uint64         // every change up to this revision is in the kernel
	settled    uint64         // all waits of guard up to this one are over, and what came of them is stored
	changed    chan struct{}  // closed when any of the above changes
}

// NewBoard shows first until the loop publishes. accepted is store.Revisions; rescan has the
// manifests read once more, release ends holds, and guard has the removals that are waited for.
func NewBoard(accepted func() (uint64, uint64), rescan func(context.Context) error, release func(context.Context) (wire.Released, error), guard *RemovalGuard, first wire.Status) *Board {
	return &Board{accepted: accepted, rescan: rescan, release: release, guard: guard, status: first, changed: make(chan struct{}), conditions: newConditions(accepted)}
}

// Conditions returns the conditions of Services.
func (b *Board) Conditions() *Conditions { return b.conditions }

// OfFleet sets the source of the state of the box in its fleet. It is called before the status is shown.
func (b *Board) OfFleet(state func() wire.Fleet) { b.fleet = state }

// OfTrial sets the source of the trial that is under way, or holds files; nil: there is none. Its time runs
// and its files come without a step. It is called before the status is shown.
func (b *Board) OfTrial(state func() *wire.Trial) { b.trial = state }

// OfRollout sets the source of the rollout that is under way; nil: there is none. It is called before the status is shown.
func (b *Board) OfRollout(state func() *wire.Rollout) { b.rollout = state }

// publish replaces the status.
func (b *Board) publish(s wire.Status, reporter *Reporter, programmed uint64, failure error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.reporter, b.programmed, b.failure = s, reporter, programmed, failure
	b.conditions.programmed(programmed, s.RulesAway)
	if b.guard != nil {
		b.settled = b.guard.settled()
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// keep takes the files that could not be stored.
func (b *Board) keep(unstored manifest.Files) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unstored = unstored
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

// brief returns the status without its problems, and what lists them; nil: nothing was published.
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
		s.Reason = fmt.Sprintf("%d Services vanished from the manifests and go within %v, unless more vanish or they come back", s.PendingRemovals, removalMost)
	}
	return s, b.reporter
}

// Changed is closed when the status may be another one than at the call.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// upTo is the revision up to which everything is programmed that is to be programmed: when
// the kernel has all that concerns it, what came later is no change to it.
func upTo(programmed, accepted, concerning uint64) uint64 {
	if programmed >= concerning {
		return max(programmed, accepted)
	}
	return programmed
}

// Healthy implements api.Health: the loop answers as long as the process lives.
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

// heldError means that the state differs from the manifests until the removals are confirmed.
type heldError struct{ services int }

func (e heldError) Error() string {
	return fmt.Sprintf("everything else is in the kernel, but %d Services that vanished from the manifests are held: "+
		"put the files back, or confirm with `svcctl confirm --removals` that they are to go (`svcctl status` has the reason)", e.services)
}

// Synced implements api.Backend. For revision 0 the watched directories are looked at
// once more first, so that what was written to them before the call counts as accepted. What
// had vanished from them by then has gone when it returns; if it is held instead, that is an
// error for revision 0.
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

// until waits until something holds, which is looked at with the lock.
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

// why returns the reason for which a caller waited in vain.
func (b *Board) why(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.failure != nil:
		return b.failure
	case !b.status.Ready:
		return errors.New(b.status.Reason)
	case b.status.PendingRemovals > 0:
		return fmt.Errorf("%d Services that vanished from the manifests are not removed yet", b.status.PendingRemovals)
	}
	return ctx.Err()
}

// selectView sets the store whose objects are planned from now on, and reports whether it is another one than before.
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

// allServices are the Services that this machine is to program and those that are planned.
func (l *Loop) allServices() []string {
	keys := l.planner.known()
	for key := range l.shown.InForce().Services() {
		keys = append(keys, key)
	}
	return keys
}
