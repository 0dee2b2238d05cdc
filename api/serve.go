package api

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// limits bounds the resources that the clients of one listener can use.
type limits struct {
	header time.Duration // time to read the headers of a request
	read   time.Duration // time to read a whole request
	write  time.Duration // time to write a response, or one piece of a streamed response
	idle   time.Duration // time a connection may be idle between requests
	// objects is the time to read a request for objects, which may be large; it replaces read.
	objects time.Duration
	// connections bounds the concurrent connections of each listener. Over TLS, requests bounds its concurrent requests, and watches its long-running
	// ones. unixWatches bounds the long-running requests on the unix socket. It is less than connections, since each connection there has one request
	// at a time.
	connections, requests, watches, unixWatches int
}

var defaultLimits = limits{
	header: 5 * time.Second, read: 15 * time.Second, write: 15 * time.Second, idle: 60 * time.Second,
	objects:     60 * time.Second, // as kube-apiserver's --request-timeout
	connections: maxConnections, requests: 512, watches: 1024, unixWatches: maxConnections * 3 / 4,
}

const (
	maxHeaderBytes = 64 << 10
	maxConnections = 256
	// maxStreams bounds the concurrent requests of one HTTP/2 connection. It is as large as in kube-apiserver, because clients have all their watches
	// on one connection.
	maxStreams = 250
	// pingAfter is the time without data from an HTTP/2 client after which the server sends a PING. pingTimeout bounds the wait for the response.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// maxUnread bounds the bytes of request bodies that an HTTP/2 connection may send before they
	// are read; net/http's default is 1 MiB.
	maxUnread = 128 << 10
	// maxFrame is the smallest maximum frame size that HTTP/2 permits. It is used because each connection has a buffer for one frame.
	maxFrame = 16 << 10
	// shutdownTimeout bounds the time for requests in progress when the server stops. It is less than the 2 s in which the program has to
	// stop.
	shutdownTimeout = 1500 * time.Millisecond
)

// errStopping is the cause with which a request's context ends when the server stops.
var errStopping = errors.New("the appliance is stopping")

// Serve answers requests on ln with h, within the limits of this package, until ctx is done. It then closes ln and returns nil. panicked, if not nil,
// is called after a panic of h.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger, panicked func()) error {
	return defaultLimits.serve(ctx, ln, h, log, panicked)
}

func (l limits) serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger, panicked func()) error {
	limited := newLimitListener(ln, l.connections)
	requests, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	srv := &http.Server{
		Handler:           survive(record(h, log), log, panicked),
		ReadHeaderTimeout: l.header,
		ReadTimeout:       l.read,
		WriteTimeout:      l.write,
		IdleTimeout:       l.idle,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: l.write,
			MaxReceiveBufferPerConnection: maxUnread, MaxReceiveBufferPerStream: maxUnread / 2, MaxReadFrameSize: maxFrame,
		},
		BaseContext: func(net.Listener) context.Context { return requests },
		ConnContext: withPeer,
		ConnState:   limited.state,
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(limited) }()

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	cancel(errStopping) // waits end with this cause
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer done()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // cut the connections that are too slow
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// survive recovers from panics of h and logs the stack. It answers 500, or with the panic value if that is an http.Handler. If a response was already
// begun, it aborts the connection.
func survive(h http.Handler, log *slog.Logger, panicked func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w}
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v) // net/http's own way to cut a connection
			}
			if panicked != nil {
				panicked()
			}
			log.Error("request handler panicked", "method", r.Method, "path", r.URL.Path,
				"panic", v, "stack", string(debug.Stack()))
			if rec.code != 0 {
				panic(http.ErrAbortHandler) // half an answer must not look whole
			}
			if page, is := v.(http.Handler); is {
				page.ServeHTTP(rec, r)
				return
			}
			fail(rec, http.StatusInternalServerError, wire.ReasonInternalError,
				"the appliance failed on this request; its log has the details")
		}()
		h.ServeHTTP(rec, r)
	})
}

// record logs every request at level debug, with the client's process or address.
func record(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !log.Enabled(r.Context(), slog.LevelDebug) {
			h.ServeHTTP(w, r)
			return
		}
		began := time.Now()
		rec := &recorder{ResponseWriter: w}
		h.ServeHTTP(rec, r)
		args := []any{"method", r.Method, "path", r.URL.Path, "code", rec.code, "dur", time.Since(began)}
		if peer, ok := peerFrom(r.Context()); ok {
			args = append(args, "uid", peer.UID, "pid", peer.PID)
		} else {
			args = append(args, "from", r.RemoteAddr)
		}
		log.Debug("request", args...)
	})
}

// recorder is a ResponseWriter that records the status code, 0 if no response was begun.
type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = cmp.Or(r.code, code)
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.code = cmp.Or(r.code, http.StatusOK)
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Call is one request that was answered.
type Call struct {
	// Verb is the verb of the request: for objects get, list, watch, create and so on, for anything
	// else the method in lower case; "other" for an unknown one.
	Verb string
	// Resource is the resource, such as services or services/status. For requests not about objects it is the path, such as /readyz. It is "" for
	// paths that are not served.
	Resource string
	// Code is the status of the answer.
	Code int
	Took time.Duration
	// Endless is set for long-running requests, such as watches and waits, for which Took has no meaning.
	Endless bool
}

// Load counts requests and watches in progress.
type Load struct{ Requests, Watches int64 }

// Load returns the requests and watches in progress, over all listeners. Waits count as watches.
func (s *Server) Load() Load {
	return Load{
		Requests: s.onTLS.requests.Load() + s.onUnix.requests.Load(),
		Watches:  s.onTLS.watches.Load() + s.onUnix.watches.Load(),
	}
}

// observe wraps h so that Config.Observe is called for every request to mux.
func (s *Server) observe(mux *http.ServeMux, h http.Handler) http.Handler {
	if s.cfg.Observe == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		rec := &recorder{ResponseWriter: w}
		code := http.StatusInternalServerError // of a panic
		defer func() {
			verb, resource := s.name(mux, r)
			s.cfg.Observe(Call{Verb: verb, Resource: resource, Code: code, Took: time.Since(began), Endless: isEndless(r)})
		}()
		h.ServeHTTP(rec, r)
		if code = rec.code; code == 0 {
			code = http.StatusOK
		}
	})
}

// name returns the verb and the resource under which the metrics count a request. The number of different results is bounded.
func (s *Server) name(mux *http.ServeMux, r *http.Request) (verb, resource string) {
	if s.cfg.NameOf != nil {
		if verb, resource = s.cfg.NameOf(r); resource != "" {
			return verb, resource
		}
	}
	if _, pattern := mux.Handler(r); pattern != "/" {
		resource = strings.TrimSuffix(pattern, "{$}")
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return strings.ToLower(r.Method), resource
	}
	return "other", resource
}

// limitListener accepts at most max connections. When another one arrives, it closes the connection that has waited longest for a request. If all
// have requests in progress, it answers the new one with 503 and closes it. Idle connections therefore cannot lock out other clients. One remote host
// (see peerOf) may have at most share connections, so that a client that reads its responses slowly cannot use all of them.
type limitListener struct {
	net.Listener
	max, share int
	// refusing bounds the connections that are being answered with 503; further ones are closed without an answer.
	refusing chan struct{}

	mu      sync.Mutex
	open    map[net.Conn]*list.Element // element in waiting; nil while a request is in progress
	waiting *list.List                 // connections without a request in progress, longest waiting first
	peers   map[netip.Prefix]int       // number of open connections, by peer
}

func newLimitListener(ln net.Listener, max int) *limitListener {
	return &limitListener{
		Listener: ln, max: max, share: max * 3 / 4, refusing: make(chan struct{}, maxRefusing),
		open: map[net.Conn]*list.Element{}, waiting: list.New(), peers: map[netip.Prefix]int{},
	}
}

// peerOf returns the host at the other end of a connection: an IPv4 address, or the IPv6 prefix
// that counts as one host; the zero Prefix on a unix socket, where all are one host.
func peerOf(conn net.Conn) netip.Prefix {
	addr, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	const segment = 64
	ip := addr.AddrPort().Addr().Unmap()
	peer, _ := ip.Prefix(min(ip.BitLen(), segment)) // the length fits
	return peer
}

const (
	maxRefusing   = 32
	refuseTimeout = time.Second
)

// busy is the response to a connection beyond the limit.
const busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 1\r\n\r\n" +
	`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too many requests at once: try again later","reason":"ServiceUnavailable","code":503}` + "\n"

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		evicted, ok := l.admit(conn)
		if evicted != nil {
			cut(evicted)
		}
		if ok {
			return conn, nil
		}
		select {
		case l.refusing <- struct{}{}:
			go func() {
				refuse(conn)
				<-l.refusing
			}()
		default:
			_ = conn.Close()
		}
	}
}

// cut closes a connection without sending a TLS alert, since sending can block if the client does not read.
func cut(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// refuse answers a connection beyond the limit with busy. It reads the request first: closing with unread data would reset the connection
// before the client has the answer.
func refuse(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(refuseTimeout))
	request := make([]byte, 4<<10)
	if _, err := conn.Read(request); err != nil {
		return
	}
	if _, err := conn.Write([]byte(busy)); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.CopyN(io.Discard, conn, maxHeaderBytes) // until the client hangs up
}

// admit adds a connection. If the listener is full, or the remote host has its share, admit removes the connection (of that host in the latter case)
// that has waited longest for a request, and returns it for the caller to close. If none waits, it returns false and adds nothing.
func (l *limitListener) admit(conn net.Conn) (evicted net.Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	peer := peerOf(conn)
	if crowded := peer.IsValid() && l.peers[peer] >= l.share; crowded || len(l.open) >= l.max {
		oldest := l.waiting.Front()
		for oldest != nil && crowded && peerOf(oldest.Value.(net.Conn)) != peer {
			oldest = oldest.Next()
		}
		if oldest == nil {
			return nil, false
		}
		evicted = oldest.Value.(net.Conn)
		l.forget(evicted, oldest)
	}
	l.open[conn] = l.waiting.PushBack(conn)
	l.peers[peer]++
	return evicted, true
}

// forget removes a connection. elem is its element in waiting; nil if a request is in progress.
func (l *limitListener) forget(conn net.Conn, elem *list.Element) {
	if elem != nil {
		l.waiting.Remove(elem)
	}
	delete(l.open, conn)
	peer := peerOf(conn)
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// state is the http.Server's ConnState hook. It maintains the list waiting. net/http reports a connection as active once it has read the headers of a
// request.
func (l *limitListener) state(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	elem, ok := l.open[conn]
	if !ok {
		return // evicted
	}
	switch state {
	case http.StateActive:
		if elem != nil {
			l.waiting.Remove(elem)
			l.open[conn] = nil
		}
	case http.StateIdle:
		if elem == nil {
			l.open[conn] = l.waiting.PushBack(conn)
		}
	case http.StateClosed, http.StateHijacked:
		l.forget(conn, elem)
	}
}

// budget counts the requests and watches in progress on one listener.
type budget struct {
	requests, watches atomic.Int64
}

// tryAdd adds one to a counter unless it is max already; it reports whether it did.
func tryAdd(count *atomic.Int64, max int) bool {
	if count.Add(1) > int64(max) {
		count.Add(-1)
		return false
	}
	return true
}

// retryAfter is the number of seconds after which a client may repeat a request for which there was no room.
const retryAfter = 1

// admit limits long-running requests and other requests separately, so that neither kind can use up the other's limit. Users other than admins may
// use half of each limit, so that admins always get in.
func (s *Server) admit(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		use, watches, requests := &s.onTLS, s.limits.watches, s.limits.requests
		if _, unix := peerFrom(r.Context()); unix {
			use, watches, requests = &s.onUnix, s.limits.unixWatches, s.limits.connections
		}
		count, max, what := &use.requests, requests, "requests"
		if isEndless(r) {
			count, max, what = &use.watches, watches, "watches"
		}
		if auth.From(r.Context()).Role != auth.Admin {
			max = (max + 1) / 2
		}
		if !tryAdd(count, max) {
			spare(w, r)
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
			fail(w, http.StatusTooManyRequests, wire.ReasonTooManyRequests,
				fmt.Sprintf("too many %s at once, at most %d are served: try again later", what, max))
			return
		}
		defer count.Add(-1)
		h.ServeHTTP(w, r)
	})
}

// isEndless reports whether a request is long-running: a watch, a wait, a trace or the stream of commits.
func isEndless(r *http.Request) bool {
	switch r.URL.Path {
	case wire.Wait.Path, wire.Trace.Path, tracePage, commitsPath:
		return true
	}
	return isWatch(r)
}

// isWatch reports whether a request is a watch. As in Kubernetes, every value of the parameter watch is true except "0" and "false". Paths of the
// deprecated watch API have /watch/ before the resource.
func isWatch(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	parts := strings.SplitN(r.URL.Path, "/", 6) // "", api, v1, watch or "", apis, G, V, watch
	if len(parts) > 4 && (parts[1] == "api" && parts[3] == "watch" || parts[1] == "apis" && parts[4] == "watch") {
		return true
	}
	values, asked := r.URL.Query()["watch"]
	return asked && values[0] != "0" && values[0] != "false"
}

// streaming replaces the time limits of the whole request and response, because either may be large. Reading the request body may take
// limits.objects; there is no limit for long-running requests. Each write of the response may take limits.write.
func (s *Server) streaming(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		until := time.Now().Add(s.limits.objects)
		if isEndless(r) || r.ContentLength == 0 {
			until = time.Time{} // the read deadline would end the request's context in the middle of a long answer
		}
		_ = rc.SetReadDeadline(until)
		_ = rc.SetWriteDeadline(time.Time{})
		h.ServeHTTP(&pieces{ResponseWriter: w, control: rc, each: s.limits.write}, r)
		_ = rc.SetWriteDeadline(time.Now().Add(s.limits.write)) // of what net/http holds still
	})
}

// pieces is a ResponseWriter that bounds each write. It lifts the deadline after each, as over HTTP/2 a deadline ends the answer even if
// nothing is being written.
type pieces struct {
	http.ResponseWriter
	control *http.ResponseController
	each    time.Duration
}

// Write implements http.ResponseWriter.
func (p *pieces) Write(b []byte) (n int, err error) {
	p.within(func() { n, err = p.ResponseWriter.Write(b) })
	return n, err
}

// FlushError flushes within the deadline of a write; http.ResponseController calls it.
func (p *pieces) FlushError() (err error) {
	p.within(func() { err = p.control.Flush() })
	return err
}

// Flush implements http.Flusher.
func (p *pieces) Flush() { _ = p.FlushError() }

// SetWriteDeadline ignores deadlines from http.ResponseController: pieces sets its own.
func (p *pieces) SetWriteDeadline(time.Time) error { return nil }

// Unwrap lets http.ResponseController reach the connection.
func (p *pieces) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// within calls write with a deadline, and lifts the deadline after it.
func (p *pieces) within(write func()) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.each))
	write()
	_ = p.control.SetWriteDeadline(time.Time{})
}
