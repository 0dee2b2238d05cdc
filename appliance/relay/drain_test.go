package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/handover"
)

// waiting is how many connections the next leave will find open.
func (d *draining) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now.open
}

// A drain waits for the connections that are open then, however many come after, and each one once.
func TestDrain(t *testing.T) {
	d := newDraining()
	isOver := func(over <-chan struct{}) bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	if open, over := d.next(); open != 0 || !isOver(over) {
		t.Errorf("%d open, over: %t, and there was none", open, isOver(over))
	}
	first, second := d.begin(), d.begin()
	open, over := d.next()
	if open != 2 || isOver(over) {
		t.Errorf("%d open, over: %t, want 2", open, isOver(over))
	}
	third := d.begin()
	_, last := d.next()
	second()
	if isOver(over) {
		t.Error("over, and one is open")
	}
	first()
	if !isOver(over) || isOver(last) {
		t.Error("the first two have ended, and the third one has not")
	}
	third()
	if !isOver(last) {
		t.Error("not over, and nothing is open")
	}
}

// A hand-over waits a little for those who cannot be handed over, and serves them meanwhile.
func TestLastDrain(t *testing.T) {
	pair, roots := certificate(t, "a.example.com")
	l := quick()
	l.lastDrain = 2 * patience
	at := freePort(t, local)
	g := next(t, l, nil, Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{namedTCP(t, local, "a")}, Front: &Front{TLS: &tls.Config{Certificates: []tls.Certificate{pair}}}})
	c := dialTLS(t, at, "a.example.com", roots)
	if got := line(t, c); got != "a" || g.draining.waiting() != 1 {
		t.Fatalf("%q answers, and %d connections are to be waited for", got, g.draining.waiting())
	}
	g.cancel(handover.ErrRequested)
	eventually(t, "the last drain begins", func() bool { return g.draining.waiting() == 0 })
	for range 5 {
		say(t, c, "still here")
		time.Sleep(10 * time.Millisecond) // it would be reset
	}
	if len(g.done) > 0 {
		t.Error("nobody waits for a connection that is open")
	}
	_ = c.Close()
	eventually(t, "it comes to rest when the last one has ended", func() bool { return len(g.done) > 0 })
}

// Connections that are open at a stop get lastDrain to end. Clients that come meanwhile are refused, or wait in the socket that systemd
// keeps, and none is accepted to be reset.
func TestStopLetsConnectionsEnd(t *testing.T) {
	l := quick()
	l.lastDrain = 2 * patience
	release := make(chan struct{})
	slow := tcpServer(t, local, func(c *net.TCPConn) {
		<-release
		_, _ = io.WriteString(c, "answer\n")
	})
	r := start(t, l)
	at, kept := freePort(t, local), freePort(t, local)
	r.set(Port{ID: "default/a/tcp", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{slow}}, Port{ID: "default/b/tcp", Listen: kept, Protocol: TCP, Endpoints: []netip.AddrPort{slow}})
	listener, err := r.loopback.open[key{"default/b/tcp", TCP, kept, ""}].listenSocket.(*tcpListener).socket.File() // as systemd has it
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	open := dialTCP(t, at)
	eventually(t, "it is served", func() bool { return r.quotas.tcp.loopback.used.Load() == 1 })
	ended := make(chan struct{})
	go func() { r.stop(); close(ended) }()
	eventually(t, "no client is accepted", func() bool { return refuses(at) })
	waits := dialTCP(t, kept)
	close(release)
	if got := line(t, open); got != "answer" {
		t.Errorf("an open connection gets %q", got)
	}
	if rest, err := io.ReadAll(open); err != nil || len(rest) > 0 {
		t.Errorf("an open connection ends with %q, %v", rest, err)
	}
	_ = open.Close()
	<-ended // long before lastDrain
	after := newRelay(slog.New(slog.DiscardHandler), nil, quick())
	if err := after.InheritSocket(listener); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- after.Run(ctx) }()
	defer func() { stop(); <-done }()
	after.Set([]Port{{ID: "default/b/tcp", Listen: kept, Protocol: TCP, Endpoints: []netip.AddrPort{slow}}})
	if got := line(t, waits); got != "answer" {
		t.Errorf("a client that came meanwhile gets %q", got)
	}
}

// A request in progress is answered, over a connection that is as old as may be, and the client is asked for another connection.
func TestStopLetsRequestsEnd(t *testing.T) {
	l := quick()
	l.lastDrain = 2 * patience
	asked, release := make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(asked)
			<-release
		}
		_, _ = io.WriteString(w, "answer")
	}))
	defer web.Close()
	r := start(t, l)
	at := freePort(t, local)
	r.set(Port{ID: "default/a/tcp", Listen: at, Protocol: TCP, Endpoints: []netip.AddrPort{netip.MustParseAddrPort(web.Listener.Addr().String())}, Front: &Front{HTTP: true, ResponseTimeout: 2 * patience}})
	c, idle := dialTCP(t, at), dialTCP(t, at)
	answers := func(c *net.TCPConn, path string, closes bool) {
		t.Helper()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); string(body) != "answer" || err != nil || res.Close != closes {
			t.Errorf("%s: %q, %v, closes %t, want %t", path, body, err, res.Close, closes)
		}
	}
	for _, c := range []*net.TCPConn{c, idle} {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		answers(c, "/", false)
	}
	_, _ = io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
	<-asked
	ended := make(chan struct{})
	go func() { r.stop(); close(ended) }()
	eventually(t, "no client is accepted", func() bool { return refuses(at) })
	if n, err := idle.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a connection without a request: %d, %v, want its end in order", n, err)
	}
	close(release)
	answers(c, "/slow", true)
	<-ended
}
