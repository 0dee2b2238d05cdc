package kernel

import (
	"sync"
	"time"
)

// foreignTxLog records the transactions of other programs, as a Watch saw them.
type foreignTxLog struct {
	mu      sync.Mutex
	own     map[uint32]bool // the ports of every socket that commits
	seen    map[uint32]bool // by generation: whether our tables were touched
	updated chan struct{}   // closed when seen has more
}

const (
	// maxForeignTx bounds the transactions that are remembered. About older ones the ruleset has to
	// be read, which is no more work than so many transactions were.
	maxForeignTx = 4096
	// notifyGrace bounds the wait for a notification that is under way. The kernel queues it before
	// the generation can be read; what takes time is its reader's turn.
	notifyGrace = 50 * time.Millisecond
)

func newForeignTxLog() *foreignTxLog {
	return &foreignTxLog{own: map[uint32]bool{}, seen: map[uint32]bool{}, updated: make(chan struct{})}
}

// addOwnPort records a netlink port as one of ours.
func (l *foreignTxLog) addOwnPort(port uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.own[port] = true
}

// isOwnPort reports whether a netlink port is one that this Conn commits through.
func (l *foreignTxLog) isOwnPort(port uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own[port]
}

// record notes a foreign transaction.
func (l *foreignTxLog) record(c Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) >= maxForeignTx {
		clear(l.seen)
	}
	l.seen[c.Generation] = c.Ours
	close(l.updated)
	l.updated = make(chan struct{})
}

// ownTablesUntouched reports whether every transaction behind one generation, up to another, was
// seen and left our tables alone.
func (l *foreignTxLog) ownTablesUntouched(from, to uint32) bool {
	if to-from > maxForeignTx {
		return false
	}
	timer := time.NewTimer(notifyGrace)
	defer timer.Stop()
	for {
		known, touched, updated := l.lookup(from, to)
		if known || touched {
			return !touched
		}
		select {
		case <-updated:
		case <-timer.C:
			return false
		}
	}
}

// lookup reports whether all transactions were seen, and whether one touched our tables.
func (l *foreignTxLog) lookup(from, to uint32) (known, touched bool, updated <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known = true
	for generation := from; generation != to; {
		generation = nextGeneration(generation)
		ours, seen := l.seen[generation]
		known, touched = known && seen, touched || ours
	}
	return known, touched, l.updated
}
