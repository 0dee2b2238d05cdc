package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// watchdogTick is the interval at which the loop is asked for a turn: long enough that an idle
	// process is hardly woken up for it.
	watchdogTick = 5 * time.Second
	// stuckAfter bounds the time of the loop without progress. The time that the process waited for
	// a CPU does not count, see cpuTimes.
	stuckAfter = 30 * time.Second
	// slowCalls is the factor on stuckAfter during a call whose time the kernel or the disk
	// decides: 10 minutes in all.
	slowCalls = 20
	// maxDump bounds the goroutine dump, in bytes.
	maxDump = 1 << 20
	// lastWords bounds the end of a stuck process: writing the dump to a disk, and the log to its
	// reader.
	lastWords = 5 * time.Second
)

// Watchdog ends the process when the loop is stuck, with a dump that says where. The rules stay in
// the kernel, and the supervisor (systemd) starts the process again.
//
// The loop counts its turns, and its progress within a turn. At every tick the watchdog looks
// whether the count has changed since the last one, and leaves a request that makes an idle
// loop turn once. A request stays until the loop takes it, so it does not matter what the loop
// does at the moment of a tick.
//
// Without progress, patience runs out; how much of it a tick takes depends on what the process
// could have done meanwhile. A loop that is runnable, whether it computes or waits for a CPU, uses
// up no more patience than the process gets CPU time, so a busy machine cannot make it
// look stuck. One that waits for something that never comes uses up the time in which no thread
// wanted a CPU. Ticks count, not the time between them: a process that was stopped (SIGSTOP, a
// suspended machine) has missed ticks, and is not stuck.
type Watchdog struct {
	moves atomic.Uint64 // counted up by the loop with every turn and step
	asks  chan struct{} // holds one request for a turn; the loop takes it when it has nothing else to do
	calls *SlowCalls    // calls under way that may take long
	cpu   func() (cpuTimes, error)

	patience time.Duration // stuckAfter
	every    time.Duration // how often systemd wants to be told; 0: it does not ask
	tell     func()        // tells systemd that we live
	log      *slog.Logger
	dump     func(goroutines []byte) (file string, err error)
	exit     func()
}

// WatchdogOptions configure a Watchdog.
type WatchdogOptions struct {
	// Calls are calls under way that may take long.
	Calls *SlowCalls
	// DataDir takes the goroutine dumps.
	DataDir string
	Log     *slog.Logger
	// Every is the watchdog interval of systemd (WATCHDOG_USEC); 0: it has none.
	Every time.Duration
	Tell  func()
	// Exit ends the process.
	Exit func()
}

func NewWatchdog(o WatchdogOptions) *Watchdog {
	return &Watchdog{
		asks: make(chan struct{}, 1), calls: o.Calls, cpu: readCPUTimes,
		patience: stuckAfter, every: o.Every, log: o.Log, tell: o.Tell, exit: o.Exit,
		dump: func(goroutines []byte) (string, error) { return writeDump(o.DataDir, time.Now(), goroutines) },
	}
}

// moved notes that the loop gets on.
func (w *Watchdog) moved() { w.moves.Add(1) }

// Run watches until ctx is done, which is when the loop has ended.
func (w *Watchdog) Run(ctx context.Context) error {
	every := watchdogTick
	if w.every > 0 {
		every = min(every, w.every)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var (
		told   time.Time
		seen   uint64
		spent  time.Duration // of the patience
		before cpuTimes      // at the last tick; nil: the loop moved by then
	)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		moves := w.moves.Load()
		if moves != seen {
			seen, spent, before = moves, 0, nil
		} else {
			now, err := w.cpu()
			switch {
			case err != nil: // whether it was starved is not known: be patient
				spent += every / slowCalls
			case before != nil && (now.blocked() || len(w.calls.underWay()) > 0):
				spent += now.fair(before, every) / slowCalls
			case before != nil:
				spent += now.fair(before, every)
			}
			if err == nil {
				before = now
			}
		}
		if spent >= w.patience {
			w.expire(spent)
			return nil
		}
		select {
		case w.asks <- struct{}{}:
		default: // the last one is not answered yet
		}
		if w.every > 0 && time.Since(told) >= w.every {
			told = time.Now()
			w.tell()
		}
	}
}

// expire writes a goroutine dump and ends the process, even if the loop is stuck at the disk or at
// the reader of the log.
func (w *Watchdog) expire(spent time.Duration) {
	hard := time.AfterFunc(2*lastWords, w.exit)
	defer hard.Stop()
	text := make([]byte, maxDump)
	text = text[:runtime.Stack(text, true)]
	type written struct {
		file string
		err  error
	}
	done := make(chan written, 1)
	go func() {
		file, err := w.dump(text)
		done <- written{file, err}
	}()
	var at written
	select {
	case at = <-done:
	case <-time.After(lastWords):
		at.err = fmt.Errorf("the disk did not take it within %s", lastWords)
	}
	attrs := []any{"for", spent.Round(time.Second)}
	if calls := w.calls.underWay(); len(calls) > 0 {
		attrs = append(attrs, "waitsFor", strings.Join(calls, ", "))
	}
	if at.err == nil {
		w.log.Error("stuck: the process ends, so that it can be started again; the rules stay in force", append(attrs, "goroutines", at.file)...)
	} else {
		w.log.Error("stuck: the process ends, so that it can be started again; the rules stay in force", append(attrs, "err", at.err)...)
		for line := range strings.Lines(string(text[:min(len(text), maxDump/16)])) {
			w.log.Error("stuck", "at", strings.TrimRight(line, "\n"))
		}
	}
	w.exit()
}

// SlowCalls are the calls under way whose time is not ours: an fsync of a slow disk, a transaction of
// 300,000 elements, a lock of the kernel that another program has. The zero value has none.
type SlowCalls struct {
	mu    sync.Mutex
	calls []string
}

// begin notes a call. The function that it gives is to be called at its end.
func (s *SlowCalls) begin(what string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := slices.Index(s.calls, what)
		s.calls = slices.Delete(s.calls, at, at+1)
	}
}

func (s *SlowCalls) underWay() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}
