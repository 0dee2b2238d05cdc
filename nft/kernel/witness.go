package kernel

import (
	"sync"
	"time"
)

// witness knows the transactions that others committed, as a Watch saw them.
type witness struct {
	mu   sync.Mutex
	own  map[uint32]bool // the ports of every socket that commits
	seen map[uint32]bool // by generation: whether our tables were touched
	news chan struct{}   // closed when seen has more
}

const (
	// witnessed is how many transactions are remembered. Who asks about older ones has to
	// read, and that is no more work than so many transactions were.
	witnessed = 4096
	// hearsay is how long a notification may be under way. The kernel queues it before the
	// generation can be read; what takes time is its reader's turn.
	hearsay = 50 * time.Millisecond
)

func newWitness() *witness {
	return &witness{own: map[uint32]bool{}, seen: map[uint32]bool{}, news: make(chan struct{})}
}

// owns says that a netlink port is one of ours.
func (w *witness) owns(port uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own[port] = true
}

// isOwn tells whether a netlink port is one that this Conn commits through.
func (w *witness) isOwn(port uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.own[port]
}

// heard notes a transaction of somebody else.
func (w *witness) heard(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) >= witnessed {
		clear(w.seen)
	}
	w.seen[c.Generation] = c.Ours
	close(w.news)
	w.news = make(chan struct{})
}

// untouched tells whether every transaction behind one generation, up to another, was
// seen and left our tables alone.
func (w *witness) untouched(from, to uint32) bool {
	if to-from > witnessed {
		return false
	}
	patience := time.NewTimer(hearsay)
	defer patience.Stop()
	for {
		known, touched, news := w.between(from, to)
		if known || touched {
			return !touched
		}
		select {
		case <-news:
		case <-patience.C:
			return false
		}
	}
}

// between tells whether all transactions were seen, and whether one touched our tables.
func (w *witness) between(from, to uint32) (known, touched bool, news <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known = true
	for generation := from; generation != to; {
		generation = nextGeneration(generation)
		ours, seen := w.seen[generation]
		known, touched = known && seen, touched || ours
	}
	return known, touched, w.news
}
