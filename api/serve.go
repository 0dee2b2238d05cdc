package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// limits bounds the cost of the clients of one listener.
type limits struct {
	header time.Duration // to send a request's headers
	read   time.Duration // to send a whole request
	write  time.Duration // to take an answer, or the next piece of one that shows objects
	idle   time.Duration // between requests
	// objects is for requests for objects, which may be large, in place of read.
	objects time.Duration
	// connections bounds concurrent connections, requests concurrent requests over all of them, and
	// watches requests without end, on each listener. Connections on the unix socket have one
	// request at a time, so its watches must leave room for others.
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
	// maxStreams bounds the concurrent requests of one HTTP/2 connection: as many as
	// kube-apiserver's, since clients have all their watches on one.
	maxStreams = 250
	// pingAfter is the silence of an HTTP/2 client after which it gets a PING, and pingTimeout
	// bounds the wait for its answer.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// maxUnread bounds the bytes of request bodies that an HTTP/2 connection may send before they
	// are read; net/http's default is 1 MiB.
	maxUnread = 128 << 10
	// maxFrame is the least frame size that HTTP/2 permits to ask for: each connection keeps room
	// for one frame.
	maxFrame = 16 << 10
	// shutdownTimeout bounds the time for requests under way at the end. Under the 2 s in which the
	// whole program has stopped.
	shutdownTimeout = 1500 * time.Millisecond
)

// errStopping is the cause with which a request's context ends when the server stops.
var errStopping = errors.New("the appliance is stopping")

// Serve answers requests on ln with h, under the limits of this package, until ctx
// is done; it then closes ln and returns nil. panicked may be nil.
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

// survive turns a panic of h into an answer of 500, when none was begun, and a log
// line with the stack.
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

// record logs every request at level debug, with the process that made it, or its address.
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

// recorder is a ResponseWriter that records the status code; 0: no response was begun.
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
	// Resource is the resource, as services or services/status, or the path of anything else, as
	// /readyz; "" for paths that are not served.
	Resource string
	// Code is the status of the answer.
	Code int
	Took time.Duration
	// Endless is set for watches and waits, of which Took has no meaning.
	Endless bool
}

// Load counts requests and watches under way.
type Load struct{ Requests, Watches int64 }

// Load returns the requests and watches under way, over all listeners. Waits count as watches.
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

// name returns the verb and resource of a request, from a bounded number of words.
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
