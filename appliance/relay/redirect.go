package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fronts are the listeners that the kernel redirects clients to, one for each address and protocol,
// whatever the number of ports behind it. They are opened before the first client is redirected,
// so not by Run.
type fronts struct {
	mu     sync.Mutex
	ctx    context.Context // of Run; nil before
	closed bool
	open   map[frontKey]*front
	ports  map[string]map[key]*redirected // by Service
}

type frontKey struct {
	protocol string
	at       netip.AddrPort
}

// name names the listener to systemd.
func (k frontKey) name() string {
	return fmt.Sprintf("relay-%s-%s-%d", k.protocol, strings.ReplaceAll(k.at.Addr().String(), ":", "-"), k.at.Port())
}

// forget has systemd keep a listener no longer.
func (r *Relay) forget(key frontKey) {
	if err := r.store.Drop(key.name()); err != nil {
		r.log.Warn("systemd cannot be notified to close a stored socket", "name", key.name(), "err", err)
	}
}

// front is one listener, and which port a client is for by what it had sent to.
type front struct {
	socket listenSocket
	inUse  int          // ports that it has
	ready  bool         // it has had a port: until then clients wait
	udp    *udpListener // the socket; nil: TCP

	mu       sync.RWMutex
	tcpPorts map[netip.AddrPort]*tcpPort
	udpPorts map[netip.AddrPort]*udpPort
}

// listenSocket is a tcpListener or a udpListener.
type listenSocket interface {
	start(context.Context) // begins to serve clients
	pause()                // ends that, and leaves it open
	close()
	conn() syscall.Conn
}

// errNotAsked means that a client came without having been redirected from a frontend of a port.
var errNotAsked = errors.New("it sent to no frontend of a relayed port")

// Open opens a listener that the kernel may redirect clients to, unless it is open. Its clients wait
// until Redirect names a port for it and Run runs.
func (r *Relay) Open(protocol string, at netip.AddrPort) error {
	f := &r.fronts
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := r.openFront(frontKey{protocol, at})
	return err
}

// openFront is Open. The caller holds the lock.
func (r *Relay) openFront(key frontKey) (*front, error) {
	f := &r.fronts
	if front := f.open[key]; front != nil || f.closed {
		return front, nil
	}
	front, err := r.newFront(key)
	if err != nil {
		return nil, fmt.Errorf("%s port %d of %s: %w; %s", key.protocol, key.at.Port(), key.at.Addr(), err, advice(err, key.at.Port()))
	}
	f.open[key] = front
	if err := r.store.Keep(key.name(), front.socket.conn()); err != nil {
		r.log.Warn("clients of relayed ports are refused while the program restarts: systemd cannot be given a socket to store", "err", err)
	}
	return front, nil
}

// advice returns the next step after a failure to listen for redirected clients.
func advice(err error, port uint16) string {
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Sprintf("stop the program that has it (`ss -tulnp sport = :%d` names it), or give svcctl others with --relay-ports", port)
	}
	return "it is tried again every few seconds"
}

// Redirect takes the ports of a Service that the kernel redirects clients to, with Frontends, and serves
// them when it returns. Those that the Service had and are not named any more are removed after limits.removal,
// unless more is set, which is for the time before the kernel has heard of the change. An error is about
// listeners that cannot be opened; the other ports are served.
func (r *Relay) Redirect(service string, ports []Port, more bool) error {
	return r.RedirectAll(map[string][]Port{service: ports}, more)
}

// RedirectAll is Redirect for several Services. Clients of a new listener are let in when all of them are
// known, so none finds that its port is missing.
func (r *Relay) RedirectAll(services map[string][]Port, more bool) error {
	f := &r.fronts
	f.mu.Lock()
	defer f.mu.Unlock()
	var failed []error
	for service, ports := range services {
		if err := r.redirectService(service, ports, more); err != nil {
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

// redirectService takes the ports of one Service. The caller holds the lock.
func (r *Relay) redirectService(service string, ports []Port, more bool) error {
	f := &r.fronts
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
			l.update(p)
			continue
		}
		front, err := r.openFront(frontKey{p.Protocol, p.Listen})
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if front == nil {
			continue // the relay has ended
		}
		have[k] = r.redirect(front, p)
		front.inUse++
	}
	for k, l := range have {
		if !wanted[k] && !more && l.removal == nil {
			r.removeLater(service, k, l)
		}
	}
	if len(have) == 0 {
		delete(f.ports, service)
	}
	return errors.Join(failed...)
}

// removeLater removes a port that the kernel sends no new clients to. It still serves those whose handshake
// the kernel has begun or finished, and which wait to be accepted. The caller holds the lock.
func (r *Relay) removeLater(service string, k key, l *redirected) {
	f := &r.fronts
	var timer *time.Timer
	timer = time.AfterFunc(r.limits.removal, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.closed && l.removal == timer {
			f.remove(service, k, l)
			r.closeUnused()
		}
	})
	l.removal = timer
}

// remove removes a port of a Service. The caller holds the lock.
func (f *fronts) remove(service string, k key, l *redirected) {
	l.close()
	l.front.inUse--
	have := f.ports[service]
	if delete(have, k); len(have) == 0 {
		delete(f.ports, service)
	}
}

// begin has a front accept clients, once it has a port and Run runs.
func (f *fronts) begin(front *front) {
	if f.ctx != nil && !front.ready {
		front.socket.start(f.ctx)
	}
	front.ready = true
}

// CloseUnused closes the listeners that have no port. Their connections live on.
func (r *Relay) CloseUnused() {
	f := &r.fronts
	f.mu.Lock()
	defer f.mu.Unlock()
	r.closeUnused()
}

// closeUnused is CloseUnused. The caller holds the lock.
func (r *Relay) closeUnused() {
	f := &r.fronts
	for key, front := range f.open {
		if !f.closed && front.inUse == 0 {
			front.socket.close()
			delete(f.open, key)
			r.forget(key)
		}
	}
}

// serve begins to serve, until close.
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

func (r *Relay) newFront(key frontKey) (*front, error) {
	f := &front{tcpPorts: map[netip.AddrPort]*tcpPort{}, udpPorts: map[netip.AddrPort]*udpPort{}}
	log := r.log.With("ip", key.at.Addr(), "port", key.at.Port(), "protocol", key.protocol)
	var err error
	if key.protocol == TCP {
		f.socket, err = r.listenTCP(key.at, log, f.routeTCP)
		return f, err
	}
	f.udp, err = r.listenUDP(key.at, log, func(client netip.AddrPort) (*udpPort, netip.AddrPort, error) {
		to, err := r.origin(key.at, client)
		if err != nil {
			return nil, to, err
		}
		port, err := find(f, f.udpPorts, to)
		return port, to, err
	})
	f.socket = f.udp
	return f, err
}

// routeTCP finds the port of a client that the kernel has redirected.
func (f *front) routeTCP(client *net.TCPConn) (*tcpPort, netip.AddrPort, error) {
	to, err := originalDestination(client)
	if err != nil {
		return nil, to, err
	}
	port, err := find(f, f.tcpPorts, to)
	return port, to, err
}

// find finds the port of a frontend: by its address and port, or as a node port.
func find[P any](f *front, ports map[netip.AddrPort]*P, to netip.AddrPort) (*P, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if p := ports[to]; p != nil {
		return p, nil
	}
	if p := ports[netip.AddrPortFrom(netip.Addr{}, to.Port())]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%w: %s", errNotAsked, to)
}

// originalDestination returns the address that a client connected to before the kernel redirected it
// (SO_ORIGINAL_DST of linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h).
func originalDestination(client *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := client.SyscallConn()
	if err != nil {
		return to, err
	}
	v6 := client.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is6()
	var failed error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			// The struct begins with a sockaddr_in6, and is no smaller.
			info, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
			if failed = err; err == nil {
				to = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port)))
			}
			return
		}
		// A struct of 20 bytes, which a sockaddr_in of 16 fits into: family, port, address.
		raw, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if failed = err; err == nil {
			b := raw.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	if failed != nil {
		err = os.NewSyscallError("getsockopt", failed)
	}
	return to, err
}

// redirect makes a Port one that clients of a front are for.
func (r *Relay) redirect(f *front, p Port) *redirected {
	l := &redirected{front: f}
	if p.Protocol == TCP {
		l.tcp = r.portOf(p)
	} else {
		l.udp = r.newUDPPort(p)
		r.flowsOf(f.udp, l.udp)
	}
	l.register(p.Frontends)
	return l
}

// redirected is a Port behind a front.
type redirected struct {
	front     *front
	frontends []netip.AddrPort
	tcp       *tcpPort // one of the two
	udp       *udpPort
	removal   *time.Timer // removes it, unless it is wanted again before; nil: it is wanted
}

// stay has a port that was to be removed stay, and takes back the frontends that another port got since.
func (l *redirected) stay() {
	if l.removal == nil {
		return
	}
	l.removal.Stop()
	l.removal, l.frontends = nil, nil
}

// register has the front find the port by these frontends, and by no others any more. A frontend that
// another port has by now stays with that.
func (l *redirected) register(frontends []netip.AddrPort) {
	if slices.Equal(l.frontends, frontends) {
		return
	}
	l.front.mu.Lock()
	defer l.front.mu.Unlock()
	if l.tcp != nil {
		register(l.front.tcpPorts, l.tcp, l.frontends, frontends)
	} else {
		register(l.front.udpPorts, l.udp, l.frontends, frontends)
	}
	l.frontends = frontends
}

func register[P any](ports map[netip.AddrPort]*P, p *P, before, now []netip.AddrPort) {
	for _, at := range before {
		if ports[at] == p && !slices.Contains(now, at) {
			delete(ports, at)
		}
	}
	for _, at := range now {
		ports[at] = p
	}
}

func (l *redirected) update(p Port) {
	l.register(p.Frontends)
	if l.tcp != nil {
		l.tcp.update(p)
	} else {
		l.front.udp.update(l.udp, p)
	}
}

// close leaves the front to the other ports.
func (l *redirected) close() {
	l.register(nil)
	if l.tcp != nil {
		l.tcp.retire()
	} else {
		l.front.udp.retire(l.udp)
	}
}

// networkOf is the network name for package net, as in "tcp4".
func networkOf(protocol string, addr netip.Addr) string {
	if addr.Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}
