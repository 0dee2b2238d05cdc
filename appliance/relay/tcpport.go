package relay

import (
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// tcpPort is a TCP Port and its connections.
type tcpPort struct {
	shared    *shared
	log       *slog.Logger
	endpoints *balancer
	quota     *quota
	hedge     hedge

	failedConnects atomic.Int64

	mu    sync.Mutex
	port  Port
	gone  bool // nothing leads here; connections live on
	conns map[*relayed]struct{}
	names map[string]*tcpPort // by server name; nil: the port has none
}

// newTCPPort returns a port without server names.
func (s *shared) newTCPPort(p Port) *tcpPort {
	return &tcpPort{
		shared: s, log: s.logOf(p), port: p,
		endpoints: newBalancer(p, s.limits.clients, s.open), quota: s.quotas.of(p),
		conns: map[*relayed]struct{}{},
	}
}

// current is the Port as it is now.
func (t *tcpPort) current() Port {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.port
}

// begin notes a connection, and ends it if its endpoint went while it was made.
func (t *tcpPort) begin(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	if t.port.Logged {
		t.note(c)
	}
	if t.port.IdleTimeout > 0 {
		t.watchIdle(c, t.port.IdleTimeout)
	}
	t.judge(c)
}

// note has EndpointsOf know a connection. The caller holds the lock.
func (t *tcpPort) note(c *relayed) {
	client, is := c.client.RemoteAddr().(*net.TCPAddr)
	listener, bound := c.client.LocalAddr().(*net.TCPAddr)
	if !is || !bound { // it has gone
		return
	}
	c.late = &lateKey{TCP, unmapped(client.AddrPort()), uint16(listener.Port)}
	goesOn := false
	if c.session != nil {
		goesOn, c.session.noted = c.session.noted, true
	}
	t.shared.lately.begin(*c.late, c.to, goesOn)
}

func (t *tcpPort) end(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	t.endpoints.done(c.to)
	if c.late != nil {
		t.shared.lately.end(*c.late)
	}
	c.setStale(false)
	c.stopTimers()
}

// update replaces what the port leads to, and the ports of its server names.
func (t *tcpPort) update(p Port, names map[string]*tcpPort) {
	t.endpoints.set(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.port, t.gone = p, false
	t.setNames(names)
	for c := range t.conns {
		t.judge(c)
		if p.IdleTimeout > 0 && c.idle == nil {
			t.watchIdle(c, p.IdleTimeout)
		}
	}
}

// setNames replaces the ports by server name. Nothing leads to those that were there before and are not now. The caller
// holds the lock.
func (t *tcpPort) setNames(names map[string]*tcpPort) {
	for name, sub := range t.names {
		if names[name] != sub {
			sub.retire()
			t.failedConnects.Add(sub.failedConnects.Load()) // a count never falls
		}
	}
	t.names = names
}

// retire notes that nothing leads to the port any more.
func (t *tcpPort) retire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	t.setNames(nil)
	for c := range t.conns {
		t.judge(c)
	}
}

// leave hands over the port and those of its server names, when everything rests.
func (t *tcpPort) leave() {
	t.shared.leaving.port(t.port, t.endpoints)
	for _, named := range t.names {
		t.shared.leaving.port(named.port, named.endpoints)
	}
}

// judge decides about a connection by what has become of its endpoint. The caller holds the lock.
func (t *tcpPort) judge(c *relayed) {
	switch {
	case !t.gone && t.port.ends(c.to):
		c.reset()
	case !t.gone && t.port.keeps(c.to):
		c.stays()
		c.setStale(!slices.Contains(t.port.Endpoints, c.to))
	default:
		c.setStale(true)
		if t.port.Drain != nil && c.drain == nil {
			c.drain = time.AfterFunc(*t.port.Drain, c.reset)
		}
	}
}

// watchIdle resets a connection when nothing was received from either end for the time. Bytes are
// not counted here: the kernel knows the time of the last ones, and is asked when they could be that
// old, so a busy connection costs one look in that time. The caller holds the lock.
func (t *tcpPort) watchIdle(c *relayed, limit time.Duration) {
	c.idle = time.AfterFunc(limit, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, lives := t.conns[c]; !lives {
			return
		}
		silent := min(silence(c.client), silence(c.endpoint))
		if silent >= limit {
			c.reset()
			return
		}
		c.idle.Reset(limit - silent)
	})
}
