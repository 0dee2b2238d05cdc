package relay

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/relay/tlsterm"
	"svcctl.io/svcctl/appliance/task"
)

// tcpListener accepts TCP connections at one address and port.
type tcpListener struct {
	shared *shared
	log    *slog.Logger
	socket *net.TCPListener
	// route returns the port for a client, and the address that the client connected to.
	route func(*net.TCPConn) (*tcpPort, netip.AddrPort, error)
}

// listenTCP opens a listener. It accepts no clients until start is called. kept is the socket that the previous process or systemd kept open for it,
// nil if there is none. route returns the port for a client, and the address that the client connected to.
func (s *shared) listenTCP(at netip.AddrPort, kept *os.File, log *slog.Logger, route func(*net.TCPConn) (*tcpPort, netip.AddrPort, error)) (*tcpListener, error) {
	l := &tcpListener{shared: s, log: log, route: route}
	var socket net.Listener
	var err error
	if kept != nil {
		defer kept.Close()
		socket, err = net.FileListener(kept)
	} else {
		config := net.ListenConfig{KeepAlive: -1, Control: keepAlive} // net would set it for each connection
		config.SetMultipathTCP(false)
		socket, err = config.Listen(context.Background(), networkOf(TCP, at.Addr()), at.String())
	}
	if err == nil {
		l.socket = socket.(*net.TCPListener)
		l.countHops(at)
	}
	return l, err
}

// countHops makes the kernel record the TTL of incoming connections, so that loops of relays can be detected.
func (l *tcpListener) countHops(at netip.AddrPort) {
	raw, err := l.socket.SyscallConn()
	if err == nil {
		err = countHops(networkOf(TCP, at.Addr()), raw)
	}
	if err != nil {
		l.log.Warn("relays that connections pass in a row are not counted", "err", err)
	}
}

// keepAlive enables TCP keepalive (SO_KEEPALIVE) on a listener. Accepted connections inherit the setting (tcp(7)).
func keepAlive(_, _ string, c syscall.RawConn) error {
	every := int(keepAliveEvery.Seconds())
	return errors.Join(setInt(c, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1), setInt(c, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, every), setInt(c, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, every))
}

// start starts to accept and serve clients, until ctx is done. It does not block.
func (l *tcpListener) start(ctx context.Context) { l.shared.clients.Go(func() { l.accept(ctx) }) }

func (l *tcpListener) close() {
	if err := l.socket.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		l.log.Warn("a listener of the relay cannot be closed", "err", err)
	}
}

// pause stops accepting clients, but leaves the socket open.
func (l *tcpListener) pause() { interrupt(l.socket) }

func (l *tcpListener) conn() syscall.Conn { return l.socket }

// accept accepts and serves clients until the listener is closed or paused, or ctx is done.
func (l *tcpListener) accept(ctx context.Context) {
	failed := logLimiter{every: l.shared.limits.logInterval}
	for {
		client, err := l.socket.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded), err != nil && ctx.Err() != nil:
			return // closed, or paused
		case err != nil: // usually EMFILE: clients wait in the backlog
			if times, due := failed.due(); due {
				l.log.Warn("connections cannot be accepted: look at the limit of open files", "times", times, "err", err)
			}
			task.Sleep(ctx, l.shared.limits.backoff)
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

// accepted serves a newly accepted client. It resets the client if its TTL is used up, or if there are too many clients.
func (t *tcpPort) accepted(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) {
	if left, counted := hopsLeft(hopsOf(client)); counted && left == 0 {
		t.shared.overload.looped(t.current(), t.quota)
		reset(client)
		return
	}
	t.admit(client, func() { t.serve(ctx, client, asked) })
}

// admit runs serve for a client in a goroutine. If the quota of the port is exhausted, it resets the client instead.
func (t *tcpPort) admit(client *net.TCPConn, serve func()) {
	if !t.quota.acquire() {
		t.shared.overload.turnAway(t.current(), t.quota, "connections to a relayed port are refused")
		reset(client)
		return
	}
	t.shared.clients.Go(func() {
		defer t.quota.release()
		serve()
	})
}

// serve relays a client until both directions have ended, or ctx is done. asked is the address that the client connected to. serve reads the PROXY
// protocol header first, if the client is to send one.
func (t *tcpPort) serve(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) {
	from, asked, err := t.clientOf(ctx, client, asked)
	if err != nil {
		if handover.IsRequested(ctx) && errors.Is(err, os.ErrDeadlineExceeded) {
			t.shared.leaving.unconnected(t.current(), t.endpoints, client, netip.AddrPort{}, asked, nil)
			return
		}
		t.log.Debug("a client is reset: its PROXY header has no address", "client", client.RemoteAddr(), "err", err)
		reset(client)
		return
	}
	t.serveFrom(ctx, client, nil, from, asked)
}

// serveFrom is like serve for a client whose address, from, is already determined. early holds the bytes that the previous process has already read
// from it.
func (t *tcpPort) serveFrom(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort) {
	to := t
	if names := t.serverNames(); names != nil {
		if to, early = t.portNamed(ctx, client, early, from, asked, names); to == nil {
			return
		}
	}
	if front := to.current().Front; front != nil {
		to.serveFront(ctx, client, early, from, asked, front)
		return
	}
	to.servePlain(ctx, client, early, from, asked)
}

// servePlain relays a client of a port without a Front, that is without TLS and HTTP settings.
func (t *tcpPort) servePlain(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort) {
	_, reached, err := t.reach(ctx, client, from, asked, &Front{})
	if err != nil && handover.IsRequested(ctx) {
		t.shared.leaving.unconnected(t.current(), t.endpoints, client, from, asked, early)
		return
	}
	if err != nil {
		t.log.Debug("a client is reset: no endpoint accepted its connection", "client", from, "err", err)
		reset(client)
		return
	}
	c, err := newRelayed(t.shared.pump, client, reached.endpoint, reached.to)
	if err != nil { // one of the two was closed
		t.endpoints.done(reached.to)
		reset(client)
		reset(reached.endpoint)
		return
	}
	c.there.held = early
	t.run(ctx, c)
}

// run relays a connection until it ends, or ctx is done. If the connection was paused for a hand-over, run adds it to the state to hand over.
func (t *tcpPort) run(ctx context.Context, c *relayed) {
	stop := context.AfterFunc(ctx, func() { c.stop(ctx) })
	defer stop()
	t.begin(c)
	paused := c.join()
	t.end(c)
	if !paused {
		return
	}
	if err := t.shared.leaving.connection(t.current(), t.endpoints, c); err != nil {
		t.log.Debug("a connection is reset: it cannot be handed over", "err", err)
		c.reset()
	}
}

// tcpPort is a TCP Port together with its connections.
type tcpPort struct {
	shared    *shared
	arriving  *arriving
	log       *slog.Logger
	endpoints *balancer
	quota     *quota
	hedge     hedge

	failedConnects atomic.Int64

	mu    sync.Mutex
	port  Port
	gone  bool // the port was removed, but its connections continue
	conns map[*relayed]struct{}
	names map[string]*tcpPort // ports by TLS server name; nil if there are none
}

// newTCPPort returns a tcpPort for p. Its names are nil.
func (a *arriving) newTCPPort(p Port) *tcpPort {
	s := a.shared
	return &tcpPort{
		shared: s, arriving: a, log: s.logOf(p), port: p,
		endpoints: newBalancer(p, s.limits.clients, s.open), quota: s.quotas.of(p),
		conns: map[*relayed]struct{}{},
	}
}

// current returns the present settings of the port.
func (t *tcpPort) current() Port {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.port
}

// begin adds a connection to the port. It resets or drains the connection if the port has lost its endpoint meanwhile.
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

// note records the client and endpoint of a connection for EndpointsOf. The caller must hold t.mu.
func (t *tcpPort) note(c *relayed) {
	client, is := c.client.RemoteAddr().(*net.TCPAddr)
	listener, bound := c.client.LocalAddr().(*net.TCPAddr)
	if !is || !bound { // it has gone
		return
	}
	c.late = &recentKey{TCP, unmapped(client.AddrPort()), uint16(listener.Port)}
	goesOn := false
	if c.session != nil {
		goesOn, c.session.noted = c.session.noted, true
	}
	t.shared.lately.begin(*c.late, c.to, goesOn)
}

func (t *tcpPort) end(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	t.endpoints.done(c.to)
	if c.late != nil {
		t.shared.lately.end(*c.late)
	}
	c.stopTimers()
}

// update replaces the settings and endpoints of the port and of its ports by server name.
func (t *tcpPort) update(p Port) {
	names := t.arriving.portsNamed(t.serverNames(), p)
	t.endpoints.set(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.port, t.gone = p, false
	t.setNames(names)
	for c := range t.conns {
		t.judge(c)
		if p.IdleTimeout > 0 && c.idle == nil {
			t.watchIdle(c, p.IdleTimeout)
		}
	}
}

// setNames replaces the ports by server name, and retires the previous ones that are not in names. The caller must hold t.mu.
func (t *tcpPort) setNames(names map[string]*tcpPort) {
	for name, sub := range t.names {
		if names[name] != sub {
			sub.retire()
			t.failedConnects.Add(sub.failedConnects.Load()) // a count never falls
		}
	}
	t.names = names
}

// retire marks the port and its ports by server name as removed. Their connections are reset after Port.Drain; if that is nil, they continue.
func (t *tcpPort) retire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
	t.setNames(nil)
	for c := range t.conns {
		t.judge(c)
	}
}

// leave adds the port and its ports by server name to the state to hand over. It must be called after their connections are paused.
func (t *tcpPort) leave() {
	t.shared.leaving.port(t.port, t.endpoints)
	for _, named := range t.names {
		t.shared.leaving.port(named.port, named.endpoints)
	}
}

// judge keeps, drains or resets a connection, depending on whether the port still has the endpoint of the connection. The caller must hold t.mu.
func (t *tcpPort) judge(c *relayed) {
	if c.session != nil && (t.gone || !slices.Contains(t.port.Endpoints, c.to)) {
		c.session.stale.Store(true)
	}
	switch {
	case !t.gone && slices.Contains(t.port.Ended, c.to):
		c.reset()
	case !t.gone && t.port.keeps(c.to):
		if c.drain != nil {
			c.drain.Stop()
			c.drain = nil
		}
	case t.port.Drain != nil && c.drain == nil:
		c.drain = time.AfterFunc(*t.port.Drain, c.reset)
	}
}

// watchIdle arranges for a connection to be reset once nothing was received from either side for the duration limit. It does not track each read: a
// timer asks the kernel for the time of the last received data, so a busy connection costs one check per limit. The caller must hold t.mu.
func (t *tcpPort) watchIdle(c *relayed, limit time.Duration) {
	c.idle = time.AfterFunc(limit, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, lives := t.conns[c]; !lives {
			return
		}
		silent := min(silence(c.client), silence(c.endpoint))
		if silent >= limit {
			c.reset()
			return
		}
		c.idle.Reset(limit - silent)
	})
}

// helloTime is the timeout for receiving a client's ClientHello.
const helloTime = 10 * time.Second

// byName returns the port for a server name, nil if there is none. It prefers an exact match, then the longest wildcard match ("*." for one label,
// "**." for one or more), then "*".
func byName(ports map[string]*tcpPort, name string) *tcpPort {
	if p := ports[name]; p != nil && name != "" {
		return p
	}
	stars := []string{"*.", "**."}
	for _, parent, has := strings.Cut(name, "."); has; _, parent, has = strings.Cut(parent, ".") {
		for _, star := range stars {
			if p := ports[star+parent]; p != nil {
				return p
			}
		}
		stars = stars[len(stars)-1:]
	}
	return ports["*"]
}

// serverNames returns the ports by TLS server name, nil if there are none.
func (t *tcpPort) serverNames() map[string]*tcpPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names
}

// portNamed reads the ClientHello of a client. It returns the port for the server name in it, and all bytes read from the client so far. If no port
// has that name, it returns t itself, or refuses the client if t has no endpoints. It returns nil if the client was refused, or is to be handed over.
func (t *tcpPort) portNamed(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort, names map[string]*tcpPort) (*tcpPort, []byte) {
	_ = client.SetReadDeadline(time.Now().Add(helloTime))
	stop := context.AfterFunc(ctx, func() { interrupt(client) })
	name, early, err := tlsterm.ReadHello(&rereadConn{client, early})
	stop()
	_ = client.SetReadDeadline(time.Time{})
	if err != nil && handover.IsRequested(ctx) && errors.Is(err, os.ErrDeadlineExceeded) {
		t.shared.leaving.unconnected(t.current(), t.endpoints, client, from, asked, early)
		return nil, early
	}
	if err != nil {
		t.shared.failedHandshakes.Add(1)
		t.log.Debug("a client is reset: it asks for no server name", "client", from, "err", err)
		reset(client)
		return nil, early
	}
	if to := byName(names, name); to != nil {
		return to, early
	}
	if t.endpoints.none() {
		t.log.Debug("a client is refused: it asks for a server name that leads nowhere", "client", from, "name", name)
		tlsterm.RefuseName(client)
		return nil, early
	}
	return t, early
}
