package relay

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// leaving collects what is handed over, while connections come to rest.
type leaving struct {
	mu    sync.Mutex
	state State
	conns map[*tcpPort][]HeldConnection
}

// connection takes one that was paused.
func (l *leaving) connection(t *tcpPort, c *relayed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var failed [4]error
	held := HeldConnection{To: c.to}
	held.Client, failed[0] = l.state.hold(c.client)
	held.Endpoint, failed[1] = l.state.hold(c.endpoint)
	held.There, failed[2] = c.there.hold()
	held.Back, failed[3] = c.back.hold()
	if err := errors.Join(failed[:]...); err != nil {
		t.log.Debug("a connection is reset: it cannot be handed over", "err", err)
		c.reset()
		return
	}
	l.conns[t] = append(l.conns[t], held)
}

func (w *way) hold() (HeldWay, error) {
	rest, err := w.rest()
	return HeldWay{Ended: w.ended, Done: w.done, Rest: rest}, err
}

// unconnected takes a client that has no endpoint yet; the zero from: who it is was not read yet. early was read
// from it already.
func (l *leaving) unconnected(t *tcpPort, client *net.TCPConn, from, asked netip.AddrPort, early []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, err := l.state.hold(client)
	if err != nil {
		reset(client)
		return
	}
	l.conns[t] = append(l.conns[t], HeldConnection{Client: fd, From: from, Asked: asked, There: HeldWay{Rest: early}})
}

// pause has everything rest that Run has started, for HandedOver.
func (r *Relay) pause(open map[key]listener) {
	l := &r.leaving
	var tcp []*tcpPort
	udp := map[*udpPort]*udpListener{}
	for k, loopback := range open {
		var socket listenSocket
		switch loopback := loopback.(type) {
		case *loopbackTCP:
			socket, tcp = loopback.socket, append(tcp, loopback.port)
		case *loopbackUDP:
			socket, udp[loopback.port] = loopback.socket, loopback.socket
		}
		socket.pause()
		l.listener(k.protocol, k.listen, socket.conn())
	}
	r.fronts.mu.Lock()
	r.fronts.closed = true
	for k, front := range r.fronts.open {
		front.socket.pause()
		l.listener(k.protocol, k.at, front.socket.conn())
	}
	for _, ports := range r.fronts.ports {
		for _, p := range ports {
			if p.tcp != nil {
				tcp = append(tcp, p.tcp)
			} else {
				udp[p.udp] = p.front.udp
			}
		}
	}
	r.fronts.mu.Unlock()
	r.tasks.Wait()
	l.ports(tcp, udp)
}

// ports takes the ports, when everything rests.
func (l *leaving) ports(tcp []*tcpPort, udp map[*udpPort]*udpListener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range tcp {
		for _, each := range slices.AppendSeq([]*tcpPort{t}, maps.Values(t.names)) {
			if l.conns[each] == nil {
				l.conns[each] = []HeldConnection{}
			}
		}
	}
	for t, conns := range l.conns { // also of those that nothing leads to any more
		held := heldPort(t.port, t.endpoints)
		held.Connections = conns
		l.state.Ports = append(l.state.Ports, held)
	}
	flows := map[*udpPort][]HeldFlow{}
	seen := map[*udpListener]bool{}
	for _, listener := range udp {
		if seen[listener] {
			continue
		}
		seen[listener] = true
		for _, f := range listener.flows {
			if fd, err := l.state.hold(f.socket); err == nil {
				flows[f.port] = append(flows[f.port], HeldFlow{fd, f.client, f.endpoint, f.replied})
			}
		}
	}
	for u := range udp {
		held := heldPort(u.port, u.endpoints)
		held.Flows = flows[u]
		l.state.Ports = append(l.state.Ports, held)
	}
}

func (l *leaving) listener(protocol string, at netip.AddrPort, c syscall.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fd, err := l.state.hold(c); err == nil {
		l.state.Listeners = append(l.state.Listeners, HeldListener{protocol, at, fd})
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

// HandedOver returns what Run has left after its context ended by handover.ErrRequested; nil: nothing.
func (r *Relay) HandedOver() *State {
	l := &r.leaving
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.state.conns) == 0 {
		return nil
	}
	return &l.state
}
