package relay

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// udpListener serves a Port of UDP. Each client has a flow, with a socket of its own
// to an endpoint, until it has been idle for long enough, or longest of too many.
type udpListener struct {
	relay     *Relay
	log       *slog.Logger
	socket    *net.UDPConn
	endpoints *choice
	room      room

	mu     sync.Mutex
	closed bool
	flows  map[netip.AddrPort]*flow // by client
	order  list.List                // of *flow, the one that has been idle longest first
}

// flow is one client of a udpListener, which guards its fields.
type flow struct {
	client, endpoint netip.AddrPort
	socket           *net.UDPConn // connected to the endpoint
	raw              syscall.RawConn
	place            *list.Element // in the order; nil: ended
	seen             time.Time     // the last datagram, either way
	replied          bool
}

// errNoRoom is why a new client's datagram is dropped when no other can be forgotten.
var errNoRoom = errors.New("too many connections at once through node ports on loopback")

func (r *Relay) listenUDP(p Port) (*udpListener, error) {
	socket, err := net.ListenUDP(p.network(), net.UDPAddrFromAddrPort(p.Listen))
	if err != nil {
		return nil, err
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	l := &udpListener{
		relay: r, log: r.logOf(p), socket: socket,
		endpoints: newChoice(p, r.limits.clients),
		room:      room{limit: r.limits.port, within: &r.total},
		flows:     map[netip.AddrPort]*flow{},
	}
	r.tasks.Go(func() { l.receive(raw) })
	return l, nil
}

// update forgets the clients whose endpoints are gone, as conntrack is made to.
func (l *udpListener) update(p Port) {
	if !l.endpoints.set(p) {
		return
	}
	l.endWhere(func(f *flow) bool { return !slices.Contains(p.Endpoints, f.endpoint) })
}

func (l *udpListener) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	if err := l.socket.Close(); err != nil {
		l.log.Warn("a listener on loopback cannot be closed", "err", err)
	}
	l.endWhere(func(*flow) bool { return true })
}

// receive passes on what clients send, until the listener is closed.
func (l *udpListener) receive(raw syscall.RawConn) {
	failed := complaint{every: l.relay.limits.complain}
	crowded := complaint{every: l.relay.limits.complain}
	for {
		err := l.relay.receive(raw, func(data []byte, client netip.AddrPort) {
			if err := l.forward(data, client, &crowded); err != nil {
				l.log.Debug("a datagram to a node port on loopback is dropped", "client", client, "err", err)
			}
		})
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if times, due := failed.due(); due {
				l.log.Warn("datagrams to a node port on loopback cannot be received", "times", times, "err", err)
			}
			time.Sleep(l.relay.limits.pause)
		}
	}
}

// forward sends a datagram on its client's flow. A flow that turns out to be dead (its
// endpoint refused an earlier datagram) ends: the client's next datagram begins anew.
func (l *udpListener) forward(data []byte, client netip.AddrPort, crowded *complaint) error {
	f, err := l.flowOf(client, crowded)
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

// isPassing reports whether a datagram is lost to congestion or its size alone.
func isPassing(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.EMSGSIZE)
}

// flowOf is the client's flow, begun now if there is none. Only receive's goroutine
// calls it.
func (l *udpListener) flowOf(client netip.AddrPort, crowded *complaint) (*flow, error) {
	l.mu.Lock()
	f := l.flows[client]
	l.mu.Unlock()
	if f != nil {
		return f, nil
	}
	for !l.room.enter() {
		if times, due := crowded.due(); due {
			l.log.Warn("clients of a node port on loopback are forgotten early: there are too many at once",
				"forgotten", times, "limit", l.room.limit, "limitOfAllPorts", l.room.within.limit)
		}
		if !l.endOldest() {
			return nil, errNoRoom
		}
	}
	f, err := l.begin(client)
	if err != nil {
		l.room.leave()
		return nil, err
	}
	l.relay.tasks.Go(func() { l.reply(f) })
	return f, nil
}

// begin makes a flow. The endpoint is picked under the lock: so update, which changes
// the endpoints first and then looks at the flows, misses none.
func (l *udpListener) begin(client netip.AddrPort) (*flow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	f := &flow{client: client, endpoint: l.endpoints.pick(client.Addr()), seen: time.Now()}
	var dialer net.Dialer
	var err error
	// Connecting a UDP socket waits for nobody, so the context is never asked.
	if f.socket, err = dialer.DialUDP(context.Background(), "udp", netip.AddrPort{}, f.endpoint); err != nil {
		return nil, err
	}
	if f.raw, err = f.socket.SyscallConn(); err != nil {
		return nil, errors.Join(err, f.socket.Close())
	}
	l.flows[client] = f
	f.place = l.order.PushBack(f)
	return f, nil
}

// reply passes on what the endpoint of a flow sends, until the flow has ended or has
// been idle for too long.
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
				l.log.Debug("an answer from a node port on loopback is dropped", "client", f.client, "err", err)
			}
		})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // ended, or refused by the endpoint: the next datagram begins anew
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

// touch notes a datagram of a flow.
func (l *udpListener) touch(f *flow, reply bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.seen = time.Now()
	f.replied = f.replied || reply
	if f.place != nil {
		l.order.MoveToBack(f.place)
	}
}

// end forgets a flow, once. The socket is closed without the lock: closing waits for
// whoever uses it, and they may wait for the lock.
func (l *udpListener) end(f *flow) {
	l.mu.Lock()
	ended := l.remove(f)
	l.mu.Unlock()
	if ended {
		l.release(f)
	}
}

// remove takes a flow out of the table, under the lock. False: it is out already.
func (l *udpListener) remove(f *flow) bool {
	if f.place == nil {
		return false
	}
	l.order.Remove(f.place)
	f.place = nil
	delete(l.flows, f.client)
	return true
}

func (l *udpListener) release(f *flow) {
	_ = f.socket.Close() // nothing is buffered that could be lost
	l.room.leave()
}

func (l *udpListener) endWhere(gone func(*flow) bool) {
	var ended []*flow
	l.mu.Lock()
	for _, f := range l.flows {
		if gone(f) && l.remove(f) {
			ended = append(ended, f)
		}
	}
	l.mu.Unlock()
	for _, f := range ended {
		l.release(f)
	}
}

// endOldest forgets the flow that has been idle longest. False: there is none.
func (l *udpListener) endOldest() bool {
	l.mu.Lock()
	oldest := l.order.Front()
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
