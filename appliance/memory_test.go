package appliance

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestAllowance(t *testing.T) {
	for _, test := range []struct {
		allowance
		live uint64
		want int
	}{
		{starting, 12 << 20, 100}, {starting, 64 << 20, 75}, {starting, 200 << 20, 35},
		{steady, 0, 100}, {steady, 12 << 20, 100}, {steady, 48 << 20, 50}, {steady, 96 << 20, 25}, {steady, 1 << 30, 25},
	} {
		if got := test.percent(test.live); got != test.want {
			t.Errorf("%+v with %d MiB in use: %d %%, want %d", test.allowance, test.live>>20, got, test.want)
		}
	}
}

// What is allowed follows what is in use: it is looked at after each collection.
func TestAllowanceFollowsCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	m := newMemory()
	m.allowed = allowance{0, 77, 77}
	m.follow()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		runtime.GC()
		m.mu.Lock()
		now := m.now
		m.mu.Unlock()
		if now == 77 {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatalf("%d %% are in force", now)
		}
	}
	m.mu.Lock()
	m.allowed, m.now = allowance{0, 100, 100}, 100
	m.mu.Unlock()
}
