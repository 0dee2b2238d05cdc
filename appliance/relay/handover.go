package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/listen"
)

// State is the state of a Relay that is handed over to the next process: the numbers of open file descriptors, and the use of each.
type State struct {
	Listeners []HeldListener `json:"listeners,omitempty"`
	Ports     []HeldPort     `json:"ports,omitempty"`

	conns []syscall.Conn // referenced so that the descriptors stay open as long as the State
}

// HeldListener is a listening socket in a State.
type HeldListener struct {
	Protocol string         `json:"protocol"`
	At       netip.AddrPort `json:"at"`
	FD       int            `json:"fd"`
}

// HeldPort is a Port in a State, with its TCP connections or UDP clients.
type HeldPort struct {
	ID         string         `json:"id"`
	Protocol   string         `json:"protocol"`
	Listen     netip.AddrPort `json:"listen"`
	Redirected bool           `json:"redirected,omitempty"`
	// Via distinguishes ports with the same ID and Listen (Port.via).
	Via string `json:"via,omitempty"`
	// Turn is the endpoint that was picked last. Owed holds the credits of the endpoints in weighted round robin, as fractions of a turn. Clients are
	// the clients with session affinity.
	Turn        netip.AddrPort             `json:"turn"`
	Owed        map[netip.AddrPort]float64 `json:"owed,omitempty"`
	Clients     []HeldClient               `json:"clients,omitempty"`
	Connections []HeldConnection           `json:"connections,omitempty"`
	Flows       []HeldFlow                 `json:"flows,omitempty"`
}

// HeldClient is the affinity entry of a client.
type HeldClient struct {
	Client   netip.Addr     `json:"client"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Until    time.Time      `json:"until"`
}

// HeldConnection is the TCP connection of a client. Client and Endpoint are the file descriptors of its two sides.
type HeldConnection struct {
	Client int `json:"client"`
	// From is the address of the client, zero if it was not determined yet. Asked is the address that the client connected to. Both are used only if
	// the connection has no endpoint yet (Endpoint is 0).
	From     netip.AddrPort `json:"from"`
	Asked    netip.AddrPort `json:"asked"`
	Endpoint int            `json:"endpoint,omitempty"`
	To       netip.AddrPort `json:"to"`
	There    HeldWay        `json:"there"`
	Back     HeldWay        `json:"back"`
}

// HeldWay is one direction of a connection. Ended is set if its source has sent a FIN, Done if that was passed on. Rest holds the bytes that were
// received and not passed on yet.
type HeldWay struct {
	Ended bool   `json:"ended,omitempty"`
	Done  bool   `json:"done,omitempty"`
	Rest  []byte `json:"rest,omitempty"`
}

// HeldFlow is a UDP client. FD is the file descriptor of its socket to the endpoint.
type HeldFlow struct {
	FD       int            `json:"fd"`
	Client   netip.AddrPort `json:"client"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Replied  bool           `json:"replied,omitempty"`
}

// ParseState decodes a State from JSON.
func ParseState(text []byte) (*State, error) {
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("relayed connections of the program before are lost: %w", err)
	}
	return s, nil
}

// Descriptors returns all file descriptors in the state.
func (s *State) Descriptors() (all []int) {
	for _, l := range s.Listeners {
		all = append(all, l.FD)
	}
	for _, p := range s.Ports {
		for _, c := range p.Connections {
			if all = append(all, c.Client); c.Endpoint != 0 {
				all = append(all, c.Endpoint)
			}
		}
		for _, f := range p.Flows {
			all = append(all, f.FD)
		}
	}
	return all
}

// hold keeps a socket open until the hand-over, and returns its file descriptor.
func (s *State) hold(c syscall.Conn) (fd int, err error) {
	if err := listen.ControlOf(c, func(n int) error { fd = n; return nil }); err != nil {
		return 0, err
	}
	s.conns = append(s.conns, c)
	return fd, nil
}

// leaving collects the state for the next process. Each connection is added to it once the connection is paused.
type leaving struct {
	mu    sync.Mutex
	state State
	ports map[*balancer]*leavingPort // TCP ports, by balancer
}

// leavingPort is a TCP port with its connections that are to be handed over.
type leavingPort struct {
	port  Port
	conns []HeldConnection
}

// of returns the entry of a TCP port, and adds it if it is missing. The caller must hold l.mu.
func (l *leaving) of(p Port, b *balancer) *leavingPort {
	have := l.ports[b]
	if have == nil {
		have = &leavingPort{port: p}
		l.ports[b] = have
	}
	return have
}

// connection adds a paused connection of a port to the state. If it returns an error, the connection cannot be handed over.
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

// unconnected adds to the state a client that has no endpoint yet. from is the client's address, zero if its PROXY protocol header was not read yet.
// early holds the bytes that were already read from the client.
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

// port adds a TCP port to the state, or updates its Port if it was added before.
func (l *leaving) port(p Port, b *balancer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(p, b).port = p
}

// flow returns the state of a UDP client, and keeps its socket to the endpoint open. If it returns an error, the client cannot be handed over.
func (l *leaving) flow(socket *net.UDPConn, client, endpoint netip.AddrPort, replied bool) (HeldFlow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, err := l.state.hold(socket)
	return HeldFlow{fd, client, endpoint, replied}, err
}

// flows adds a UDP port with its clients to the state.
func (l *leaving) flows(p Port, b *balancer, flows []HeldFlow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := heldPort(p, b)
	held.Flows = flows
	l.state.Ports = append(l.state.Ports, held)
}

// listener adds a listening socket to the state.
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

// finish returns the complete state, with all TCP ports. It must be called after all connections are paused. It returns nil if there is nothing to
// hand over.
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

// draining counts the client connections that cannot be handed over, because they use TLS or HTTP. They are counted in groups: a Drain starts a new
// group, and waits only for the connections of the previous ones.
type draining struct {
	mu  sync.Mutex
	now *drainGroup
}

type drainGroup struct {
	open int
	left bool          // the group is complete: the next one has begun
	over chan struct{} // closed once left is set and open is 0
}

func newDraining() draining { return draining{now: &drainGroup{over: make(chan struct{})}} }

// begin counts a connection in the present group until the returned function is called.
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

// next starts a new group. It returns the number of open connections in the previous group, and a channel that is closed once these have ended.
func (d *draining) next() (open int, over <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.now
	d.now = &drainGroup{over: make(chan struct{})}
	c.left = true
	c.closeIfOver()
	return c.open, c.over
}

// arriving holds the state that the previous process handed over. It creates ports, and gives each port its part of the state.
type arriving struct {
	shared *shared

	mu             sync.Mutex
	sockets        map[socketKey]*os.File
	ports          map[key]*HeldPort
	tcp            map[key]*tcpPort // ports not created again yet whose handed-over connections already continue
	closeUnclaimed bool             // set by Settle: close the state that belongs to no port
}

// adopt takes over the state of the previous process. It must be called before Run. The connections in it continue at once.
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

// takeSocket takes over a listening socket that systemd stored. It must be called before Run.
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

// socket removes a listening socket from the inherited state and returns it, nil if there is none.
func (a *arriving) socket(key socketKey) *os.File {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.sockets[key]
	delete(a.sockets, key)
	return f
}

// resume continues the handed-over connections of a port. Connections without an endpoint are left in held until the port is created.
func (a *arriving) resume(held *HeldPort) *tcpPort {
	p := Port{ID: held.ID, Protocol: TCP, Listen: held.Listen, via: held.Via}
	if held.Redirected {
		p.Frontends = []netip.AddrPort{}
	}
	t := a.newTCPPort(p)
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

// relayedOf returns a connection that the previous process handed over, or nil if one of its sides has ended.
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

// tcpOf returns the TCP connection of a file descriptor, nil if there is none. It closes the descriptor, as the connection has a duplicate.
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

// portOf returns a new TCP port for p, with the connections that were handed over for it.
func (a *arriving) portOf(p Port) *tcpPort {
	k := p.key()
	a.mu.Lock()
	t, held := a.tcp[k], a.ports[k]
	delete(a.tcp, k)
	delete(a.ports, k)
	a.mu.Unlock()
	if t == nil {
		t = a.newTCPPort(p)
		t.names = a.portsNamed(nil, p)
		if held != nil {
			t.endpoints.restore(held)
		}
		return t
	}
	t.update(p)
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

// portsNamed returns the ports for the server names of p, by name. Ports in have with the same name and ID are reused, with their connections.
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
			sub.update(n.Port)
		}
		names[n.ServerName] = sub
	}
	return names
}

// portOn returns a new port for p behind a listener, with the connections or UDP clients that were handed over for it.
func (a *arriving) portOn(l listenSocket, p Port) served {
	if l, is := l.(*udpListener); is {
		u := l.newPort(p)
		a.addFlows(u)
		return u
	}
	return a.portOf(p)
}

// addFlows adds the clients of a UDP port that the previous process handed over.
func (a *arriving) addFlows(u *udpPort) {
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
				u.goOn(h, socket)
			} else {
				_ = c.Close()
			}
		}
		_ = f.Close()
	}
}

// closeRest closes the handed-over sockets and connections that belong to no Port, if Settle was called. It does not close connections that already
// continue.
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

// restore restores the state of round robin and the affinity entries of clients from a hand-over.
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
