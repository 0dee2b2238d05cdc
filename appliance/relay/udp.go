package relay

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// udpListener receives datagrams at one address. Each client has a flow, with its own socket to an
// endpoint, until the flow times out, or is the longest idle one of its port when the quota is
// exceeded.
type udpListener struct {
	relay  *Relay
	log    *slog.Logger
	socket *net.UDPConn
	raw    syscall.RawConn // of the socket
	// route finds the port that a client without a flow asks for.
	route func(client netip.AddrPort) (*udpPort, error)

	mu     sync.Mutex
	closed bool
	flows  map[netip.AddrPort]*flow // by client
}

// udpPort is a UDP Port. The mutex of its listener guards what is below it.
type udpPort struct {
	log       *slog.Logger
	endpoints *balancer
	quota     quota
	overflow  logLimiter // of the receiving goroutine

	port  Port
	gone  bool      // nothing leads here any more
	order list.List // of *flow, longest idle first
}

func (r *Relay) newUDPPort(p Port, log *slog.Logger) *udpPort {
	return &udpPort{
		log: log, port: p, endpoints: newBalancer(p, r.limits.clients),
		quota:    quota{limit: r.limits.of(p), parent: r.quotaOf(p)},
		overflow: logLimiter{every: r.limits.logInterval},
	}
}

// flow is one client of a udpListener, whose mutex guards its fields.
type flow struct {
	port             *udpPort
	client, endpoint netip.AddrPort
	socket           *net.UDPConn // connected to the endpoint
	raw              syscall.RawConn
	place            *list.Element // in the order; nil: ended
	seen             time.Time     // the last datagram, either way
	replied          bool
}

// errQuotaExceeded means that a datagram of a new client was dropped, because no other flow
// of the port can be ended.
var errQuotaExceeded = errors.New("too many clients of relayed ports at once")

// listenUDP opens a listener, whose clients wait until start.
func (r *Relay) listenUDP(at netip.AddrPort, log *slog.Logger, route func(netip.AddrPort) (*udpPort, error)) (*udpListener, error) {
	socket, err := net.ListenUDP(networkOf(UDP, at.Addr()), net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return &udpListener{relay: r, log: log, socket: socket, raw: raw, route: route, flows: map[netip.AddrPort]*flow{}}, nil
}

// start begins to serve clients.
func (l *udpListener) start(context.Context) { l.relay.tasks.Go(l.receive) }

// update ends the flows of endpoints that are gone, as conntrack entries are deleted.
func (l *udpListener) update(u *udpPort, p Port) {
	u.endpoints.set(p)
	l.mu.Lock()
	u.port = p
	l.mu.Unlock()
	l.endWhere(u, func(f *flow) bool { return !p.keeps(f.endpoint) })
}

// retire ends all flows of a port that nothing leads to any more.
func (l *udpListener) retire(u *udpPort) {
	l.mu.Lock()
	u.gone = true
	l.mu.Unlock()
	l.endWhere(u, func(*flow) bool { return true })
}

// close closes the listening socket. The flows of its ports end with these.
func (l *udpListener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	if err := l.socket.Close(); err != nil {
		l.log.Warn("a listener of the relay cannot be closed", "err", err)
	}
	l.mu.Lock()
	var left []*flow
	for _, f := range l.flows {
		left = append(left, f)
	}
	l.mu.Unlock()
	for _, f := range left {
		l.end(f)
	}
}

// receive forwards the datagrams of clients until the listener is closed.
func (l *udpListener) receive() {
	failed := logLimiter{every: l.relay.limits.logInterval}
	for {
		err := l.relay.receive(l.raw, func(data []byte, client netip.AddrPort) {
			if err := l.forward(data, client); err != nil {
				l.log.Debug("a datagram to a relayed port is dropped", "client", client, "err", err)
			}
		})
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if times, due := failed.due(); due {
				l.log.Warn("datagrams to relayed ports cannot be received", "times", times, "err", err)
			}
			time.Sleep(l.relay.limits.backoff)
		}
	}
}

// forward sends a datagram on its client's flow. A flow whose endpoint refused an earlier
// datagram ends, and the client's next datagram starts a new one.
func (l *udpListener) forward(data []byte, client netip.AddrPort) error {
	f, err := l.flowOf(client)
	if err != nil {
		return err
	}
	if err := send(f.raw, data); err != nil {
		if !isPassing(err) {
			l.end(f)
		}
		return err
	}
	l.touch(f, false)
	return nil
}

// isPassing reports whether an error affects only this datagram: congestion or size.
func isPassing(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.EMSGSIZE)
}

// flowOf returns the client's flow, or starts one. Only receive's goroutine calls it.
func (l *udpListener) flowOf(client netip.AddrPort) (*flow, error) {
	l.mu.Lock()
	f := l.flows[client]
	l.mu.Unlock()
	if f != nil {
		return f, nil
	}
	port, err := l.route(client)
	if err != nil {
		return nil, err
	}
	for !port.quota.acquire() {
		if times, due := port.overflow.due(); due {
			port.log.Warn("clients of a relayed port are forgotten early: there are too many at once",
				"forgotten", times, "limit", port.quota.limit, "limitOfAllPorts", port.quota.parent.limit)
		}
		if !l.endOldest(port) {
			return nil, errQuotaExceeded
		}
	}
	f, err = l.begin(port, client)
	if err != nil {
		port.quota.releaseSlot()
		return nil, err
	}
	l.relay.tasks.Go(func() { l.reply(f) })
	return f, nil
}

// begin starts a flow. It picks the endpoint under the lock, so that update, which changes
// the endpoints before it looks at the flows, misses none.
func (l *udpListener) begin(port *udpPort, client netip.AddrPort) (*flow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || port.gone {
		return nil, net.ErrClosed
	}
	endpoint, is := port.endpoints.pick(client)
	if !is {
		return nil, errNoEndpoint
	}
	f := &flow{port: port, client: client, endpoint: endpoint, seen: time.Now()}
	var dialer net.Dialer
	var err error
	// Connecting a UDP socket never waits, so the context does not matter.
	if f.socket, err = dialer.DialUDP(context.Background(), "udp", netip.AddrPort{}, f.endpoint); err != nil {
		return nil, err
	}
	if f.raw, err = f.socket.SyscallConn(); err != nil {
		return nil, errors.Join(err, f.socket.Close())
	}
	l.flows[client] = f
	f.place = port.order.PushBack(f)
	return f, nil
}

// reply forwards the datagrams of a flow's endpoint until the flow ends or times out.
func (l *udpListener) reply(f *flow) {
	defer l.end(f)
	for {
		until := l.expiry(f)
		if !time.Now().Before(until) {
			return
		}
		if err := f.socket.SetReadDeadline(until); err != nil {
			return
		}
		err := l.relay.receive(f.raw, func(data []byte, _ netip.AddrPort) {
			l.touch(f, true)
			if _, err := l.socket.WriteToUDPAddrPort(data, f.client); err != nil && !errors.Is(err, net.ErrClosed) {
				l.log.Debug("an answer from a relayed port is dropped", "client", f.client, "err", err)
			}
		})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // the flow ended, or the endpoint refused a datagram
		}
	}
}

func (l *udpListener) expiry(f *flow) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.replied {
		return f.seen.Add(l.relay.limits.replied)
	}
	return f.seen.Add(l.relay.limits.unreplied)
}

// touch records a datagram of a flow.
func (l *udpListener) touch(f *flow, reply bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.seen = time.Now()
	f.replied = f.replied || reply
	if f.place != nil {
		f.port.order.MoveToBack(f.place)
	}
}

// end ends a flow once. It closes the socket without the lock, because closing waits for
// users of the socket, and they may wait for the lock.
func (l *udpListener) end(f *flow) {
	l.mu.Lock()
	ended := l.remove(f)
	l.mu.Unlock()
	if ended {
		l.release(f)
	}
}

// remove deletes a flow from the table and reports whether it was there. The caller holds
// the lock.
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
	f.port.quota.releaseSlot()
}

func (l *udpListener) endWhere(port *udpPort, gone func(*flow) bool) {
	var ended []*flow
	l.mu.Lock()
	var next *list.Element
	for place := port.order.Front(); place != nil; place = next {
		next = place.Next()
		if f := place.Value.(*flow); gone(f) && l.remove(f) {
			ended = append(ended, f)
		}
	}
	l.mu.Unlock()
	for _, f := range ended {
		l.release(f)
	}
}

// endOldest ends the longest idle flow of a port and reports whether there was one.
func (l *udpListener) endOldest(port *udpPort) bool {
	l.mu.Lock()
	oldest := port.order.Front()
	if oldest == nil {
		l.mu.Unlock()
		return false
	}
	f := oldest.Value.(*flow)
	l.remove(f)
	l.mu.Unlock()
	l.release(f)
	return true
}
