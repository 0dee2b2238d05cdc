package relay

import "sync"

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
