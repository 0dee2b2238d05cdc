package relay

import (
	"sync"
	"time"
)

const (
	// vainShare bounds the attempts beside others that were in vain, in parts of the connections: endpoints that are all slow
	// would get every connection twice.
	vainShare = 0.2
	// vainBurst is the number of those that are made before connections have earned them.
	vainBurst = 20
)

// hedge decides when a connection to an endpoint that has not accepted yet gets an attempt at another one beside it. The
// zero value knows no connects.
type hedge struct {
	mu   sync.Mutex
	mean time.Duration // of connects, the newest ones with the most weight
	vain float64       // attempts in vain, less what connections have earned
}

// begin counts a connection, and returns after what time without an answer another attempt begins, at least the time least.
func (h *hedge) begin(least time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vain = max(h.vain-vainShare, 0)
	return max(least, 2*h.mean)
}

// may reports whether another attempt may be in vain.
func (h *hedge) may() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vain < vainBurst
}

// took notes the duration of a connect, and how many attempts beside it were in vain.
func (h *hedge) took(d time.Duration, vain int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.vain += float64(vain); h.mean == 0 {
		h.mean = d
		return
	}
	h.mean += (d - h.mean) / 8
}
