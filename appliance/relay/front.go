package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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

// errGone means that the Port was removed from the relay, or that the client's session has ended.
var errGone = errors.New("the port is gone")

// serveFront serves a client with the TLS and HTTP settings of front. early holds the bytes that were already read from the client, from is the
// client's address, and asked is the address that it connected to. A connection with TLS or HTTP cannot be handed over to the next process once it is
// being served.
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
	far, c, err := t.reach(ctx, client, from, asked, front)
	if err != nil {
		t.log.Debug("a client is reset: no endpoint accepted its connection", "client", from, "err", err)
		reset(client)
		return
	}
	leave := context.AfterFunc(ctx, c.reset)
	defer leave()
	t.begin(c)
	defer t.end(c)
	tlsterm.Join(near, far, c.reset)
	_ = near.Close()
	_ = far.Close()
}

// errNotTaken means that an endpoint accepted a connection, but not its beginning.
var errNotTaken = errors.New("it accepts connections, but does not take their beginning")

// reach connects to an endpoint for a client and begins the connection. If an endpoint does not take the beginning, reach tries another one, as if it
// had not accepted the connection (connect): nothing of the client was sent yet.
func (t *tcpPort) reach(ctx context.Context, client *net.TCPConn, from, asked netip.AddrPort, front *Front) (far tlsterm.Conn, c *relayed, err error) {
	var failed []netip.AddrPort
	for {
		endpoint, to, none := t.connect(ctx, client, from, asked, failed...)
		if none != nil {
			return nil, nil, errors.Join(none, err)
		}
		if far, err = t.begins(ctx, endpoint, from, asked, front); err == nil {
			return far, &relayed{client: client, endpoint: endpoint, to: to}, nil
		}
		err = fmt.Errorf("%s: %w: %w", to, errNotTaken, err)
		if t.endpoints.done(to); ctx.Err() != nil {
			return nil, nil, err
		}
		t.endpoints.suspect(to, t.shared.limits.last)
		failed = append(failed, to)
	}
}

// begins sends the PROXY protocol header to an endpoint and performs the TLS handshake, each if it is configured. On an error it resets the
// connection.
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

// serveHTTP proxies the HTTP requests of a client to endpoints until the client's connection ends.
func (t *tcpPort) serveHTTP(ctx context.Context, client *net.TCPConn, near net.Conn, from, asked netip.AddrPort, front *Front) {
	s := &httpSession{port: t, client: client, from: from, asked: asked, conns: map[*backend]struct{}{}}
	t.shared.http.Serve(ctx, near, httpproxy.Client{
		Addr: from.Addr(), Asked: asked, Secure: front.TLS != nil,
		Dial: s.dial, Stale: func() bool { return s.stale.Swap(false) }, ResponseTimeout: front.ResponseTimeout, HTTP2: front.HTTP2, Hosts: front.Hosts,
		Outdated: func() bool { return t.present() != front },
	})
	s.endAll()
}

// httpSession is the connection of an HTTP client, with the connections to endpoints for its requests.
type httpSession struct {
	port        *tcpPort
	client      *net.TCPConn
	from, asked netip.AddrPort
	session

	mu    sync.Mutex
	ended bool
	conns map[*backend]struct{}
}

// present returns the present Front of the port, nil if it has none or was removed.
func (t *tcpPort) present() *Front {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return nil
	}
	return t.port.Front
}

// dial connects to an endpoint for requests of the client. The first connection of a session uses the client's slot of the port's quota; each further
// concurrent one takes another slot.
func (s *httpSession) dial(ctx context.Context) (net.Conn, error) {
	t := s.port
	front := t.present()
	if front == nil {
		return nil, &httpproxy.StatusError{Status: http.StatusServiceUnavailable, Err: errGone}
	}
	b := &backend{session: s}
	s.mu.Lock()
	b.counted = len(s.conns) > 0
	s.conns[b] = struct{}{}
	s.mu.Unlock()
	if b.counted && !t.quota.acquire() {
		b.counted = false
		b.leave()
		return nil, &httpproxy.StatusError{Status: http.StatusServiceUnavailable, Err: errors.New("there are too many connections")}
	}
	far, c, err := t.reach(ctx, s.client, s.from, s.asked, front)
	if err != nil {
		b.leave()
		status := http.StatusServiceUnavailable
		if errors.Is(err, errNotTaken) {
			status = http.StatusBadGateway
		}
		return nil, &httpproxy.StatusError{Status: status, Err: err}
	}
	c.session = &s.session
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

// endAll closes the remaining connections to endpoints, including an upgraded one, after the client's connection has ended.
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

// backend is a connection to an endpoint for the requests of an httpSession.
type backend struct {
	tlsterm.Conn
	session *httpSession
	relayed *relayed // nil until the connection is made
	counted bool     // the connection has taken a slot of the quota
	once    sync.Once
}

func (b *backend) Close() error {
	b.leave()
	return b.Conn.Close()
}

// leave releases the connection's slot and removes it from its session. Further calls do nothing.
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

// rereadConn is a client's connection whose first bytes were already read. Its reads return these bytes first.
type rereadConn struct {
	tlsterm.Conn
	early []byte
}

func (c *rereadConn) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// Values of Port.Protocol.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp" // not relayed: reported as a Problem
)

// Port holds the endpoints and settings for the clients of one listener. The listener serves a node port on one loopback address, or frontends whose
// clients the kernel redirects to the relay. Port has more than 15 fields: everything that a Service sets for a port is one value, which can be
// compared.
type Port struct {
	ID       string         // "namespace/name/port", for problems and the log
	Listen   netip.AddrPort // address to listen on: a loopback address and the node port, or the relay's listener
	Protocol string         // TCP or UDP
	// Frontends are the addresses and ports whose clients the kernel redirects to Listen. The zero Addr stands for any address. If Frontends is nil,
	// the Port is a node port on a loopback address.
	Frontends []netip.AddrPort
	// ProxyFrom are the addresses of load balancers whose TCP connections begin with a PROXY protocol header.
	ProxyFrom []netip.Prefix
	// Endpoints are the endpoints for new connections. A node port on loopback that has neither Endpoints nor Names gets no listener.
	Endpoints []netip.AddrPort
	Pick      Pick
	// Serving are further endpoints, which keep their open connections but get no new ones.
	Serving []netip.AddrPort
	// Ended are endpoints whose TCP connections are reset.
	Ended []netip.AddrPort
	// Drain is the time after which TCP connections to an endpoint that is neither in Endpoints nor in Serving are reset. If nil, they are kept.
	Drain   *time.Duration
	Connect Connect
	// IdleTimeout is the time without received data after which a TCP connection is reset; 0 means never.
	IdleTimeout time.Duration
	// Logged makes the relay record clients and endpoints for EndpointsOf.
	Logged bool
	// Front holds the settings for TLS and HTTP. If nil, bytes are passed on unchanged.
	Front *Front
	// Names holds the endpoints for clients that request a certain TLS server name. Other clients use the port's Endpoints.
	Names []Named

	// via distinguishes ports with the same ID and Listen. For an entry of Names it consists of the ID of the parent port and the server name;
	// otherwise it is "".
	via string
}

// Pick specifies how an endpoint is picked for a new connection.
type Pick struct {
	By Algorithm
	// Weights are the weights of Port.Endpoints, in the same order. If nil, all are equal.
	Weights []uint16
	// Refused is the fraction of new connections, from 0 to 1, that are refused.
	Refused float64
	// Choose, if not nil, returns the endpoint for a new connection. client is the address of the client, asked the address that it connected to. A
	// zero endpoint refuses the connection. If ok is false, or the endpoint does not accept the connection, By picks an endpoint.
	Choose func(client, asked netip.AddrPort) (endpoint netip.AddrPort, ok bool)
	// Affinity is the time for which a client address keeps its endpoint after its last new connection (spec.sessionAffinity: ClientIP). 0 means no
	// affinity.
	Affinity time.Duration
}

// Algorithm specifies how an endpoint is picked if neither Choose nor affinity determines it.
type Algorithm uint8

const (
	// Random picks an endpoint at random, with probabilities proportional to the weights.
	Random Algorithm = iota
	// RoundRobin picks the endpoints in turn, in the order of their addresses. If the weights differ, it is smooth weighted round robin, as in nginx
	// (ngx_http_upstream_round_robin.c).
	RoundRobin
	// LeastConnection picks the endpoint with the fewest open connections in proportion to its weight, and among equal ones in turn. The connections
	// of all Ports with the same ID and protocol count, from the time when their endpoint was picked.
	LeastConnection
)

// Connect holds the parameters of TCP connections to endpoints.
type Connect struct {
	// Retries is the maximum number of further endpoints that are tried if one does not accept a connection within Timeout. A Timeout of 0 means 5
	// seconds.
	Retries int
	Timeout time.Duration
	// ProxyProtocol is the version, 1 or 2, of the PROXY protocol header that is sent to an endpoint before the client's data. 0 means none.
	ProxyProtocol int
	// Transparent makes the client's address the source of connections to endpoints (IP_TRANSPARENT). This needs routes that lead the replies to this
	// box. If the endpoint is of another IP family than the client, or is the client itself, an address of the box is used.
	Transparent bool
}

// keeps reports whether connections to an endpoint stay open: it is one of Endpoints or Serving.
func (p *Port) keeps(endpoint netip.AddrPort) bool {
	return slices.Contains(p.Endpoints, endpoint) || slices.Contains(p.Serving, endpoint)
}

func (p *Port) key() key { return key{p.ID, p.Protocol, p.Listen, p.via} }

// redirected reports whether the kernel redirects clients to the port; otherwise it is a node port on loopback.
func (p *Port) redirected() bool { return p.Frontends != nil }

// Problem is the reason why a Port has no listener.
type Problem struct {
	ID      string
	Listen  netip.AddrPort
	Reason  string // one of the Reason constants
	Message string
}

// Values of Problem.Reason.
const (
	ReasonListen      = "LoopbackListenFailed" // the listener could not be opened; retried every few seconds
	ReasonNotLoopback = "NotLoopback"          // the address to listen on is not a loopback address
	ReasonProtocol    = "ProtocolNotRelayed"   // the protocol is neither TCP nor UDP
)

// Front holds the settings of a port for TLS and HTTP. For a port with a Front, all bytes pass through this process; otherwise the kernel copies them
// (splice(2)).
type Front struct {
	// TLS is the configuration for terminating the TLS of clients. If nil, clients do not use TLS.
	TLS *tls.Config
	// BackendTLS is the configuration for TLS to endpoints. If nil, connections to endpoints do not use TLS.
	BackendTLS *tls.Config
	// HTTP makes the relay an HTTP proxy, which forwards each request separately and adds the client's address in a header. ResponseTimeout is the
	// maximum time that an endpoint may take to send the headers of a response.
	HTTP            bool
	ResponseTimeout time.Duration
	// Hosts are the hosts whose HTTP requests are forwarded. If nil, all are.
	Hosts []string
	// HTTP2 makes the relay use HTTP/2 without TLS (h2c) towards endpoints.
	HTTP2 bool
}

// Named holds the endpoints for clients that request a certain TLS server name (SNI).
type Named struct {
	// ServerName is in lower case. "*.example.com" matches all names with exactly one more label, "**.example.com" those with one or more. "*"
	// matches every name, and clients that request none.
	ServerName string
	// Port holds the endpoints and their settings. Its Listen and Frontends are ignored; those of the parent port apply.
	Port Port
}

// socketKey identifies a listening socket.
type socketKey struct {
	protocol string
	at       netip.AddrPort
}

// name returns the name under which systemd stores the socket (FDNAME).
func (k socketKey) name() string {
	return fmt.Sprintf("relay-%s-%s-%d", k.protocol, strings.ReplaceAll(k.at.Addr().String(), ":", "-"), k.at.Port())
}

// key identifies a Port across updates. A Port whose key changes is removed and added again.
type key struct {
	id, protocol string
	listen       netip.AddrPort
	via          string // Port.via
}
