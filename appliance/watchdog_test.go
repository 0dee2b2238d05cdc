package appliance

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
