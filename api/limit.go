package api

import (
	"container/list"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// limitListener holds at most max connections. When one more arrives, it closes the connection that
// has waited longest without a whole request; when all of them are in the middle of one, it answers
// the new one 503 and closes it. So clients that only hold connections open shut no other client
// out. Of a network, one address has at most its share: clients that take their answers slowly,
// each in time, cannot have it all.
type limitListener struct {
	net.Listener
	max, share int
	// refusing bounds how many are answered 503 at once; more are just closed.
	refusing chan struct{}

	mu      sync.Mutex
	open    map[net.Conn]*list.Element // nil: in the middle of a request
	waiting *list.List                 // of net.Conn, those that wait for a request, longest first
	peers   map[netip.Prefix]int       // how many of open each has
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

// busy is the answer to a connection there is no room for.
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

// cut closes a connection without a TLS alert: a client that reads nothing would have to be waited
// for.
func cut(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// refuse answers a connection there is no room for. The request is read, or else
// closing would reset the connection under the answer.
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

// admit counts conn in, and returns the connection to close for it, if any.
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

// forget counts a connection out; elem is where it waits, if it does.
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

// state is the http.Server's ConnState hook: it follows which connections wait for
// a request. net/http calls a connection active once a request's headers are read.
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
		if isEndless(r) || r.ContentLength == 0 {
			until = time.Time{} // the read deadline would end the request's context in the middle of a long answer
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
