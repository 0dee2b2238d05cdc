package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/listen"
)

// fronts holds the listeners to which the kernel redirects clients. There is one for each address and protocol, which several ports may share. A
// listener is opened before the kernel redirects the first client to it, possibly before Run.
type fronts struct {
	shared   *shared
	arriving *arriving
	origin   Origin

	mu     sync.Mutex
	ctx    context.Context // context of the connections; nil before Run
	closed bool
	open   map[socketKey]*front
	ports  map[string]map[key]*redirected // ports by Service
}

// front is a listener to which the kernel redirects clients, with the ports that share it. The original destination of a client determines its port.
type front struct {
	socket listenSocket
	inUse  int  // number of ports that share the listener
	ready  bool // it has had a port; clients are not accepted before

	mu    sync.RWMutex
	ports map[netip.AddrPort]served // ports by frontend address and port; the zero Addr stands for any address
}

// listenSocket is implemented by tcpListener and udpListener.
type listenSocket interface {
	start(context.Context) // begins to serve clients
	pause()                // ends that, and leaves it open
	close()
	conn() syscall.Conn
}

// served is a Port together with its connections. It is implemented by tcpPort and udpPort.
type served interface {
	update(Port) // replaces the settings, frontends excepted, and the endpoints
	retire()     // it was removed
	leave()      // adds it to the state to hand over, once its connections are paused
	load() PortLoad
	passages([]Passage) []Passage // appends its own
}

// errNotAsked means that the original destination of a redirected client is no frontend of a relayed port.
var errNotAsked = errors.New("it sent to no frontend of a relayed port")

// openFront returns the listener for a key, and opens it if necessary. It returns nil if the relay has ended. The caller must hold f.mu.
func (f *fronts) openFront(key socketKey) (*front, error) {
	if front := f.open[key]; front != nil || f.closed {
		return front, nil
	}
	front, err := f.newFront(key)
	if err != nil {
		return nil, fmt.Errorf("%s port %d of %s: %w; %s", key.protocol, key.at.Port(), key.at.Addr(), err, advice(err, key.at.Port()))
	}
	f.open[key] = front
	if err := f.shared.store.Keep(key.name(), front.socket.conn()); err != nil {
		f.shared.log.Warn("clients of relayed ports are refused while the program restarts: systemd cannot be given a socket to store", "err", err)
	}
	return front, nil
}

// advice returns what the operator should do if a listener for redirected clients cannot be opened because of err.
func advice(err error, port uint16) string {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Sprintf("stop the program that has it (`ss -tulnp sport = :%d` names it), or give svcctl others with --relay-ports", port)
	}
	return "it is tried again every few seconds"
}

// redirect replaces the ports of Services, as described at Relay.RedirectAll.
func (f *fronts) redirect(services map[string][]Port, more bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var failed []error
	for service, ports := range services {
		if err := f.redirectService(service, ports, more); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", service, err))
		}
	}
	for _, front := range f.open {
		if front.inUse > 0 {
			f.begin(front)
		}
	}
	return errors.Join(failed...)
}

// redirectService replaces the ports of one Service, as described at Relay.RedirectAll. The caller must hold f.mu.
func (f *fronts) redirectService(service string, ports []Port, more bool) error {
	have := f.ports[service]
	if have == nil {
		have = map[key]*redirected{}
		f.ports[service] = have
	}
	wanted := make(map[key]bool, len(ports))
	var failed []error
	for _, p := range ports {
		k := p.key()
		wanted[k] = true
		if l := have[k]; l != nil {
			l.stay()
			l.register(p.Frontends)
			l.port.update(p)
			continue
		}
		front, err := f.openFront(socketKey{p.Protocol, p.Listen})
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if front == nil {
			continue // the relay has ended
		}
		have[k] = f.newRedirected(front, p)
		front.inUse++
	}
	for k, l := range have {
		if !wanted[k] && !more && l.removal == nil {
			f.removeLater(service, k, l)
		}
	}
	if len(have) == 0 {
		delete(f.ports, service)
	}
	return errors.Join(failed...)
}

// removeLater removes a port after limits.removal. The kernel no longer redirects new clients to it, but some may be waiting to be accepted or be in
// their TCP handshake. The caller must hold f.mu.
func (f *fronts) removeLater(service string, k key, l *redirected) {
	var timer *time.Timer
	timer = time.AfterFunc(f.shared.limits.removal, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.closed && l.removal == timer {
			l.close()
			l.front.inUse--
			have := f.ports[service]
			if delete(have, k); len(have) == 0 {
				delete(f.ports, service)
			}
			f.closeUnused()
		}
	})
	l.removal = timer
}

// begin makes a front that has a port accept clients. If Run was not called yet, fronts.serve does so later. The caller must hold f.mu.
func (f *fronts) begin(front *front) {
	if f.ctx != nil && !front.ready {
		front.socket.start(f.ctx)
	}
	front.ready = true
}

// closeUnused closes the listeners without ports. Connections accepted from them stay open. The caller must hold f.mu.
func (f *fronts) closeUnused() {
	for key, front := range f.open {
		if !f.closed && front.inUse == 0 {
			front.socket.close()
			delete(f.open, key)
			f.shared.forget(key)
		}
	}
}

// serve starts to accept clients on all listeners that have ports. ctx is the context of their connections.
func (f *fronts) serve(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx = ctx
	for _, front := range f.open {
		if front.ready {
			front.socket.start(ctx)
		}
	}
}

// endTCP calls end for all TCP listeners. end is tcpListener.pause or tcpListener.close.
func (f *fronts) endTCP(end func(*tcpListener)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, front := range f.open {
		if l, is := front.socket.(*tcpListener); is {
			end(l)
		}
	}
}

// pause stops all listeners from accepting clients, and adds their sockets to the state to hand over.
func (f *fronts) pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for k, front := range f.open {
		front.socket.pause()
		f.shared.leaving.listener(k, front.socket.conn())
	}
}

// leave adds all ports to the state to hand over. It must be called after their connections are paused.
func (f *fronts) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ports := range f.ports {
		for _, p := range ports {
			p.port.leave()
		}
	}
}

func (f *fronts) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, front := range f.open {
		front.socket.close()
	}
	for _, ports := range f.ports {
		for _, l := range ports {
			l.close()
		}
	}
}

func (f *fronts) newFront(key socketKey) (*front, error) {
	n := &front{ports: map[netip.AddrPort]served{}}
	log := f.shared.log.With("ip", key.at.Addr(), "port", key.at.Port(), "protocol", key.protocol)
	kept := f.arriving.socket(key)
	var err error
	if key.protocol == TCP {
		n.socket, err = f.shared.listenTCP(key.at, kept, log, func(client *net.TCPConn) (*tcpPort, netip.AddrPort, error) {
			to, err := originalDestination(client)
			return find[*tcpPort](n, to, err)
		})
		return n, err
	}
	n.socket, err = f.shared.listenUDP(key.at, kept, log, func(client netip.AddrPort) (*udpPort, netip.AddrPort, error) {
		to, err := f.origin(key.at, client)
		return find[*udpPort](n, to, err)
	})
	return n, err
}

// find returns the port for a client with the original destination to. That is the port with this address and port as a frontend or, if there is
// none, the one with the port at any address (a node port). err is the error of determining the destination; if it is not nil, find returns it.
func find[P served](f *front, to netip.AddrPort, err error) (p P, asked netip.AddrPort, _ error) {
	if err != nil {
		return p, to, err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, at := range [...]netip.AddrPort{to, netip.AddrPortFrom(netip.Addr{}, to.Port())} {
		if p, is := f.ports[at].(P); is {
			return p, to, nil
		}
	}
	return p, to, fmt.Errorf("%w: %s", errNotAsked, to)
}

// newRedirected adds a Port to a front.
func (f *fronts) newRedirected(front *front, p Port) *redirected {
	l := &redirected{front: front, port: f.arriving.portOn(front.socket, p)}
	l.register(p.Frontends)
	return l
}

// redirected is a Port that belongs to a front.
type redirected struct {
	front     *front
	frontends []netip.AddrPort
	port      served
	removal   *time.Timer // timer that will remove the port; nil if the port is not to be removed
}

// stay cancels the pending removal of a port. The next call of register registers all its frontends again, including those that another port took
// meanwhile.
func (l *redirected) stay() {
	if l.removal == nil {
		return
	}
	l.removal.Stop()
	l.removal, l.frontends = nil, nil
}

// register replaces the frontends that lead to the port in its front. Previous frontends that another port has taken meanwhile are left to that port.
func (l *redirected) register(frontends []netip.AddrPort) {
	if slices.Equal(l.frontends, frontends) {
		return
	}
	l.front.mu.Lock()
	defer l.front.mu.Unlock()
	for _, at := range l.frontends {
		if l.front.ports[at] == l.port && !slices.Contains(frontends, at) {
			delete(l.front.ports, at)
		}
	}
	for _, at := range frontends {
		l.front.ports[at] = l.port
	}
	l.frontends = frontends
}

// close removes the port from its front, and retires it.
func (l *redirected) close() {
	l.register(nil)
	l.port.retire()
}

// loopback holds the listeners for node ports on the loopback addresses of the host.
type loopback struct {
	shared    *shared
	arriving  *arriving
	listeners *listen.Reconciler[Problem]
	open      map[key]*loopbackPort // listeners in use; accessed only by the goroutine of listeners.Run

	mu      sync.Mutex
	desired []Port
}

// loopbackPort is a node port on one loopback address.
type loopbackPort struct {
	listenSocket
	served
}

// close closes the listening socket and retires the port. When it returns, the address is free for another listener.
func (l *loopbackPort) close() {
	l.listenSocket.close()
	l.retire()
}

// set replaces the Ports, as described at Relay.Set.
func (o *loopback) set(ports []Port) {
	o.mu.Lock()
	o.desired = ports
	o.mu.Unlock()
	o.listeners.Trigger()
}

// reconcile opens missing listeners, updates open ones, and closes those that are no longer needed. retry is true if a listener could not be opened
// but may be later.
func (o *loopback) reconcile() (problems []Problem, retry bool) {
	o.mu.Lock()
	desired := o.desired
	o.mu.Unlock()

	wanted := make(map[key]bool, len(desired))
	for _, p := range desired {
		if len(p.Endpoints)+len(p.Names) > 0 {
			wanted[p.key()] = true
		}
	}
	// Close first: another port may need the same address.
	for k, l := range o.open {
		if !wanted[k] {
			l.close()
			delete(o.open, k)
		}
	}
	for _, p := range desired {
		k := p.key()
		if !wanted[k] {
			continue
		}
		if l, is := o.open[k]; is {
			l.update(p)
			continue
		}
		l, problem := o.listen(p)
		if problem != nil {
			problems = append(problems, *problem)
			retry = retry || problem.Reason == ReasonListen
			continue
		}
		o.open[k] = l
	}
	o.arriving.closeRest()
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), a.Listen.Compare(b.Listen), strings.Compare(a.Message, b.Message))
	})
	return problems, retry
}

// listen opens the listener of a Port. It returns a Problem if that fails.
func (o *loopback) listen(p Port) (*loopbackPort, *Problem) {
	problem := func(reason, format string, args ...any) *Problem {
		where := fmt.Sprintf("node port %d/%s does not answer on %s: ", p.Listen.Port(), strings.ToUpper(p.Protocol), p.Listen.Addr())
		return &Problem{ID: p.ID, Listen: p.Listen, Reason: reason, Message: where + fmt.Sprintf(format, args...)}
	}
	if !p.Listen.Addr().IsLoopback() || p.Listen.Addr().Is4In6() {
		return nil, problem(ReasonNotLoopback, "only loopback addresses are relayed: leave it out")
	}
	l, key, log := &loopbackPort{}, socketKey{p.Protocol, p.Listen}, o.shared.logOf(p)
	var err error
	switch p.Protocol {
	case TCP:
		l.listenSocket, err = o.shared.listenTCP(p.Listen, o.arriving.socket(key), log, func(*net.TCPConn) (*tcpPort, netip.AddrPort, error) {
			return l.served.(*tcpPort), p.Listen, nil
		})
	case UDP:
		l.listenSocket, err = o.shared.listenUDP(p.Listen, o.arriving.socket(key), log, func(netip.AddrPort) (*udpPort, netip.AddrPort, error) {
			return l.served.(*udpPort), p.Listen, nil
		})
	default:
		return nil, problem(ReasonProtocol, "only TCP and UDP are relayed on loopback: use another address of this host")
	}
	if err != nil {
		return nil, problem(ReasonListen, "%v: %s", err, listen.Advice(err, p.Listen.Port(), "tu", "another node port"))
	}
	l.served = o.arriving.portOn(l.listenSocket, p)
	l.start(o.shared.ctx)
	return l, nil
}

// pause stops all listeners from accepting clients, and adds their sockets to the state to hand over.
func (o *loopback) pause() {
	for k, l := range o.open {
		l.pause()
		o.shared.leaving.listener(socketKey{k.protocol, k.listen}, l.conn())
	}
}

// leave adds all ports to the state to hand over. It must be called after their connections are paused.
func (o *loopback) leave() {
	for _, l := range o.open {
		l.leave()
	}
}

func (o *loopback) close() {
	for _, l := range o.open {
		l.close()
	}
}
