package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/handover"
)

// relayed is a connection of a client and the one to its endpoint. The timers are guarded by the mutex
// of its tcpPort.
type relayed struct {
	client, endpoint *net.TCPConn
	to               netip.AddrPort
	there, back      *way         // to the endpoint, and to the client
	pausing          atomic.Bool  // it is handed over, where that can be
	ended            atomic.Int32 // directions whose source has ended
	drain            *time.Timer  // resets it; nil: its endpoint stays
	idle             *time.Timer  // nil: it may be idle
	session          *session     // of the client, which outlives the connection; nil: it does not
	stale            bool         // its endpoint gets no requests any more
	late             *lateKey     // nil: it is not logged
}

// session is what the connections to endpoints share that are made for one client of HTTP.
type session struct {
	stale atomic.Int32 // how many of them are to endpoints that get no requests any more
	noted bool         // guarded by the mutex of their tcpPort: EndpointsOf knows of it
}

func newRelayed(u *pump, client, endpoint *net.TCPConn, to netip.AddrPort) (*relayed, error) {
	there, err := u.way(endpoint, client)
	if err != nil {
		return nil, err
	}
	back, err := u.way(client, endpoint)
	return &relayed{client: client, endpoint: endpoint, to: to, there: there, back: back}, err
}

func (c *relayed) reset() {
	if c.session == nil {
		reset(c.client)
	}
	reset(c.endpoint)
}

// stays ends the time to drain.
func (c *relayed) stays() {
	if c.drain != nil {
		c.drain.Stop()
		c.drain = nil
	}
}

// setStale sets whether the next request of an HTTP client goes to another endpoint.
func (c *relayed) setStale(stale bool) {
	if c.session == nil || stale == c.stale {
		return
	}
	if c.stale = stale; stale {
		c.session.stale.Add(1)
	} else {
		c.session.stale.Add(-1)
	}
}

// stop ends it when ctx is over: by a reset, as a FIN would look like a complete transfer, or by leaving it
// as it is for the next program.
func (c *relayed) stop(ctx context.Context) {
	if !handover.IsRequested(ctx) {
		c.reset()
		return
	}
	c.pausing.Store(true)
	interrupt(c.client)
	interrupt(c.endpoint)
}

// interrupt ends all reads and writes that wait for a connection.
func interrupt(c interface{ SetDeadline(time.Time) error }) {
	_ = c.SetDeadline(longAgo) // nothing waits for a closed one
}

// longAgo is a deadline that is over.
var longAgo = time.Unix(1, 0)

func (c *relayed) stopTimers() {
	for _, timer := range []*time.Timer{c.drain, c.idle} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// join copies both directions and closes both connections. It reports whether it was interrupted
// instead, with both open.
func (c *relayed) join() (paused bool) {
	var failed atomic.Bool
	pass := func(w *way) {
		err := w.run(func() bool { return c.ended.Add(1) == 2 })
		if err == nil || c.pausing.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		failed.Store(true)
		c.reset()
	}
	var other sync.WaitGroup
	other.Go(func() { pass(c.back) })
	pass(c.there)
	other.Wait()
	if !failed.Load() && !(c.there.done && c.back.done) {
		return true
	}
	c.there.close()
	c.back.close()
	// Both directions have ended, so closing loses no data.
	_ = c.client.Close()
	_ = c.endpoint.Close()
	return false
}

// reset closes a connection with RST. On a closed connection it does nothing.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// silence asks the kernel for how long an end has sent nothing; 0 when the connection is closed.
func silence(c *net.TCPConn) (d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // of a closed connection there is nothing to know
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			d = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return d
}
