package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/relay/httpproxy"
	"svcctl.io/svcctl/appliance/relay/tlsterm"
)

// errGone means that the port was removed.
var errGone = errors.New("the port is gone")

// serveFront serves a client that connected to asked with the TLS and HTTP settings of front. early is what has been read from the client.
// An encrypted connection cannot be handed over.
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

// begins sends the header of the PROXY protocol to an endpoint and does the TLS handshake, as far as the port asks for them. After an error
// the connection is reset.
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

// serveHTTP passes the requests of a client on to endpoints until its connection ends.
func (t *tcpPort) serveHTTP(ctx context.Context, client *net.TCPConn, near net.Conn, from, asked netip.AddrPort, front *Front) {
	s := &httpSession{port: t, client: client, from: from, asked: asked, front: front}
	t.shared.http.Serve(ctx, near, httpproxy.Client{
		Addr: from.Addr(), Port: asked.Port(), Secure: front.TLS != nil,
		Dial: s.dial, Stale: func() bool { return s.stale.Load() > 0 }, ResponseTimeout: front.ResponseTimeout, HTTP2: front.HTTP2, Hosts: front.Hosts,
	})
	s.endAll()
}

// httpSession is a client over HTTP with its connections to endpoints.
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

// dial connects to an endpoint for requests of the client. The first connection of a session has the slot of its client; each further one
// takes a slot of its own.
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

// endAll closes the remaining connections to endpoints after the client's has ended, including an upgraded one.
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

// backend is a connection to an endpoint for the requests of a session.
type backend struct {
	tlsterm.Conn
	session *httpSession
	relayed *relayed // nil while it is made
	counted bool     // it has taken a slot of its own from the quota
	once    sync.Once
}

func (b *backend) Close() error {
	b.leave()
	return b.Conn.Close()
}

// leave releases the connection's slot and removes it from its session, once.
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

// rereadConn is a client's connection that first returns the bytes that were already read from it.
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

// WriteTo implements io.WriterTo, to override that of net.TCPConn.
func (c *rereadConn) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(c.early)
	if c.early = c.early[n:]; err != nil {
		return int64(n), err
	}
	rest, err := c.TCPConn.WriteTo(w)
	return int64(n) + rest, err
}

// The protocols of a Port.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp" // not relayed: reported as a Problem
)

// Port has the endpoints and settings for the clients of one listener: a node port on one loopback address, or frontends whose clients the
// kernel redirects to a listener of the relay. It has more than 15 fields: it is all that a Service sets for a port, as one value that is compared.
type Port struct {
	ID       string         // "namespace/name/port", for problems and the log
	Listen   netip.AddrPort // a loopback address and the node port, or the listener of the relay
	Protocol string         // TCP or UDP
	// Frontends are the addresses whose clients the kernel redirects to Listen; the zero Addr
	// stands for any address. Nil: Listen is a node port on loopback.
	Frontends []netip.AddrPort
	// ProxyFrom are the balancers whose TCP connections begin with a header of the PROXY protocol.
	ProxyFrom []netip.Prefix
	// Endpoints get new connections. A node port on loopback without any, and without Names, has no listener.
	Endpoints []netip.AddrPort
	Pick      Pick
	// Serving are further endpoints, which keep their connections and get no new ones.
	Serving []netip.AddrPort
	// Ended are endpoints whose TCP connections are reset.
	Ended []netip.AddrPort
	// Drain is the time after which TCP connections to an endpoint outside Endpoints and Serving are reset; nil: never.
	Drain   *time.Duration
	Connect Connect
	// IdleTimeout is the time without received data after which a TCP connection is reset; 0: never.
	IdleTimeout time.Duration
	// Logged makes EndpointsOf find the clients of the port.
	Logged bool
	// Front handles TLS and HTTP, nil if bytes are passed on as they are.
	Front *Front
	// Names has the endpoints by server name; clients without a server name get the port's own.
	Names []Named

	// via distinguishes ports of the same ID and Listen: that of an entry of Names is its parent port and its server name.
	via string
}

// Pick is the algorithm by which a new connection gets its endpoint.
type Pick struct {
	By Algorithm
	// Weights has the weights of the endpoints, in their order, nil if all are alike.
	Weights []uint16
	// Refused is the part of new connections, from 0 to 1, that is refused.
	Refused float64
	// Choose, when not nil, returns the endpoint of a new connection by its client and the address that it connected
	// to; the zero AddrPort refuses the connection. If ok is false, or the endpoint did not accept the connection, By
	// picks one.
	Choose func(client, asked netip.AddrPort) (endpoint netip.AddrPort, ok bool)
	// Affinity is the time that a client keeps its endpoint after its last new connection;
	// 0: no affinity. A client is an address (spec.sessionAffinity: ClientIP).
	Affinity time.Duration
}

// Algorithm picks an endpoint when neither Choose nor affinity does.
type Algorithm uint8

const (
	// Random picks a random endpoint, with probabilities by weight.
	Random Algorithm = iota
	// RoundRobin picks endpoints in turn: in the order of the addresses, or where weights differ in the smooth order of nginx
	// (ngx_http_upstream_round_robin.c).
	RoundRobin
	// LeastConnection picks the endpoint with the fewest open connections for its weight; of several, in turn.
	// Connections of all Ports of the same ID and protocol count, from when their endpoint is picked.
	LeastConnection
)

// Connect has the parameters of TCP connections to endpoints.
type Connect struct {
	// Retries bounds the further endpoints that are tried if one does not accept a connection within
	// Timeout (0: 5 s).
	Retries int
	Timeout time.Duration
	// ProxyProtocol is the version of the PROXY protocol whose header an endpoint gets before what
	// the client sends: 1 or 2; 0: none.
	ProxyProtocol int
	// Transparent makes the client's address the source of connections to endpoints (IP_TRANSPARENT), which
	// needs routes that bring the answers to this box. An endpoint of another family than the client's, or one
	// that is the client itself, sees an address of the box.
	Transparent bool
}

// keeps reports whether connections to an endpoint stay open: it is one of Endpoints or Serving.
func (p *Port) keeps(endpoint netip.AddrPort) bool {
	return slices.Contains(p.Endpoints, endpoint) || slices.Contains(p.Serving, endpoint)
}

func (p *Port) key() key { return key{p.ID, p.Protocol, p.Listen, p.via} }

// redirected reports whether the kernel redirects clients to the port; otherwise it is a node port on loopback.
func (p *Port) redirected() bool { return p.Frontends != nil }

// Problem is a Port without a listener.
type Problem struct {
	ID      string
	Listen  netip.AddrPort
	Reason  string // one of the Reason constants
	Message string
}

// The reasons of Problems: why a Port has no listener.
const (
	ReasonListen      = "LoopbackListenFailed" // retried every few seconds
	ReasonNotLoopback = "NotLoopback"          // the address to listen on is no loopback address
	ReasonProtocol    = "ProtocolNotRelayed"   // neither TCP nor UDP
)

// Front has the settings for TLS and HTTP between the clients of a port and its endpoints. With it all bytes pass through this process;
// without it the kernel copies them (splice(2)).
type Front struct {
	// TLS terminates the TLS of clients; nil: clients use plain text.
	TLS *tls.Config
	// BackendTLS is for TLS connections to endpoints; nil: plain text.
	BackendTLS *tls.Config
	// HTTP makes the relay pass on each request by itself, with the client in a header. ResponseTimeout bounds
	// the wait for the start of an endpoint's response.
	HTTP            bool
	ResponseTimeout time.Duration
	// Hosts are the hosts whose requests are passed on, nil if all are.
	Hosts []string
	// HTTP2 makes the relay pass on requests over HTTP/2 without TLS.
	HTTP2 bool
}

// Named has the endpoints for the clients of a port that ask for a TLS server name.
type Named struct {
	// ServerName is in lower case; "*.example.com" stands for all names with one label more, "**.example.com" with one or
	// more, "*" for any name and for none.
	ServerName string
	// Port has the endpoints and their options; its Listen and Frontends are those of the port that names it.
	Port Port
}

// socketKey identifies a listening socket.
type socketKey struct {
	protocol string
	at       netip.AddrPort
}

// name returns the name under which systemd stores the socket.
func (k socketKey) name() string {
	return fmt.Sprintf("relay-%s-%s-%d", k.protocol, strings.ReplaceAll(k.at.Addr().String(), ":", "-"), k.at.Port())
}

// key identifies a listener. A port whose key changes gets another listener.
type key struct {
	id, protocol string
	listen       netip.AddrPort
	via          string // Port.via
}
