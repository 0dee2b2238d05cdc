package relay

import (
	"crypto/tls"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/handover"
)

// waiting is how many connections the next leave will find open.
func (d *draining) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now.open
}

// A drain waits for the connections that are open then, however many come after, and each one once.
func TestDrain(t *testing.T) {
	d := newDraining()
	isOver := func(over <-chan struct{}) bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	if open, over := d.next(); open != 0 || !isOver(over) {
		t.Errorf("%d open, over: %t, and there was none", open, isOver(over))
	}
	first, second := d.begin(), d.begin()
	open, over := d.next()
	if open != 2 || isOver(over) {
		t.Errorf("%d open, over: %t, want 2", open, isOver(over))
	}
	third := d.begin()
	_, last := d.next()
	second()
	if isOver(over) {
		t.Error("over, and one is open")
	}
	first()
	if !isOver(over) || isOver(last) {
		t.Error("the first two have ended, and the third one has not")
	}
	third()
	if !isOver(last) {
		t.Error("not over, and nothing is open")
	}
}

// A hand-over waits a little for those who cannot be handed over, and serves them meanwhile.
func TestLastDrain(t *testing.T) {
	pair, roots := certificate(t, "a.example.com")
	l := quick()
	l.lastDrain = 2 * patience
	at := freePort(t, local)
	g := next(t, l, nil, Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{namedTCP(t, local, "a")}, Front: &Front{TLS: &tls.Config{Certificates: []tls.Certificate{pair}}}})
	c := dialTLS(t, at, "a.example.com", roots)
	if got := line(t, c); got != "a" || g.draining.waiting() != 1 {
		t.Fatalf("%q answers, and %d connections are to be waited for", got, g.draining.waiting())
	}
	g.cancel(handover.ErrRequested)
	eventually(t, "the last drain begins", func() bool { return g.draining.waiting() == 0 })
	for range 5 {
		say(t, c, "still here")
		time.Sleep(10 * time.Millisecond) // it would be reset
	}
	if len(g.done) > 0 {
		t.Error("nobody waits for a connection that is open")
	}
	_ = c.Close()
	eventually(t, "it comes to rest when the last one has ended", func() bool { return len(g.done) > 0 })
}
