package api

import (
	"net"
	"net/http"
	"testing"
)

// from is a connection from an address.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }
func (f from) Close() error         { return nil }

// A busy address leaves room for others, and what it holds idle goes for its own.
func TestConnectionsOfOneAddress(t *testing.T) {
	l := newLimitListener(nil, 8)
	next := 0
	dial := func(ip string) net.Conn {
		next++
		return &from{addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: next}}
	}
	busy := func(ip string) (net.Conn, bool) {
		conn := dial(ip)
		_, ok := l.admit(conn)
		l.state(conn, http.StateActive)
		return conn, ok
	}
	idle := dial("192.0.2.1")
	l.admit(idle)
	var first net.Conn
	for i := range 6 { // three quarters of 8
		conn, ok := busy("2001:db8::1")
		if !ok {
			t.Fatalf("connection %d is refused", i)
		}
		if first == nil {
			first = conn
		}
	}
	for _, ip := range []string{"2001:db8::1", "2001:db8::2"} { // a host has a whole segment
		if evicted, ok := l.admit(dial(ip)); ok || evicted != nil {
			t.Errorf("another one from %s is let in for %v", ip, evicted)
		}
	}
	if _, ok := busy("192.0.2.1"); !ok {
		t.Error("somebody else is refused")
	}
	// There is no room at all now: who waits has to go.
	if evicted, ok := l.admit(dial("192.0.2.2")); !ok || evicted != idle {
		t.Errorf("%v had to go, %v", evicted, ok)
	}
	// One of its own that waits goes for another one.
	l.state(first, http.StateIdle)
	if evicted, ok := l.admit(dial("2001:db8::1")); !ok || evicted != first {
		t.Errorf("%v had to go, %v", evicted, ok)
	}
	for conn := range l.open {
		l.state(conn, http.StateClosed)
	}
	if len(l.peers) != 0 || l.waiting.Len() != 0 {
		t.Errorf("left: %v, %d wait", l.peers, l.waiting.Len())
	}
}

// Over a unix socket all come from one host.
func TestConnectionsOverAUnixSocket(t *testing.T) {
	l := newLimitListener(nil, 8)
	for i := range 8 {
		conn := &from{addr: &net.UnixAddr{}}
		if _, ok := l.admit(conn); !ok {
			t.Errorf("connection %d is refused", i)
		}
		l.state(conn, http.StateActive)
	}
}
