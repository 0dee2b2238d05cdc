package relay

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"svcctl.io/svcctl/appliance/listen"
)

// loopback listens for node ports on the loopback addresses of the host.
type loopback struct {
	shared    *shared
	arriving  *arriving
	listeners *listen.Reconciler[Problem]
	open      map[key]listener // of the task that runs listeners

	mu      sync.Mutex
	desired []Port
}

// listener serves one Port.
type listener interface {
	// update replaces the endpoints and the affinity.
	update(Port)
	// pause has it serve no new client, and leaves it open.
	pause()
	conn() syscall.Conn
	// leave hands over its port, when everything rests.
	leave()
	// close closes the listening socket before it returns.
	close()
}

// set replaces the Ports: see Relay.Set.
func (o *loopback) set(ports []Port) {
	o.mu.Lock()
	o.desired = ports
	o.mu.Unlock()
	o.listeners.Trigger()
}

// reconcile opens missing listeners, updates open ones and closes superfluous ones. retry
// means that one could not be opened but may be later.
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

// listen opens the listener of a Port with endpoints.
func (o *loopback) listen(p Port) (listener, *Problem) {
	problem := func(reason, format string, args ...any) *Problem {
		where := fmt.Sprintf("node port %d/%s does not answer on %s: ", p.Listen.Port(), strings.ToUpper(p.Protocol), p.Listen.Addr())
		return &Problem{ID: p.ID, Listen: p.Listen, Reason: reason, Message: where + fmt.Sprintf(format, args...)}
	}
	if !p.Listen.Addr().IsLoopback() || p.Listen.Addr().Is4In6() {
		return nil, problem(ReasonNotLoopback, "only loopback addresses are relayed: leave it out")
	}
	var l listener
	var err error
	switch p.Protocol {
	case TCP:
		l, err = o.listenTCP(p)
	case UDP:
		l, err = o.listenUDP(p)
	default:
		return nil, problem(ReasonProtocol, "only TCP and UDP are relayed on loopback: use another address of this host")
	}
	if err != nil {
		return nil, problem(ReasonListen, "%v: %s", err, listen.Advice(err, p.Listen.Port(), "tu", "another node port"))
	}
	return l, nil
}

func (o *loopback) listenTCP(p Port) (listener, error) {
	l := &loopbackTCP{arriving: o.arriving}
	var err error
	route := func(*net.TCPConn) (*tcpPort, netip.AddrPort, error) { return l.port, p.Listen, nil }
	if l.tcpListener, err = o.shared.listenTCP(p.Listen, o.arriving.socket(socketKey{TCP, p.Listen}), o.shared.logOf(p), route); err != nil {
		return nil, err
	}
	l.port = o.arriving.portOf(p)
	l.start(o.shared.ctx)
	return l, nil
}

func (o *loopback) listenUDP(p Port) (listener, error) {
	l := &loopbackUDP{port: o.shared.newUDPPort(p)}
	var err error
	route := func(netip.AddrPort) (*udpPort, netip.AddrPort, error) { return l.port, p.Listen, nil }
	if l.udpListener, err = o.shared.listenUDP(p.Listen, o.arriving.socket(socketKey{UDP, p.Listen}), o.shared.logOf(p), route); err != nil {
		return nil, err
	}
	o.arriving.flowsOf(l.udpListener, l.port)
	l.start(o.shared.ctx)
	return l, nil
}

// endTCP pauses or closes the listeners for TCP.
func (o *loopback) endTCP(end func(*tcpListener)) {
	for _, l := range o.open {
		if l, is := l.(*loopbackTCP); is {
			end(l.tcpListener)
		}
	}
}

// pause has all listeners rest, and hands them over.
func (o *loopback) pause() {
	for k, l := range o.open {
		l.pause()
		o.shared.leaving.listener(socketKey{k.protocol, k.listen}, l.conn())
	}
}

// leave hands over the ports, when everything rests.
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

// loopbackTCP is a TCP node port on a loopback address.
type loopbackTCP struct {
	*tcpListener
	arriving *arriving
	port     *tcpPort
}

func (l *loopbackTCP) update(p Port) { l.arriving.update(l.port, p) }

func (l *loopbackTCP) leave() { l.port.leave() }

func (l *loopbackTCP) close() {
	l.tcpListener.close()
	l.port.retire()
}

// loopbackUDP is a UDP node port on a loopback address.
type loopbackUDP struct {
	*udpListener
	port *udpPort
}

func (l *loopbackUDP) update(p Port) { l.udpListener.update(l.port, p) }

func (l *loopbackUDP) leave() { l.udpListener.leave(l.port) }
