package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// resolver is an upstream that answers as it is told.
type resolver struct {
	addr  netip.AddrPort
	asked atomic.Int32
}

// newResolver answers over UDP and TCP with handle until the test ends.
func newResolver(t testing.TB, handle func(w dns.ResponseWriter, q *dns.Msg)) *resolver {
	t.Helper()
	stream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", stream.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r := &resolver{addr: stream.Addr().(*net.TCPAddr).AddrPort()}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r.asked.Add(1)
		handle(w, q)
	})
	for _, server := range []*dns.Server{{Listener: stream, Handler: handler}, {PacketConn: packets, Handler: handler}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { _ = server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return r
}

// internet answers like a resolver that knows a few names.
func internet(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable, m.AuthenticatedData = true, q.IsEdns0() != nil && q.IsEdns0().Do()
	name := q.Question[0].Name
	add := func(format string, args ...any) {
		rr, err := dns.NewRR(fmt.Sprintf(format, args...))
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	switch {
	case q.Question[0].Qtype != dns.TypeA:
	case strings.EqualFold(name, "my.database.example.com."):
		add("%s 300 IN CNAME db7.example.com.", name)
		add("db7.example.com. 300 IN A 192.0.2.77")
	case name == "large.example.com.":
		for i := range 100 {
			add("%s 300 IN A 192.0.2.%d", name, i)
		}
	case name == "broken.example.com.":
		m.Rcode = dns.RcodeServerFailure
	case name == "strange.example.com.":
		m.Question[0].Name = "other.example.com."
	case name == "silent.example.com.":
		return
	default:
		m.Rcode = dns.RcodeNameError
		soa, err := dns.NewRR("example.com. 60 IN SOA ns.example.com. admin.example.com. 1 2 3 4 60")
		if err != nil {
			panic(err)
		}
		m.Ns = append(m.Ns, soa)
	}
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		m.Truncate(dns.MinMsgSize)
	}
	if q.IsEdns0() != nil {
		m.SetEdns0(4096, false)
	}
	_ = w.WriteMsg(m)
}

func TestUpstream(t *testing.T) {
	cfg := config()
	cfg.Upstreams = []netip.AddrPort{newResolver(t, internet).addr}
	s := serve(t, cfg, everything)
	desired := func(*dns.Msg) {}
	for _, tt := range []struct {
		name string
		kind uint16
		edit func(*dns.Msg)
		want string
	}{
		{"my.database.example.com.", dns.TypeA, desired, "NOERROR ra; my.database.example.com. CNAME db7.example.com.; db7.example.com. A 192.0.2.77"},
		{"MY.database.example.com.", dns.TypeA, desired, "NOERROR ra; MY.database.example.com. CNAME db7.example.com.; db7.example.com. A 192.0.2.77"},
		{"my.database.example.com.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) }, "NOERROR ra ad; my.database.example.com. CNAME db7.example.com.; db7.example.com. A 192.0.2.77"},
		{"none.example.com.", dns.TypeA, desired, "NXDOMAIN ra; authority: example.com. SOA"},
		{"broken.example.com.", dns.TypeA, desired, "SERVFAIL ra"},
		{"strange.example.com.", dns.TypeA, desired, "SERVFAIL ra"},
		{"my.database.example.com.", dns.TypeA, func(m *dns.Msg) { m.RecursionDesired = false }, "REFUSED ra"},
		{"example.com.", dns.TypeAXFR, desired, "REFUSED ra"},
		// Names of ours never go there.
		{"none.default.svc.cluster.local.", dns.TypeA, desired, "NXDOMAIN aa ra; " + soaOfZone},
		{"200.0.96.10.in-addr.arpa.", dns.TypePTR, desired, "NXDOMAIN aa ra; authority: 96.10.in-addr.arpa. SOA"},
		// ExternalName.
		{"ext.default.svc.cluster.local.", dns.TypeA, desired, "NOERROR aa ra; ext.default.svc.cluster.local. CNAME my.database.example.com.; " +
			"my.database.example.com. CNAME db7.example.com.; db7.example.com. A 192.0.2.77"},
		{"ext.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.RecursionDesired = false },
			"NOERROR aa ra; ext.default.svc.cluster.local. CNAME my.database.example.com."},
		{"ext.default.svc.cluster.local.", dns.TypeCNAME, desired, "NOERROR aa ra; ext.default.svc.cluster.local. CNAME my.database.example.com."},
		{"digits.default.svc.cluster.local.", dns.TypeA, desired, "NXDOMAIN aa ra; digits.default.svc.cluster.local. CNAME 1.2.3.4.; authority: example.com. SOA"},
	} {
		if got := text(ask(t, s, "udp", question(tt.name, tt.kind, tt.edit))); got != tt.want {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.name, dns.TypeToString[tt.kind], got, tt.want)
		}
	}
	// What does not fit into a datagram is fetched over TCP, and cut off for a client that
	// asked over UDP.
	for network, want := range map[string]bool{"udp": true, "tcp": false} {
		if m := ask(t, s, network, question("large.example.com.", dns.TypeA)); m.Truncated != want || len(m.Answer) < 20 {
			t.Errorf("over %s: %d answers, truncated: %t", network, len(m.Answer), m.Truncated)
		}
	}
}

// TestNotAnOpenResolver asks from addresses that are not to have other names resolved.
func TestNotAnOpenResolver(t *testing.T) {
	upstream := newResolver(t, internet)
	cfg := config()
	cfg.Upstreams = []netip.AddrPort{upstream.addr}
	cfg.Internal = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/16")}
	s := serve(t, cfg, everything)
	s.SetLocal([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")})
	const resolved = "NOERROR ra; my.database.example.com. CNAME db7.example.com.; db7.example.com. A 192.0.2.77"
	for _, tt := range []struct {
		from    string
		trusted bool
	}{
		{"127.0.0.1", true}, {"127.9.9.9", true}, {"::1", true}, {"192.0.2.1", true}, {"2001:db8::1", true}, {"::ffff:192.0.2.1", true},
		{"10.1.2.3", true}, {"fd00:10::2", true}, {"::ffff:10.1.2.3", true},
		{"192.0.2.2", false}, {"203.0.113.2", false}, {"2001:db8::2", false}, {"11.0.0.1", false}, {"::ffff:203.0.113.2", false}, {"fe80::1", false},
	} {
		for _, from := range []net.Addr{
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(tt.from), 1234)),
			net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(tt.from), 1234)),
		} {
			before := upstream.asked.Load()
			outside, external, inside := resolved, "NOERROR aa ra; ext.default.svc.cluster.local. CNAME my.database.example.com.; "+
				"my.database.example.com. CNAME db7.example.com.; db7.example.com. A 192.0.2.77",
				"NOERROR aa ra; web.default.svc.cluster.local. A 10.96.0.10"
			if !tt.trusted {
				outside, external, inside = refused, "NOERROR aa; ext.default.svc.cluster.local. CNAME my.database.example.com.",
					"NOERROR aa; web.default.svc.cluster.local. A 10.96.0.10"
			}
			for name, want := range map[string]string{
				"my.database.example.com.": outside, "ext.default.svc.cluster.local.": external, "web.default.svc.cluster.local.": inside,
			} {
				if got := text(s.respond(from, question(name, dns.TypeA))); got != want {
					t.Errorf("%s from %s %s:\n got %s\nwant %s", name, from.Network(), from, got, want)
				}
			}
			if asked := upstream.asked.Load() - before; asked != 0 && !tt.trusted {
				t.Errorf("%s had the upstream asked %d times", from, asked)
			}
		}
	}
}

// TestFailover: an upstream that is gone costs one question some time, not all of them.
func TestFailover(t *testing.T) {
	good := newResolver(t, internet)
	bad := newResolver(t, func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused)) })
	gone := netip.MustParseAddrPort("127.0.0.1:1") // a port without a listener
	cfg := config()
	cfg.Upstreams = []netip.AddrPort{gone, bad.addr, good.addr}
	s := serve(t, cfg, everything)
	for range 5 {
		if got := text(ask(t, s, "udp", question("my.database.example.com.", dns.TypeA))); !strings.HasPrefix(got, "NOERROR ra; ") {
			t.Error(got)
		}
	}
	if n := bad.asked.Load(); n != 1 {
		t.Errorf("the one that refuses was asked %d times, want once", n)
	}
	// The best answer there is, when none is good.
	if got := text(ask(t, s, "udp", question("broken.example.com.", dns.TypeA))); got != "REFUSED ra" && got != "SERVFAIL ra" {
		t.Error(got)
	}
}

// TestSilentUpstream: a question without an answer ends in time, and those in the
// meantime are answered.
func TestSilentUpstream(t *testing.T) {
	cfg := config()
	cfg.Upstreams = []netip.AddrPort{newResolver(t, internet).addr}
	s := serve(t, cfg, everything)
	var asking sync.WaitGroup
	asking.Go(func() {
		if m := s.respond(&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, question("silent.example.com.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%v", m)
		}
	})
	if got := text(ask(t, s, "udp", question("web.default.svc.cluster.local.", dns.TypeA))); !strings.HasPrefix(got, "NOERROR") {
		t.Error(got)
	}
	asking.Wait()

	for range maxAsking {
		s.upstreams.asking <- struct{}{}
	}
	if got := text(ask(t, s, "udp", question("my.database.example.com.", dns.TypeA))); got != "SERVFAIL ra" {
		t.Errorf("with too many questions upstream: %s", got)
	}
	if got := text(ask(t, s, "udp", question("web.default.svc.cluster.local.", dns.TypeA))); !strings.HasPrefix(got, "NOERROR") {
		t.Error(got)
	}
}
