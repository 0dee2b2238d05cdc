package appliance

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/nft"
)

// watched runs a watchdog over a loop that the test plays.
func watched(t *testing.T, play func(ctx context.Context, w *watchdog)) (told int, ended bool, log string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var logged bytes.Buffer
		w := &watchdog{
			beats: make(chan struct{}), every: 10 * time.Second,
			tell: func() { told++ },
			log:  slog.New(slog.NewTextHandler(&logged, nil)),
			exit: func() { ended = true },
		}
		go func() { _ = w.run(ctx) }()
		play(ctx, w)
		cancel()
		synctest.Wait()
		log = logged.String()
	})
	return told, ended, log
}

func TestP08_idleLoopIsAlive(t *testing.T) {
	told, ended, _ := watched(t, func(ctx context.Context, w *watchdog) {
		idle, stop := context.WithTimeout(ctx, 10*time.Minute)
		defer stop()
		for idle.Err() == nil {
			select {
			case <-w.beats:
			case <-idle.Done():
			}
		}
	})
	if ended || told < 55 || told > 61 {
		t.Errorf("ended: %v, systemd was told %d times in ten minutes, want every 10 s", ended, told)
	}
}

func TestP08_longStepThatGetsOnIsAlive(t *testing.T) {
	told, ended, _ := watched(t, func(_ context.Context, w *watchdog) {
		for range 20 {
			time.Sleep(20 * time.Second)
			w.steps.Add(1)
		}
	})
	if ended || told == 0 {
		t.Errorf("ended: %v, told %d times", ended, told)
	}
}

func TestP08_stuckLoopEnds(t *testing.T) {
	told, ended, log := watched(t, func(context.Context, *watchdog) { time.Sleep(2 * stuckTicks * watchdogTick) })
	if !ended || told != 0 {
		t.Errorf("ended: %v, told %d times", ended, told)
	}
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, "appliance.watched") || !strings.Contains(log, "goroutine ") {
		t.Errorf("the dump does not say where it is stuck:\n%s", log)
	}
}

func TestP08_nobodyIsStuckBeforeItsTime(t *testing.T) {
	_, ended, _ := watched(t, func(_ context.Context, w *watchdog) {
		time.Sleep((stuckTicks-1)*watchdogTick + watchdogTick/2)
		<-w.beats
		time.Sleep((stuckTicks - 1) * watchdogTick)
	})
	if ended {
		t.Error("a loop that answers in time is called stuck")
	}
}

// A panic of the loop ends the process with a code that is not 0. The test runs itself.
func TestP07_panicEndsTheProcess(t *testing.T) {
	const role = "SVCCTL_TEST_PANIC"
	if os.Getenv(role) == "1" {
		r := newRig(t)
		r.host()
		r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
		r.kernel.Inject(func(*nft.Batch) error { panic("the kernel is a teapot") })
		tasks, ctx := errgroup.WithContext(context.Background())
		host := make(chan []checkup.Finding, 1)
		host <- nil
		tasks.Go(func() error { return r.run(ctx, inputs{host: host}) })
		tasks.Go(func() error { <-ctx.Done(); return nil })
		_ = tasks.Wait()
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestP07_panicEndsTheProcess$")
	cmd.Env = append(os.Environ(), role+"=1")
	done := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer done.Stop()
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() <= 0 || !strings.Contains(string(out), "the kernel is a teapot") {
		t.Errorf("after a panic: %v\n%s", err, out)
	}
}

// What changes on the host is told, as warnings, and when it is over.
func TestK21_changesOfTheHostAreTold(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.loop.host = []checkup.Finding{checkup.Fault("forwarding", "the box does not forward", "let it")}
	r.step()
	s := r.state.Status()
	if len(s.Problems) != 1 || s.Errors() != 0 || s.Problems[0].Message != "the box does not forward: let it" || !s.Synced {
		t.Errorf("problems %v, synced %v", s.Problems, s.Synced)
	}
	r.loop.host = nil
	r.step()
	if len(r.state.Status().Problems) != 0 || !strings.Contains(r.logged.String(), `msg="problem is over"`) {
		t.Errorf("problems %v", r.state.Status().Problems)
	}
}

// Planning many Services is not standing still: the watchdog sees each of them.
func TestProgress(t *testing.T) {
	r := newRig(t)
	r.host()
	var planned atomic.Int64 // on all CPUs
	r.planner.progress = func() { planned.Add(1) }
	for i := range 50 {
		name := fmt.Sprintf("web%d", i)
		r.write(name+".yaml", web(name, fmt.Sprintf("10.96.1.%d", i+1), "10.1.2.3"))
	}
	r.step()
	if planned := planned.Load(); planned < 50 {
		t.Errorf("planning 50 Services is %d steps", planned)
	}
}
