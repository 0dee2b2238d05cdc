package simulate

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// errDead is the answer of everything outside of a process that was killed.
var errDead = errors.New("the process was killed")

// kernelFault is a fault of one call.
type kernelFault string

// tables is the kernel: a fake with faults, and checks at each commit. It outlives processes.
type tables struct {
	fake *fake.Kernel

	mu       sync.Mutex
	faults   map[int]kernelFault // by the number of the commit
	readings map[int]bool        // that fail, by their number
	commits  int                 // calls
	reads    int
	doubts   int      // reasons to read the tables: starts, faults, foreign changes
	wrong    []string // violated invariants
}

func newTables() *tables {
	return &tables{fake: fake.New(), faults: map[int]kernelFault{}, readings: map[int]bool{}}
}

// fault has the nth commit from now on fail.
func (t *tables) fault(how kernelFault, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if how == "unreadable" {
		t.readings[t.reads+n] = true
		return
	}
	t.faults[t.commits+n] = how
}

// calm ends all faults.
func (t *tables) calm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults, t.readings = map[int]kernelFault{}, map[int]bool{}
}

// violated notes a violated invariant.
func (t *tables) violated(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
}

// process is the kernel as one process has it: reconcile.Kernel.
type process struct {
	*tables
	life *life
}

func (p process) Read() (nft.Ruleset, uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.dead.Load() {
		return nil, 0, errDead
	}
	p.reads++
	if p.readings[p.reads] {
		p.doubts++
		return nil, 0, fmt.Errorf("read the tables: %w", unix.ENOBUFS)
	}
	return p.fake.Read()
}

func (p process) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.dead.Load() {
		return generation, errDead
	}
	p.commits++
	fault := p.faults[p.commits]
	if fault != "" {
		p.doubts++
	}
	if generation == 0 {
		p.wrong = append(p.wrong, "a commit without a generation")
	}
	before, _, _ := p.fake.Read()
	switch fault {
	case "refused":
		return generation, &kernel.OpError{Op: 0, Text: "injected", Errno: unix.ENOMEM}
	case "stale":
		return generation, kernel.ErrStale
	case "lost": // nothing was done, and the answer is lost
		return generation, kernel.ErrOutcomeUnknown
	case "before":
		p.life.kill()
		return generation, errDead
	}
	next, err := p.fake.Commit(b, generation)
	if err == nil && len(b.Ops) > 0 && !forgets(b) {
		if after, _, _ := p.fake.Read(); reflect.DeepEqual(before, after) {
			p.wrong = append(p.wrong, fmt.Sprintf("a commit of %d operations changes nothing", len(b.Ops)))
		}
	}
	switch {
	case err != nil:
		p.doubts++
		return next, err
	case fault == "unknown":
		return generation, kernel.ErrOutcomeUnknown
	case fault == "after":
		p.life.kill()
		return generation, errDead
	}
	return next, nil
}

// forgets reports whether a batch removes data of rules, which the fake does not have.
func forgets(b *nft.Batch) bool {
	return slices.ContainsFunc(b.Ops, func(op nft.Op) bool {
		switch op.(type) {
		case nft.ForgetData, nft.CapTimeouts:
			return true
		}
		return false
	})
}

func (p process) Check(b *nft.Batch, generation uint32) error {
	if p.life.dead.Load() {
		return errDead
	}
	return p.fake.Check(b, generation)
}

func (p process) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	if p.life.dead.Load() {
		return generation, errDead
	}
	return p.fake.Forget(f, generation)
}

// foreign is a change by another program.
func (t *tables) foreign(what string) {
	t.mu.Lock()
	t.doubts++
	t.mu.Unlock()
	t.fake.Tamper(func(rs nft.Ruleset) {
		switch what {
		case "flush":
			clear(rs)
		case "chain": // rules of a base chain are gone
			for _, table := range rs {
				for _, name := range slices.Sorted(maps.Keys(table.Chains)) {
					if chain := *table.Chains[name]; len(chain.Rules) > 0 {
						chain.Rules, chain.Marks = chain.Rules[1:], nil
						table.Chains[name] = &chain
						return
					}
				}
			}
		case "elements": // a map loses its elements
			for _, table := range rs {
				for _, name := range slices.Sorted(maps.Keys(table.Sets)) {
					if set := table.Sets[name]; len(set.Elements) > 0 {
						set.Elements = nft.Elements{}
						return
					}
				}
			}
		}
	})
}
