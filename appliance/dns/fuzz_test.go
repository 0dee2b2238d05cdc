package dns

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzRespond answers any datagram, from a client with any address. Whatever it
// asks, the answer is one to its question, fits into a datagram, has records of our names
// alone and can be read.
func FuzzRespond(f *testing.F) {
	for _, q := range []*dns.Msg{
		question("web.default.svc.cluster.local.", dns.TypeA),
		question("_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, edns(4096)),
		question("ext.default.svc.cluster.local.", dns.TypeAAAA, edns(0)),
		question("inner.default.svc.cluster.local.", dns.TypeANY),
		question("10.0.96.10.in-addr.arpa.", dns.TypePTR),
		question("1.0.0.0.ip6.arpa.", dns.TypePTR),
		question("web.", dns.TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }),
		question(`a\.b\000.cluster.local.`, dns.TypeAXFR),
		question(".", dns.TypeNS, func(m *dns.Msg) { m.SetEdns0(1232, true).IsEdns0().SetVersion(3) }),
		question("crowd.default.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.Response = true }),
	} {
		packet, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet)
	}
	cfg := config()
	cfg.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")} // for no client of the test
	cfg.Namespaces = []ClientNamespace{{netip.MustParsePrefix("203.0.113.0/24"), "default"}}
	s := serve(f, cfg, everything+crowd(300))
	f.Fuzz(func(t *testing.T, packet []byte) {
		q := new(dns.Msg)
		if q.Unpack(packet) != nil {
			return
		}
		m := s.respond(&net.UDPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 1}, q)
		answer, err := m.Pack()
		if err != nil {
			t.Fatalf("%v cannot be sent: %v", m, err)
		}
		if len(answer) > datagram {
			t.Errorf("the answer has %d bytes", len(answer))
		}
		back := new(dns.Msg)
		if err := back.Unpack(answer); err != nil {
			t.Fatalf("% x cannot be read: %v", answer, err)
		}
		if back.Id != q.Id || !back.Response || len(q.Question) == 1 && (len(back.Question) != 1 || back.Question[0] != q.Question[0]) {
			t.Errorf("%v is answered by %v", q, back)
		}
		for _, rr := range append(back.Answer, back.Ns...) {
			name := strings.ToLower(rr.Header().Name)
			if !dns.IsSubDomain("cluster.local.", name) && !dns.IsSubDomain("arpa.", name) && dns.CountLabel(name) != 1 {
				t.Errorf("%v is answered by %v", q.Question, rr)
			}
		}
	})
}
