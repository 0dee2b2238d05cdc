package appliance

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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

// TestStartCollectsLater begins a start: garbage is first collected at startRoom, and each collection sets GOGC by what is in use, until the
// start is over.
func TestStartCollectsLater(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("the environment sets GOGC")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	percent := func() int {
		is := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(is)
		return int(is[0].Value.Uint64())
	}
	// A collection that ends while collectLater takes its room has a goal of more than 1 GiB if 8 MiB are in use. From there on the runtime has huge
	// pages for its metadata (minHeapForMetadataHugePages).
	runtime.GC()
	collectLater()
	if goal := percent() * 4 << 20 / 100; goal != startRoom {
		t.Errorf("the start collects at %d", goal)
	}
	if huge := hugePages(t); !huge {
		t.Error("no part of the heap may have huge pages")
	}
	for tries := 1; ; tries++ { // the heap may grow between the two calls, by a part that may have huge pages
		freeMemory()
		if !hugePages(t) {
			break
		}
		if tries == 10 {
			t.Fatal("after the start a part of the heap may have huge pages")
		}
	}
	for percent() > 400 {
		runtime.GC()
	}
	if got := percent(); got != 400 {
		t.Errorf("GOGC is %d with little in use", got)
	}
	for _, of := range []struct{ inUse, least, most int }{{60 << 20, 90, 110}, {125 << 20, 25, 35}, {220 << 20, 100, 100}} {
		much := make([]byte, of.inUse)
		for got := percent(); got < of.least || got > of.most; got = percent() {
			runtime.GC()
		}
		runtime.KeepAlive(much)
	}
	much := make([]byte, 220<<20)
	runtime.GC()
	collectSteadily()
	if got := percent(); got != 25 {
		t.Errorf("GOGC is %d after the start, with much in use", got)
	}
	runtime.KeepAlive(much)
	runtime.GC()
	collectOften() // as one that was under way
	if got := percent(); got != 25 {
		t.Errorf("GOGC is %d after a collection after the start", got)
	}
}

// hugePages reports whether the kernel may give this process huge pages on request.
func hugePages(t *testing.T) bool {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("the kernel has no huge pages")
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^VmFlags:.* hg\b`).Match(maps)
}
