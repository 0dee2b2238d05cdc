package relay

import (
	"sync/atomic"
	"time"
)

// quota bounds the number of slots in use, of its own and of its parents.
type quota struct {
	limit  int64
	parent *quota // nil: none
	used   atomic.Int64
}

// acquire takes a slot, to be returned by releaseSlot. It returns false if there is none.
func (r *quota) acquire() bool {
	if r.used.Add(1) > r.limit || r.parent != nil && !r.parent.acquire() {
		r.used.Add(-1)
		return false
	}
	return true
}

func (r *quota) releaseSlot() {
	r.used.Add(-1)
	if r.parent != nil {
		r.parent.releaseSlot()
	}
}

// logLimiter limits the rate of a log line. It is not safe for concurrent use.
type logLimiter struct {
	every time.Duration
	last  time.Time
	times int
}

// due counts an event and reports whether to log now, and the events since the last time.
func (c *logLimiter) due() (times int, is bool) {
	c.times++
	if now := time.Now(); c.last.IsZero() || now.Sub(c.last) >= c.every {
		times, c.times, c.last = c.times, 0, now
		return times, true
	}
	return 0, false
}
