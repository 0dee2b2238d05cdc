package relay

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
)

// arriving makes ports. It has the state of the program before, until a port takes it.
type arriving struct {
	shared *shared

	mu             sync.Mutex
	sockets        map[socketKey]*os.File
	ports          map[key]*HeldPort
	tcp            map[key]*tcpPort // of ports, with connections that go on already
	closeUnclaimed bool             // the rest is closed
}

// adopt takes what the program before has left, before Run. Its connections go on at once.
func (a *arriving) adopt(s *State) {
	for _, l := range s.Listeners {
		a.sockets[socketKey{l.Protocol, l.At}] = os.NewFile(uintptr(l.FD), "")
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		k := key{p.ID, p.Protocol, p.Listen, p.Via}
		if have := a.ports[k]; have != nil { // of a port that had gone and come again
			have.Connections = append(have.Connections, p.Connections...)
			have.Flows = append(have.Flows, p.Flows...)
			continue
		}
		a.ports[k] = p
	}
	for k, held := range a.ports {
		if held.Protocol == TCP {
			a.tcp[k] = a.resume(held)
		}
	}
}

// takeSocket takes a listening socket that was kept, before Run.
func (a *arriving) takeSocket(f *os.File) error {
	var at net.Addr
	l, err := net.FileListener(f)
	if err == nil {
		at = l.Addr()
		err = l.Close()
	} else if c, other := net.FilePacketConn(f); other == nil {
		at = c.LocalAddr()
		err = c.Close()
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	key := socketKey{TCP, netip.AddrPort{}}
	switch at := at.(type) {
	case *net.TCPAddr:
		key.at = at.AddrPort()
	case *net.UDPAddr:
		key = socketKey{UDP, at.AddrPort()}
	}
	if before := a.sockets[key]; before != nil {
		return f.Close() // the same one came another way
	}
	a.sockets[key] = f
	return nil
}

// socket takes a listening socket; nil: there is none.
func (a *arriving) socket(key socketKey) *os.File {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.sockets[key]
	delete(a.sockets, key)
	return f
}

// resume has the connections of a port go on. Those without an endpoint wait until the port has some.
func (a *arriving) resume(held *HeldPort) *tcpPort {
	p := Port{ID: held.ID, Protocol: TCP, Listen: held.Listen, via: held.Via}
	if held.Redirected {
		p.Frontends = []netip.AddrPort{}
	}
	t := a.shared.newTCPPort(p)
	t.gone = true
	t.endpoints.restore(held)
	var waiting []HeldConnection
	for _, c := range held.Connections {
		if c.Endpoint == 0 {
			waiting = append(waiting, c)
			continue
		}
		t.quota.force()
		a.shared.clients.Go(func() {
			defer t.quota.release()
			if relayed := relayedOf(c, a.shared.pump); relayed != nil {
				t.endpoints.goesOn(c.To)
				t.run(a.shared.ctx, relayed)
			}
		})
	}
	held.Connections = waiting
	return t
}

// relayedOf is a connection of the program before; nil: it ended meanwhile.
func relayedOf(held HeldConnection, u *pump) *relayed {
	client, endpoint := tcpOf(held.Client), tcpOf(held.Endpoint)
	if client == nil || endpoint == nil {
		for _, c := range []*net.TCPConn{client, endpoint} {
			if c != nil {
				reset(c)
			}
		}
		return nil
	}
	c, err := newRelayed(u, client, endpoint, held.To)
	if err != nil {
		return nil
	}
	c.there.held, c.there.ended, c.there.done = held.There.Rest, held.There.Ended, held.There.Done
	c.back.held, c.back.ended, c.back.done = held.Back.Rest, held.Back.Ended, held.Back.Done
	return c
}

// tcpOf is the connection of a descriptor, which it closes; nil: it is none any more.
func tcpOf(fd int) *net.TCPConn {
	f := os.NewFile(uintptr(fd), "")
	if f == nil {
		return nil
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	conn, _ := c.(*net.TCPConn)
	return conn
}

// portOf is a Port with the connections that the program before had of it.
func (a *arriving) portOf(p Port) *tcpPort {
	k := p.key()
	a.mu.Lock()
	t, held := a.tcp[k], a.ports[k]
	delete(a.tcp, k)
	delete(a.ports, k)
	a.mu.Unlock()
	if t == nil {
		t = a.shared.newTCPPort(p)
		t.names = a.portsNamed(nil, p)
		if held != nil {
			t.endpoints.restore(held)
		}
		return t
	}
	a.update(t, p)
	for _, c := range held.Connections {
		switch client := tcpOf(c.Client); {
		case client == nil || client.RemoteAddr() == nil: // it has gone
		case c.From.IsValid():
			t.admit(client, func() { t.serveFrom(a.shared.ctx, client, c.There.Rest, c.From, c.Asked) })
		default:
			t.accepted(a.shared.ctx, client, c.Asked)
		}
	}
	return t
}

// update replaces what a port leads to.
func (a *arriving) update(t *tcpPort, p Port) { t.update(p, a.portsNamed(t.serverNames(), p)) }

// portsNamed gives the ports of the server names of p. Those that are there already keep their connections.
func (a *arriving) portsNamed(have map[string]*tcpPort, p Port) map[string]*tcpPort {
	if len(p.Names) == 0 {
		return nil
	}
	names := make(map[string]*tcpPort, len(p.Names))
	for _, n := range p.Names {
		n.Port.Listen, n.Port.Frontends, n.Port.via = p.Listen, p.Frontends, p.ID+" "+n.ServerName
		n.Port.Logged = p.Logged
		sub := have[n.ServerName]
		if sub == nil || sub.port.ID != n.Port.ID {
			sub = a.portOf(n.Port)
		} else {
			a.update(sub, n.Port)
		}
		names[n.ServerName] = sub
	}
	return names
}

// flowsOf has a port of UDP go on with the clients that the program before had of it.
func (a *arriving) flowsOf(l *udpListener, u *udpPort) {
	k := u.port.key()
	a.mu.Lock()
	held := a.ports[k]
	delete(a.ports, k)
	a.mu.Unlock()
	if held == nil {
		return
	}
	u.endpoints.restore(held)
	for _, h := range held.Flows {
		f := os.NewFile(uintptr(h.FD), "")
		if f == nil {
			continue
		}
		if c, err := net.FileConn(f); err == nil {
			if socket, is := c.(*net.UDPConn); is && u.port.keeps(h.Endpoint) {
				l.goOn(u, h, socket)
			} else {
				_ = c.Close()
			}
		}
		_ = f.Close()
	}
}

// closeRest closes the sockets and connections that no Port has taken, after Settle. Connections of
// unknown ports go on.
func (a *arriving) closeRest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closeUnclaimed {
		return
	}
	for key, f := range a.sockets {
		_ = f.Close()
		a.shared.forget(key)
	}
	for held := range maps.Values(a.ports) {
		for _, c := range held.Connections {
			if client := tcpOf(c.Client); client != nil {
				reset(client)
			}
		}
		for _, f := range held.Flows {
			_ = syscall.Close(f.FD)
		}
	}
	clear(a.sockets)
	clear(a.ports)
	clear(a.tcp)
}

// restore restores the next endpoint in turn and the endpoints that clients keep.
func (c *balancer) restore(held *HeldPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = held.Turn
	c.credit(held.Owed)
	if len(held.Clients) == 0 {
		return
	}
	c.clients = map[netip.Addr]affinityEntry{}
	for _, h := range held.Clients {
		c.clients[h.Client] = affinityEntry{h.Endpoint, h.Until}
	}
}
