package relay

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
)

// leaving collects what is handed over, while connections come to rest.
type leaving struct {
	mu    sync.Mutex
	state State
	ports map[*balancer]*leavingPort // of TCP, each by its own balancer
}

// leavingPort is a port of TCP with what it hands over.
type leavingPort struct {
	port  Port
	conns []HeldConnection
}

// of is what a port of TCP hands over. The caller holds the lock.
func (l *leaving) of(p Port, b *balancer) *leavingPort {
	have := l.ports[b]
	if have == nil {
		have = &leavingPort{port: p}
		l.ports[b] = have
	}
	return have
}

// connection takes one of a port that was paused. An error means that it cannot be handed over.
func (l *leaving) connection(p Port, b *balancer, c *relayed) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var failed [4]error
	held := HeldConnection{To: c.to}
	held.Client, failed[0] = l.state.hold(c.client)
	held.Endpoint, failed[1] = l.state.hold(c.endpoint)
	held.There, failed[2] = c.there.hold()
	held.Back, failed[3] = c.back.hold()
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	to := l.of(p, b)
	to.conns = append(to.conns, held)
	return nil
}

func (w *way) hold() (HeldWay, error) {
	rest, err := w.rest()
	return HeldWay{Ended: w.ended, Done: w.done, Rest: rest}, err
}

// unconnected takes a client of a port that has no endpoint yet; the zero from: who it is was not read yet. early was
// read from it already.
func (l *leaving) unconnected(p Port, b *balancer, client *net.TCPConn, from, asked netip.AddrPort, early []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, err := l.state.hold(client)
	if err != nil {
		reset(client)
		return
	}
	to := l.of(p, b)
	to.conns = append(to.conns, HeldConnection{Client: fd, From: from, Asked: asked, There: HeldWay{Rest: early}})
}

// port takes a port of TCP, which may have no connection.
func (l *leaving) port(p Port, b *balancer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(p, b).port = p
}

// flow takes a client of UDP, by the socket to its endpoint. An error means that it cannot be handed over.
func (l *leaving) flow(socket *net.UDPConn, client, endpoint netip.AddrPort, replied bool) (HeldFlow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, err := l.state.hold(socket)
	return HeldFlow{fd, client, endpoint, replied}, err
}

// flows takes a port of UDP with its clients.
func (l *leaving) flows(p Port, b *balancer, flows []HeldFlow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := heldPort(p, b)
	held.Flows = flows
	l.state.Ports = append(l.state.Ports, held)
}

// listener takes a listening socket.
func (l *leaving) listener(key socketKey, c syscall.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fd, err := l.state.hold(c); err == nil {
		l.state.Listeners = append(l.state.Listeners, HeldListener{key.protocol, key.at, fd})
	}
}

func heldPort(p Port, b *balancer) HeldPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := HeldPort{ID: p.ID, Protocol: p.Protocol, Listen: p.Listen, Redirected: p.redirected(), Via: p.via, Turn: b.last, Owed: b.owed()}
	for client, e := range b.clients {
		held.Clients = append(held.Clients, HeldClient{client, e.endpoint, e.until})
	}
	return held
}

// finish returns what was taken, with the ports of TCP, when everything rests; nil: nothing.
func (l *leaving) finish() *State {
	l.mu.Lock()
	defer l.mu.Unlock()
	for b, p := range l.ports { // also those that nothing leads to any more
		held := heldPort(p.port, b)
		held.Connections = p.conns
		l.state.Ports = append(l.state.Ports, held)
	}
	clear(l.ports)
	if len(l.state.conns) == 0 {
		return nil
	}
	return &l.state
}
