package httpproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits for one client.
const (
	headerBytes  = 64 << 10         // size of the headers of a request, and of a response
	headerTime   = 10 * time.Second // timeout for receiving the headers of a request
	idleTime     = 75 * time.Second // timeout of a connection without a request
	maxStreams   = 64               // concurrent HTTP/2 requests, and connections to endpoints
	idleBackends = 8                // idle connections to endpoints
	continueTime = time.Second      // timeout for an endpoint's 100 Continue response
)

// Client describes a client, and how its requests are forwarded.
type Client struct {
	// Addr is the client's address. Asked is the address and port that the client connected to.
	Addr  netip.Addr
	Asked netip.AddrPort
	// Secure is set if the client uses TLS.
	Secure bool
	// Dial connects to an endpoint. Its error may wrap a StatusError.
	Dial func(ctx context.Context) (net.Conn, error)
	// Stale reports whether the connections to endpoints that exist must not be used for another request. It is called before each one.
	Stale func() bool
	// Outdated reports whether new connections of the client are served in another way. Then the client's connection ends after the next response.
	Outdated func() bool
	// ResponseTimeout is the maximum time that an endpoint may take to send the headers of a response. Streams of gRPC have none: their headers come with
	// the first message.
	ResponseTimeout time.Duration
	// Hosts are the hosts whose requests are forwarded, in lower case. "*.example.com" matches all names below example.com. If nil, all requests are
	// forwarded.
	Hosts []string
	// HTTP2 selects HTTP/2 without TLS (h2c) towards endpoints, instead of HTTP/1.1.
	HTTP2 bool
}

// StatusError is an error of Dial that determines the HTTP status of the response to the client.
type StatusError struct {
	Status int
	Err    error
}

func (e *StatusError) Error() string { return e.Err.Error() }
func (e *StatusError) Unwrap() error { return e.Err }

// Proxy is a reverse proxy that forwards HTTP requests of clients to endpoints. Its methods may be called concurrently.
type Proxy struct {
	log        *slog.Logger
	headerTime time.Duration
	bodyTime   time.Duration
	takeTime   time.Duration
	reverse    *httputil.ReverseProxy
	sessions   sync.Map // map[net.Conn]*session, by client connection
	// accepted passes client connections to servers.http1. negotiated passes those that negotiated HTTP/2 (ALPN) to servers.http2.
	accepted, negotiated chan net.Conn

	mu      sync.Mutex
	ctx     context.Context // context of Run; nil before Run is called
	servers servers         // serve new clients; after a Drain, one request per connection
	served  sync.WaitGroup
}

// servers serves the clients that connect before the next Drain. http2 serves the connections that negotiated HTTP/2, http1 all others. They are
// separate because they are drained in different ways.
type servers struct {
	http1, http2 *http.Server
	stop         func() // makes both servers accept no further connections
}

// New returns a Proxy. It serves no clients until Run is called.
func New(log *slog.Logger) *Proxy { return newProxy(log, headerTime) }

func newProxy(log *slog.Logger, headerTime time.Duration) *Proxy {
	p := &Proxy{log: log, headerTime: headerTime, bodyTime: bodyTime, takeTime: takeTime, accepted: make(chan net.Conn), negotiated: make(chan net.Conn)}
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
		ReadHeaderTimeout: p.headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes, ErrorLog: p.reverse.ErrorLog, DisableGeneralOptionsHandler: true,
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

// Run serves clients until ctx is done, and then closes their connections.
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

// begin makes servers accept new clients. The caller must hold p.mu.
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

// Drain makes clients open another connection for their next request, by "Connection: close" (HTTP/1.1) or GOAWAY (HTTP/2). It closes idle
// connections, but serves the first request of a new connection. It returns when the HTTP/2 connections open at the call have no open requests, or
// ctx is done. New clients are served meanwhile, for one request per connection.
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

// firstTime is how long a Drain waits for the first request of a new client.
const firstTime = time.Second

// awaitFirst waits until each client of a server has sent a request, for at most firstTime. It is called before Shutdown, which closes connections
// without a request even if one is on its way.
func (p *Proxy) awaitFirst(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, firstTime)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(firstTime / 100) {
		waits := false
		p.sessions.Range(func(_, found any) bool {
			s := found.(*session)
			waits = s.server.Load() == server && !s.asked.Load()
			return !waits
		})
		if !waits {
			return
		}
	}
}

// Serve serves the requests of a client until its connection has ended, and closes conn. When ctx is done, requests that wait for an endpoint are
// canceled. The caller must cancel ctx when the client is gone, since net/http does not notice this for a client that has sent more than one request,
// and close the connections to endpoints afterwards.
func (p *Proxy) Serve(ctx context.Context, conn net.Conn, c Client) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	done := make(chan struct{})
	s := &session{client: c, ctx: ctx, end: sync.OnceFunc(func() { close(done) })}
	first := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) },
		DisableCompression: true, MaxConnsPerHost: maxStreams, MaxIdleConnsPerHost: idleBackends, IdleConnTimeout: idleTime,
		ResponseHeaderTimeout: c.ResponseTimeout, MaxResponseHeaderBytes: headerBytes, ExpectContinueTimeout: continueTime,
	}
	s.transports = []*http.Transport{first}
	if c.HTTP2 {
		first.Protocols = &http.Protocols{}
		first.Protocols.SetUnencryptedHTTP2(true)
		s.transports = append(s.transports, first.Clone())
		s.transports[1].ResponseHeaderTimeout = 0
	}
	p.sessions.Store(conn, s)
	defer p.sessions.Delete(conn)
	accepted := p.accepted
	if secured, is := conn.(*tls.Conn); is && secured.ConnectionState().NegotiatedProtocol == "h2" {
		accepted = p.negotiated
	}
	select {
	case accepted <- conn:
		<-done
	case <-ctx.Done():
	}
	_ = conn.Close()
}

// session is a client connection with its connections to endpoints.
type session struct {
	client   Client
	ctx      context.Context             // context of its requests
	server   atomic.Pointer[http.Server] // the server that serves the connection; nil if none does yet
	asked    atomic.Bool                 // a request was received on the connection
	end      func()                      // makes Serve return: the client's connection has ended
	hijacked atomic.Bool                 // the client's connection was upgraded
	mu       sync.Mutex
	// transports has a second one with endpoints of HTTP/2: that of streams, which have no ResponseTimeout.
	transports []*http.Transport
}

// current returns the transport for a request. It replaces those with stale connections, since connections with open requests get further ones over
// HTTP/2.
func (s *session) current(r *http.Request) *http.Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client.Stale() {
		for i, t := range s.transports {
			t.CloseIdleConnections()
			s.transports[i] = t.Clone()
		}
	}
	if streams(s, r) {
		return s.transports[1]
	}
	return s.transports[0]
}

// endIfOutdated makes net/http end the client's connection after a response with the given header: over HTTP/2, it sends GOAWAY.
func (s *session) endIfOutdated(header http.Header) {
	if s.client.Outdated() {
		header.Set("Connection", "close")
	}
}

// Keys of context values of a request: its *session, and its *timedBody.
type (
	sessionKey struct{}
	bodyKey    struct{}
)

// state is the http.Server.ConnState hook. It ends the session when the client's connection is closed. For an upgraded connection the handler does
// that.
func (p *Proxy) state(c net.Conn, state http.ConnState) {
	found, is := p.sessions.Load(c)
	if !is {
		return
	}
	switch s := found.(*session); state {
	case http.StateClosed:
		s.end()
	case http.StateHijacked: // the handler ends it
		s.hijacked.Store(true)
	}
}

func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	s := r.Context().Value(sessionKey{}).(*session)
	s.asked.Store(true)
	defer func() {
		if s.hijacked.Load() {
			s.end()
		}
	}()
	if r.Method == http.MethodConnect {
		http.Error(w, "svcctl: CONNECT is not passed on", http.StatusMethodNotAllowed)
		return
	}
	w.Header()["Content-Type"] = nil // net/http guesses one that the endpoint did not send
	if !s.client.serves(r.Host) {
		s.endIfOutdated(w.Header())
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
	reverse := *p.reverse
	reverse.ModifyResponse = func(res *http.Response) error {
		if res.StatusCode != http.StatusSwitchingProtocols {
			s.endIfOutdated(res.Header)
			if !streams(s, r) {
				res.Body = p.taken(res.Body, w)
			}
		}
		return nil
	}
	reverse.ServeHTTP(w, r)
}

// serves reports whether requests for a host are forwarded. The host may include a port, which is ignored.
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

// streams reports whether a request may stay open without sending any data, as a gRPC stream does. Such a request has no timeout for its body, nor for its
// response.
func streams(s *session, r *http.Request) bool {
	return s.client.HTTP2 && r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// names reports whether a header, given by its name, states the client's address, or the host, port or protocol that the client used (Forwarded,
// X-Forwarded-*). Underscores count as hyphens, since servers that pass headers as variables, such as those of CGI (RFC 3875, 4.1.18) and WSGI, treat
// X_Forwarded_For and X-Forwarded-For alike.
func names(header string) bool {
	header = strings.ToLower(strings.ReplaceAll(header, "_", "-"))
	return header == "forwarded" || strings.HasPrefix(header, "x-forwarded-")
}

// rewrite sets the X-Forwarded headers of a request to an endpoint, and removes the ones that the client sent.
func rewrite(r *httputil.ProxyRequest) {
	s := r.In.Context().Value(sessionKey{}).(*session)
	out := r.Out
	out.URL.Scheme, out.URL.Host = "http", "endpoint" // Dial replaces it
	out.URL.RawQuery = r.In.URL.RawQuery              // as it was written
	// So is the path, except that characters which a path may not contain are escaped. net/url would decode the others with them, as %2F.
	if raw := out.URL.RawPath; raw != "" && raw != out.URL.EscapedPath() {
		out.URL.RawPath = strings.ReplaceAll((&url.URL{Path: raw}).EscapedPath(), "%25", "%")
	}
	out.Host = cmp.Or(r.In.Host, s.client.Asked.String()) // HTTP/1.0 needs none
	proto := "http"
	if s.client.Secure {
		proto = "https"
	}
	out.Trailer = nil // net/http/httputil passes on no trailers of requests
	maps.DeleteFunc(out.Header, func(name string, _ []string) bool { return names(name) })
	out.Header.Set("X-Forwarded-For", s.client.Addr.String())
	out.Header.Set("X-Forwarded-Proto", proto)
	out.Header.Set("X-Forwarded-Port", strconv.Itoa(int(s.client.Asked.Port())))
}

// transport is an http.RoundTripper that sends each request over a connection of its session.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return r.Context().Value(sessionKey{}).(*session).current(r).RoundTrip(r)
}

// failed responds to the client if the endpoint did not respond to its request. The status depends on err.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	body, timed := r.Context().Value(bodyKey{}).(*timedBody)
	if timed && body.slow.Load() { // net/http has ended the context for it
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
	} else if timed && body.invalid.Load() {
		status, text = http.StatusBadRequest, "the body of the request is invalid"
	}
	r.Context().Value(sessionKey{}).(*session).endIfOutdated(w.Header())
	p.log.Debug("a request is refused", "status", status, "err", err)
	http.Error(w, "svcctl: "+text, status)
}

// handed is a net.Listener that returns connections accepted elsewhere, from the channel conns.
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

// buffers implements httputil.BufferPool for copying bodies.
type buffers struct{}

var pool = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func (buffers) Get() []byte  { return pool.Get().(*[32 << 10]byte)[:] }
func (buffers) Put(b []byte) { pool.Put((*[32 << 10]byte)(b)) }

// Limits for slow request bodies, which could keep a connection open forever. The total time spent waiting for a client's data may be bodyTime, plus
// one second for each bodyRate bytes received. Time in which the endpoint does not read is not counted.
const (
	bodyTime = 30 * time.Second
	bodyRate = 500 // bytes per second
)

// errSlowBody means that a client sent the body of a request too slowly, see bodyRate.
var errSlowBody = errors.New("the body of the request came too slowly")

// timedBody is the body of a request, with a minimum rate at which the client must send it. Only one goroutine may read it. slow is set once the
// client was too slow, invalid once the body could not be read for another reason, as invalid chunks.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	grace   time.Duration
	waited  time.Duration
	came    int64
	slow    atomic.Bool
	invalid atomic.Bool
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
	case err != nil && !errors.Is(err, http.ErrBodyReadAfterClose): // that one follows a failure of the endpoint
		b.invalid.Store(true)
	}
	return n, err
}

// takeTime is the time after which a response ends whose client takes none of what was read from its body: one that reads nothing would keep its
// connection and that of its endpoint forever. It ends within twice this time, since that is looked at once in it.
const takeTime = time.Minute

// takenBody is the body of a response to a client. Between two reads its content is written to the client.
type takenBody struct {
	io.ReadCloser
	late  *time.Timer
	began time.Time
	wrote atomic.Int64 // when the write of what was read began, in nanoseconds after began; 0 while nothing is written, -1 after the end
}

// taken returns the body of a response that is written to w. A write that takes longer than p.takeTime fails.
func (p *Proxy) taken(body io.ReadCloser, w http.ResponseWriter) *takenBody {
	b := &takenBody{ReadCloser: body, began: time.Now()}
	b.late = time.AfterFunc(math.MaxInt64, func() {
		switch at := b.wrote.Load(); {
		case at < 0:
		case at > 0 && time.Since(b.began)-time.Duration(at) >= p.takeTime:
			_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
		default:
			b.late.Reset(p.takeTime)
		}
	})
	b.late.Reset(p.takeTime)
	return b
}

func (b *takenBody) Read(buf []byte) (int, error) {
	b.wrote.Store(0)
	n, err := b.ReadCloser.Read(buf)
	b.wrote.Store(max(1, int64(time.Since(b.began))))
	return n, err
}

func (b *takenBody) Close() error {
	b.wrote.Store(-1)
	b.late.Stop()
	return b.ReadCloser.Close()
}
