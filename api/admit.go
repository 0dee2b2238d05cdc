package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// budget counts the requests and watches under way on one listener.
type budget struct {
	requests, watches atomic.Int64
}

// tryAdd counts one more of at most max; false when there is no room.
func tryAdd(count *atomic.Int64, max int) bool {
	if count.Add(1) > int64(max) {
		count.Add(-1)
		return false
	}
	return true
}

// retryAfter is the number of seconds after which a client may repeat a request for which there was no room.
const retryAfter = 1

// admit has separate budgets for requests without end and for others, so that neither can use up
// the other's. Readers may use half of each budget, so that an admin always gets in.
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

// isEndless reports whether a request is for an answer that may be long in coming, or never
// ends.
func isEndless(r *http.Request) bool {
	switch r.URL.Path {
	case wire.Wait.Path, wire.Trace.Path, tracePage, commitsPath:
		return true
	}
	return isWatch(r)
}

// isWatch reports whether a request is for an answer without end: any value of watch is true
// but these two, as Kubernetes reads it. The old paths have it in front of the resource.
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

// streaming gives requests for objects the time that they need: large ones may take longer
// to come in, and an answer may be as long as it wants as long as the client takes each piece
// of it in time.
func (s *Server) streaming(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		until := time.Now().Add(s.limits.objects)
		if isEndless(r) {
			until = time.Time{} // the read deadline would end the request's context
		}
		_ = rc.SetReadDeadline(until)
		_ = rc.SetWriteDeadline(time.Time{})
		h.ServeHTTP(&pieces{ResponseWriter: w, control: rc, each: s.limits.write}, r)
		_ = rc.SetWriteDeadline(time.Now().Add(s.limits.write)) // of what net/http holds still
	})
}

// pieces is an answer in pieces, each of which a client must take in time. What comes
// between them may take for ever: so the deadline is lifted after each, because over
// HTTP/2 it ends the answer even when nothing is written.
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

// FlushError is for http.ResponseController.
func (p *pieces) FlushError() (err error) {
	p.within(func() { err = p.control.Flush() })
	return err
}

// Flush implements http.Flusher.
func (p *pieces) Flush() { _ = p.FlushError() }

// SetWriteDeadline is for http.ResponseController: the deadlines are our own.
func (p *pieces) SetWriteDeadline(time.Time) error { return nil }

// Unwrap lets http.ResponseController reach the connection.
func (p *pieces) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// within calls write under a deadline.
func (p *pieces) within(write func()) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.each))
	write()
	_ = p.control.SetWriteDeadline(time.Time{})
}
