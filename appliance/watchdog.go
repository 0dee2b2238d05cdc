package appliance

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// watchdogTick is how often it is looked whether the loop lives: not so often that an idle
	// process is woken up for it.
	watchdogTick = 5 * time.Second
	// stuckTicks is how many times in a row it must not have moved to count as stuck.
	// Ticks and not time: a process that was stopped for a minute (SIGSTOP, a suspended
	// machine) has missed ticks, and is not stuck.
	stuckTicks = 6
	// maxDump bounds the goroutine dump, in bytes.
	maxDump = 1 << 20
)

// watchdog ends the process when the loop is stuck, with a dump that says where. The rules
// stay in the kernel, and whoever started the process (systemd) starts it again.
type watchdog struct {
	beats chan struct{} // the loop takes one when it has nothing else to do
	steps atomic.Uint64 // counted up by the loop as it gets on within a step

	every time.Duration // that systemd is told; 0: it does not ask
	tell  func()        // tells systemd that we live
	log   *slog.Logger
	exit  func()
}

func (w *watchdog) run(ctx context.Context) error {
	every := watchdogTick
	if w.every > 0 {
		every = min(every, w.every)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var told time.Time
	missed, most, seen := 0, int(stuckTicks*watchdogTick/every), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		alive := false
		select {
		case w.beats <- struct{}{}:
			alive = true
		default:
		}
		steps := w.steps.Load()
		if alive = alive || steps != seen; alive {
			missed, seen = 0, steps
		} else if missed++; missed == most {
			w.bark()
			return nil
		}
		if alive && w.every > 0 && time.Since(told) >= w.every {
			told = time.Now()
			w.tell()
		}
	}
}

// bark says where everything stands and ends the process.
func (w *watchdog) bark() {
	dump := make([]byte, maxDump)
	dump = dump[:runtime.Stack(dump, true)]
	w.log.Error("stuck: the process ends, so that it can be started again; the rules stay in force",
		"for", stuckTicks*watchdogTick, "goroutines", string(dump))
	w.exit()
}

// Progress implements reconcile.Watchdog.
func (w *watchdog) Progress() { w.steps.Add(1) }

// Beats implements reconcile.Watchdog.
func (w *watchdog) Beats() <-chan struct{} { return w.beats }
