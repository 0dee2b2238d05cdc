package prober

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/health"
)

// issued makes a certificate that ends at a time, for a name and, where that begins with "good", the loopback
// addresses, signed by an authority; a nil authority makes one.
func issued(t *testing.T, name string, ends time.Time, by *tls.Certificate) *tls.Certificate {
	t.Helper()
	names := []string{name}
	if strings.HasPrefix(name, "good") {
		names = append(names, loopbacks...)
	}
	return pki.Issue(t, by, ends.AddDate(-1, 0, 0), ends, names...)
}

// secured serves TLS, and then as the script says.
func secured(t *testing.T, host string, certificate *tls.Certificate, resumed *atomic.Int64, script func(net.Conn)) *server {
	config := &tls.Config{Certificates: []tls.Certificate{*certificate}}
	return serve(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
		s := tls.Server(c, config)
		if s.Handshake() == nil {
			if resumed != nil && s.ConnectionState().DidResume {
				resumed.Add(1)
			}
			script(s)
			_ = s.Close()
		}
	})
}

// A server of TLS 1.3 that wants a certificate of its clients says so when the handshake is done for them.
func Test664_certificate_of_the_client_is_wanted(t *testing.T) {
	good := issued(t, "good.example", time.Now().AddDate(1, 0, 0), nil)
	config := &tls.Config{Certificates: []tls.Certificate{*good}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	for _, host := range loopbacks {
		s := serve(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
			_ = tls.Server(c, config).Handshake()
			_, _ = io.Copy(io.Discard, c) // the request, so that the alert is not lost to a reset
		})
		r, _ := first(t, health.Target{Addr: s.addr, Check: checkOf(health.HTTPS)})
		if want := "TLS alert of the server: certificate required"; r.Outcome != health.Refused || r.Why != want {
			t.Errorf("%s: outcome %d, %q; want %d, %q", host, r.Outcome, r.Why, health.Refused, want)
		}
	}
}

func TestTLS(t *testing.T) {
	year := time.Now().AddDate(1, 0, 0)
	authority := issued(t, "authority", year, nil)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots) // read once, at the first use of the system's authorities
	good := issued(t, "good.example", year, authority)
	expired := issued(t, "good-"+secret+".example", time.Now().Add(-time.Hour), authority)
	other := issued(t, secret+".example", year, authority)
	foreign := issued(t, "good.example", year, nil)
	ok := say("HTTP/1.1 200 OK\r\n\r\n")
	for name, c := range map[string]struct {
		certificate *tls.Certificate
		plain       func(net.Conn)
		kind        health.Kind
		check       func(*health.Check)
		want        health.Outcome
		why         string
	}{
		"passes":               {certificate: good, kind: health.TLS},
		"verified":             {certificate: good, kind: health.TLS, check: verified},
		"verified by name":     {certificate: good, kind: health.TLS, check: func(c *health.Check) { c.Verify, c.Host = true, "good.example" }},
		"wrong name":           {certificate: other, kind: health.TLS, check: verified, want: health.Refused, why: "the certificate is for another name"},
		"wrong name, no doubt": {certificate: other, kind: health.TLS},
		"expired":              {certificate: expired, kind: health.TLS, check: verified, want: health.Refused, why: "the certificate has expired or is not valid yet"},
		"expired, no doubt":    {certificate: expired, kind: health.TLS},
		"unknown authority": {certificate: foreign, kind: health.TLS, check: verified, want: health.Refused,
			why: "the certificate is not signed by an authority that this host trusts"},
		"not TLS": {plain: func(c net.Conn) { _, _ = io.WriteString(c, secret+secret); hang(c) }, kind: health.TLS, want: health.Refused, why: "the answer is not TLS"},
		"hangs": {plain: hang, kind: health.TLS, check: func(c *health.Check) { c.Timeout = 300 * time.Millisecond },
			want: health.Silent, why: "connected, no answer in 300ms"},
		"closes": {plain: func(net.Conn) {}, kind: health.TLS, want: health.Refused},
		"alert": {plain: func(c net.Conn) { _, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 40}); hang(c) }, kind: health.TLS,
			want: health.Refused, why: "TLS alert of the server: handshake failure"},
		"HTTPS":             {certificate: good, kind: health.HTTPS},
		"HTTPS, verified":   {certificate: good, kind: health.HTTPS, check: verified},
		"HTTPS, wrong name": {certificate: other, kind: health.HTTPS, check: verified, want: health.Refused, why: "the certificate is for another name"},
		"HTTPS, status":     {certificate: good, kind: health.HTTPS, check: func(c *health.Check) { c.Status = "204" }, want: health.Refused, why: "HTTP status 200"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, host := range loopbacks {
				var s *server
				if c.plain != nil {
					s = serve(t, net.JoinHostPort(host, "0"), c.plain)
				} else {
					s = secured(t, host, c.certificate, nil, ok)
				}
				check := checkOf(c.kind)
				if c.check != nil {
					c.check(&check)
				}
				r, stats := first(t, health.Target{Addr: s.addr, Check: check})
				if r.Outcome != c.want || r.Why != c.why && c.why != "" {
					t.Errorf("%s: outcome %d, %q; want %d, %q", host, r.Outcome, r.Why, c.want, c.why)
				}
				if c.want == health.Pass && !stats.Expiry.Equal(c.certificate.Leaf.NotAfter) {
					t.Errorf("%s: the certificate ends %v, want %v", host, stats.Expiry, c.certificate.Leaf.NotAfter)
				}
			}
		})
	}
}

func verified(c *health.Check) { c.Verify = true }

// Sessions are resumed, and verified anew no later than when they have aged.
func TestTLSResumed(t *testing.T) {
	var resumed atomic.Int64
	s := secured(t, "127.0.0.1", issued(t, "good", time.Now().AddDate(1, 0, 0), nil), &resumed, say("HTTP/1.1 200 OK\r\n\r\n"))
	check := checkOf(health.HTTPS)
	check.Interval = 50 * time.Millisecond
	p := New(Options{})
	p.Set("default/web", []Request{{Target: health.Target{Addr: s.addr, Check: check}}})
	run(t, p)
	eventually(t, "a session is resumed", func() bool { return resumed.Load() > 3 })
	if s := p.Stats(); s.Checks[health.HTTPS][health.Refused] > 0 {
		t.Errorf("%v", s.Checks[health.HTTPS])
	}
	names := sessions{new(sync.Mutex), map[sessionKey]session{}}
	c := cache{names, sessionKey{}}
	c.Put("", &tls.ClientSessionState{})
	names.known[c.key] = session{names.known[c.key].state, time.Now().Add(-time.Second)}
	if _, found := c.Get(""); found {
		t.Error("an old session is resumed")
	}
}

// grpcServer answers health checks as the real ones do: with a message and trailers, or with
// trailers alone.
func grpcServer(t *testing.T, host string, answer http.HandlerFunc) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: answer, Protocols: protocols}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serves is a service of grpc.health.v1 that knows "", "web" and "sick".
func serves(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/grpc")
	if r.URL.Path != "/grpc.health.v1.Health/Check" || r.Header.Get("Te") != "trailers" || r.Header.Get("Content-Type") != "application/grpc" {
		w.Header().Set("Grpc-Status", "12")
		return
	}
	status := map[string]byte{"\x00\x00\x00\x00\x00": 1, "\x00\x00\x00\x00\x05\x0a\x03web": 1, "\x00\x00\x00\x00\x06\x0a\x04sick": 2}[string(body)]
	if status == 0 {
		w.Header().Set("Grpc-Status", "5")
		w.Header().Set("Grpc-Message", secret)
		return
	}
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, status})
	w.Header().Set("Grpc-Status", "0")
}

func TestGRPC(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		service string
		timeout time.Duration
		want    health.Outcome
		why     string
	}{
		"serving":         {handler: serves},
		"a service":       {handler: serves, service: "web"},
		"not serving":     {handler: serves, service: "sick", want: health.Refused, why: "not serving: grpc.health.v1 says 2"},
		"unknown service": {handler: serves, service: "nobody", want: health.Refused, why: "gRPC status 5: the server does not have this service"},
		"no health service": {handler: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Grpc-Status", "12") },
			want: health.Refused, why: "gRPC status 12: the server has no grpc.health.v1"},
		"not gRPC": {handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, secret) }, want: health.Refused, why: "the answer is not gRPC"},
		"HTTP 404": {handler: http.NotFound, want: health.Refused, why: "HTTP status 404"},
		"redirect": {handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		}, want: health.Refused, why: "HTTP status 307"},
		"endless":        {handler: endless, want: health.Refused, why: "the answer is too long for a health check of gRPC"},
		"endless header": {handler: bigHeader, want: health.Refused, why: "the answer is not a gRPC answer"},
		"hangs": {handler: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, timeout: 500 * time.Millisecond,
			want: health.Silent, why: "connected, no answer in 500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, host := range loopbacks {
				check := checkOf(health.GRPC)
				check.Name = c.service
				if c.timeout > 0 {
					check.Timeout = c.timeout
				}
				r, _ := first(t, health.Target{Addr: grpcServer(t, host, c.handler), Check: check})
				if r.Outcome != c.want || r.Why != c.why {
					t.Errorf("%s: outcome %d, %q; want %d, %q", host, r.Outcome, r.Why, c.want, c.why)
				}
			}
		})
	}
	s := serve(t, "127.0.0.1:0", func(c net.Conn) { // no HTTP/2
		_, _ = io.WriteString(c, "HTTP/1.1 400 "+secret+"\r\n\r\n")
		hang(c)
	})
	if r, _ := first(t, health.Target{Addr: s.addr, Check: checkOf(health.GRPC)}); r.Outcome != health.Refused || strings.Contains(r.Why, secret) {
		t.Errorf("a server of HTTP/1.1: %+v", r)
	}
}

func endless(w http.ResponseWriter, _ *http.Request) {
	for {
		if _, err := w.Write(make([]byte, 4096)); err != nil {
			return
		}
	}
}

func bigHeader(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X", strings.Repeat(secret, maxHeader))
	w.WriteHeader(http.StatusOK)
}

func FuzzGRPCServing(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1})
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		if status, ok := grpcServing(body); !ok && status != 0 {
			t.Errorf("%d of what is no message", status)
		}
	})
}

// datagrams answers each datagram, on a port of a loopback address.
func datagrams(t *testing.T, host string, answer func(question []byte) [][]byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, from, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			for _, reply := range answer(buffer[:n]) {
				_, _ = c.WriteTo(reply, from)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// dnsAnswer is an answer with a code; other is one to another question, which comes first.
func dnsAnswer(code int, other bool) func([]byte) [][]byte {
	return func(packet []byte) (all [][]byte) {
		var question dns.Msg
		if question.Unpack(packet) != nil || len(question.Question) != 1 || question.Question[0].Name != "web.example." {
			return nil
		}
		reply := new(dns.Msg).SetRcode(&question, code)
		if other {
			stray := new(dns.Msg).SetRcode(&question, dns.RcodeRefused)
			stray.Id++
			packet, _ := stray.Pack()
			all = append(all, []byte("junk"), nil, packet)
		}
		packet, _ = reply.Pack()
		return append(all, packet)
	}
}

func TestDatagrams(t *testing.T) {
	for name, c := range map[string]struct {
		answer       func([]byte) [][]byte // nil: it does not answer
		kind         health.Kind
		send, expect string
		timeout      time.Duration
		want         health.Outcome
		why          string
	}{
		"DNS":               {answer: dnsAnswer(dns.RcodeSuccess, false), kind: health.DNS},
		"DNS, strays first": {answer: dnsAnswer(dns.RcodeSuccess, true), kind: health.DNS},
		"DNS SERVFAIL":      {answer: dnsAnswer(dns.RcodeServerFailure, false), kind: health.DNS, want: health.Refused, why: "DNS answer SERVFAIL"},
		"DNS NXDOMAIN":      {answer: dnsAnswer(dns.RcodeNameError, false), kind: health.DNS, want: health.Refused, why: "DNS answer NXDOMAIN"},
		"DNS silent": {answer: func([]byte) [][]byte { return nil }, kind: health.DNS, timeout: 300 * time.Millisecond,
			want: health.Silent, why: "no answer in 300ms"},
		"DNS, nobody": {kind: health.DNS, want: health.Refused, why: "connection refused"},
		"UDP silent":  {answer: func([]byte) [][]byte { return nil }, kind: health.UDP, timeout: 300 * time.Millisecond},
		"UDP, nobody": {kind: health.UDP, want: health.Refused, why: "connection refused"},
		"UDP answers": {answer: func([]byte) [][]byte { return [][]byte{{}} }, kind: health.UDP},
		"UDP expected": {answer: func(q []byte) [][]byte { return [][]byte{[]byte("no"), append([]byte("echo "), q...)} }, kind: health.UDP,
			send: "ping\x00", expect: "o ping\x00"},
		"UDP not expected": {answer: func([]byte) [][]byte { return [][]byte{[]byte(secret)} }, kind: health.UDP, send: "ping", expect: "pong",
			timeout: 300 * time.Millisecond, want: health.Silent, why: "no answer in 300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, host := range loopbacks {
				addr := closed(t, host)
				if c.answer != nil {
					addr = datagrams(t, host, c.answer)
				}
				check := checkOf(c.kind)
				check.Name, check.Send, check.Expect = "web.example", c.send, c.expect
				if c.kind == health.UDP {
					check.Name = ""
				}
				if c.timeout > 0 {
					check.Timeout = c.timeout
				}
				r, _ := first(t, health.Target{Addr: addr, Check: check})
				if r.Outcome != c.want || r.Why != c.why {
					t.Errorf("%s: outcome %d, %q; want %d, %q", host, r.Outcome, r.Why, c.want, c.why)
				}
			}
		})
	}
}

// A datagram that did not leave before the timeout is no answer of the server.
func TestDatagramNotSent(t *testing.T) {
	for kind, ask := range map[health.Kind]func(*conn, *check) health.Result{health.UDP: askUDP, health.DNS: askDNS} {
		addr := datagrams(t, "127.0.0.1", func(question []byte) [][]byte { return [][]byte{question} })
		asked := &check{Check: checkOf(kind)}
		asked.Name = "web.example"
		n := &network{talking: map[uint64]*conn{}}
		p := probe{target: &target{addr: addr, check: asked}}
		fd, err := n.socket(p, unix.SOCK_DGRAM)
		if err != nil {
			t.Fatal(err)
		}
		c := n.adopt(p, fd, time.Now().Add(-time.Second))
		if r := ask(c, asked); r.Outcome != health.Void {
			t.Errorf("%s: outcome %s, %q; want %s", kind, r.Outcome, r.Why, health.Void)
		}
		n.release(p.serial, c)
	}
}

// Whatever is under way, Run ends when it is told to.
func TestEnds(t *testing.T) {
	hanging := serve(t, "127.0.0.1:0", hang)
	mute := datagrams(t, "127.0.0.1", func([]byte) [][]byte { return nil })
	p := New(Options{SourcePorts: DefaultPorts})
	var all []Request
	for _, kind := range []health.Kind{health.HTTP, health.TLS, health.HTTPS, health.GRPC, health.DNS, health.UDP} {
		check, at := checkOf(kind), hanging.addr
		check.Timeout = 10 * time.Minute
		check.Name = "web.example"
		if kind == health.DNS || kind == health.UDP {
			at = mute
		}
		all = append(all, Request{Target: health.Target{Addr: at, Check: check}})
	}
	p.Set("default/web", all)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		p.Run(ctx, func() {})
		close(ended)
	}()
	eventually(t, "all are under way", func() bool { return p.Stats().UnderWay == len(all) && hanging.accepted.Load() == 4 })
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("Run does not end")
	}
}
