package httpproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The limits for one client.
const (
	headerBytes  = 64 << 10         // of the headers of a request, and of a response
	headerTime   = 10 * time.Second // for the client to send the headers of a request
	idleTime     = 75 * time.Second // between two requests
	maxStreams   = 64               // concurrent HTTP/2 requests, and connections to the endpoint
	idleBackends = 8                // idle connections to the endpoint
	continueTime = time.Second      // wait for an endpoint's 100 Continue
)

// Client is a client whose requests are passed on, with the settings for it.
type Client struct {
	// Addr is the client's address, and Port the port that it connected to.
	Addr netip.Addr
	Port uint16
	// Secure is set for requests over TLS.
	Secure bool
	// Dial connects to an endpoint. Its errors may have a StatusError in them.
	Dial func(ctx context.Context) (net.Conn, error)
	// Stale reports whether an idle connection must not be used for another request.
	Stale func() bool
	// ResponseTimeout bounds the time that an endpoint takes to send the headers of a response.
	ResponseTimeout time.Duration
	// Hosts are the hosts whose requests are passed on, in lower case; "*.example.com" is all below it. Nil: all are.
	Hosts []string
	// HTTP2 selects HTTP/2 without TLS (h2c) towards endpoints, instead of HTTP/1.1.
	HTTP2 bool
}

// StatusError is an error with the HTTP status that the client gets.
type StatusError struct {
	Status int
	Err    error
}

func (e *StatusError) Error() string { return e.Err.Error() }
func (e *StatusError) Unwrap() error { return e.Err }

// Proxy passes HTTP requests of clients on to endpoints. Its methods may be called concurrently.
type Proxy struct {
	log        *slog.Logger
	headerTime time.Duration
	bodyTime   time.Duration
	reverse    *httputil.ReverseProxy
	sessions   sync.Map // map[net.Conn]*session
	// accepted passes connections to servers.http1, negotiated those that negotiated HTTP/2 (ALPN) to servers.http2.
	accepted, negotiated chan net.Conn

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before
	servers servers         // for new clients; after a Drain they serve one request for each connection
	served  sync.WaitGroup
}

// servers serve the clients that connect until the next Drain. http2 has the connections that negotiated HTTP/2, http1 the others: they are
// drained in different ways.
type servers struct {
	http1, http2 *http.Server
	stop         func() // ends accepting
}

// New returns a Proxy that serves no client before Run.
func New(log *slog.Logger) *Proxy { return newProxy(log, headerTime) }

func newProxy(log *slog.Logger, headerTime time.Duration) *Proxy {
	p := &Proxy{log: log, headerTime: headerTime, bodyTime: bodyTime, accepted: make(chan net.Conn), negotiated: make(chan net.Conn)}
	quiet := slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	p.reverse = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: transport{}, FlushInterval: -1, ErrorHandler: p.failed, ErrorLog: quiet, BufferPool: buffers{},
	}
	return p
}

func (p *Proxy) newServer() *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	var server *http.Server
	server = &http.Server{
		Handler: http.HandlerFunc(p.handle), Protocols: protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: p.headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes, ErrorLog: p.reverse.ErrorLog,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			found, is := p.sessions.Load(c)
			if !is {
				return ctx
			}
			s := found.(*session)
			s.server.Store(server)
			ctx, cancel := context.WithCancel(ctx)
			context.AfterFunc(s.ctx, cancel)
			return context.WithValue(ctx, sessionKey{}, s)
		},
		ConnState: p.state,
	}
	return server
}

// Run serves clients until ctx is done. Then it closes their connections.
func (p *Proxy) Run(ctx context.Context) {
	p.mu.Lock()
	p.ctx = ctx
	p.begin(servers{http1: p.newServer(), http2: p.newServer()})
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock() // a Drain that comes later begins nothing
	defer p.mu.Unlock()
	p.served.Wait()
}

// begin makes servers accept new clients. The caller holds p.mu.
func (p *Proxy) begin(all servers) {
	accepting, stop := context.WithCancel(p.ctx)
	all.stop = stop
	p.servers = all
	for server, accepted := range map[*http.Server]chan net.Conn{all.http1: p.accepted, all.http2: p.negotiated} {
		context.AfterFunc(p.ctx, func() { _ = server.Close() })
		p.served.Go(func() {
			if err := server.Serve(&handed{accepted, accepting.Done()}); accepting.Err() == nil {
				p.log.Error("requests over HTTP are not passed on any more", "err", err)
			}
		})
	}
}

// Drain makes clients use another connection for their next request, from now on: HTTP/1.1 by Connection: close, HTTP/2 by GOAWAY. It
// closes idle connections, but serves the first request of a new connection that is on its way. It returns when none of the present HTTP/2
// connections has an open request, or ctx is done. Clients that connect meanwhile are served, each for one request.
func (p *Proxy) Drain(ctx context.Context) {
	p.mu.Lock()
	if p.ctx == nil || p.ctx.Err() != nil {
		p.mu.Unlock()
		return
	}
	before := p.servers
	next := servers{http1: p.newServer(), http2: p.newServer()}
	next.http1.SetKeepAlivesEnabled(false)
	next.http2.SetKeepAlivesEnabled(false)
	p.begin(next)
	p.mu.Unlock()
	before.stop()
	// Not Shutdown: a server that shuts down closes connections whose request it has just read (net/http, conn.serve).
	before.http1.SetKeepAlivesEnabled(false)
	p.awaitFirst(ctx, before.http2)
	_ = before.http2.Shutdown(ctx)
}

// firstTime is the time that a new client has for its first request.
const firstTime = time.Second

// awaitFirst waits until each client of a server has sent a request, at most for firstTime. Shutdown closes connections without a request,
// though one may be on its way.
func (p *Proxy) awaitFirst(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, firstTime)
	defer cancel()
	tick := time.NewTicker(firstTime / 100)
	defer tick.Stop()
	for {
		waits := false
		p.sessions.Range(func(_, found any) bool {
			s := found.(*session)
			waits = s.server.Load() == server && !s.asked.Load()
			return !waits
		})
		if !waits {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Serve serves a client until its connection is closed, and closes it. When ctx is done, requests that wait for an endpoint are canceled:
// net/http does not notice the end of a client that has sent more than one request.
func (p *Proxy) Serve(ctx context.Context, conn net.Conn, c Client) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	s := &session{client: c, ctx: ctx, done: make(chan struct{})}
	s.transport = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) },
		DisableCompression: true, MaxConnsPerHost: maxStreams, MaxIdleConnsPerHost: idleBackends, IdleConnTimeout: idleTime,
		ResponseHeaderTimeout: c.ResponseTimeout, MaxResponseHeaderBytes: headerBytes, ExpectContinueTimeout: continueTime,
	}
	if c.HTTP2 {
		s.transport.Protocols = &http.Protocols{}
		s.transport.Protocols.SetUnencryptedHTTP2(true)
	}
	p.sessions.Store(conn, s)
	defer p.sessions.Delete(conn)
	defer s.transport.CloseIdleConnections()
	accepted := p.accepted
	if secured, is := conn.(*tls.Conn); is && secured.ConnectionState().NegotiatedProtocol == "h2" {
		accepted = p.negotiated
	}
	select {
	case accepted <- conn:
		<-s.done
	case <-ctx.Done():
	}
	_ = conn.Close()
}

// session is a client with its connections to endpoints.
type session struct {
	client    Client
	ctx       context.Context // of its requests
	transport *http.Transport
	server    atomic.Pointer[http.Server] // the server that has its connection; nil: none yet
	asked     atomic.Bool                 // a request was received
	done      chan struct{}               // closed when the connection of the client has ended
	once      sync.Once
	mu        sync.Mutex
	hijacked  bool // its connection was upgraded
}

// The keys of values in the context of a request: its session and its body.
type (
	sessionKey struct{}
	bodyKey    struct{}
)

func (s *session) end() { s.once.Do(func() { close(s.done) }) }

// state is the hook http.Server.ConnState: it ends the session of a closed connection.
func (p *Proxy) state(c net.Conn, state http.ConnState) {
	found, is := p.sessions.Load(c)
	if !is {
		return
	}
	switch s := found.(*session); state {
	case http.StateClosed:
		s.end()
	case http.StateHijacked: // the handler ends it
		s.mu.Lock()
		s.hijacked = true
		s.mu.Unlock()
	}
}

func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	s, _ := r.Context().Value(sessionKey{}).(*session)
	if s == nil {
		panic("httpproxy: a connection that was not handed over")
	}
	s.asked.Store(true)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hijacked {
			s.end()
		}
	}()
	if r.Method == http.MethodConnect {
		http.Error(w, "svcctl: CONNECT is not passed on", http.StatusMethodNotAllowed)
		return
	}
	if !s.client.serves(r.Host) {
		http.Error(w, "svcctl: this host is not served here", http.StatusNotFound)
		return
	}
	// Another upgrade, as to h2c, would lead past everything that is done here.
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		r.Header.Del("Upgrade")
	}
	if r.Body != nil && r.Body != http.NoBody && !streams(s, r) {
		body := &timedBody{ReadCloser: r.Body, control: http.NewResponseController(w), grace: p.bodyTime}
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
		r.Body = body
	}
	p.reverse.ServeHTTP(w, r)
}

// serves reports whether requests for a host are passed on.
func (c *Client) serves(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(host)
	return len(c.Hosts) == 0 || slices.ContainsFunc(c.Hosts, func(served string) bool {
		below, wild := strings.CutPrefix(served, "*")
		return host == served || wild && strings.HasSuffix(host, below) && len(host) > len(below)
	})
}

// streams reports whether a request may stay open without any data, as a gRPC stream does. Its endpoint decides for how long.
func streams(s *session, r *http.Request) bool {
	return s.client.HTTP2 && r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// names reports whether a header, by its name, carries the client's address, or the host, port or protocol that it used. Servers that pass
// headers on as variables, such as those of CGI (RFC 3875, 4.1.18) and WSGI, confuse X_Forwarded_For with X-Forwarded-For.
func names(header string) bool {
	header = strings.ToLower(strings.ReplaceAll(header, "_", "-"))
	return header == "forwarded" || strings.HasPrefix(header, "x-forwarded-")
}

// rewrite sets the headers with the client's address, and removes those that the client sent itself.
func rewrite(r *httputil.ProxyRequest) {
	s := r.In.Context().Value(sessionKey{}).(*session)
	out := r.Out
	out.URL.Scheme, out.URL.Host = "http", "endpoint" // Dial replaces it
	out.URL.RawQuery = r.In.URL.RawQuery              // as it was written
	out.Host = r.In.Host
	proto := "http"
	if s.client.Secure {
		proto = "https"
	}
	for _, header := range []http.Header{out.Header, out.Trailer} {
		maps.DeleteFunc(header, func(name string, _ []string) bool { return names(name) })
	}
	out.Header.Set("X-Forwarded-For", s.client.Addr.String())
	out.Header.Set("X-Forwarded-Proto", proto)
	out.Header.Set("X-Forwarded-Port", strconv.Itoa(int(s.client.Port)))
}

// transport sends a request over a connection of its session.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	s := r.Context().Value(sessionKey{}).(*session)
	if s.client.Stale() {
		s.transport.CloseIdleConnections()
	}
	return s.transport.RoundTrip(r)
}

// failed responds to a request that got no response of an endpoint.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if body, is := r.Context().Value(bodyKey{}).(*timedBody); is && body.slow.Load() { // net/http has ended the context for it
		http.Error(w, "svcctl: "+errSlowBody.Error(), http.StatusRequestTimeout)
		return
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, or is to be: what it gets is no answer
	}
	status, text := http.StatusBadGateway, "the endpoint did not answer"
	if e, is := errors.AsType[*StatusError](err); is {
		status, text = e.Status, "no endpoint took the request"
	} else if e, is := errors.AsType[net.Error](err); is && e.Timeout() {
		status, text = http.StatusGatewayTimeout, "the endpoint did not answer in time"
	}
	p.log.Debug("a request is refused", "status", status, "err", err)
	http.Error(w, "svcctl: "+text, status)
}

// handed is a net.Listener for connections that were accepted elsewhere.
type handed struct {
	conns chan net.Conn
	done  <-chan struct{}
}

func (l *handed) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *handed) Close() error   { return nil }
func (l *handed) Addr() net.Addr { return &net.TCPAddr{} }

// buffers is the httputil.BufferPool of the buffers for copying bodies.
type buffers struct{}

var pool = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func (buffers) Get() []byte  { return pool.Get().(*[32 << 10]byte)[:] }
func (buffers) Put(b []byte) { pool.Put((*[32 << 10]byte)(b)) }

// The limits for slow bodies of requests, which would keep a connection open without end. The time spent waiting for a client's data may be
// bodyTime in all, plus a second for each bodyRate bytes that were received. Time in which the endpoint does not read is not counted.
const (
	bodyTime = 30 * time.Second
	bodyRate = 500 // bytes a second
)

// errSlowBody means that the body of a request was received more slowly than bodyRate.
var errSlowBody = errors.New("the body of the request came too slowly")

// timedBody is the body of a request that has to be received at a least rate. Only one goroutine reads it; slow is set when it was too
// slow.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	grace   time.Duration
	waited  time.Duration
	came    int64
	slow    atomic.Bool
}

func (b *timedBody) Read(buf []byte) (int, error) {
	began := time.Now()
	left := b.grace + time.Duration(b.came/bodyRate)*time.Second - b.waited
	if err := b.control.SetReadDeadline(began.Add(left)); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(buf)
	b.came += int64(n)
	b.waited += time.Since(began)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.slow.Store(true)
		return n, errSlowBody
	case err == io.EOF: // the answer may take longer; else the server discards the rest in this time
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
