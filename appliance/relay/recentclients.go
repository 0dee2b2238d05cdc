package relay

import (
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxRecent bounds the clients whose connections ended and whose endpoints are still known. The kernel forgets a
	// closed connection after two minutes, and sends its event then: that is 500 connections a second.
	maxRecent = 1 << 16
	// maxEndpointsOf bounds the endpoints of one client connection, which over HTTP are several.
	maxEndpointsOf = 16
)

// recentClients has the endpoints of clients of logged ports: those of open connections, and of the last maxLately that ended.
type recentClients struct {
	mu    sync.Mutex
	of    map[recentKey]*recentClient
	ended []ending // a ring
	next  int
}

// recentKey is a client as a listener saw it. Listeners differ by port; the box's address that
// the client reached does not matter.
type recentKey struct {
	protocol string
	client   netip.AddrPort
	listener uint16
}

type recentClient struct {
	endpoints []netip.AddrPort
	open      int // connections to endpoints
}

type ending struct {
	key recentKey
	is  *recentClient
}

// begin notes a connection to an endpoint. goesOn is set when it is another one of the same client connection; otherwise the client
// is a new one, with an address that may have been another client's before.
func (l *recentClients) begin(k recentKey, endpoint netip.AddrPort, goesOn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of[k]
	if c == nil || !goesOn {
		if l.of == nil {
			l.of = map[recentKey]*recentClient{}
		}
		c = &recentClient{}
		l.of[k] = c
	}
	c.open++
	if len(c.endpoints) < maxEndpointsOf && !slices.Contains(c.endpoints, endpoint) {
		c.endpoints = append(c.endpoints, endpoint)
	}
}

// end notes that a connection of begin ended. It ignores one that was dropped.
func (l *recentClients) end(k recentKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of[k]
	if c == nil || c.open == 0 {
		return
	}
	if c.open--; c.open > 0 {
		return
	}
	e := ending{k, c}
	if len(l.ended) < maxRecent {
		l.ended = append(l.ended, e)
		return
	}
	if old := l.ended[l.next]; l.of[old.key] == old.is && old.is.open == 0 {
		delete(l.of, old.key)
	}
	l.ended[l.next] = e
	l.next = (l.next + 1) % maxRecent
}

// endpoints returns those that a client had, in the order in which it had them first; nil: it is not known.
func (l *recentClients) endpoints(k recentKey) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.of[k]; c != nil {
		return slices.Clone(c.endpoints)
	}
	return nil
}
