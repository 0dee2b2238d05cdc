package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/engine"
)

const (
	// watchdogTick is the interval at which the watchdog checks the loop. It is long, so that it rarely wakes an idle process.
	watchdogTick = 5 * time.Second
	// stuckAfter is the time without progress after which the loop counts as stuck. The time for which the process waits for a CPU is not counted,
	// see cpuTimes.
	stuckAfter = 30 * time.Second
	// slow is the factor by which stuckAfter is multiplied, to 10 minutes, while the process computes, or during a call whose duration depends on the
	// kernel or the disk.
	slow = 20
	// maxDump is the maximum size of the goroutine dump in bytes.
	maxDump = 1 << 20
	// lastWords bounds the time for writing the dump of a stuck process to disk. After twice that time the process exits in any case.
	lastWords = 5 * time.Second
)

// Watchdog exits the process, with a dump of all goroutines, when the loop is stuck. The rules stay in the kernel, and the supervisor (systemd)
// starts the process again.
//
// The loop counts its turns, and its progress within a turn. At every tick the watchdog checks whether the count has changed since the last tick. It
// also leaves a request that makes an idle loop take a turn. A request stays until the loop receives it, so it does not matter what the loop does at
// the moment of a tick.
//
// The watchdog sums up the time without progress, and exits the process once the sum reaches patience. For each tick it adds only the time that the
// process was able to use (cpuTimes.fair):
//
//   - While the loop computes or waits for a CPU, this is at most the CPU time of the process, so a busy machine cannot make the loop look stuck.
//     Only a twentieth of the CPU time counts (slow), since on a virtual machine it includes time in which the host ran something else, and since a
//     slow machine may have many Services.
//   - While the loop waits for an event that never occurs, this is the time in which no thread waited for a CPU.
//
// Missed ticks do not count, so a process that was stopped (SIGSTOP, a suspended machine) is not stuck.
type Watchdog struct {
	moves atomic.Uint64 // number of turns and steps of the loop so far; the loop increments it
	asks  chan struct{} // holds one request for a turn of the loop; an idle loop receives it
	calls *SlowCalls    // the running calls that may take long
	cpu   func() (cpuTimes, error)

	patience time.Duration // time without progress before the process exits: stuckAfter
	every    time.Duration // interval of notifications to systemd; 0 if there are none
	tell     func()        // notifies systemd that the process is alive (WATCHDOG=1)
	log      *slog.Logger
	dump     func(goroutines []byte) (file string, err error)
	exit     func()
}

// WatchdogOptions holds the options of NewWatchdog.
type WatchdogOptions struct {
	// Calls records the running calls that may take long.
	Calls *SlowCalls
	// DataDir is the directory for goroutine dumps.
	DataDir string
	Log     *slog.Logger
	// Every is the interval of watchdog notifications to systemd, from WATCHDOG_USEC; 0 if there are none.
	Every time.Duration
	Tell  func()
	// Exit exits the process.
	Exit func()
}

func NewWatchdog(o WatchdogOptions) *Watchdog {
	return &Watchdog{
		asks: make(chan struct{}, 1), calls: o.Calls, cpu: readCPUTimes,
		patience: stuckAfter, every: o.Every, log: o.Log, tell: o.Tell, exit: o.Exit,
		dump: func(goroutines []byte) (string, error) { return writeDump(o.DataDir, time.Now(), goroutines) },
	}
}

// progress records a turn of the loop, or progress within a turn.
func (w *Watchdog) progress() { w.moves.Add(1) }

// Run watches the loop until ctx is done, which is when the loop has ended.
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
				spent += every / slow
			case before != nil:
				idle, used := now.fair(before, every)
				if now.blocked() || len(w.calls.underWay()) > 0 {
					idle /= slow
				}
				spent += idle + used/slow
			}
			if err == nil {
				before = now
			}
		}
		if spent >= w.patience {
			w.expire(spent)
			return nil
		}
		task.Wake(w.asks)
		if w.every > 0 && time.Since(told) >= w.every {
			told = time.Now()
			w.tell()
		}
	}
}

// expire writes a goroutine dump and exits the process, even if writing to the disk or to the log blocks.
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

// SlowCalls records the running calls whose duration this program does not control: an fsync of a slow disk, a transaction of 300,000 elements, or
// one that waits for a kernel lock that another program holds. The zero value is ready to use.
type SlowCalls struct {
	mu    sync.Mutex
	calls []string
}

// begin records that a call has started. The caller must call end when the call returns. what describes the call in the log.
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

// slowKernel is a Kernel that records its running calls in SlowCalls. A large transaction takes seconds even on an idle machine, and may have to wait
// for transactions of other programs.
type slowKernel struct {
	Kernel
	calls *SlowCalls
}

// Read implements Kernel.
func (s slowKernel) Read() (nft.Ruleset, uint32, error) {
	defer s.calls.begin("reading our tables from the kernel")()
	return s.Kernel.Read()
}

// Commit implements Kernel.
func (s slowKernel) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	defer s.calls.begin("a transaction of the kernel")()
	return s.Kernel.Commit(b, generation)
}

// Check implements Kernel.
func (s slowKernel) Check(b *nft.Batch, generation uint32) error {
	defer s.calls.begin("a check of a transaction by the kernel")()
	return s.Kernel.Check(b, generation)
}

// Forget implements Kernel.
func (s slowKernel) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	defer s.calls.begin("a transaction of the kernel")()
	return s.Kernel.Forget(f, generation)
}

// slowEngine is a storage engine that records its running commits in SlowCalls, whichever goroutine makes them: the loop may wait for the commits of
// other goroutines.
type slowEngine struct {
	engine.Engine
	calls *SlowCalls
}

// Commit implements engine.Engine.
func (s slowEngine) Commit(t engine.Transaction) error {
	defer s.calls.begin("a commit to the data directory")()
	return s.Engine.Commit(t)
}

// Kernel returns a Kernel that records the running calls of k.
func (s *SlowCalls) Kernel(k Kernel) Kernel { return slowKernel{k, s} }

// Engine returns an Engine that records the running commits of e.
func (s *SlowCalls) Engine(e engine.Engine) engine.Engine { return slowEngine{e, s} }

// keptDumps is the number of goroutine dumps to keep in the data directory. Older ones are removed.
const keptDumps = 3

// The name of a dump file has the form stuck-20260102T150405.000Z.txt.
const (
	dumpPrefix = "stuck-"
	dumpSuffix = ".txt"
)

// writeDump writes a goroutine dump to a new file in the data directory, and returns its path. It removes the oldest dumps beyond keptDumps. The file
// is readable only by its owner, as a dump contains function arguments.
func writeDump(dir string, at time.Time, goroutines []byte) (file string, err error) {
	file = filepath.Join(dir, dumpPrefix+at.UTC().Format("20060102T150405.000Z")+dumpSuffix)
	if err := os.WriteFile(file, goroutines, 0o600); err != nil {
		_ = os.Remove(file) // half a dump on a full disk
		return "", fmt.Errorf("write the goroutines: %w", err)
	}
	entries, err := os.ReadDir(dir) // by name, which is by time
	if err != nil {
		return file, nil
	}
	var dumps []string
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, dumpPrefix) && strings.HasSuffix(name, dumpSuffix) {
			dumps = append(dumps, name)
		}
	}
	for _, old := range dumps[:max(0, len(dumps)-keptDumps)] {
		_ = os.Remove(filepath.Join(dir, old)) // the next dump tries again
	}
	return file, nil
}

// cpuTimes holds the scheduler's times for the threads of this process, by thread ID.
type cpuTimes map[int]threadTime

// threadTime holds for how long a thread has used or waited for a CPU since its start, and its present state.
type threadTime struct {
	used    time.Duration // time running on a CPU
	waited  time.Duration // time runnable without running, excluding a present wait
	wanting bool          // it is waiting for a CPU now
	blocked bool          // it is waiting for a disk or a kernel lock now (state D)
}

// fair returns the parts of a tick that the process was able to use. idle is the time in which its threads neither ran nor waited for a CPU. used is
// the CPU time of its threads. before are the times at the previous tick. The watchdog sums both up while the loop makes no progress:
//
//   - While the loop is runnable, at least one thread runs or waits for a CPU at any time. So the increases of used and waited together are at least
//     a tick, and idle is zero: with a hundredth of a CPU, the loop gets a hundred times as long. An endless loop still reaches the limit.
//   - While all threads wait for something else, such as a lock or a message, used and waited hardly increase, and idle is the whole tick.
//
// The kernel adds the time of a wait for a CPU to waited only at its end. Therefore idle is zero while a thread other than the caller's waits for a
// CPU.
func (now cpuTimes) fair(before cpuTimes, tick time.Duration) (idle, used time.Duration) {
	idle = tick
	for id, t := range now {
		used += t.used - before[id].used
		idle -= t.used - before[id].used + t.waited - before[id].waited
		if t.wanting {
			idle = 0
		}
	}
	return max(0, idle), min(tick, used)
}

// blocked reports whether a thread is waiting in the kernel for a disk or a lock (state D).
func (now cpuTimes) blocked() bool {
	for _, t := range now {
		if t.blocked {
			return true
		}
	}
	return false
}

// readCPUTimes reads the times of the threads of this process from /proc/self/task/*/schedstat and stat (proc(5)). The kernel needs
// CONFIG_SCHED_INFO, which distributions set.
func readCPUTimes() (cpuTimes, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const tasks = "/proc/self/task"
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil, err
	}
	times := cpuTimes{}
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		schedstat, err := os.ReadFile(filepath.Join(tasks, entry.Name(), "schedstat"))
		if err != nil {
			continue // the thread ended, or the kernel has no such file
		}
		stat, err := os.ReadFile(filepath.Join(tasks, entry.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(schedstat)) // time on a CPU, time waiting, slices
		if len(fields) < 2 {
			continue
		}
		used, _ := strconv.ParseInt(fields[0], 10, 64)
		waited, _ := strconv.ParseInt(fields[1], 10, 64)
		_, state, _ := bytes.Cut(stat, []byte(") ")) // behind the name, which may have anything in it
		times[id] = threadTime{
			used: time.Duration(used), waited: time.Duration(waited),
			wanting: id != syscall.Gettid() && bytes.HasPrefix(state, []byte("R")),
			blocked: bytes.HasPrefix(state, []byte("D")),
		}
	}
	if self := times[syscall.Gettid()]; self.used == 0 {
		return nil, fmt.Errorf("%s/*/schedstat is empty", tasks)
	}
	return times, nil
}
