package api

import (
	"container/list"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
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
