package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// tcpListener serves a Port of TCP.
type tcpListener struct {
	relay     *Relay
	log       *slog.Logger
	socket    *net.TCPListener
	endpoints *choice
	room      room
}

// listenTCP opens a listener whose connections last until ctx is done.
func (r *Relay) listenTCP(ctx context.Context, p Port) (*tcpListener, error) {
	socket, err := net.ListenTCP(p.network(), net.TCPAddrFromAddrPort(p.Listen))
	if err != nil {
		return nil, err
	}
	l := &tcpListener{
		relay: r, log: r.logOf(p), socket: socket,
		endpoints: newChoice(p, r.limits.clients),
		room:      room{limit: r.limits.port, within: &r.total},
	}
	r.tasks.Go(func() { l.accept(ctx) })
	return l, nil
}

func (r *Relay) logOf(p Port) *slog.Logger {
	return r.log.With("svc", p.ID, "ip", p.Listen.Addr(), "port", p.Listen.Port(), "protocol", p.Protocol)
}

func (l *tcpListener) update(p Port) { l.endpoints.set(p) }

func (l *tcpListener) close() {
	if err := l.socket.Close(); err != nil {
		l.log.Warn("a listener on loopback cannot be closed", "err", err)
	}
}

// accept starts to serve every client, until the listener is closed.
func (l *tcpListener) accept(ctx context.Context) {
	refused := complaint{every: l.relay.limits.complain}
	failed := complaint{every: l.relay.limits.complain}
	for {
		client, err := l.socket.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, as a rule: clients wait in the backlog
			if times, due := failed.due(); due {
				l.log.Warn("connections to a node port on loopback cannot be accepted: look at the limit of open files", "times", times, "err", err)
			}
			sleep(ctx, l.relay.limits.pause)
		case !l.room.enter():
			if times, due := refused.due(); due {
				l.log.Warn("connections to a node port on loopback are refused: there are too many at once",
					"refused", times, "limit", l.room.limit, "limitOfAllPorts", l.room.within.limit)
			}
			reset(client)
		default:
			l.relay.tasks.Go(func() {
				defer l.room.leave()
				l.serve(ctx, client)
			})
		}
	}
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// serve joins a client with an endpoint until both have ended, or ctx has.
func (l *tcpListener) serve(ctx context.Context, client *net.TCPConn) {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	to := l.endpoints.pick(from.Addr())
	dialer := net.Dialer{Timeout: l.relay.limits.dial}
	endpoint, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		l.log.Debug("a client on loopback is reset: its endpoint does not answer", "client", from, "endpoint", to, "err", err)
		reset(client)
		return
	}
	// A FIN would look like the end of what the other side had to say.
	stop := context.AfterFunc(ctx, func() {
		reset(client)
		reset(endpoint)
	})
	defer stop()
	join(client, endpoint)
}

// join passes on what each of two connections sends to the other, and its end. Both
// are closed when it returns.
func join(a, b *net.TCPConn) {
	var back sync.WaitGroup
	back.Go(func() { pass(a, b) })
	pass(b, a)
	back.Wait()
	// Both directions have ended, so there is nothing that closing could lose.
	_ = a.Close()
	_ = b.Close()
}

// pass copies one direction, with splice(2), and then its end: a FIN as a FIN; anything
// else resets both.
func pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to)
		reset(from)
	}
}

// reset closes a connection with RST. On one that is closed already it does nothing.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
