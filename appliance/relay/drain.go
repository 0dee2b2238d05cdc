package relay

import (
	"context"
	"sync"
	"time"
)

// draining counts the connections of clients that cannot be handed over, with TLS or HTTP, by group: a Drain waits for
// the connections that began before it, and not for later ones.
type draining struct {
	mu  sync.Mutex
	now *drainGroup
}

type drainGroup struct {
	open int
	left bool          // another one has begun
	over chan struct{} // closed when none is open any more and none will be
}

func newDraining() draining { return draining{now: &drainGroup{over: make(chan struct{})}} }

// begin counts a connection until end is called.
func (d *draining) begin() (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.now
	c.open++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		c.open--
		c.closeIfOver()
	}
}

func (c *drainGroup) closeIfOver() {
	if c.left && c.open == 0 {
		close(c.over)
	}
}

// next begins another group, and returns the number of connections of the one before, and a channel that is closed
// at their end.
func (d *draining) next() (open int, over <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.now
	d.now = &drainGroup{over: make(chan struct{})}
	c.left = true
	c.closeIfOver()
	return c.open, c.over
}

// Drain is for a hand-over to come. It has clients of HTTP make another connection for their next request (Connection:
// close, GOAWAY), and waits until all connections have ended that cannot be handed over and are open now, or ctx is
// done. All clients are served meanwhile, new ones too.
func (r *Relay) Drain(ctx context.Context) {
	open, over := r.draining.next()
	if open > 0 {
		r.log.Info("waiting for connections with TLS or HTTP to end before the hand-over", "connections", open)
	}
	go r.http.Drain(ctx)
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// drainLast stops accepting clients, and waits a little for connections that cannot be handed over.
func (r *Relay) drainLast(open map[key]listener) {
	for _, l := range open {
		if tcp, is := l.(*loopbackTCP); is {
			tcp.socket.pause()
		}
	}
	r.fronts.pauseTCP()
	_, over := r.draining.next()
	timer := time.NewTimer(r.limits.lastDrain)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	}
}

// pauseTCP has the listeners for TCP accept no more, and leaves them open.
func (f *fronts) pauseTCP() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, front := range f.open {
		if front.udp == nil {
			front.socket.pause()
		}
	}
}
