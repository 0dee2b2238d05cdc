package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// watched runs a watchdog over a loop that the test plays, in a bubble. It says how often systemd
// was told, after how long the watchdog ended the process (0: it did not), and what it logged and
// dumped.
func watched(t *testing.T, prepare func(w *Watchdog), play func(ctx context.Context, w *Watchdog)) (told int, ended time.Duration, log, dump string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var logged bytes.Buffer
		w := testWatchdog(slog.New(slog.NewTextHandler(&logged, nil)))
		w.every = 10 * time.Second
		w.tell = func() { told++ }
		w.dump = func(text []byte) (string, error) { dump = string(text); return "/data/stuck.txt", nil }
		w.exit = func() { ended = time.Since(began) }
		if prepare != nil {
			prepare(w)
		}
		go func() { _ = w.Run(ctx) }()
		play(ctx, w)
		cancel()
		synctest.Wait()
		log = logged.String()
	})
	return told, ended, log, dump
}

// testWatchdog is one of a process that is given all the CPU time that it wants.
func testWatchdog(log *slog.Logger) *Watchdog {
	return &Watchdog{
		asks: make(chan struct{}, 1), calls: &SlowCalls{}, patience: stuckAfter, log: log,
		cpu: func() (cpuTimes, error) { return cpuTimes{}, nil },
	}
}

func TestP08_idleLoopIsAlive(t *testing.T) {
	told, ended, _, _ := watched(t, nil, func(ctx context.Context, w *Watchdog) {
		idle, stop := context.WithTimeout(ctx, 10*time.Minute)
		defer stop()
		for idle.Err() == nil {
			select {
			case <-w.asks:
				w.progress()
			case <-idle.Done():
			}
		}
	})
	if ended != 0 || told < 55 || told > 61 {
		t.Errorf("ended after %v, systemd was told %d times in ten minutes, want every 10 s", ended, told)
	}
}

func TestP08_longStepThatGetsOnIsAlive(t *testing.T) {
	told, ended, _, _ := watched(t, nil, func(_ context.Context, w *Watchdog) {
		for range 20 {
			time.Sleep(29 * time.Second)
			w.progress()
		}
	})
	if ended != 0 || told == 0 {
		t.Errorf("ended after %v, told %d times", ended, told)
	}
}

func TestP08_stuckLoopEnds(t *testing.T) {
	told, ended, log, dump := watched(t, nil, func(context.Context, *Watchdog) { time.Sleep(3 * stuckAfter) })
	if ended < stuckAfter || ended > stuckAfter+2*watchdogTick || told > 4 {
		t.Errorf("ended after %v, told %d times", ended, told)
	}
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, "goroutines=/data/stuck.txt") || !strings.Contains(dump, "reconcile.watched") {
		t.Errorf("it is not told where it is stuck:\n%s\n%s", log, dump)
	}
}

func TestP08_nobodyIsStuckBeforeItsTime(t *testing.T) {
	_, ended, _, _ := watched(t, nil, func(_ context.Context, w *Watchdog) {
		time.Sleep(stuckAfter - watchdogTick/2)
		<-w.asks
		w.progress()
		time.Sleep(stuckAfter - watchdogTick/2)
	})
	if ended != 0 {
		t.Error("a loop that answers in time is called stuck")
	}
}

// A loop that is busy at every tick of the watchdog, whatever the phase of the two and
// however long it is busy, moves all the same.
func TestP08_anyPhaseOfTheTimers(t *testing.T) {
	for _, busy := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond, 2 * time.Second, watchdogTick - time.Millisecond, watchdogTick, 7 * time.Second, 23 * time.Second} {
		for _, phase := range []time.Duration{0, 1, time.Microsecond, time.Millisecond, 2 * time.Millisecond, 49 * time.Millisecond, time.Second, watchdogTick / 2, watchdogTick - time.Millisecond, watchdogTick - 1} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				r := newRig(t)
				r.host()
				r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
				w := testWatchdog(r.log)
				w.exit = func() { t.Errorf("busy for %v, %v after the ticks: ended", busy, phase) }
				w.dump = func([]byte) (string, error) { return "", nil }
				r.watch(w)
				r.opts.Publisher.Reporter.Log = slog.New(slog.NewTextHandler(slowWriter(busy), nil))
				host := make(chan []checkup.Finding)
				var tasks sync.WaitGroup
				tasks.Go(func() { _ = w.Run(ctx) })
				tasks.Go(func() { _ = r.Run(ctx, Inputs{Findings: host}) })
				tasks.Go(func() { // news at the same rate as the ticks: every one is a step that takes long
					time.Sleep(phase)
					tick := time.NewTicker(watchdogTick)
					defer tick.Stop()
					for i := 0; ; i++ {
						select {
						case <-tick.C:
						case <-ctx.Done():
							return
						}
						select {
						case host <- []checkup.Finding{checkup.Fault("x", fmt.Sprint(i), "y")}:
						case <-ctx.Done():
							return
						}
					}
				})
				time.Sleep(5 * time.Minute)
				cancel()
				tasks.Wait()
			})
		}
	}
}

// slowWriter takes so long for every line.
type slowWriter time.Duration

func (s slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(s) / 2) // a problem that is there, and one that is over
	return len(p), nil
}

// shares are CPU times of threads that had so much of the time, in per cent, and waited for
// so much.
func shares(threads ...[2]int) func() (cpuTimes, error) {
	var began time.Time
	return func() (cpuTimes, error) {
		if began.IsZero() {
			began = time.Now()
		}
		since, times := time.Since(began), cpuTimes{}
		for id, share := range threads {
			times[id] = threadTime{used: since * time.Duration(share[0]) / 100, waited: since * time.Duration(share[1]) / 100}
		}
		return times, nil
	}
}

func TestP08_patienceIsMeasuredInCPUTime(t *testing.T) {
	const never = 24 * time.Hour
	wanting := func() (cpuTimes, error) { return cpuTimes{1: {wanting: true}}, nil }
	blocked := func() (cpuTimes, error) { return cpuTimes{1: {blocked: true}}, nil }
	for _, test := range []struct {
		name   string
		cpu    func() (cpuTimes, error)
		within time.Duration // that a loop that never moves is ended in
		alive  time.Duration // that it is not ended in before
	}{
		{"spins, or computes on a machine that is slow", shares([2]int{100, 0}), 11 * time.Minute, 10 * time.Minute},
		{"spins on two CPUs", shares([2]int{100, 0}, [2]int{100, 0}), 11 * time.Minute, 10 * time.Minute},
		{"waits for what never comes", shares([2]int{0, 0}), 40 * time.Second, 30 * time.Second},
		{"waits on a busy machine", shares([2]int{1, 5}), 45 * time.Second, 30 * time.Second},
		{"computes, with a fiftieth of a CPU", shares([2]int{2, 98}), never, 500 * time.Minute},
		{"computes on two threads, with a fiftieth of a CPU each", shares([2]int{2, 98}, [2]int{2, 98}), never, 250 * time.Minute},
		{"waits, while others compute with half a CPU", shares([2]int{0, 0}, [2]int{50, 0}), 65 * time.Second, 55 * time.Second},
		{"waits, while others compute with a tenth of a CPU and get no more", shares([2]int{0, 0}, [2]int{10, 90}), 101 * time.Minute, 100 * time.Minute},
		{"has not run since the last tick", wanting, never, never / 2},
		{"waits for a disk", blocked, 11 * time.Minute, 10 * time.Minute},
		{"not known", func() (cpuTimes, error) { return nil, errors.New("no /proc") }, 11 * time.Minute, 10 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, ended, _, _ := watched(t, func(w *Watchdog) { w.cpu = test.cpu }, func(context.Context, *Watchdog) { time.Sleep(min(test.within, never) + time.Second) })
			if ended != 0 && ended < test.alive || ended > test.within || ended == 0 && test.within < never {
				t.Errorf("ended after %v, want it between %v and %v", ended, test.alive, test.within)
			}
		})
	}
}

func TestP08_callsThatTakeLong(t *testing.T) {
	_, ended, _, _ := watched(t, nil, func(_ context.Context, w *Watchdog) {
		for range 3 { // a transaction each, on a machine that is very slow
			end := w.calls.begin("a transaction of the kernel")
			time.Sleep(9 * time.Minute)
			end()
			w.progress()
		}
	})
	if ended != 0 {
		t.Errorf("a call that takes 9 minutes ends the process after %v", ended)
	}
	_, ended, log, _ := watched(t, nil, func(_ context.Context, w *Watchdog) {
		defer w.calls.begin("a commit to the data directory")()
		time.Sleep(15 * time.Minute)
	})
	if ended < 10*time.Minute || ended > 11*time.Minute || !strings.Contains(log, `waitsFor="a commit to the data directory"`) {
		t.Errorf("ended after %v: %s", ended, log)
	}
}

// The disk may be what the loop is stuck at: then the log has the goroutines.
func TestP08_dumpThatCannotBeWritten(t *testing.T) {
	for name, dump := range map[string]func([]byte) (string, error){
		"hangs": func([]byte) (string, error) { time.Sleep(time.Hour); return "", nil },
		"fails": func([]byte) (string, error) { return "", errors.New("no space left on device") },
	} {
		_, ended, log, _ := watched(t, func(w *Watchdog) { w.dump = dump }, func(context.Context, *Watchdog) {
			time.Sleep(3 * time.Hour)
		})
		if ended == 0 || ended > stuckAfter+2*watchdogTick+lastWords || !strings.Contains(log, "err=") ||
			strings.Count(log, "\n") < 5 || strings.Contains(log, `\n`) || !strings.Contains(log, "goroutine ") {
			t.Errorf("%s: ended after %v:\n%s", name, ended, log)
		}
	}
}

func TestDumpsAreBounded(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"state.db", "stuck-notes", "unstuck-1.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range keptDumps + 3 {
		file, err := writeDump(dir, at.Add(time.Duration(i)*time.Minute), []byte(fmt.Sprintf("goroutine %d", i)))
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	want := []string{"state.db", "stuck-20260102T030705.000Z.txt", "stuck-20260102T030805.000Z.txt", "stuck-20260102T030905.000Z.txt", "stuck-notes", "unstuck-1.txt"}
	if !slices.Equal(names, want) {
		t.Errorf("the directory has %q, want %q", names, want)
	}
	if file, err := writeDump(filepath.Join(dir, "gone"), at, nil); err == nil {
		t.Errorf("%s is written into a directory that does not exist", file)
	}
}

func TestReadCPUTimes(t *testing.T) {
	before, err := readCPUTimes()
	if err != nil {
		t.Fatal(err)
	}
	for range 100_000 { // until the scheduler counted that this test ran
		now, err := readCPUTimes()
		if err != nil {
			t.Fatal(err)
		}
		var used time.Duration
		for id, thread := range now {
			if thread.used < before[id].used || thread.waited < before[id].waited {
				t.Fatalf("thread %d went from %+v to %+v", id, before[id], thread)
			}
			used += thread.used - before[id].used
		}
		if used > 0 {
			return
		}
	}
	t.Error("reading took no CPU time")
}

// stuckExit is the exit code of a process that its watchdog ends.
const stuckExit = 1

// A process that is stuck ends, also when its log is not read. The test runs itself.
func TestP08_stuckProcessEnds(t *testing.T) {
	const role = "SVCCTL_TEST_STUCK"
	stuck := map[string]func(){
		"parked": func() { select {} },
		"spinning": func() {
			for spin := 0; spin >= 0; {
				spin = (spin + 1) % 1000
			}
		},
	}
	if how := os.Getenv(role); how != "" {
		r := newRig(t)
		r.host()
		r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
		r.kernel.Inject(func(*nft.Batch) error { stuck[how](); return nil })
		queue := logqueue.New(os.Stderr)
		log := slog.New(slog.NewTextHandler(queue, nil))
		w := NewWatchdog(WatchdogOptions{
			Calls: &SlowCalls{}, DataDir: os.Getenv(role + "_DIR"), Log: log, Every: 100 * time.Millisecond, Tell: func() {},
			Exit: func() {
				queue.Flush(time.Second)
				os.Exit(stuckExit)
			},
		})
		w.patience = 200 * time.Millisecond
		if how == "spinning" {
			w.patience = 50 * time.Millisecond // a second of CPU time
		}
		r.watch(w)
		for range 4096 { // more than a pipe takes
			log.Info("something that nobody reads")
		}
		host := make(chan []checkup.Finding, 1)
		host <- nil
		_ = task.Run(context.Background(), log,
			task.Task{Name: "reconcile", Run: func(ctx context.Context) error { return r.Run(ctx, Inputs{Findings: host}) }},
			task.Task{Name: "watchdog", Run: w.Run})
		os.Exit(0)
	}
	for how := range stuck {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			defer writer.Close()
			cmd := exec.Command(os.Args[0], "-test.run=^TestP08_stuckProcessEnds$")
			cmd.Env = append(os.Environ(), role+"="+how, role+"_DIR="+dir)
			cmd.Stderr = writer
			kill := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
			defer kill.Stop()
			if err := cmd.Run(); cmd.ProcessState.ExitCode() != stuckExit {
				t.Fatalf("it ended with %v, want exit code %d", err, stuckExit)
			}
			dumps, err := filepath.Glob(filepath.Join(dir, "stuck-*.txt"))
			if err != nil || len(dumps) != 1 {
				t.Fatalf("dumps: %q, %v", dumps, err)
			}
			text, err := os.ReadFile(dumps[0])
			if err != nil || !strings.Contains(string(text), "reconcile.(*Loop).Run") {
				t.Errorf("the dump does not say where the loop is: %v\n%s", err, text)
			}
		})
	}
}
