package reconcile

import (
	"errors"
	"fmt"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/pending"
)

// The reasons of the problem that nothing can be stored.
const (
	reasonDiskFull   = "DiskFull"
	reasonDiskFailed = "DiskFailed"
)

// release ends the holds of Services and frontends that no object declares, or not any more. It
// returns their numbers.
func (l *Loop) release() (r wire.Released) {
	if services, files, engaged := l.opts.Removals.release(); engaged {
		r.Services, r.Files = services, files
		l.observed.unsynced = true
		l.log.Info("what vanished from the manifests is released", "services", r.Services, "files", r.Files)
	}
	if o := l.planner.orphans; o != nil && l.adopted {
		r.Frontends = o.release()
		l.log.Info("what the kernel serves and no object declares is released", "frontends", r.Frontends)
	}
	return r
}

// settleOrphans ends the search for objects that declare what the kernel serves, once all of it is
// declared or released.
func (l *Loop) settleOrphans() error {
	if o := l.planner.orphans; o == nil || !l.adopted || o.frontends() > 0 || len(o.changed) > 0 {
		return nil
	}
	if err := l.opts.Store.Unreserve(); err != nil {
		return err
	}
	l.planner.orphans = nil
	l.observed.unsynced = l.observed.snapshot != nil // objects that wait for a value may have it now
	return nil
}

// noteUnstored keeps why nothing can be stored for the status. It replaces the error by one that counts the
// files that are not stored for that.
func (l *Loop) noteUnstored(err error) error {
	l.observed.disk = nil
	if _, failed := errors.AsType[*engine.DiskError](err); !failed && !errors.Is(err, engine.ErrNoSpace) {
		return err
	}
	l.observed.disk = err
	return unstoredError{len(l.observed.unstored), err}
}

// diskProblem is the problem of the status while nothing can be stored; false: it can be.
func (l *Loop) diskProblem() (p manifest.Problem, is bool) {
	if l.observed.disk == nil {
		return p, false
	}
	if disk, failed := errors.AsType[*engine.DiskError](l.observed.disk); failed {
		return manifest.Problem{Reason: reasonDiskFailed, Message: disk.Error() + "; what is stored stays in force"}, true
	}
	return manifest.Problem{Reason: reasonDiskFull, Message: fmt.Sprintf(
		"the disk of %s is full: free space there. Tried again every %d s; nothing in force is lost", l.opts.DataDir, int(retryLast.Seconds()))}, true
}

// unstoredError counts the files that are not stored because of the disk; 0: something else is not.
type unstoredError struct {
	files int
	error
}

func (e unstoredError) Error() string {
	what := "not everything is"
	switch {
	case e.files == 1:
		what = "1 file is not"
	case e.files > 1:
		what = fmt.Sprintf("%d files are not", e.files)
	}
	why := "disk full"
	if !errors.Is(e.error, engine.ErrNoSpace) {
		why = "disk failed"
	}
	return what + " stored yet (" + why + "); what was in force stays in force"
}

func (e unstoredError) Unwrap() error { return e.error }

// reasonNotConfirmed is the reason of the problem that files are held as they were before a trial.
const reasonNotConfirmed = "NotConfirmed"

// TrialAsk is an operation of a trial that the loop does between two steps, with the files of the newest
// snapshot. Its error goes to Done after the step that follows.
type TrialAsk struct {
	Do   func(files manifest.Files) error
	Done chan error
}

// clocks reads the clocks that deadlines are counted by.
func (l *Loop) clocks() deadline.Reading {
	if l.opts.Clocks != nil {
		return l.opts.Clocks()
	}
	return deadline.Now()
}

// askTrial carries out a request about a trial.
func (l *Loop) askTrial(ask TrialAsk) error {
	if l.opts.Watching && l.observed.snapshot == nil {
		return errors.New(l.waitsFor())
	}
	err := ask.Do(l.found())
	if err == nil && l.observed.snapshot != nil {
		l.observed.unsynced = true // other files may be taken now
	}
	return err
}

// found are the files of the newest snapshot.
func (l *Loop) found() manifest.Files {
	if l.observed.snapshot == nil {
		return nil
	}
	return l.observed.snapshot.Files
}

// untilTrialEnds returns the time left until a trial ends; not pending when there is none, before the
// manifests were read, when it cannot be rolled back, or when it is one of a fleet: the loop waits for no other machine.
func (l *Loop) untilTrialEnds() (left time.Duration, is bool) {
	trial, is := l.opts.Store.PendingHead(pending.Timed)
	if !is || !trial.Pending() || l.opts.Store.IsShared() || l.opts.Watching && l.observed.snapshot == nil {
		return 0, false
	}
	return trial.Ends.Left(l.clocks()), true
}

// endTrial rolls back a trial that was not confirmed in time.
func (l *Loop) endTrial() error {
	left, is := l.untilTrialEnds()
	if !is {
		return nil
	}
	if left > 0 {
		return l.opts.Store.CountFrom(l.clocks())
	}
	revived, err := l.opts.Store.GoBack(l.found())
	if err != nil && !errors.Is(err, pending.ErrNoTimed) {
		return err
	}
	l.log.Warn("the trial was not confirmed in time: it was rolled back", "objects", len(revived))
	if l.observed.snapshot != nil {
		l.observed.unsynced = true
	}
	return nil
}

// TrialStatus is a trial as clients see it.
func TrialStatus(state *pending.State, now deadline.Reading) *wire.Trial {
	left := state.Ends.Left(now)
	t := &wire.Trial{
		ID: state.ID, Began: state.Began, Ends: now.Wall.Add(left).UTC().Round(time.Second), Left: wire.Duration(left),
		User: state.User, CoversFiles: state.Head.Files, Files: state.Files, WentBack: state.Back,
	}
	if !state.Pending() {
		t.Left, t.Ends = 0, *state.Back
	}
	for _, ref := range state.Objects {
		t.Objects = append(t.Objects, ref.String())
	}
	return t
}

// trialProblem returns the problem of the status while files are held.
func (l *Loop) trialProblem() (p manifest.Problem, held bool) {
	if head, is := l.opts.Store.PendingHead(pending.Timed); !is || head.Pending() {
		return p, false
	}
	state, _ := l.opts.Store.Pending(pending.Timed)
	if len(state.Files) == 0 {
		return p, false
	}
	return manifest.Problem{Reason: reasonNotConfirmed, Message: fmt.Sprintf(
		"the changes in %s were not confirmed: the objects before are in force. Change the files once more, or put them back; "+
			"`svcctl confirm --start 5m` tries them again, `svcctl confirm` takes them as they are", resolve.First(state.Files, 5))}, true
}
