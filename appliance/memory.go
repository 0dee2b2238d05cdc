package appliance

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// allowance bounds the garbage before a collection: garbage bytes, but at least and at most these
// percentages of the live heap, as GOGC counts.
type allowance struct {
	garbage     uint64
	least, most int
}

// steady is for the time after a start. Go's own 100 per cent, which is in force during a start,
// would keep twice the memory. A change makes less than 0.1 MiB of garbage, and a collection
// takes some 0.7 ms for each MiB in use: at 10,000 Services some 0.2 ms of collecting a change.
var steady = allowance{24 << 20, 25, 100}

// percent returns the value of GOGC when so many bytes are in use.
func (a allowance) percent(live uint64) int {
	return int(min(max(a.garbage*100/max(live, 1), uint64(a.least)), uint64(a.most)))
}

// memory keeps the allowance as what is in use grows and shrinks.
type memory struct {
	mu      sync.Mutex
	allowed allowance
	now     int // per cent that are in force
}

// newMemory returns nil when the environment sets GOGC, which is left alone.
func newMemory() *memory {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return &memory{allowed: steady}
}

// follow adapts the percentage now and after each collection.
func (m *memory) follow() {
	m.adapt()
	collected := &memory{} // the next collection finds that nobody has it
	runtime.AddCleanup(collected, (*memory).follow, m)
}

func (m *memory) adapt() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	m.mu.Lock()
	defer m.mu.Unlock()
	// Setting it stops the world.
	if p := m.allowed.percent(live[0].Value.Uint64()); 10*p < 9*m.now || 9*p > 10*m.now {
		debug.SetGCPercent(p)
		m.now = p
	}
}

// settle gives back what the start took: reading, storing and planning everything at once
// leaves more garbage than there is in use. From here on the allowance is kept. It is called
// once everything is programmed.
func (m *memory) settle() {
	if m == nil {
		return
	}
	runtime.GC() // what sync.Pools hold goes with the second collection
	debug.FreeOSMemory()
	m.follow()
}
