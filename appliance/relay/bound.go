package relay

import (
	"sync/atomic"
	"time"
)

// room bounds how many are in it at once, together with the rooms around it.
type room struct {
	limit  int64
	within *room // nil: the outermost
	taken  atomic.Int64
}

// enter takes a place, which leave gives back. False: there is none.
func (r *room) enter() bool {
	if r.taken.Add(1) > r.limit || r.within != nil && !r.within.enter() {
		r.taken.Add(-1)
		return false
	}
	return true
}

func (r *room) leave() {
	r.taken.Add(-1)
	if r.within != nil {
		r.within.leave()
	}
}

// complaint keeps what happens again and again from filling the log. It belongs to one
// goroutine.
type complaint struct {
	every time.Duration
	last  time.Time
	times int
}

// due counts one more, and reports whether it is time to log them and how many they are.
func (c *complaint) due() (times int, is bool) {
	c.times++
	if now := time.Now(); c.last.IsZero() || now.Sub(c.last) >= c.every {
		times, c.times, c.last = c.times, 0, now
		return times, true
	}
	return 0, false
}
