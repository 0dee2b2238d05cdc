package relay

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// udpListener receives datagrams at one address and port. Each client has a flow, with its own socket to an endpoint. A flow ends when it times out.
// If a new client exceeds the quota, the longest idle flow of its port ends.
type udpListener struct {
	shared *shared
	log    *slog.Logger
	socket *net.UDPConn
	raw    syscall.RawConn // raw connection of socket
	// route returns the port for a client without a flow, and the address that the client sent to.
	route func(client netip.AddrPort) (port *udpPort, asked netip.AddrPort, err error)

	mu     sync.Mutex
	closed bool
	paused bool                     // paused for a hand-over, with the sockets of the flows left open
	flows  map[netip.AddrPort]*flow // flows by client
}

// udpPort is a UDP Port together with its flows. The mutex of its listener guards port, gone and order.
type udpPort struct {
	listener  *udpListener
	endpoints *balancer
	quota     *quota

	port  Port
	gone  bool      // the port was removed
	order list.List // elements are *flow, the longest idle one first
}

func (l *udpListener) newPort(p Port) *udpPort {
	s := l.shared
	return &udpPort{listener: l, port: p, endpoints: newBalancer(p, s.limits.clients, s.open), quota: s.quotas.of(p)}
}

// flows yields the flows of the port, the longest idle one first. yield may remove the flow it gets. The caller must hold the listener's mutex.
func (u *udpPort) flows(yield func(*flow) bool) {
	for place := u.order.Front(); place != nil; {
		f := place.Value.(*flow)
		if place = place.Next(); !yield(f) {
			return
		}
	}
}

// flow is the state of one client of a udpListener. The mutex of the listener guards its fields.
type flow struct {
	port             *udpPort
	client, endpoint netip.AddrPort
	socket           *net.UDPConn // connected to the endpoint
	raw              syscall.RawConn
	place            *list.Element // element of port.order; nil once the flow has ended
	began, seen      time.Time     // times of the first and the last datagram, in either direction
	replied          bool
	late             *recentKey // key for EndpointsOf; nil if Port.Logged is not set
	hops             int        // TTL set for datagrams to the endpoint; 0 if none is. Accessed only by receive
}

// errQuotaExceeded means that a datagram of a new client was dropped because the quota is exhausted, and the port has no flow that could end instead.
var errQuotaExceeded = errors.New("too many clients of relayed ports at once")

// listenUDP opens a listener. It receives no datagrams until start is called. kept is the socket that the previous process or systemd kept open for
// it, nil if there is none. route returns the port for a client, and the address that the client sent to.
func (s *shared) listenUDP(at netip.AddrPort, kept *os.File, log *slog.Logger, route func(netip.AddrPort) (*udpPort, netip.AddrPort, error)) (*udpListener, error) {
	socket, err := udpSocket(at, kept)
	if err != nil {
		return nil, err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	if err := countHops(networkOf(UDP, at.Addr()), raw); err != nil {
		log.Warn("relays that datagrams pass in a row are not counted", "err", err)
	}
	return &udpListener{shared: s, log: log, socket: socket, raw: raw, route: route, flows: map[netip.AddrPort]*flow{}}, nil
}

// udpSocket returns a listening socket: kept if it is not nil, and otherwise a new one.
func udpSocket(at netip.AddrPort, kept *os.File) (*net.UDPConn, error) {
	if kept == nil {
		return net.ListenUDP(networkOf(UDP, at.Addr()), net.UDPAddrFromAddrPort(at))
	}
	defer kept.Close()
	c, err := net.FilePacketConn(kept)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// start starts to receive datagrams. It does not block.
func (l *udpListener) start(context.Context) { l.shared.tasks.Go(l.receive) }

// update replaces the settings and endpoints of a port. It ends the flows to endpoints that the port no longer keeps.
func (u *udpPort) update(p Port) {
	u.endpoints.set(p)
	u.listener.mu.Lock()
	u.port = p
	u.listener.mu.Unlock()
	u.endWhere(func(f *flow) bool { return !p.keeps(f.endpoint) })
}

// retire marks a port as removed, and ends all its flows.
func (u *udpPort) retire() {
	u.listener.mu.Lock()
	u.gone = true
	u.listener.mu.Unlock()
	u.endWhere(func(*flow) bool { return true })
}

// close closes the listening socket, and ends all flows.
func (l *udpListener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	if err := l.socket.Close(); err != nil {
		l.log.Warn("a listener of the relay cannot be closed", "err", err)
	}
	l.mu.Lock()
	left := slices.Collect(maps.Values(l.flows))
	l.mu.Unlock()
	for _, f := range left {
		l.end(f)
	}
}

// lastAnswers is how long sending a received datagram may still take after pause.
const lastAnswers = time.Second

// pause stops receiving for the listener and its flows, but leaves their sockets open.
func (l *udpListener) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = true
	// What was received is still sent, unless its interface takes nothing.
	_ = l.socket.SetReadDeadline(longAgo)
	_ = l.socket.SetWriteDeadline(time.Now().Add(lastAnswers))
	for _, f := range l.flows {
		_ = f.socket.SetReadDeadline(longAgo)
		_ = f.socket.SetWriteDeadline(time.Now().Add(lastAnswers))
	}
}

func (l *udpListener) conn() syscall.Conn { return l.socket }

// receive forwards the datagrams of clients until the listener is closed or paused.
func (l *udpListener) receive() {
	failed := logLimiter{every: l.shared.limits.logInterval}
	for {
		err := receiveDatagram(l.raw, func(data []byte, client netip.AddrPort, hops int) {
			if err := l.forward(data, client, hops); err != nil {
				l.log.Debug("a datagram to a relayed port is dropped", "client", client, "err", err)
			}
		})
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return
		case err != nil:
			if times, due := failed.due(); due {
				l.log.Warn("datagrams to relayed ports cannot be received", "times", times, "err", err)
			}
			time.Sleep(l.shared.limits.backoff)
		}
	}
}

// forward sends a client's datagram to the endpoint of its flow. If the endpoint refused an earlier datagram, the datagram is dropped and the flow
// ends, so that the client's next datagram starts a new flow.
func (l *udpListener) forward(data []byte, client netip.AddrPort, hops int) error {
	left, counted := hopsLeft(hops)
	if counted && left == 0 {
		return l.refuseLoop(client)
	}
	f, err := l.flowOf(client)
	if err != nil {
		return err
	}
	if counted && left != f.hops {
		if err := sendHops(networkOf(UDP, f.endpoint.Addr()), f.raw, left); err != nil {
			return err
		}
		f.hops = left
	}
	if err := send(f.raw, data); err != nil {
		// These concern this datagram alone: the send buffer is full, or it is too large.
		if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOBUFS) && !errors.Is(err, syscall.EMSGSIZE) {
			l.end(f)
		}
		return err
	}
	l.touch(f, false)
	return nil
}

// errNoHops means that a datagram was dropped because its TTL is used up, which means that it passed through too many relays.
var errNoHops = errors.New("it came without a hop left")

// refuseLoop records a datagram that is dropped because its TTL is used up. It returns errNoHops, or the error of route.
func (l *udpListener) refuseLoop(client netip.AddrPort) error {
	port, _, err := l.route(client)
	if err != nil {
		return err
	}
	l.mu.Lock()
	p := port.port
	l.mu.Unlock()
	l.shared.overload.looped(p, port.quota)
	return errNoHops
}

// flowOf returns the flow of a client, and starts one if there is none. It is called only by receive.
func (l *udpListener) flowOf(client netip.AddrPort) (*flow, error) {
	l.mu.Lock()
	f := l.flows[client]
	l.mu.Unlock()
	if f != nil {
		return f, nil
	}
	port, asked, err := l.route(client)
	if err != nil {
		return nil, err
	}
	for !port.quota.acquire() {
		l.mu.Lock()
		p := port.port
		l.mu.Unlock()
		switch ended, waits := l.endOldest(port); {
		case !ended:
			l.shared.overload.turnAway(p, port.quota, "clients of a relayed port get no answer")
			return nil, errQuotaExceeded
		case waits:
			l.shared.overload.turnAway(p, port.quota, "clients of a relayed port are forgotten early")
		default: // the flow that ended had its answer
			l.shared.overload.forget()
		}
	}
	f, err = l.begin(port, client, asked)
	if err != nil {
		port.quota.release()
		return nil, err
	}
	l.shared.tasks.Go(func() { l.reply(f) })
	return f, nil
}

// begin starts a flow. It picks the endpoint while it holds l.mu. A concurrent update replaces the endpoints before it ends flows, so it cannot miss
// the new flow.
func (l *udpListener) begin(port *udpPort, client, asked netip.AddrPort) (*flow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || port.gone {
		return nil, net.ErrClosed
	}
	endpoint, is := port.endpoints.pick(client, asked)
	if !is {
		return nil, errNoEndpoint
	}
	f := &flow{port: port, client: client, endpoint: endpoint}
	var dialer net.Dialer
	var err error
	// Connecting a UDP socket never waits, so the context does not matter.
	if f.socket, err = dialer.DialUDP(context.Background(), "udp", netip.AddrPort{}, f.endpoint); err == nil {
		err = l.note(f)
	}
	if err != nil {
		port.endpoints.done(f.endpoint)
		return nil, err
	}
	return f, nil
}

// note adds a flow, with its socket, to the table of flows and to its port. The caller must hold l.mu.
func (l *udpListener) note(f *flow) (err error) {
	if f.raw, err = f.socket.SyscallConn(); err != nil {
		return errors.Join(err, f.socket.Close())
	}
	f.began = time.Now()
	f.seen = f.began
	l.flows[f.client] = f
	f.place = f.port.order.PushBack(f)
	if p := &f.port.port; p.Logged {
		f.late = &recentKey{UDP, f.client, p.Listen.Port()}
		l.shared.lately.begin(*f.late, f.endpoint, false)
	}
	return nil
}

// goOn continues a flow that the previous process handed over.
func (u *udpPort) goOn(held HeldFlow, socket *net.UDPConn) {
	l, f := u.listener, &flow{port: u, client: held.Client, endpoint: held.Endpoint, replied: held.Replied, socket: socket}
	l.mu.Lock()
	err := l.note(f)
	l.mu.Unlock()
	if err != nil {
		return
	}
	u.quota.force()
	u.endpoints.goesOn(f.endpoint)
	l.shared.tasks.Go(func() { l.reply(f) })
}

// reply forwards the datagrams from a flow's endpoint to its client, until the flow ends or times out.
func (l *udpListener) reply(f *flow) {
	defer l.end(f)
	for {
		if !l.wait(f) {
			return
		}
		err := receiveDatagram(f.raw, func(data []byte, _ netip.AddrPort, _ int) { l.answer(f, data) })
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // the flow ended, or the endpoint refused a datagram
		}
	}
}

// answer sends a datagram from a flow's endpoint to its client.
func (l *udpListener) answer(f *flow, data []byte) {
	l.touch(f, true)
	if _, err := l.socket.WriteToUDPAddrPort(data, f.client); err != nil && !errors.Is(err, net.ErrClosed) {
		l.log.Debug("an answer from a relayed port is dropped", "client", f.client, "err", err)
	}
}

// wait sets the read deadline of a flow's socket to the idle timeout of the flow. It returns false if the flow has timed out, or the listener is
// paused.
func (l *udpListener) wait(f *flow) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := f.seen.Add(l.shared.limits.unreplied)
	if f.replied && f.seen.Sub(f.began) >= l.shared.limits.stream {
		until = f.seen.Add(l.shared.limits.replied)
	}
	return !l.paused && time.Now().Before(until) && f.socket.SetReadDeadline(until) == nil
}

// touch records that a datagram was sent to the endpoint of a flow, or received from it if reply is set.
func (l *udpListener) touch(f *flow, reply bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.seen = time.Now()
	f.replied = f.replied || reply
	if f.place != nil {
		f.port.order.MoveToBack(f.place)
	}
}

// end ends a flow, unless it has ended already. It closes the socket without holding l.mu, since closing waits for goroutines that use the socket,
// and these may be waiting for l.mu.
func (l *udpListener) end(f *flow) {
	l.mu.Lock()
	ended := !l.paused && l.remove(f)
	l.mu.Unlock()
	if ended {
		l.release(f)
	}
}

// remove removes a flow from the table and from its port. It returns false if the flow was removed before. The caller must hold l.mu.
func (l *udpListener) remove(f *flow) bool {
	if f.place == nil {
		return false
	}
	f.port.order.Remove(f.place)
	f.place = nil
	delete(l.flows, f.client)
	return true
}

func (l *udpListener) release(f *flow) {
	_ = f.socket.Close() // nothing is buffered that could be lost
	f.port.quota.release()
	f.port.endpoints.done(f.endpoint)
	if f.late != nil {
		l.shared.lately.end(*f.late)
	}
}

// endWhere ends the flows of a port for which gone returns true.
func (u *udpPort) endWhere(gone func(*flow) bool) {
	var ended []*flow
	u.listener.mu.Lock()
	for f := range u.flows {
		if gone(f) && u.listener.remove(f) {
			ended = append(ended, f)
		}
	}
	u.listener.mu.Unlock()
	for _, f := range ended {
		u.listener.release(f)
	}
}

// leave adds a port with its flows to the state to hand over. It must be called after the listener is paused.
func (u *udpPort) leave() {
	to := &u.listener.shared.leaving
	var flows []HeldFlow
	for f := range u.flows {
		if held, err := to.flow(f.socket, f.client, f.endpoint, f.replied); err == nil {
			flows = append(flows, held)
		}
	}
	to.flows(u.port, u.endpoints, flows)
}

// endOldest ends the longest idle flow of a port. ended is false if the port has no flow. waited is true if the client of the ended flow had got no
// reply yet.
func (l *udpListener) endOldest(port *udpPort) (ended, waited bool) {
	l.mu.Lock()
	oldest := port.order.Front()
	if oldest == nil {
		l.mu.Unlock()
		return false, false
	}
	f := oldest.Value.(*flow)
	waited = !f.replied
	l.remove(f)
	l.mu.Unlock()
	l.release(f)
	return true, waited
}

// maxDatagram is the size of the receive buffer in bytes. It exceeds the length of any UDP datagram, which is a 16-bit number.
const maxDatagram = 1 << 16

// datagrams has receive buffers of the type *datagram.
var datagrams = sync.Pool{New: func() any { return new(datagram) }}

// datagram is a buffer for one datagram and its control messages.
type datagram struct {
	data    [maxDatagram]byte
	control [64]byte
}

// receiveDatagram waits for one datagram and calls use with it. use must not retain data. hops is the TTL or hop limit of the datagram, 0 if the kernel does
// not provide it. It takes a buffer only once a datagram has arrived, so that thousands of idle sockets need none.
func receiveDatagram(raw syscall.RawConn, use func(data []byte, from netip.AddrPort, hops int)) error {
	var result error
	err := raw.Read(func(fd uintptr) (done bool) {
		buf := datagrams.Get().(*datagram)
		defer datagrams.Put(buf)
		switch n, control, _, from, err := syscall.Recvmsg(int(fd), buf.data[:], buf.control[:], syscall.MSG_DONTWAIT); {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			result = os.NewSyscallError("recvmsg", err)
		default:
			use(buf.data[:n], addrPortOf(from), max(hopsIn(buf.control[:control], unix.SOL_IP, unix.IP_TTL), hopsIn(buf.control[:control], unix.SOL_IPV6, unix.IPV6_HOPLIMIT)))
		}
		return true
	})
	if err != nil {
		return err
	}
	return result
}

// send sends a datagram on a connected socket without blocking. It returns EAGAIN if the send buffer is full, so that one slow endpoint does not
// block other clients.
func send(raw syscall.RawConn, data []byte) error {
	var result error
	err := raw.Write(func(fd uintptr) (done bool) {
		_, err := syscall.Write(int(fd), data)
		result = os.NewSyscallError("write", err)
		return true
	})
	if err != nil {
		return err
	}
	return result
}

func addrPortOf(from syscall.Sockaddr) netip.AddrPort {
	switch from := from.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(from.Addr), uint16(from.Port))
	}
	return netip.AddrPort{}
}
