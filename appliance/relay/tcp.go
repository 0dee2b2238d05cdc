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

// tcpListener serves a TCP Port.
type tcpListener struct {
	relay     *Relay
	log       *slog.Logger
	socket    *net.TCPListener
	endpoints *balancer
	quota     quota
}

// listenTCP opens a listener whose connections last until ctx is done.
func (r *Relay) listenTCP(ctx context.Context, p Port) (*tcpListener, error) {
	socket, err := net.ListenTCP(p.network(), net.TCPAddrFromAddrPort(p.Listen))
	if err != nil {
		return nil, err
	}
	l := &tcpListener{
		relay: r, log: r.logOf(p), socket: socket,
		endpoints: newBalancer(p, r.limits.clients),
		quota:     quota{limit: r.limits.port, parent: &r.total},
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

// accept serves clients until the listener is closed.
func (l *tcpListener) accept(ctx context.Context) {
	refused := logLimiter{every: l.relay.limits.logInterval}
	failed := logLimiter{every: l.relay.limits.logInterval}
	for {
		client, err := l.socket.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // usually EMFILE: clients wait in the backlog
			if times, due := failed.due(); due {
				l.log.Warn("connections to a node port on loopback cannot be accepted: look at the limit of open files", "times", times, "err", err)
			}
			sleep(ctx, l.relay.limits.backoff)
		case !l.quota.acquire():
			if times, due := refused.due(); due {
				l.log.Warn("connections to a node port on loopback are refused: there are too many at once",
					"refused", times, "limit", l.quota.limit, "limitOfAllPorts", l.quota.parent.limit)
			}
			reset(client)
		default:
			l.relay.tasks.Go(func() {
				defer l.quota.releaseSlot()
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

// serve connects a client with an endpoint until both directions or ctx have ended.
func (l *tcpListener) serve(ctx context.Context, client *net.TCPConn) {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	to := l.endpoints.pick(from)
	dialer := net.Dialer{Timeout: l.relay.limits.dial}
	endpoint, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		l.log.Debug("a client on loopback is reset: its endpoint does not answer", "client", from, "endpoint", to, "err", err)
		reset(client)
		return
	}
	// A FIN would look like a complete transfer.
	stop := context.AfterFunc(ctx, func() {
		reset(client)
		reset(endpoint)
	})
	defer stop()
	join(client, endpoint)
}

// join copies both directions between two connections and closes both.
func join(a, b *net.TCPConn) {
	var back sync.WaitGroup
	back.Go(func() { pass(a, b) })
	pass(b, a)
	back.Wait()
	// Both directions have ended, so closing loses no data.
	_ = a.Close()
	_ = b.Close()
}

// pass copies one direction with splice(2). It passes on a FIN as a FIN; after an error it
// resets both connections.
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

// reset closes a connection with RST. On a closed connection it does nothing.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
