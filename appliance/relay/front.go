package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/relay/httpproxy"
	"svcctl.io/svcctl/appliance/relay/tlsterm"
)

// errGone means that nothing leads to the port any more.
var errGone = errors.New("the port is gone")

// frontOf is the Front of new connections; nil: there is none.
func (t *tcpPort) frontOf() *Front {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.port.Front
}

// serveFront serves a client that had sent to asked, by the configuration of front. A connection that is encrypted cannot be handed over.
func (t *tcpPort) serveFront(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort, front *Front) {
	if handover.IsRequested(ctx) { // nothing was said yet
		t.shared.leaving.unconnected(t.current(), t.endpoints, client, from, asked, early)
		return
	}
	defer t.shared.draining.begin()()
	// The client's handlers end after it was reset, so that none of them closes its connection in
	// order before.
	outer := ctx
	ctx, end := context.WithCancelCause(context.WithoutCancel(outer))
	stop := context.AfterFunc(outer, func() {
		reset(client)
		end(context.Cause(outer))
	})
	defer end(nil)
	defer stop()
	var near tlsterm.Conn = client
	if len(early) > 0 {
		near = &rereadConn{client, early}
	}
	if front.TLS != nil {
		secured, err := tlsterm.Accept(ctx, near, front.TLS)
		if err != nil {
			t.shared.failedHandshakes.Add(1)
			t.log.Debug("a client is refused", "client", from, "err", err)
			_ = client.Close() // not reset: the alert is on its way
			return
		}
		if near = secured; front.HTTP {
			t.serveHTTP(ctx, client, secured.Conn, from, asked, front) // net/http wants to see the TLS
			return
		}
	}
	if front.HTTP {
		t.serveHTTP(ctx, client, near, from, asked, front)
		return
	}
	endpoint, to, err := t.connect(ctx, client, from, asked)
	if err != nil {
		t.log.Debug("a client is reset: no endpoint accepted its connection", "client", from, "err", err)
		reset(client)
		return
	}
	far, err := t.begins(ctx, endpoint, from, asked, front)
	if err != nil {
		t.endpoints.done(to)
		t.log.Debug("a client is reset: its endpoint does not take it", "client", from, "endpoint", to, "err", err)
		reset(client)
		return
	}
	c := &relayed{client: client, endpoint: endpoint, to: to}
	leave := context.AfterFunc(ctx, c.reset)
	defer leave()
	t.begin(c)
	defer t.end(c)
	tlsterm.Join(near, far, c.reset)
	_ = near.Close()
	_ = far.Close()
}

// begins sends the header of the PROXY protocol and begins TLS with an endpoint, as the port has them. After an
// error the connection is reset.
func (t *tcpPort) begins(ctx context.Context, endpoint *net.TCPConn, from, asked netip.AddrPort, front *Front) (tlsterm.Conn, error) {
	if err := t.introduce(endpoint, from, asked); err != nil {
		reset(endpoint)
		return nil, fmt.Errorf("header of the PROXY protocol: %w", err)
	}
	if front.BackendTLS == nil {
		return endpoint, nil
	}
	secured, err := tlsterm.Connect(ctx, endpoint, front.BackendTLS)
	if err != nil {
		t.shared.failedHandshakes.Add(1)
		reset(endpoint)
		return nil, err
	}
	return secured, nil
}

// serveHTTP passes the requests of a client on until it leaves.
func (t *tcpPort) serveHTTP(ctx context.Context, client *net.TCPConn, near net.Conn, from, asked netip.AddrPort, front *Front) {
	s := &httpSession{port: t, client: client, from: from, asked: asked, front: front}
	t.shared.http.Serve(ctx, near, httpproxy.Client{
		Addr: from.Addr(), Port: asked.Port(), Secure: front.TLS != nil,
		Dial: s.dial, Stale: func() bool { return s.stale.Load() > 0 }, ResponseTimeout: front.ResponseTimeout, HTTP2: front.HTTP2, Hosts: front.Hosts,
	})
	s.endAll()
}

// httpSession is a client with the connections that were made for it.
type httpSession struct {
	port        *tcpPort
	client      *net.TCPConn
	from, asked netip.AddrPort
	front       *Front
	session

	mu    sync.Mutex
	ended bool
	conns map[*backend]struct{}
}

// dial makes a connection for the next request. The first one is counted with the client, others by themselves.
func (s *httpSession) dial(ctx context.Context) (net.Conn, error) {
	t := s.port
	t.mu.Lock()
	gone := t.gone
	t.mu.Unlock()
	if gone {
		return nil, &httpproxy.StatusError{Status: http.StatusServiceUnavailable, Err: errGone}
	}
	b := &backend{session: s}
	s.mu.Lock()
	b.counted = len(s.conns) > 0
	if s.conns == nil {
		s.conns = map[*backend]struct{}{}
	}
	s.conns[b] = struct{}{}
	s.mu.Unlock()
	if b.counted && !t.quota.acquire() {
		b.counted = false
		b.leave()
		return nil, &httpproxy.StatusError{Status: http.StatusServiceUnavailable, Err: errors.New("there are too many connections")}
	}
	endpoint, to, err := t.connect(ctx, s.client, s.from, s.asked)
	if err != nil {
		b.leave()
		return nil, &httpproxy.StatusError{Status: http.StatusServiceUnavailable, Err: err}
	}
	far, err := t.begins(ctx, endpoint, s.from, s.asked, s.front)
	if err != nil {
		t.endpoints.done(to)
		b.leave()
		return nil, &httpproxy.StatusError{Status: http.StatusBadGateway, Err: err}
	}
	c := &relayed{client: s.client, endpoint: endpoint, to: to, session: &s.session}
	t.begin(c)
	s.mu.Lock()
	b.Conn, b.relayed = far, c
	ended := s.ended
	s.mu.Unlock()
	if ended {
		_ = b.Close()
		return nil, errGone
	}
	return b, nil
}

// endAll closes what the client left behind, an upgraded connection among it.
func (s *httpSession) endAll() {
	s.mu.Lock()
	s.ended = true
	var rest []*backend
	for b := range s.conns {
		if b.relayed != nil {
			rest = append(rest, b)
		}
	}
	s.mu.Unlock()
	for _, b := range rest {
		_ = b.Close()
	}
}

// backend is a connection to an endpoint for requests.
type backend struct {
	tlsterm.Conn
	session *httpSession
	relayed *relayed // nil while it is made
	counted bool     // it has a slot of its own
	once    sync.Once
}

func (b *backend) Close() error {
	b.leave()
	return b.Conn.Close()
}

// leave gives back what the connection has.
func (b *backend) leave() {
	b.once.Do(func() {
		s := b.session
		if b.relayed != nil {
			s.port.end(b.relayed)
		}
		s.mu.Lock()
		delete(s.conns, b)
		s.mu.Unlock()
		if b.counted {
			s.port.quota.release()
		}
	})
}

// rereadConn is a client's connection of which some was read already.
type rereadConn struct {
	*net.TCPConn
	early []byte
}

func (c *rereadConn) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.TCPConn.Read(b)
}

// WriteTo implements io.WriterTo, which net.TCPConn has.
func (c *rereadConn) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(c.early)
	if c.early = c.early[n:]; err != nil {
		return int64(n), err
	}
	rest, err := c.TCPConn.WriteTo(w)
	return int64(n) + rest, err
}
