package simulate

import (
	"sync"

	"svcctl.io/svcctl/store/engine"
)

// disk is the data directory, which outlives processes.
type disk struct {
	mu      sync.Mutex
	memory  *engine.Memory
	faults  map[int]string // by the number of the commit
	commits int            // calls
}

func newDisk() *disk { return &disk{memory: engine.NewMemory(), faults: map[int]string{}} }

// fault has the nth commit from now on fail.
func (d *disk) fault(how string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[d.commits+n] = how
}

func (d *disk) calm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = map[int]string{}
}

// next counts a commit and returns its fault.
func (d *disk) next() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commits++
	return d.faults[d.commits]
}

// open returns the engine for a process.
func (d *disk) open(l *life) engine.Engine {
	d.mu.Lock()
	d.memory = d.memory.Reopen()
	memory := d.memory
	d.mu.Unlock()
	memory.Inject(func(engine.Transaction) engine.Fault {
		switch d.next() {
		case "refused":
			return engine.Refuse
		case "full":
			return engine.Full
		case "failed":
			l.broken.Store(true)
			return engine.Fail
		case "before":
			l.kill()
			return engine.CrashBefore
		case "after":
			l.kill()
			return engine.CrashAfter
		}
		return engine.NoFault
	})
	return memory
}
