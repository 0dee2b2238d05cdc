package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
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
	socket, err := net.ListenTCP(networkOf(TCP, at.Addr()), net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	return &tcpListener{relay: r, log: log, socket: socket, route: route}, nil
}

// start begins to serve clients, whose connections last until ctx is done.
func (l *tcpListener) start(ctx context.Context) { l.relay.tasks.Go(func() { l.accept(ctx) }) }

func (l *tcpListener) close() {
	if err := l.socket.Close(); err != nil {
		l.log.Warn("a listener of the relay cannot be closed", "err", err)
	}
}

// accept serves clients until the listener is closed.
func (l *tcpListener) accept(ctx context.Context) {
	failed := logLimiter{every: l.relay.limits.logInterval}
	for {
		client, err := l.socket.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
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
	quota     quota
	refused   logLimiter // of the accepting goroutine

	mu    sync.Mutex
	port  Port
	gone  bool // nothing leads here any more; connections live on
	conns map[*relayed]struct{}
	names map[string]*tcpPort // by server name; nil: the port has none
}

func (r *Relay) newTCPPort(p Port, log *slog.Logger) *tcpPort {
	t := &tcpPort{
		relay: r, log: log, port: p,
		endpoints: newBalancer(p, r.limits.clients),
		quota:     quota{limit: r.limits.of(p), parent: r.quotaOf(p)},
		refused:   logLimiter{every: r.limits.logInterval},
		conns:     map[*relayed]struct{}{},
	}
	t.setNames(p)
	return t
}

// accepted serves a client, or resets it if there are too many.
func (t *tcpPort) accepted(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) {
	if !t.quota.acquire() {
		if times, due := t.refused.due(); due {
			t.log.Warn("connections to a relayed port are refused: there are too many at once",
				"refused", times, "limit", t.quota.limit, "limitOfAllPorts", t.quota.parent.limit)
		}
		reset(client)
		return
	}
	t.relay.tasks.Go(func() {
		defer t.quota.releaseSlot()
		t.serve(ctx, client, asked)
	})
}

// serve connects a client, who had sent to asked, with an endpoint until both directions or ctx have
// ended.
func (t *tcpPort) serve(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) {
	if names := t.named(); names != nil {
		t.serveNamed(ctx, client, asked, names)
		return
	}
	if front := t.frontOf(); front != nil {
		t.serveFront(ctx, client, nil, asked, front)
		return
	}
	t.servePlain(ctx, client, nil, asked)
}

// servePlain passes bytes on as they are. early was read from the client already.
func (t *tcpPort) servePlain(ctx context.Context, client *net.TCPConn, early []byte, asked netip.AddrPort) {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort()
	endpoint, to, err := t.connect(ctx, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
	if err != nil {
		t.log.Debug("a client is reset: no endpoint accepted its connection", "client", from, "err", err)
		reset(client)
		return
	}
	if err = t.introduce(endpoint, from, asked); err == nil && len(early) > 0 {
		_, err = endpoint.Write(early)
	}
	if err != nil {
		t.log.Debug("a client is reset: its endpoint took no header of the PROXY protocol, or not its first bytes", "client", from, "endpoint", to, "err", err)
		reset(client)
		reset(endpoint)
		return
	}
	c := &relayed{client: client, endpoint: endpoint, to: to}
	// A FIN would look like a complete transfer.
	stop := context.AfterFunc(ctx, c.reset)
	defer stop()
	t.begin(c)
	defer t.end(c)
	c.join()
}

// errNoEndpoint means that a Port has no endpoint.
var errNoEndpoint = errors.New("there is no endpoint")

// connect connects to an endpoint, and to another one if that refuses or does not answer in time: no
// endpoint twice, and no more others than Port.Retries.
func (t *tcpPort) connect(ctx context.Context, client netip.AddrPort) (*net.TCPConn, netip.AddrPort, error) {
	t.mu.Lock()
	retries, timeout := t.port.Retries, t.port.ConnectTimeout
	t.mu.Unlock()
	if timeout <= 0 {
		timeout = t.relay.limits.dial
	}
	dialer := net.Dialer{Timeout: timeout}
	var tried []netip.AddrPort
	failed := errNoEndpoint
	for len(tried) <= retries && ctx.Err() == nil {
		to, is := t.endpoints.pick(client, tried...)
		if !is {
			break
		}
		endpoint, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, to)
		if err == nil {
			return endpoint, to, nil
		}
		t.relay.failedConnects.Add(1)
		tried, failed = append(tried, to), err
	}
	return nil, netip.AddrPort{}, fmt.Errorf("%d endpoints tried: %w", len(tried), failed)
}

// begin notes a connection, and ends it if its endpoint went while it was made.
func (t *tcpPort) begin(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns[c] = struct{}{}
	if t.port.IdleTimeout > 0 {
		t.watchIdle(c, t.port.IdleTimeout)
	}
	t.judge(c)
}

func (t *tcpPort) end(c *relayed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	c.setStale(false)
	c.stopTimers()
}

// update replaces what the port leads to.
func (t *tcpPort) update(p Port) {
	t.endpoints.set(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.port = p
	t.setNames(p)
	for c := range t.conns {
		t.judge(c)
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

// relayed is a connection of a client and the one to its endpoint. The timers are guarded by the mutex
// of its tcpPort.
type relayed struct {
	client, endpoint *net.TCPConn
	to               netip.AddrPort
	drain            *time.Timer  // resets it; nil: its endpoint stays
	idle             *time.Timer  // nil: it may be idle
	session          *httpSession // the client's, which outlives the connection; nil: it does not
	stale            bool         // its endpoint gets no requests any more
}

func (c *relayed) reset() {
	if c.session == nil {
		reset(c.client)
	}
	reset(c.endpoint)
}

// stays ends the time to drain.
func (c *relayed) stays() {
	if c.drain != nil {
		c.drain.Stop()
		c.drain = nil
	}
}

// setStale says whether the next request of an HTTP client goes to another endpoint.
func (c *relayed) setStale(stale bool) {
	if c.session == nil || stale == c.stale {
		return
	}
	if c.stale = stale; stale {
		c.session.stale.Add(1)
	} else {
		c.session.stale.Add(-1)
	}
}

func (c *relayed) stopTimers() {
	for _, timer := range []*time.Timer{c.drain, c.idle} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// join copies both directions and closes both connections.
func (c *relayed) join() {
	var back sync.WaitGroup
	back.Go(func() { pass(c.client, c.endpoint) })
	pass(c.endpoint, c.client)
	back.Wait()
	// Both directions have ended, so closing loses no data.
	_ = c.client.Close()
	_ = c.endpoint.Close()
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
