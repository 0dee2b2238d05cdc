package relay

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// quota counts the slots in use, of one port or of all ports together.
type quota struct {
	limit  int64
	parent *quota // of all ports together; nil: this is it
	used   atomic.Int64
	taken  atomic.Int64 // so far
}

// acquire takes a slot of a port, to be returned by release. It returns false if the port has as many
// as it may have, or as many as are left for all: so one port alone may have half of all slots, two a third
// each, and there is room for one that had none (dynamic thresholds, Choudhury and Hahne 1998, alpha 1).
func (q *quota) acquire() bool {
	had := q.used.Add(1) - 1
	all := q.parent.used.Add(1) - 1
	if had >= q.limit || had >= q.parent.limit-all {
		q.release()
		return false
	}
	q.taken.Add(1)
	q.parent.taken.Add(1)
	return true
}

// take takes a slot whatever the limits, for what exists already.
func (q *quota) take() {
	q.used.Add(1)
	q.parent.used.Add(1)
}

func (q *quota) release() {
	q.used.Add(-1)
	q.parent.used.Add(-1)
}

// quotas has the quotas that ports share.
type quotas struct {
	limits   *limits
	tcp, udp bothQuotas
}

type bothQuotas struct{ loopback, redirected quota }

func newQuotas(l *limits) *quotas {
	q := &quotas{limits: l}
	q.tcp.loopback.limit, q.tcp.redirected.limit = l.tcp.loopback.total, l.tcp.redirected.total
	q.udp.loopback.limit, q.udp.redirected.limit = l.udp.loopback.total, l.udp.redirected.total
	return q
}

// of returns the quota of a new Port.
func (q *quotas) of(p Port) *quota {
	limit, of := &q.limits.tcp, &q.tcp
	if p.Protocol == UDP {
		limit, of = &q.limits.udp, &q.udp
	}
	if p.redirected() {
		return &quota{limit: limit.redirected.port, parent: &of.redirected}
	}
	return &quota{limit: limit.loopback.port, parent: &of.loopback}
}

// Overloaded is a Port that has refused clients within the last minute or two, because a limit was
// reached.
type Overloaded struct {
	ID, Protocol string
	Redirected   bool  // else a node port on loopback
	Looped       bool  // clients came without a hop left: see hopsLeft; else there were too many
	Limit        int64 // of all ports of the kind together
}

// overload keeps the ports that refuse clients. It has a timer only while there are any.
type overload struct {
	log     *slog.Logger
	every   time.Duration // the time for which a port stays in the list after the last client that it refused
	changed chan struct{} // capacity 1: the list has changed

	mu    sync.Mutex
	ports map[Overloaded]*turnedAway
	timer *time.Timer
	total [2]int64 // TCP, UDP: turned away so far
}

// turnedAway counts the clients that a port refused.
type turnedAway struct {
	times  int // since the last look
	logged logLimiter
}

func newOverload(log *slog.Logger, every time.Duration) *overload {
	return &overload{log: log, every: every, changed: make(chan struct{}, 1), ports: map[Overloaded]*turnedAway{}}
}

// turnAway counts a client that was refused for a limit, and logs it at most once per interval.
func (c *overload) turnAway(p Port, q *quota, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total[0]++; p.Protocol == UDP {
		c.total[0]--
		c.total[1]++
	}
	if times, due := c.note(Overloaded{p.ID, p.Protocol, p.redirected(), false, q.parent.limit}); due {
		c.log.Warn(what+": there are too many at once", "svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(),
			"protocol", p.Protocol, "times", times, "ofThisPort", q.used.Load(), "ofAllPorts", q.parent.used.Load(), "limitOfAllPorts", q.parent.limit)
	}
}

// looped counts a client that came without a hop left, and logs it at most once per interval.
func (c *overload) looped(p Port, q *quota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if times, due := c.note(Overloaded{p.ID, p.Protocol, p.redirected(), true, q.parent.limit}); due {
		c.log.Warn("clients of a relayed port are refused: they came without a hop left", "svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol, "times", times)
	}
}

// note keeps a port that refuses a client, and reports whether to log it. The caller holds the lock.
func (c *overload) note(who Overloaded) (times int, due bool) {
	t := c.ports[who]
	if t == nil {
		t = &turnedAway{logged: logLimiter{every: c.every}}
		c.ports[who] = t
		c.signal()
		if c.timer == nil {
			c.timer = time.AfterFunc(c.every, c.look)
		}
	}
	t.times++
	return t.logged.due()
}

// forget counts a client of UDP that lost its flow with nothing under way.
func (c *overload) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total[1]++
}

// look forgets the ports that have refused no client since the last look.
func (c *overload) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.ports)
	maps.DeleteFunc(c.ports, func(_ Overloaded, t *turnedAway) bool { return t.times == 0 })
	for _, t := range c.ports {
		t.times = 0
	}
	if len(c.ports) < before {
		c.signal()
	}
	if c.timer = nil; len(c.ports) > 0 {
		c.timer = time.AfterFunc(c.every, c.look)
	}
}

func (c *overload) signal() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// list returns the ports, sorted.
func (c *overload) list() []Overloaded {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.ports), func(a, b Overloaded) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Protocol, b.Protocol))
	})
}

func (c *overload) counts() (tcp, udp int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total[0], c.total[1]
}

func (c *overload) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
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
