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

// arriving has the state of the program before, until it is taken.
type arriving struct {
	mu      sync.Mutex
	sockets map[frontKey]*os.File
	ports   map[key]*HeldPort
	tcp     map[key]*tcpPort // of ports, with connections that go on already
	settle  bool             // what is not taken by now is closed
}

// Inherit takes what the program before has left, before Run. Its connections go on at once.
func (r *Relay) Inherit(s *State) {
	a := &r.arriving
	for _, l := range s.Listeners {
		a.sockets[frontKey{l.Protocol, l.At}] = os.NewFile(uintptr(l.FD), "")
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
			a.tcp[k] = r.resume(held)
		}
	}
}

// InheritSocket takes a listening socket that was kept, before Run.
func (r *Relay) InheritSocket(f *os.File) error {
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
	key := frontKey{TCP, netip.AddrPort{}}
	switch at := at.(type) {
	case *net.TCPAddr:
		key.at = at.AddrPort()
	case *net.UDPAddr:
		key = frontKey{UDP, at.AddrPort()}
	}
	if before := r.arriving.sockets[key]; before != nil {
		return f.Close() // the same one came another way
	}
	r.arriving.sockets[key] = f
	return nil
}

// socket takes a listening socket; nil: there is none.
func (a *arriving) socket(protocol string, at netip.AddrPort) *os.File {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := frontKey{protocol, at}
	f := a.sockets[key]
	delete(a.sockets, key)
	return f
}

// resume has the connections of a port go on. Those without an endpoint wait until the port has some.
func (r *Relay) resume(held *HeldPort) *tcpPort {
	p := Port{ID: held.ID, Protocol: TCP, Listen: held.Listen, via: held.Via}
	if held.Redirected {
		p.Frontends = []netip.AddrPort{}
	}
	t := r.newTCPPort(p, r.logOf(p))
	t.gone = true
	t.endpoints.remember(held)
	var waiting []HeldConnection
	for _, c := range held.Connections {
		if c.Endpoint == 0 {
			waiting = append(waiting, c)
			continue
		}
		t.quota.take()
		r.tasks.Go(func() {
			defer t.quota.release()
			if relayed := r.relayedOf(c); relayed != nil {
				t.endpoints.goesOn(c.To)
				t.run(r.ctx, relayed)
			}
		})
	}
	held.Connections = waiting
	return t
}

// relayedOf is a connection of the program before; nil: it ended meanwhile.
func (r *Relay) relayedOf(held HeldConnection) *relayed {
	client, endpoint := tcpOf(held.Client), tcpOf(held.Endpoint)
	if client == nil || endpoint == nil {
		for _, c := range []*net.TCPConn{client, endpoint} {
			if c != nil {
				reset(c)
			}
		}
		return nil
	}
	c, err := r.newRelayed(client, endpoint, held.To)
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
func (r *Relay) portOf(p Port) *tcpPort {
	a, k := &r.arriving, p.key()
	a.mu.Lock()
	t, held := a.tcp[k], a.ports[k]
	delete(a.tcp, k)
	delete(a.ports, k)
	a.mu.Unlock()
	if t == nil {
		t = r.newTCPPort(p, r.logOf(p))
		if held != nil {
			t.endpoints.remember(held)
		}
		return t
	}
	t.update(p)
	for _, c := range held.Connections {
		client := tcpOf(c.Client)
		switch {
		case client == nil || client.RemoteAddr() == nil: // it has gone
		case c.From.IsValid():
			t.admit(client, func() { t.serveFrom(r.ctx, client, c.There.Rest, c.From, c.Asked) })
		default:
			t.accepted(r.ctx, client, c.Asked)
		}
	}
	return t
}

// flowsOf has a port of UDP go on with the clients that the program before had of it.
func (r *Relay) flowsOf(l *udpListener, u *udpPort) {
	a, k := &r.arriving, u.port.key()
	a.mu.Lock()
	held := a.ports[k]
	delete(a.ports, k)
	a.mu.Unlock()
	if held == nil {
		return
	}
	u.endpoints.remember(held)
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

// Settle closes what the program before has left and no Port has taken, soon. It is called when all
// Ports were named.
func (r *Relay) Settle() {
	r.arriving.mu.Lock()
	r.arriving.settle = true
	r.arriving.mu.Unlock()
	r.listeners.Trigger()
}

// settled closes it, if it is time. Connections that nothing leads to go on.
func (r *Relay) settled() {
	a := &r.arriving
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.settle {
		return
	}
	for key, f := range a.sockets {
		_ = f.Close()
		r.forget(key)
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

// remember takes whose turn it is and who keeps an endpoint.
func (c *balancer) remember(held *HeldPort) {
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
