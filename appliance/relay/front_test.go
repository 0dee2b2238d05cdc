package relay

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
)

// certificate is self-signed, for a name, with a pool that trusts it.
func certificate(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	c := pki.Issue(t, nil, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), name)
	return *c, pki.Pool(c)
}

// dialTLS connects for a name.
func dialTLS(t *testing.T, to netip.AddrPort, name string, roots *x509.CertPool) *tls.Conn {
	t.Helper()
	c := tls.Client(dialTCP(t, to), &tls.Config{ServerName: name, RootCAs: roots})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTLSIsEnded(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		pair, roots := certificate(t, "a.example.com")
		server := tcpServer(t, addr, func(c *net.TCPConn) {
			text, _ := io.ReadAll(c) // the client's close_notify is the end
			fmt.Fprintf(c, "%d bytes", len(text))
		})
		l := start(t, quick())
		at := freePort(t, addr)
		l.set(Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{server}, Front: &Front{TLS: &tls.Config{Certificates: []tls.Certificate{pair}}}})
		c := dialTLS(t, at, "a.example.com", roots)
		if _, err := io.WriteString(c, strings.Repeat("x", 300_000)); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); string(text) != "300000 bytes" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
		eventually(t, "nothing is left", func() bool { return l.Stats().TCP.Loopback == 0 })
	})
}

// An end without a close_notify is not passed on as one.
func TestCutTLSIsReset(t *testing.T) {
	pair, roots := certificate(t, "a.example.com")
	ends := make(chan error, 1)
	server := tcpServer(t, local, func(c *net.TCPConn) {
		_, err := io.ReadAll(c)
		ends <- err
	})
	l := start(t, quick())
	at := freePort(t, local)
	l.set(Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{server}, Front: &Front{TLS: &tls.Config{Certificates: []tls.Certificate{pair}}}})
	c := dialTLS(t, at, "a.example.com", roots)
	if _, err := io.WriteString(c, "half a requ"); err != nil {
		t.Fatal(err)
	}
	_ = c.NetConn().Close()
	if err := <-ends; err == nil {
		t.Error("the endpoint takes what was cut for all of it")
	}
}

// A port whose certificate is missing serves no client in the clear.
func TestNothingInTheClear(t *testing.T) {
	server := namedTCP(t, local, "a")
	l := start(t, quick())
	at := freePort(t, local)
	l.set(Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{server}, Front: &Front{TLS: &tls.Config{}}})
	c := dialTCP(t, at)
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	// All that comes is an alert.
	if text, _ := io.ReadAll(c); len(text) > 0 && text[0] != 21 {
		t.Errorf("answered in the clear: %q", text)
	}
}

func TestHTTPIsPassedOn(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		var at netip.AddrPort
		echo := func(name string) netip.AddrPort {
			socket, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, "%s %s %s for=%q proto=%q port=%q", name, r.Host, r.RequestURI, r.Header["X-Forwarded-For"], r.Header["X-Forwarded-Proto"], r.Header["X-Forwarded-Port"])
			})}
			go func() { _ = s.Serve(socket) }()
			t.Cleanup(func() { _ = s.Close() })
			return socket.Addr().(*net.TCPAddr).AddrPort()
		}
		a, b := echo("a"), echo("b")
		l := start(t, quick())
		at = freePort(t, addr)
		port := Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{a}, Front: &Front{HTTP: true, ResponseTimeout: time.Minute}}
		l.set(port)
		c := dialTCP(t, at)
		r := bufio.NewReader(c)
		get := func() string {
			t.Helper()
			if _, err := io.WriteString(c, "GET /x?a;b=%zz HTTP/1.1\r\nHost: example.com\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: x-mine\r\nX-Mine: 1\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(res.StatusCode, " ", string(body))
		}
		want := fmt.Sprintf(`200 %%s example.com /x?a;b=%%%%zz for=["%s"] proto=["http"] port=["%d"]`, addr, at.Port())
		if got := get(); got != fmt.Sprintf(want, "a") {
			t.Errorf("%s, want %s", got, fmt.Sprintf(want, "a"))
		}
		// The next request of an open connection goes to an endpoint that is there.
		port.Endpoints = []netip.AddrPort{b}
		l.set(port)
		eventually(t, "the other endpoint answers", func() bool { return strings.HasPrefix(get(), "200 b ") })
		port.Endpoints, port.Serving = nil, []netip.AddrPort{b}
		l.set(port) // on loopback this closes the listener; the client is told
		eventually(t, "a request without an endpoint is refused", func() bool { return strings.HasPrefix(get(), "503 ") })
		_ = c.Close()
		eventually(t, "nothing is left", func() bool { return l.Stats().TCP.Loopback == 0 })
	})
}

// http2Server serves HTTP/2 without TLS. Its answers have its name in the header Endpoint, at once, and then the body of the request.
func http2Server(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Endpoint", name)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	s.Config.Protocols = &http.Protocols{}
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).AddrPort()
}

// http2Client returns a function that sends a request over HTTP/2 without TLS. All requests share a connection while it takes them.
func http2Client(t *testing.T, to netip.AddrPort) func(body io.Reader) *http.Response {
	t.Helper()
	transport := &http.Transport{Protocols: &http.Protocols{}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return func(body io.Reader) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+to.String(), body)
		if err != nil {
			t.Fatal(err)
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
}

// A request goes to another endpoint when that of an open stream is gone, over the same connection of the client. The stream goes on.
func Test1163_requests_beside_a_stream_of_HTTP2(t *testing.T) {
	a, b := http2Server(t, "a"), http2Server(t, "b")
	l := start(t, quick())
	port := Port{ID: "default/web", Protocol: TCP, Listen: freePort(t, local), Endpoints: []netip.AddrPort{a}, Front: &Front{HTTP: true, HTTP2: true, ResponseTimeout: time.Minute}}
	l.set(port)
	ask := http2Client(t, port.Listen)
	in, out := io.Pipe()
	stream := ask(in)
	port.Endpoints, port.Serving = []netip.AddrPort{b}, []netip.AddrPort{a}
	l.set(port)
	for range 2 {
		if res := ask(strings.NewReader("x")); res.Header.Get("Endpoint") != "b" {
			t.Errorf("a request beside the stream went to the endpoint %q, which is gone", res.Header.Get("Endpoint"))
		}
	}
	go func() { _, _ = io.WriteString(out, "on"); _ = out.Close() }()
	if text, err := io.ReadAll(stream.Body); string(text) != "on" || err != nil || stream.Header.Get("Endpoint") != "a" {
		t.Errorf("the stream of the endpoint %q ended with %q, %v", stream.Header.Get("Endpoint"), text, err)
	}
}

// Settings that change are those of the next request but one of a connection that is open.
func Test1166_settings_of_HTTP_change_for_open_connections(t *testing.T) {
	l := start(t, quick())
	port := Port{ID: "default/web", Protocol: TCP, Listen: freePort(t, local), Endpoints: []netip.AddrPort{http2Server(t, "a")}}
	serve := func(host string) {
		port.Front = &Front{HTTP: true, HTTP2: true, ResponseTimeout: time.Minute, Hosts: []string{host}}
		l.set(port)
	}
	serve("other")
	ask := http2Client(t, port.Listen)
	if got := ask(nil).StatusCode; got != http.StatusNotFound {
		t.Fatalf("status %d", got)
	}
	serve(local.String())
	eventually(t, "an open connection is served by a new setting", func() bool { return ask(nil).StatusCode == http.StatusOK })
	serve("other")
	eventually(t, "an open connection is refused by a new setting", func() bool { return ask(nil).StatusCode == http.StatusNotFound })
}

// A client whose port was gone, and is there again, is served: the refusal in between ended its connection, which belongs to the port that is gone.
func Test1165_port_that_comes_back_serves_open_connections_of_HTTP(t *testing.T) {
	l := start(t, quick())
	port := Port{ID: "default/web", Protocol: TCP, Listen: freePort(t, local), Endpoints: []netip.AddrPort{http2Server(t, "a")}, Front: &Front{HTTP: true, HTTP2: true, ResponseTimeout: time.Minute}}
	l.set(port)
	ask := http2Client(t, port.Listen)
	status := func() int { return ask(nil).StatusCode }
	if got := status(); got != http.StatusOK {
		t.Fatalf("status %d", got)
	}
	l.set()
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("status %d of a port that is gone", got)
	}
	l.set(port)
	eventually(t, "the port that is there again serves the client", func() bool { return status() == http.StatusOK })
}

func TestServerNamesLeadToPorts(t *testing.T) {
	server := func(name string) (netip.AddrPort, *x509.CertPool) {
		pair, roots := certificate(t, name)
		return tcpServer(t, local, func(c *net.TCPConn) {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
			fmt.Fprintf(s, "%s\n", name)
			_ = s.Close()
		}), roots
	}
	a, ofA := server("a.example.com")
	b, _ := server("b.example.com")
	own, _ := server("c.example.com")
	l := start(t, quick())
	at := freePort(t, local)
	port := Port{ID: "default/front", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{own}, Names: []Named{
		{"a.example.com", Port{ID: "default/a", Protocol: TCP, Endpoints: []netip.AddrPort{a}}},
		{"*.example.org", Port{ID: "default/b", Protocol: TCP, Endpoints: []netip.AddrPort{b}}},
	}}
	l.set(port)
	ask := func(name string, roots *x509.CertPool) string {
		c := tls.Client(dialTCP(t, at), &tls.Config{ServerName: name, RootCAs: roots, InsecureSkipVerify: roots == nil})
		text, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(text)
	}
	for name, want := range map[string]string{"a.example.com": "a.example.com", "x.example.org": "b.example.com", "x.y.example.org": "c.example.com", "example.org": "c.example.com", "other": "c.example.com"} {
		if got := ask(name, nil); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := ask("a.example.com", ofA); got != "a.example.com" {
		t.Errorf("checked: %s", got)
	}
	port.Names = port.Names[:1]
	l.set(port)
	eventually(t, "a name that went leads elsewhere", func() bool { return ask("x.example.org", nil) == "c.example.com" })
	c := dialTCP(t, at)
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(c); len(text) > 0 {
		t.Errorf("who speaks no TLS is answered: %q", text)
	}
}

// Clients whose TLS or HTTP is ended hold no hand-over up, whatever they and their endpoints wait for: they are reset.
func TestHandOverOfFronts(t *testing.T) {
	pair, roots := certificate(t, "a.example.com")
	secure := &tls.Config{Certificates: []tls.Certificate{pair}}
	upgraded := tcpServer(t, local, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1000))
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})
	still := tcpServer(t, local, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	half := tcpServer(t, local, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1000))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		_, _ = io.Copy(io.Discard, c)
	})
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for what, c := range map[string]struct {
		front    Front
		endpoint netip.AddrPort
		secure   bool   // the client ends its handshake
		says     string // before the hand-over
		gets     int    // bytes of an answer
	}{
		"no handshake":           {Front{TLS: secure}, still, false, "", 0},
		"half a ClientHello":     {Front{TLS: secure}, still, false, string(helloOf(t, "a.example.com")[:20]), 0},
		"TLS":                    {Front{TLS: secure}, still, true, "x", 0},
		"TLS, no endpoint":       {Front{TLS: secure}, deaf(t), true, "x", 0},
		"TLS to endpoints":       {Front{BackendTLS: &tls.Config{InsecureSkipVerify: true}}, still, false, "x", 0},
		"HTTP, no request":       {Front{HTTP: true}, still, false, "", 0},
		"HTTP, half a header":    {Front{HTTP: true}, still, false, get[:20], 0},
		"HTTP, half a body":      {Front{HTTP: true}, still, false, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf", 0},
		"HTTP, no endpoint":      {Front{HTTP: true}, deaf(t), false, get, 0},
		"HTTP, no answer":        {Front{HTTP: true}, still, false, get, 0},
		"HTTP, two requests":     {Front{HTTP: true}, still, false, get, 0},
		"HTTP, half an answer":   {Front{HTTP: true}, half, false, get, 20},
		"HTTP, upgraded":         {Front{HTTP: true}, upgraded, false, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 20},
		"HTTP and TLS":           {Front{HTTP: true, TLS: secure}, still, true, get, 0},
		"HTTP and TLS, upgraded": {Front{HTTP: true, TLS: secure}, upgraded, true, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 20},
	} {
		t.Run(what, func(t *testing.T) {
			at := freePort(t, local)
			g := next(t, quick(), nil, Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: []netip.AddrPort{c.endpoint}, Front: &c.front, Connect: Connect{Timeout: patience}})
			var client net.Conn
			if c.secure {
				client = dialTLS(t, at, "a.example.com", roots)
			} else {
				client = dialTCP(t, at)
			}
			if _, err := io.WriteString(client, c.says); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(client, make([]byte, c.gets)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the client counts as one that cannot be handed over", func() bool { return g.draining.waiting() == 1 })
			if what == "HTTP, two requests" {
				time.Sleep(50 * time.Millisecond) // the first one is on its way by then
				if _, err := io.WriteString(client, get); err != nil {
					t.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			for _, p := range g.handOver(t).Ports {
				for _, held := range p.Connections {
					t.Errorf("%+v is handed over", held)
				}
			}
			if used := g.quotas.tcp.loopback.used.Load(); used != 0 {
				t.Errorf("%d connections are left", used)
			}
			if n, err := io.Copy(io.Discard, client); err == nil && n == 0 || noAnswer(err) {
				t.Errorf("%d bytes, %v: want that the connection is reset", n, err)
			}
		})
	}
}

// Test1049_endpoint_that_does_not_begin_TLS: a client goes to another endpoint if the handshake with the first one fails, over TCP and HTTP, as if that had
// refused the connection. An HTTP client of such endpoints alone gets 502.
func Test1049_endpoint_that_does_not_begin_TLS(t *testing.T) {
	pair, roots := certificate(t, "web.default.svc")
	other, _ := certificate(t, "web.default.svc")
	endpoint := func(name string, pair tls.Certificate) netip.AddrPort {
		return tcpServer(t, local, func(c *net.TCPConn) {
			secure := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
			r, err := http.ReadRequest(bufio.NewReader(secure))
			if err != nil {
				return
			}
			_ = r.Body.Close()
			fmt.Fprintf(secure, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(name), name)
			_ = secure.Close()
		})
	}
	good, stranger := endpoint("good", pair), endpoint("stranger", other)
	plain := tcpServer(t, local, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 what?\r\n") })
	for what, c := range map[string]struct {
		http      bool
		endpoints []netip.AddrPort
		retries   int
		want      string
	}{
		"TCP":                  {false, []netip.AddrPort{plain, stranger, good}, 2, "200 good"},
		"HTTP":                 {true, []netip.AddrPort{plain, stranger, good}, 2, "200 good"},
		"HTTP, none":           {true, []netip.AddrPort{plain, stranger}, 2, "502"},
		"HTTP, without others": {true, []netip.AddrPort{stranger}, 0, "502"},
	} {
		t.Run(what, func(t *testing.T) {
			l := start(t, quick())
			at := freePort(t, local)
			l.set(Port{ID: "default/web", Protocol: TCP, Listen: at, Endpoints: c.endpoints, Connect: Connect{Timeout: patience, Retries: c.retries},
				Front: &Front{HTTP: c.http, ResponseTimeout: time.Minute, BackendTLS: &tls.Config{RootCAs: roots, ServerName: "web.default.svc"}}})
			for range 20 {
				client := dialTCP(t, at)
				if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(client), nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				if got := fmt.Sprint(res.StatusCode, " ", string(body)); err != nil || !strings.HasPrefix(got, c.want) {
					t.Fatalf("%q, %v; want %q", got, err, c.want)
				}
			}
		})
	}
}
