package dns

import (
	"errors"
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

// How many TCP connections are open at a time, together and from one client: an IPv4 address, or an IPv6 network of
// clientBits, all addresses of which one host may have.
const (
	maxConnections     = 256
	maxConnectionsEach = 32
	clientBits         = 64
)

// The wait after a failure to accept, as without free descriptors (EMFILE), doubles from one to the other.
const acceptAgain, acceptAgainAtMost = 5 * time.Millisecond, time.Second

// gate is a listener that closes connections beyond a limit at once, and ends with Close alone.
type gate struct {
	net.Listener
	closed chan struct{}
	close  func() error

	mu   sync.Mutex
	open map[netip.Prefix]int
	all  int
}

func newGate(l net.Listener) *gate {
	g := &gate{Listener: l, closed: make(chan struct{}), open: map[netip.Prefix]int{}}
	g.close = sync.OnceValue(func() error { close(g.closed); return l.Close() })
	return g
}

// Close implements net.Listener.
func (g *gate) Close() error { return g.close() }

// Accept implements net.Listener. Its caller would repeat it at once after an error that may pass, and end after others.
func (g *gate) Accept() (net.Conn, error) {
	wait := acceptAgain
	for {
		conn, err := g.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			select {
			case <-g.closed:
				return nil, net.ErrClosed
			case <-time.After(wait):
			}
			wait = min(2*wait, acceptAgainAtMost)
			continue
		}
		wait = acceptAgain
		if client := clientOf(conn.RemoteAddr()); g.enter(client) {
			return &gatedConn{Conn: conn, leave: sync.OnceFunc(func() { g.leave(client) })}, nil
		}
		_ = conn.Close() // the client sees that
	}
}

// clientOf is what connections are counted by; the zero Prefix for an address of another kind.
func clientOf(remote net.Addr) netip.Prefix {
	client, _ := addressOf(remote)
	if !client.IsValid() {
		return netip.Prefix{}
	}
	bits := client.BitLen()
	if client.Is6() {
		bits = clientBits
	}
	network, _ := client.Prefix(bits) // an address is not shorter than that
	return network
}

func (g *gate) enter(client netip.Prefix) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= maxConnections || g.open[client] >= maxConnectionsEach {
		return false
	}
	g.all++
	g.open[client]++
	return true
}

func (g *gate) leave(client netip.Prefix) {
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
