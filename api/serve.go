package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// What one client may cost.
const (
	headerTimeout  = 5 * time.Second  // to send a request's headers
	readTimeout    = 15 * time.Second // to send a whole request
	writeTimeout   = 15 * time.Second // to take an answer
	idleTimeout    = 60 * time.Second // between requests
	maxHeaderBytes = 64 << 10
	maxConnections = 256
	// shutdownTimeout is how long requests under way may take to finish at the end.
	// Under the 2 s in which the whole program has stopped.
	shutdownTimeout = 1500 * time.Millisecond
)

// errStopping is why a request's context ends when the server stops.
var errStopping = errors.New("the appliance is stopping")

// Serve answers requests on ln with h, under the limits of this package, until ctx
// is done; it then closes ln and returns nil. panicked may be nil.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger, panicked func()) error {
	limited := newLimitListener(ln, maxConnections)
	requests, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	srv := &http.Server{
		Handler:           survive(record(h, log), log, panicked),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       withPeer,
		ConnState:         limited.state,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(limited) }()

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	cancel(errStopping) // who waits for something is told that it will not come
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer done()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // cut who is too slow
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
			fail(rec, http.StatusInternalServerError, wire.ReasonInternalError,
				"the appliance failed on this request; its log has the details")
		}()
		h.ServeHTTP(rec, r)
	})
}

// record logs every request at level debug, with who made it.
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
		if peer, ok := PeerFrom(r.Context()); ok {
			args = append(args, "uid", peer.UID, "pid", peer.PID)
		}
		log.Debug("request", args...)
	})
}

// recorder remembers the status of an answer; 0: none was begun.
type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
