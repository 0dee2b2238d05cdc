package appliance

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/manifest"
)

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
	if when, due := l.brake.until(); due {
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

// release lets those Services go that vanished from the manifests and are kept in force,
// and tells how many they were.
func (l *loop) release() (services int) {
	if !l.brake.engaged {
		return 0
	}
	services = l.brake.held
	l.brake.released, l.unsynced = true, true
	l.log.Info("what vanished from the manifests is released", "services", services)
	return services
}

// fileProblems are the problems of files, and of the box, rather than of objects.
func (l *loop) fileProblems() []manifest.Problem {
	var problems []manifest.Problem
	if l.snapshot != nil {
		problems = slices.Clone(l.snapshot.Problems)
	}
	problems = append(problems, hostProblems(l.host)...)
	problems = append(problems, l.cfg.overlapProblems(l.facts, l.hosts)...)
	if p, fight := l.fight.problem(); fight {
		problems = append(problems, p)
	}
	if p, engaged := l.brake.problem(); engaged {
		problems = append(problems, p)
	}
	return problems
}
