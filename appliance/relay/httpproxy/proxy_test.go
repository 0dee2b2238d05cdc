package httpproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
)

// lab is a Proxy in front of one endpoint, and a listener for its clients.
type lab struct {
	*Proxy
	t      *testing.T
	at     string
	client Client
	serves atomic.Int64 // clients now
	dialed atomic.Int64
}

// start serves with an endpoint; change may change what is done for clients.
func start(t *testing.T, headerTime time.Duration, handler http.HandlerFunc, change ...func(*Client)) *lab {
	t.Helper()
	backend := httptest.NewServer(handler)
	t.Cleanup(backend.Close)
	endpoint := backend.Listener.Addr().String()
	l := &lab{Proxy: newProxy(slog.New(slog.DiscardHandler), headerTime), t: t}
	l.client = Client{Addr: netip.MustParseAddr("192.0.2.7"), Asked: netip.MustParseAddrPort("198.51.100.9:443"), Secure: true, Stale: func() bool { return false }, Outdated: func() bool { return false }, ResponseTimeout: time.Minute,
		Dial: func(ctx context.Context) (net.Conn, error) {
			l.dialed.Add(1)
			return (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
		}}
	for _, c := range change {
		c(&l.client)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.at = listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { l.Run(ctx); done <- nil }()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			l.serves.Add(1)
			go func() { defer l.serves.Add(-1); l.Serve(ctx, c, l.client) }()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(time.Minute); l.serves.Load() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("clients are served after the end")
			}
		}
	})
	return l
}

// says sends text and reads one answer.
func (l *lab) says(text string) (*http.Response, string) {
	l.t.Helper()
	c, err := net.Dial("tcp", l.at)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		l.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		l.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return res, string(body)
}

// told answers with the header and the body that an endpoint gets.
func told(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s host=%s te=%q\n", r.Method, r.RequestURI, r.Host, r.TransferEncoding)
	_ = r.Header.Write(w)
	fmt.Fprintf(w, "body=%q %v", body, err)
}

func TestRequests(t *testing.T) {
	l := start(t, time.Minute, told)
	for name, tt := range map[string]struct {
		sent   string
		status int
		wants  []string
		not    string
	}{
		"as it was written": {"GET /a%2Fb//c?x;y=%zz&q=1 HTTP/1.1\r\nHost: a.example.com:8443\r\n\r\n", 200, []string{"GET /a%2Fb//c?x;y=%zz&q=1 host=a.example.com:8443"}, "User-Agent"},
		"who it is":         {"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nx-forwarded-proto: http\r\nX-Forwarded-Port: 1\r\nForwarded: for=1.2.3.4\r\n\r\n", 200, []string{"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Proto: https\r\n"}, "1.2.3.4"},
		"hop by hop":        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, x-mine\r\nX-Mine: 1\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTe: trailers, deflate\r\nProxy-Authorization: x\r\n\r\n", 200, []string{"Te: trailers"}, "Mine"},
		"no other upgrade":  {"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n", 200, nil, "h2c"},
		"two lengths":       {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400, nil, ""},
		"length and chunks": {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, []string{`te=["chunked"]`, `body="hello"`}, "Content-Length"},
		"odd encoding":      {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, nil, ""},
		"no host":           {"GET / HTTP/1.1\r\n\r\n", 400, nil, ""},
		"old, no host":      {"GET / HTTP/1.0\r\n\r\n", 200, []string{"GET / host=198.51.100.9:443"}, ""},
		"CONNECT":           {"CONNECT other:22 HTTP/1.1\r\nHost: other:22\r\n\r\n", 405, []string{"CONNECT is not passed on"}, ""},
		"another host":      {"GET http://other.example.com/x HTTP/1.1\r\nHost: a\r\n\r\n", 200, []string{"GET /x host=other.example.com"}, ""},
		"long header":       {"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", 431, nil, ""},
	} {
		res, body := l.says(tt.sent)
		if res.StatusCode != tt.status || tt.not != "" && strings.Contains(body, tt.not) {
			t.Errorf("%s: %s\n%s", name, res.Status, body)
		}
		for _, want := range tt.wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s: lacks %q:\n%s", name, want, body)
			}
		}
	}
}

// Endpoints that are slow or answer nonsense, and clients that are slow.
func TestFailures(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	endpoint := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		case "/long":
			w.Header().Set("X", strings.Repeat("x", 80<<10))
		case "/drop":
			panic(http.ErrAbortHandler)
		}
	}
	patient, hasty := start(t, time.Minute, endpoint), start(t, time.Minute, endpoint, func(c *Client) { c.ResponseTimeout = 50 * time.Millisecond })
	for path, want := range map[string]int{"/slow": 504, "/long": 502, "/drop": 502, "/": 200} {
		l := patient
		if want == 504 {
			l = hasty
		}
		if res, body := l.says("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != want {
			t.Errorf("%s: %s, want %d: %s", path, res.Status, want, body)
		}
	}
	alone := start(t, time.Minute, told, func(c *Client) {
		c.Dial = func(context.Context) (net.Conn, error) {
			return nil, &StatusError{http.StatusServiceUnavailable, errors.New("nobody")}
		}
	})
	if res, body := alone.says("GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != 503 || !strings.Contains(body, "no endpoint took the request") {
		t.Errorf("%s: %s", res.Status, body)
	}
	// A client that does not end its header is cut off.
	strict := start(t, 50*time.Millisecond, endpoint)
	c, err := net.Dial("tcp", strict.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if text, err := io.ReadAll(c); err != nil {
		t.Errorf("a client that does not end its header: %q, %v, want that it is cut off", text, err)
	}
}

// No connection serves two clients, and one client's serves its next request.
func TestConnectionsAreTheClients(t *testing.T) {
	l := start(t, time.Minute, told)
	for range 3 {
		before := l.dialed.Load()
		c, err := net.Dial("tcp", l.at)
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		for range 3 {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
		}
		if n := l.dialed.Load() - before; n != 1 {
			t.Errorf("%d connections for a client, want 1", n)
		}
		c.Close()
	}
}

// HTTP/2 in the clear, by those who know.
func TestUnencryptedHTTP2(t *testing.T) {
	l := start(t, time.Minute, told)
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	client := http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + l.at + "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); res.ProtoMajor != 2 || !strings.HasPrefix(string(body), "GET /x ") {
		t.Errorf("%s: %q, %v", res.Proto, body, err)
	}
}

// FuzzRequest sends what clients may send: the proxy ends every connection, and endpoints get who the client is
// and nothing of what it says about that.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"GET / HTTP/1.0\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: X-Forwarded-For\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		l := start(t, time.Second, func(_ http.ResponseWriter, r *http.Request) {
			if got := r.Header.Values("X-Forwarded-For"); len(got) != 1 || got[0] != "192.0.2.7" {
				t.Errorf("X-Forwarded-For: %q", got)
			}
		})
		c, err := net.Dial("tcp", l.at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, c); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection does not end")
		}
	})
}

// Clients that have just come when a Drain begins are served, those with a request are told to come anew, idle ones are let go.
func TestDrain(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	l := start(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			asked <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "answer")
	})
	type client struct {
		net.Conn
		r *bufio.Reader
	}
	dial := func() client {
		c, err := net.Dial("tcp", l.at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return client{c, bufio.NewReader(c)}
	}
	send := func(c client, path string) {
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(what string, c client, closes bool) {
		t.Helper()
		res, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "answer" || err != nil || res.Close != closes {
			t.Errorf("%s: %q, %v, closes %t, want %t", what, body, err, res.Close, closes)
		}
	}
	fresh, held, idle := dial(), dial(), dial()
	send(idle, "/")
	answer("before", idle, false)
	send(held, "/held")
	<-asked
	l.await(3, func(s *session) bool { return s.server.Load() != nil })
	l.Drain(t.Context())
	if _, err := idle.r.ReadByte(); err != io.EOF {
		t.Errorf("an idle connection ends with %v", err)
	}
	send(fresh, "/")
	answer("a client that had just come", fresh, true)
	close(release)
	answer("a request that was under way", held, true)
	late := dial()
	send(late, "/")
	answer("a client that comes later", late, true)
}

// A connection that has negotiated HTTP/2 is told to go when its first request was served.
func TestDrainOfHTTP2(t *testing.T) {
	l := start(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") })
	certificate := pki.Issue(t, nil, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "proxy")
	near, far := net.Pipe()
	secured := tls.Server(near, &tls.Config{Certificates: []tls.Certificate{*certificate}, NextProtos: []string{"h2"}})
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := secured.HandshakeContext(t.Context()); err != nil {
			t.Error(err)
			return
		}
		l.Serve(t.Context(), secured, l.client)
	}()
	c := tls.Client(far, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.await(1, func(s *session) bool { return s.server.Load() != nil })
	drained := make(chan struct{})
	go func() { defer close(drained); l.Drain(t.Context()) }()
	transport := &http.Transport{ForceAttemptHTTP2: true, DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get("https://proxy/")
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(res.Body); string(body) != "answer" || err != nil || res.ProtoMajor != 2 {
		t.Errorf("HTTP/%d: %q, %v", res.ProtoMajor, body, err)
	}
	_ = res.Body.Close()
	<-drained
	<-served
}

// await waits for so many clients of which something holds.
func (l *lab) await(n int, holds func(*session) bool) {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		found := 0
		l.sessions.Range(func(_, s any) bool {
			if holds(s.(*session)) {
				found++
			}
			return true
		})
		if found >= n {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%d clients of %d", found, n)
		}
	}
}

func TestHosts(t *testing.T) {
	l := start(t, time.Minute, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }, func(c *Client) {
		c.Secure, c.Hosts = false, []string{"www.example.com", "*.example.org"}
	})
	for host, want := range map[string]int{
		"www.example.com": 200, "WWW.example.com:8080": 200, "a.example.org": 200, "a.b.example.org": 200, "example.org": 404, "example.com": 404, "10.0.0.1:80": 404, "[2001:db8::1]": 404,
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.at+"/", nil)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d, want %d", host, answer.StatusCode, want)
		}
	}
	if n := l.dialed.Load(); n == 0 || n > 4 {
		t.Errorf("%d connections to the endpoint", n)
	}
}

// A Drain that comes as Run ends, or after it, begins nothing: Run does not wait for it.
func TestDrainAfterTheEnd(t *testing.T) {
	p := New(slog.New(slog.DiscardHandler))
	ctx, end := context.WithCancel(t.Context())
	end()
	p.Run(ctx)
	before := p.servers.http1
	if p.Drain(ctx); p.servers.http1 != before {
		t.Error("it serves new clients")
	}
}
