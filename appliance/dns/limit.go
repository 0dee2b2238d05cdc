package dns

import (
	"hash/maphash"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// The rate of answers over UDP for each network of clients: an attacker that forges a client's
// address gets no more than this sent there. Networks are those that BIND's response rate limiting
// counts by.
const (
	answersPerSecond = 1000
	answersAtOnce    = 2000
	network4         = 24
	network6         = 56
)

// buckets is the number of token buckets, a power of two: 128 KiB for any number of
// clients. Networks in the same bucket share its rate; the hash is unpredictable.
const buckets = 1 << 14

// limiter is a token bucket for each network. A bucket holds the time, on the Server's
// clock, at which its answers so far would have been due (the virtual scheduling of ITU-T
// I.371): a single number, which needs no lock.
type limiter struct {
	seed maphash.Seed
	due  [buckets]atomic.Int64 // in nanoseconds
}

func newLimiter() *limiter { return &limiter{seed: maphash.MakeSeed()} }

// allow reports whether another answer may be sent to a client now, and counts it.
func (l *limiter) allow(client netip.Addr, now time.Duration) bool {
	bits := network4
	if client.Is6() {
		bits = network6
	}
	network, _ := client.Prefix(bits) // an address is not shorter than that
	bucket := &l.due[maphash.Comparable(l.seed, network)%buckets]
	const gap = int64(time.Second) / answersPerSecond
	for {
		old := bucket.Load()
		due := max(old, int64(now)) + gap
		if due-int64(now) > answersAtOnce*gap {
			return false
		}
		if bucket.CompareAndSwap(old, due) {
			return true
		}
	}
}

// How many TCP connections are open at a time, together and from one client.
const (
	maxConnections     = 256
	maxConnectionsEach = 32
)

// gate is a listener that closes connections beyond a limit at once.
type gate struct {
	net.Listener

	mu   sync.Mutex
	open map[netip.Addr]int
	all  int
}

func newGate(l net.Listener) *gate { return &gate{Listener: l, open: map[netip.Addr]int{}} }

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client, _ := addressOf(conn.RemoteAddr())
		if g.enter(client) {
			return &gatedConn{Conn: conn, leave: sync.OnceFunc(func() { g.leave(client) })}, nil
		}
		_ = conn.Close() // the client sees that
	}
}

func (g *gate) enter(client netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= maxConnections || g.open[client] >= maxConnectionsEach {
		return false
	}
	g.all++
	g.open[client]++
	return true
}

func (g *gate) leave(client netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.open[client]--; g.open[client] == 0 {
		delete(g.open, client)
	}
}

type gatedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
