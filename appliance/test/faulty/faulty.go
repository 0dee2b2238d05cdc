package faulty

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"svcctl.io/svcctl/store/engine"
)

// Fault is a way in which a commit of a Memory fails.
type Fault int

const (
	// NoFault means that the commit succeeds.
	NoFault Fault = iota
	// Refuse fails the commit and changes nothing; later ones may succeed.
	Refuse
	// Full fails the commit with engine.ErrNoSpace.
	Full
	// Fail fails the commit with an engine.DiskError.
	Fail
	// CrashBefore is a crash before anything is written.
	CrashBefore
	// CrashAfter is a crash after everything is written and before the call returns.
	CrashAfter
)

// ErrInjected is returned by a commit that meets a Fault.
var ErrInjected = errors.New("injected fault")

// Memory is an engine.Memory whose commits can fail, and are counted. The zero value is not usable; see NewMemory.
type Memory struct {
	*engine.Memory

	mu      sync.Mutex
	inject  func(engine.Transaction) Fault
	dead    error
	commits int
}

// NewMemory returns an empty engine that does not fail.
func NewMemory() *Memory { return &Memory{Memory: engine.NewMemory()} }

// Inject sets the function that chooses the Fault of every later commit; nil means none.
func (m *Memory) Inject(fault func(engine.Transaction) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inject = fault
}

// Tamper changes the pairs while a Store has the engine open.
func (m *Memory) Tamper(change func(pairs map[string]engine.Pair)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.pairs()
	now := maps.Clone(before)
	change(now)
	var t engine.Transaction
	for key := range before {
		if _, still := now[key]; !still {
			t.Deletes = append(t.Deletes, key)
		}
	}
	t.Puts = slices.Collect(maps.Values(now))
	m.commit(t)
}

// Reopen returns an engine with the committed pairs, as a new process would find them after a crash. Commits of the old engine fail from
// now on.
func (m *Memory) Reopen() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = engine.ErrClosed
	next := NewMemory()
	next.commit(engine.Transaction{Puts: slices.Collect(maps.Values(m.pairs()))})
	return next
}

// Commits returns the number of successful commits.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Commit implements engine.Engine.
func (m *Memory) Commit(t engine.Transaction) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead != nil {
		return m.dead
	}
	fault := NoFault
	if m.inject != nil {
		fault = m.inject(t)
	}
	switch fault {
	case Refuse:
		return ErrInjected
	case Full:
		return engine.ErrNoSpace
	case Fail:
		return &engine.DiskError{Err: ErrInjected}
	case CrashBefore:
		m.dead = ErrInjected
		return ErrInjected
	}
	if err := m.Memory.Commit(t); err != nil {
		return err
	}
	m.commits++
	if fault == CrashAfter {
		m.dead = ErrInjected
	}
	return m.dead
}

// Alone returns the engine as that of a fleet with no other machine (engine.Alone).
func (m *Memory) Alone() engine.Shared { return alone{engine.Alone{Memory: m.Memory}, m} }

type alone struct {
	engine.Alone
	of *Memory
}

// Commit implements engine.Engine.
func (a alone) Commit(t engine.Transaction) error { return a.of.Commit(t) }

// pairs returns all pairs by key.
func (m *Memory) pairs() map[string]engine.Pair {
	all, _ := m.Load("") // memory has no errors
	pairs := make(map[string]engine.Pair, len(all))
	for _, p := range all {
		pairs[p.Key] = p
	}
	return pairs
}

// commit commits pairs that no head is compared with.
func (m *Memory) commit(t engine.Transaction) {
	if err := m.Memory.Commit(t); err != nil {
		panic(err)
	}
}
