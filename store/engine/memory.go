package engine

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Fault is a way in which a commit of a Memory engine fails.
type Fault int

const (
	// NoFault lets the commit succeed.
	NoFault Fault = iota
	// Refuse fails the commit and changes nothing; later ones may succeed.
	Refuse
	// Full fails the commit with ErrNoSpace.
	Full
	// Fail fails the commit with a DiskError.
	Fail
	// CrashBefore is a crash before anything is written.
	CrashBefore
	// CrashAfter is a crash after everything is written and before the call returns.
	CrashAfter
)

// ErrInjected is returned by a commit that meets a Fault.
var ErrInjected = errors.New("injected fault")

// Memory is an Engine that forgets everything with the process: for a dry run, and for
// tests, which can make it fail. The zero value is not usable; see NewMemory.
type Memory struct {
	mu      sync.Mutex
	pairs   map[string]Pair
	inject  func(Transaction) Fault
	dead    error
	commits int
}

// NewMemory is an empty engine that never fails.
func NewMemory() *Memory { return &Memory{pairs: map[string]Pair{}} }

// Inject has fault decide about every later commit; nil: none fails.
func (m *Memory) Inject(fault func(Transaction) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inject = fault
}

// Tamper lets a test change the pairs while a Store has the engine open.
func (m *Memory) Tamper(change func(pairs map[string]Pair)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m.pairs)
}

// Reopen is an engine with what a new process would find after this one died. Commits
// of the old engine fail from now on.
func (m *Memory) Reopen() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = ErrClosed
	return &Memory{pairs: maps.Clone(m.pairs)}
}

// Commits returns the number of successful commits.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Load implements Engine.
func (m *Memory) Load(prefix string) ([]Pair, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var pairs []Pair
	for _, key := range slices.Sorted(maps.Keys(m.pairs)) {
		if strings.HasPrefix(key, prefix) {
			pair := m.pairs[key]
			pair.Value = slices.Clone(pair.Value)
			pairs = append(pairs, pair)
		}
	}
	return pairs, nil
}

// Scan implements Engine.
func (m *Memory) Scan(prefix string, want func(key string, sum Sum) bool, use func([]Pair) error) error {
	pairs, err := m.Load(prefix)
	if err != nil {
		return err
	}
	return ScanPairs(pairs, want, use)
}

// Sums implements Engine.
func (m *Memory) Sums(keys []string) ([]Sum, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sums := make([]Sum, len(keys))
	for i, key := range keys {
		if pair, has := m.pairs[key]; has {
			sums[i] = SumOf(pair)
		}
	}
	return sums, nil
}

// Commit implements Engine.
func (m *Memory) Commit(t Transaction) error {
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
		return ErrNoSpace
	case Fail:
		return &DiskError{ErrInjected}
	case CrashBefore:
		m.dead = ErrInjected
		return ErrInjected
	}
	if m.pairs[t.CompareKey].Revision != t.CompareRevision {
		return ErrConflict
	}
	for _, key := range t.Deletes {
		delete(m.pairs, key)
	}
	for _, pair := range t.Puts {
		pair.Value = slices.Clone(pair.Value)
		m.pairs[pair.Key] = pair
	}
	m.commits++
	if fault == CrashAfter {
		m.dead = ErrInjected
		return ErrInjected
	}
	return nil
}

// Close implements Engine.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = ErrClosed
	return nil
}
