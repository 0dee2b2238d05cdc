package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// reasonDiskFull is the reason of the problem that nothing can be stored.
const reasonDiskFull = "DiskFull"

// until is how long the next step may wait for something to happen, if it may not wait
// for ever.
func (l *loop) until() (wait time.Duration, needed bool) {
	now := l.now()
	at := func(d time.Duration) {
		if d = max(d, time.Millisecond); !needed || d < wait {
			wait, needed = d, true
		}
	}
	if l.wait > 0 {
		at(l.wait)
	}
	if len(l.planner.left) > 0 {
		at(l.retryRefused.Sub(now))
	}
	if when, due := l.fight.until(); due {
		at(when.Sub(now))
	}
	if when, due := l.guard.until(); due {
		at(when.Sub(now))
	}
	return wait, needed
}

// hearNews takes out what the store has to tell, which is looked at from here on: else what
// the loop itself has stored would make it take another step.
func (l *loop) hearNews() {
	select {
	case <-l.store.Changed():
	default:
	}
}

// noticed tells whether a change by somebody else concerns us, and says who it was.
func (l *loop) noticed(c kernel.Change) bool {
	switch {
	case c.Lost:
		l.log.Warn("changes to nf_tables were missed; our tables are read again")
	case c.Ours:
		l.foreign++
		l.metrics.ForeignChanged()
		if l.fight.pause == 0 { // of a fight the problem tells
			l.log.Warn("our tables were changed by another program; they are put right", "pid", c.PID, "comm", c.Comm, "generation", c.Generation)
		}
		l.fight.noticed(c, l.now())
	default:
		return false
	}
	l.tampered = true
	return true
}

// healed notes that what others did is undone, if it is.
func (l *loop) healed(done committed) {
	now := l.now()
	defer l.fight.calm(now)
	if l.tampered || l.fight.since.IsZero() {
		return
	}
	mended := done.transactions > 0
	took := l.fight.healed(now, mended)
	if mended {
		l.metrics.Healed(took)
		level := slog.LevelInfo
		if l.fight.pause > 0 { // of a fight the problem tells
			level = slog.LevelDebug
		}
		l.log.Log(context.Background(), level, "our tables are put right", "dur", took.Round(time.Microsecond), "operations", done.operations)
	}
	// A flush takes a sentinel that belongs to nobody (kernels before 5.12) with it.
	if err := l.sentinel(); err != nil {
		l.log.Warn("established connections are not protected from a foreign flush of the ruleset", "err", err)
	}
}

// release lets go what is kept in force although no object declares it, or not any more, and
// tells how much that was.
func (l *loop) release() (r wire.Released) {
	if l.guard.engaged() {
		r.Services, r.Files = l.guard.held, l.guard.objects
		l.guard.released, l.unsynced = true, true
		l.log.Info("what vanished from the manifests is released", "services", r.Services, "files", r.Files)
	}
	if o := l.planner.orphans; o != nil && l.adopted {
		r.Frontends = o.release()
		l.log.Info("what the kernel serves and no object declares is released", "frontends", r.Frontends)
	}
	return r
}

// noteFull keeps that the disk is full for the status, and says in place of the error what of
// the files is not stored for that.
func (l *loop) noteFull(err error) error {
	l.full = nil
	if !errors.Is(err, store.ErrNoSpace) {
		return err
	}
	l.full = err
	if !l.unsynced || l.snapshot == nil {
		return fmt.Errorf("not everything is stored yet (disk full); what was in force stays in force: %w", err)
	}
	return unstoredError{l.store.CountUnstored(l.snapshot.Files), err}
}

// unstoredError says how many files are not stored as the disk is full.
type unstoredError struct {
	files int
	error
}

func (e unstoredError) Error() string {
	what := "1 file is"
	if e.files != 1 {
		what = fmt.Sprintf("%d files are", e.files)
	}
	return what + " not stored yet (disk full); what was in force stays in force"
}

func (e unstoredError) Unwrap() error { return e.error }

// withoutDirectories lets the guard hear of objects of files when no directory is watched.
func (l *loop) withoutDirectories() {
	if len(l.cfg.Manifests) == 0 && l.store.HasUnclaimed() {
		l.snapshot, l.unsynced = &watch.Snapshot{}, true
	}
}

// settleOrphans ends the search for who declares what the kernel serves, once all of it is
// declared or let go.
func (l *loop) settleOrphans() error {
	o := l.planner.orphans
	if o == nil || !l.adopted || o.frontends() > 0 || len(o.changed) > 0 {
		return nil
	}
	if err := l.store.Unreserve(); err != nil {
		return err
	}
	l.planner.orphans = nil
	l.unsynced = l.snapshot != nil // who waits for a value may have it now
	return nil
}

// fileProblems are the problems of files, and of the box, rather than of objects.
func (l *loop) fileProblems() []manifest.Problem {
	var problems []manifest.Problem
	if l.snapshot != nil {
		problems = slices.Clone(l.snapshot.Problems)
	}
	problems = append(problems, hostProblems(l.host)...)
	if l.full != nil {
		problems = append(problems, manifest.Problem{Reason: reasonDiskFull, Message: fmt.Sprintf(
			"the disk of %s is full: free space there. Tried again every %d s; nothing in force is lost", l.cfg.DataDir, int(retryLast.Seconds()))})
	}
	if p, fight := l.fight.problem(); fight {
		problems = append(problems, p)
	}
	if p, engaged := l.guard.problem(); engaged {
		problems = append(problems, p)
	}
	if p, held := l.planner.orphans.problem(l.cfg.DataDir); held {
		problems = append(problems, p)
	}
	return problems
}
