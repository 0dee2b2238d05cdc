package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/handover"
)

// tcpListener accepts connections at one address.
type tcpListener struct {
	relay  *Relay
	log    *slog.Logger
	socket *net.TCPListener
	// route finds the port that a client asked for, and what it had sent to.
	route func(*net.TCPConn) (*tcpPort, netip.AddrPort, error)
}

// listenTCP opens a listener, whose clients wait until start.
func (r *Relay) listenTCP(at netip.AddrPort, log *slog.Logger, route func(*net.TCPConn) (*tcpPort, netip.AddrPort, error)) (*tcpListener, error) {
	l := &tcpListener{relay: r, log: log, route: route}
	var err error
	if kept := r.arriving.socket(TCP, at); kept != nil {
		defer kept.Close()
		var socket net.Listener
		if socket, err = net.FileListener(kept); err == nil {
			l.socket = socket.(*net.TCPListener)
		}
		return l, err
	}
	config := net.ListenConfig{KeepAlive: -1, Control: keepAlive} // net would set it for each connection
	config.SetMultipathTCP(false)
	socket, err := config.Listen(context.Background(), networkOf(TCP, at.Addr()), at.String())
	if err == nil {
		l.socket = socket.(*net.TCPListener)
	}
	return l, err
}

// keepAlive sets SO_KEEPALIVE on a listener, whose connections inherit it (tcp(7)).
func keepAlive(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		for _, option := range []struct{ level, name, value int }{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveEvery.Seconds())},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveEvery.Seconds())},
		} {
			if failed = unix.SetsockoptInt(int(fd), option.level, option.name, option.value); failed != nil {
				return
			}
		}
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
}

// start begins to serve clients, whose connections last until ctx is done.
func (l *tcpListener) start(ctx context.Context) { l.relay.tasks.Go(func() { l.accept(ctx) }) }

func (l *tcpListener) close() {
	if err := l.socket.Close(); err != nil {
		l.log.Warn("a listener of the relay cannot be closed", "err", err)
	}
}

// pause has it accept no more, and leaves it open.
func (l *tcpListener) pause() { interrupt(l.socket) }

func (l *tcpListener) conn() syscall.Conn { return l.socket }

// accept serves clients until the listener is closed, or ctx is done.
func (l *tcpListener) accept(ctx context.Context) {
	failed := logLimiter{every: l.relay.limits.logInterval}
	for {
		client, err := l.socket.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded), err != nil && ctx.Err() != nil:
			return // closed, or paused
		case err != nil: // usually EMFILE: clients wait in the backlog
			if times, due := failed.due(); due {
				l.log.Warn("connections cannot be accepted: look at the limit of open files", "times", times, "err", err)
			}
			sleep(ctx, l.relay.limits.backoff)
			continue
		}
		port, asked, err := l.route(client)
		if err != nil {
			l.log.Debug("a client is reset: it asked for nothing that is relayed", "client", client.RemoteAddr(), "err", err)
			reset(client)
			continue
		}
		port.accepted(ctx, client, asked)
	}
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// tcpPort is a TCP Port and its connections.
type tcpPort struct {
	relay     *Relay
	log       *slog.Logger
	endpoints *balancer
	quota     *quota

	failedConnects atomic.Int64

	mu    sync.Mutex
	port  Port
	gone  bool // nothing leads here; connections live on
	conns map[*relayed]struct{}
	names map[string]*tcpPort // by server name; nil: the port has none
}

func (r *Relay) newTCPPort(p Port, log *slog.Logger) *tcpPort {
	t := &tcpPort{
		relay: r, log: log, port: p,
		endpoints: r.newBalancer(p), quota: r.quotaFor(p),
		conns: map[*relayed]struct{}{},
	}
	t.setNames(p)
	return t
}

// accepted serves a client, or resets it if there are too many.
func (t *tcpPort) accepted(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) {
	t.admit(client, func() { t.serve(ctx, client, asked) })
}

// admit has a client served, or resets it if there are too many.
func (t *tcpPort) admit(client *net.TCPConn, serve func()) {
	if !t.quota.acquire() {
		t.mu.Lock()
		p := t.port
		t.mu.Unlock()
		t.relay.overload.turnAway(p, t.quota, "connections to a relayed port are refused")
		reset(client)
		return
	}
	t.relay.tasks.Go(func() {
		defer t.quota.release()
		serve()
	})
}

// serve connects a client, who had sent to asked, with an endpoint until both directions or ctx have
// ended.
func (t *tcpPort) serve(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) {
	from, asked, err := t.clientOf(ctx, client, asked)
	if err != nil {
		if handover.IsRequested(ctx) && errors.Is(err, os.ErrDeadlineExceeded) {
			t.relay.leaving.unconnected(t, client, netip.AddrPort{}, asked, nil)
			return
		}
		t.log.Debug("a client is reset: it does not say who it is", "client", client.RemoteAddr(), "err", err)
		reset(client)
		return
	}
	t.serveFrom(ctx, client, nil, from, asked)
}

// serveFrom is serve for a client whose address is known. early was read from it already, by the program before.
func (t *tcpPort) serveFrom(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort) {
	if names := t.serverNames(); names != nil {
		t.serveNamed(ctx, client, early, from, asked, names)
		return
	}
	t.serveHere(ctx, client, early, from, asked)
}

// serveHere is serveFrom whatever server name the client asks for.
func (t *tcpPort) serveHere(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort) {
	if front := t.frontOf(); front != nil {
		t.serveFront(ctx, client, early, from, asked, front)
		return
	}
	t.servePlain(ctx, client, early, from, asked)
}

// servePlain passes bytes on as they are.
func (t *tcpPort) servePlain(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort) {
	endpoint, to, err := t.connect(ctx, from, asked)
	if err != nil && handover.IsRequested(ctx) {
		t.relay.leaving.unconnected(t, client, from, asked, early)
		return
	}
	if err != nil {
		t.log.Debug("a client is reset: no endpoint accepted its connection", "client", from, "err", err)
		reset(client)
		return
	}
	if err := t.introduce(endpoint, from, asked); err != nil {
		t.log.Debug("a client is reset: its endpoint took no header of the PROXY protocol", "client", from, "endpoint", to, "err", err)
		t.endpoints.done(to)
		reset(client)
		reset(endpoint)
		return
	}
	c, err := t.relay.newRelayed(client, endpoint, to)
	if err != nil { // one of the two was closed
		t.endpoints.done(to)
		reset(client)
		reset(endpoint)
		return
	}
	c.there.held = early
	t.run(ctx, c)
}

// run relays a connection until it ends, or ctx is done.
func (t *tcpPort) run(ctx context.Context, c *relayed) {
	stop := context.AfterFunc(ctx, func() { c.stop(ctx) })
	defer stop()
	t.begin(c)
	paused := c.join()
	t.end(c)
	if paused {
		t.relay.leaving.connection(t, c)
	}
}

// errNoEndpoint means that a Port has no endpoint.
var errNoEndpoint = errors.New("there is no endpoint")

// connect connects to an endpoint, and to another one if that refuses or does not answer in time: no
// endpoint twice, and no more others than Port.Retries. The connection counts as open until end, or until the balancer
// is told that it is done.
func (t *tcpPort) connect(ctx context.Context, client, asked netip.AddrPort) (*net.TCPConn, netip.AddrPort, error) {
	t.mu.Lock()
	retries, timeout, transparent := t.port.Connect.Retries, t.port.Connect.Timeout, t.port.Connect.Transparent
	t.mu.Unlock()
	if timeout <= 0 {
		timeout = t.relay.limits.dial
	}
	var tried []netip.AddrPort
	failed := errNoEndpoint
	for len(tried) <= retries && ctx.Err() == nil {
		to, is := t.endpoints.pick(client, asked, tried...)
		if !is {
			break
		}
		var source netip.AddrPort
		var prepare prepareSocket
		if transparent && client.Addr() != to.Addr() && client.Addr().Is4() == to.Addr().Is4() {
			source, prepare = netip.AddrPortFrom(client.Addr(), 0), asOthers
		}
		endpoint, err := dial(ctx, timeout, prepare, source, to)
		if err == nil {
			return endpoint, to, nil
		}
		t.endpoints.done(to)
		if failed = err; ctx.Err() != nil {
			break // the client left, or the program is handed over: that says nothing about the endpoint
		}
		t.relay.failedConnects.Add(1)
		t.failedConnects.Add(1)
		tried = append(tried, to)
	}
	return nil, netip.AddrPort{}, fmt.Errorf("%d endpoints tried: %w", len(tried), failed)
}

// begin notes a connection, and ends it if its endpoint went while it was made.
func (t *tcpPort) begin(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	if t.port.Logged {
		t.note(c)
	}
	if t.port.IdleTimeout > 0 {
		t.watchIdle(c, t.port.IdleTimeout)
	}
	t.judge(c)
}

// note has EndpointsOf know a connection. The caller holds the lock.
func (t *tcpPort) note(c *relayed) {
	client, is := c.client.RemoteAddr().(*net.TCPAddr)
	listener, bound := c.client.LocalAddr().(*net.TCPAddr)
	if !is || !bound { // it has gone
		return
	}
	c.late = &lateKey{TCP, unmapped(client.AddrPort()), uint16(listener.Port)}
	goesOn := false
	if c.session != nil {
		goesOn, c.session.noted = c.session.noted, true
	}
	t.relay.lately.begin(*c.late, c.to, goesOn)
}

func (t *tcpPort) end(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	t.endpoints.done(c.to)
	if c.late != nil {
		t.relay.lately.end(*c.late)
	}
	c.setStale(false)
	c.stopTimers()
}

// update replaces what the port leads to.
func (t *tcpPort) update(p Port) {
	t.endpoints.set(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.port, t.gone = p, false
	t.setNames(p)
	for c := range t.conns {
		t.judge(c)
		if p.IdleTimeout > 0 && c.idle == nil {
			t.watchIdle(c, p.IdleTimeout)
		}
	}
}

// retire notes that nothing leads to the port any more.
func (t *tcpPort) retire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	t.setNames(Port{})
	for c := range t.conns {
		t.judge(c)
	}
}

// judge decides about a connection by what has become of its endpoint. The caller holds the lock.
func (t *tcpPort) judge(c *relayed) {
	switch {
	case !t.gone && t.port.ends(c.to):
		c.reset()
	case !t.gone && t.port.keeps(c.to):
		c.stays()
		c.setStale(!slices.Contains(t.port.Endpoints, c.to))
	default:
		c.setStale(true)
		if t.port.Drain != nil && c.drain == nil {
			c.drain = time.AfterFunc(*t.port.Drain, c.reset)
		}
	}
}
