package appliance

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/nft/kernel"
)

func TestK13_watchIsBegunAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var given chan kernel.Change
		broken := 0
		watch := func(context.Context) (<-chan kernel.Change, error) {
			if broken > 0 {
				broken--
				return nil, errors.New("no buffer space")
			}
			given = make(chan kernel.Change)
			return given, nil
		}
		m, err := newMonitor(ctx, watch, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		changes := m.changes
		go func() { _ = m.Run(ctx) }()
		one := kernel.Change{Generation: 1}
		given <- one
		if got := <-changes; got != one {
			t.Errorf("got %+v", got)
		}
		broken = 3
		close(given)
		began := time.Now()
		if got := <-changes; !got.Lost {
			t.Errorf("after the watch ended comes %+v, want lost changes", got)
		}
		if took := time.Since(began); took != (1+2+4+8)*monitorRetryFirst {
			t.Errorf("begun anew after %v", took)
		}
		given <- one
		if got := <-changes; got != one {
			t.Errorf("then comes %+v", got)
		}
		cancel()
		close(given)
		synctest.Wait()
	})
}

func TestK13_watchThatCannotBegin(t *testing.T) {
	_, err := newMonitor(t.Context(), func(context.Context) (<-chan kernel.Change, error) { return nil, errors.New("no") }, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Error("a watch that cannot begin is no error")
	}
}

// TestMonitorEnds has the context of the tasks end, as when another one fails, while the kernel is watched on.
func TestMonitorEnds(t *testing.T) {
	m, err := newMonitor(t.Context(), func(context.Context) (<-chan kernel.Change, error) { return make(chan kernel.Change), nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestStartCollectsLater begins a start, whose first collection of garbage sets GOGC and ends the limit.
func TestStartCollectsLater(t *testing.T) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		t.Skip("the environment sets GOGC or GOMEMLIMIT")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	collectLater()
	if limit := debug.SetMemoryLimit(-1); limit != startRoom {
		t.Errorf("the limit of the start is %d", limit)
	}
	for debug.SetMemoryLimit(-1) != math.MaxInt64 {
		runtime.GC()
	}
	beginCollecting() // after it, if it is under way
	if percent := debug.SetGCPercent(steadyGC()); percent != startGC {
		t.Errorf("GOGC is %d after the first collection", percent)
	}
}
