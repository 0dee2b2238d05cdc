package dns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestClientNamespaces: clients that are in a namespace find its Services by their names.
func TestClientNamespaces(t *testing.T) {
	cfg := config()
	cfg.Namespaces = []ClientNamespace{
		{netip.MustParsePrefix("10.1.0.0/16"), "default"},
		{netip.MustParsePrefix("10.1.7.0/24"), "shop"},
		{netip.MustParsePrefix("fd00:1::/64"), "shop"},
		{netip.MustParsePrefix("10.9.0.0/16"), "nowhere"},
	}
	s := serve(t, cfg, everything)
	for _, tt := range []struct {
		from, name string
		kind       uint16
		want       string
	}{
		{"10.1.2.3", "web.", dns.TypeA, "NOERROR aa; web. A 10.96.0.10"},
		{"10.1.2.3", "WEB.", dns.TypeA, "NOERROR aa; WEB. A 10.96.0.10"},
		{"10.1.7.3", "web.", dns.TypeA, "NOERROR aa; web. A 10.96.7.7"},
		{"fd00:1::3", "web.", dns.TypeA, "NOERROR aa; web. A 10.96.7.7"},
		{"10.1.2.3", "web.", dns.TypeAAAA, "NOERROR aa"},
		{"10.1.2.3", "ext.", dns.TypeA, "NOERROR aa; ext. CNAME my.database.example.com."},
		{"10.1.2.3", "inner.", dns.TypeA, "NOERROR aa; inner. CNAME Web.default.svc.cluster.local.; Web.default.svc.cluster.local. A 10.96.0.10"},
		{"10.1.2.3", "none.", dns.TypeA, refused},
		{"10.1.2.3", "idle.", dns.TypeA, refused},
		{"10.1.2.3", "web.shop.", dns.TypeA, "NOERROR aa; web.shop. A 10.96.7.7"},
		{"10.1.2.3", "web.shop.svc.", dns.TypeA, "NOERROR aa; web.shop.svc. A 10.96.7.7"},
		{"10.1.7.3", "web.default.", dns.TypeA, "NOERROR aa; web.default. A 10.96.0.10"},
		{"10.1.2.3", "_http._tcp.web.", dns.TypeSRV, "NOERROR aa; _http._tcp.web. SRV 0 100 80 web.default.svc.cluster.local.; additional: web.default.svc.cluster.local. A 10.96.0.10"},
		{"10.1.7.3", "_http._tcp.web.default.", dns.TypeSRV, "NOERROR aa; _http._tcp.web.default. SRV 0 100 80 web.default.svc.cluster.local.; additional: web.default.svc.cluster.local. A 10.96.0.10"},
		{"10.1.7.3", "_http._tcp.web.default.svc.", dns.TypeSRV, "NOERROR aa; _http._tcp.web.default.svc. SRV 0 100 80 web.default.svc.cluster.local.; additional: web.default.svc.cluster.local. A 10.96.0.10"},
		{"10.1.2.3", "db-0.db.", dns.TypeA, "NOERROR aa; db-0.db. A 10.1.2.21"},
		{"10.1.2.3", "none.shop.", dns.TypeA, refused},
		{"10.1.2.3", "none.shop.svc.", dns.TypeA, refused},
		{"10.1.2.3", "shop.", dns.TypeA, refused},
		{"10.1.2.3", "svc.", dns.TypeA, refused},
		{"10.1.2.3", "shop.svc.", dns.TypeA, refused},
		{"10.1.2.3", "_tcp.db.", dns.TypeSRV, refused},
		{"10.1.2.3", "dns-version.", dns.TypeTXT, refused},
		{"10.1.2.3", "www.example.com.", dns.TypeA, refused},
		{"192.0.2.9", "web.shop.", dns.TypeA, refused},
		{"192.0.2.9", "web.shop.svc.", dns.TypeA, refused},
		{"10.9.2.3", "web.", dns.TypeA, refused},
		{"192.0.2.9", "web.", dns.TypeA, refused},
		{"192.0.2.9", "web.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa; web.shop.svc.cluster.local. A 10.96.7.7"},
	} {
		from := &net.UDPAddr{IP: net.ParseIP(tt.from), Port: 1}
		if got := text(s.respond(from, question(tt.name, tt.kind))); got != tt.want {
			t.Errorf("%s from %s:\n got %s\nwant %s", tt.name, tt.from, got, tt.want)
		}
	}
}

// TestClientNamespacesBeforeComplete: at a start no name of a Service that may come is refused.
func TestClientNamespacesBeforeComplete(t *testing.T) {
	cfg := config()
	cfg.Namespaces = []ClientNamespace{{netip.MustParsePrefix("10.1.0.0/16"), "default"}}
	s := listenOn(t, cfg)
	s.Update(parse(t, everything))
	for name, want := range map[string]int{
		"web.": dns.RcodeSuccess, "web.shop.": dns.RcodeSuccess,
		"none.": dns.RcodeServerFailure, "none.shop.": dns.RcodeServerFailure, "none.later.svc.": dns.RcodeServerFailure,
		"www.example.com.": dns.RcodeRefused,
	} {
		m := s.respond(&net.UDPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 1}, question(name, dns.TypeA))
		if m.Rcode != want {
			t.Errorf("%s: %s, want %s", name, dns.RcodeToString[m.Rcode], dns.RcodeToString[want])
		}
	}
}

// TestRate floods from one network: beyond the rate there is the mark to come by TCP
// only, others notice nothing, and neither does TCP nor the box itself.
func TestRate(t *testing.T) {
	s := serve(t, config(), everything)
	s.SetLocal([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	q := question("_pg._tcp.db.default.svc.cluster.local.", dns.TypeSRV, edns(1232))
	asked, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	full, cut := 0, 0
	start := time.Now()
	for i := range 3 * answersAtOnce {
		m := s.respond(&net.UDPAddr{IP: net.IPv4(203, 0, 113, byte(i)), Port: i}, q)
		switch {
		case !m.Truncated:
			full++
		default:
			cut++
			if answer, err := m.Pack(); err != nil || len(answer) > len(asked) || len(m.Answer) > 0 {
				t.Fatalf("a question of %d bytes beyond the rate gets %d bytes: %v, %v", len(asked), len(answer), m, err)
			}
		}
	}
	allowed := answersAtOnce + int(time.Since(start)*answersPerSecond/time.Second)
	if full > allowed+1 || full < answersAtOnce || cut == 0 {
		t.Errorf("%d full answers, %d cut off; want about %d full ones", full, cut, allowed)
	}
	for _, from := range []net.Addr{
		&net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 1},
		&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1},
		&net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1},
	} {
		for range answersAtOnce + 10 {
			if m := s.respond(from, q); m.Truncated || len(m.Answer) == 0 {
				t.Fatalf("from %s %s: %v", from.Network(), from, m)
			}
		}
	}
}

func TestLimiter(t *testing.T) {
	l := newLimiter()
	burst := func(client string, now time.Duration) int {
		n := 0
		for l.allow(netip.MustParseAddr(client), now) {
			n++
		}
		return n
	}
	for _, tt := range []struct {
		client string
		now    time.Duration
		want   int
	}{
		{"203.0.113.1", 0, answersAtOnce},
		{"203.0.113.200", 0, 0}, // the same network
		{"203.0.113.1", time.Second, answersPerSecond},
		{"203.0.113.1", time.Hour, answersAtOnce},
		{"2001:db8:1:100::1", time.Hour, answersAtOnce},
		{"2001:db8:1:1ff::1", time.Hour, 0}, // the same /56
	} {
		if got := burst(tt.client, tt.now); got != tt.want {
			t.Errorf("%s at %s: %d answers, want %d", tt.client, tt.now, got, tt.want)
		}
	}
	// Other networks are, but for the few that share a bucket.
	free := 0
	for i := range 100 {
		if l.allow(netip.AddrFrom4([4]byte{198, 51, byte(i), 1}), time.Hour) {
			free++
		}
	}
	if free < 95 {
		t.Errorf("%d of 100 other networks are answered", free)
	}
}

// TestConnections: a client has its share of connections, and gets it back.
func TestConnections(t *testing.T) {
	s := serve(t, config(), everything)
	to := s.Addresses()[0].String()
	var open []net.Conn
	answered := func(conn net.Conn) bool {
		t.Helper()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		stream := &dns.Conn{Conn: conn}
		if err := stream.WriteMsg(question("web.default.svc.cluster.local.", dns.TypeA)); err != nil {
			return false
		}
		_, err := stream.ReadMsg()
		if err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Fatal(err)
		}
		return err == nil
	}
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for range maxConnectionsEach {
		conn := dial()
		if open = append(open, conn); !answered(conn) {
			t.Fatalf("connection %d is not answered", len(open))
		}
	}
	if answered(dial()) {
		t.Errorf("more than %d connections are answered", maxConnectionsEach)
	}
	open[0].Close()
	deadline := time.Now().Add(time.Minute)
	for !answered(dial()) {
		if time.Now().After(deadline) {
			t.Fatal("a connection that ended makes no room for another one")
		}
	}
}

// failing is a listener without descriptors, until it has some.
type failing struct {
	net.Listener
	err   atomic.Pointer[error]
	calls atomic.Int32
}

func (f *failing) Accept() (net.Conn, error) {
	f.calls.Add(1)
	if err := f.err.Load(); err != nil {
		return nil, *err
	}
	near, far := net.Pipe()
	_ = far.Close()
	return near, nil
}

func (f *failing) Close() error { return nil }

// The server of the library repeats a failed accept at once, and ends after errors that it does not know.
func TestAcceptFails(t *testing.T) {
	for _, errno := range []error{syscall.EMFILE, syscall.ENOBUFS} {
		synctest.Test(t, func(t *testing.T) {
			var f failing
			wrong := error(&net.OpError{Op: "accept", Net: "tcp", Err: errno})
			f.err.Store(&wrong)
			g := newGate(&f)
			type accepted struct {
				conn net.Conn
				err  error
			}
			got := make(chan accepted)
			accept := func() { conn, err := g.Accept(); got <- accepted{conn, err} }
			go accept()
			time.Sleep(time.Minute)
			if n := f.calls.Load(); n < 60 || n > 80 {
				t.Errorf("%v: tried %d times in a minute", errno, n)
			}
			f.err.Store(nil)
			if a := <-got; a.err != nil {
				t.Errorf("%v: %v after descriptors are free", errno, a.err)
			}
			f.err.Store(&wrong)
			go accept()
			synctest.Wait()
			_ = g.Close()
			if a := <-got; !errors.Is(a.err, net.ErrClosed) {
				t.Errorf("%v: %v after Close", errno, a.err)
			}
		})
	}
}

func TestClientsAreCountedByNetwork(t *testing.T) {
	g := newGate(nil)
	enter := func(addr string) bool { return g.enter(clientOf(&net.TCPAddr{IP: net.ParseIP(addr)})) }
	for i := range maxConnectionsEach {
		if !enter(fmt.Sprintf("2001:db8:1:2::%x", i)) || !enter("192.0.2.1") {
			t.Fatalf("connection %d is refused", i)
		}
	}
	for addr, want := range map[string]bool{
		"2001:db8:1:2:ffff::1": false, "2001:db8:1:3::1": true, "192.0.2.1": false, "::ffff:192.0.2.1": false, "192.0.2.2": true,
	} {
		if got := enter(addr); got != want {
			t.Errorf("another connection from %s: %t, want %t", addr, got, want)
		}
	}
}
