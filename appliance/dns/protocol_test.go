package dns

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// crowd is a headless Service with n endpoints.
func crowd(n int) string {
	var endpoints []string
	for i := range n {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.%d.%d.%d], hostname: h-%d}", 100+i>>16, i>>8&255, i&255, i))
	}
	doc := service("crowd", "clusterIP: None, ports: [{name: http, port: 80}]")
	for len(endpoints) > 0 { // a slice has 1000 at most
		k := min(len(endpoints), 1000)
		doc += slice("crowd", "IPv4", "{name: http, port: 80}", endpoints[:k]...)
		endpoints = endpoints[k:]
	}
	return doc
}

func edns(size uint16) func(*dns.Msg) { return func(m *dns.Msg) { m.SetEdns0(size, false) } }

func TestTruncation(t *testing.T) {
	for _, tt := range []struct {
		endpoints int
		name      string
		kind      uint16
		network   string
		edit      func(*dns.Msg)
		size      int // the most bytes of the answer
		answers   [2]int
		truncated bool
	}{
		{10, "crowd", dns.TypeA, "udp", nil, 512, [2]int{10, 10}, false},
		{100, "crowd", dns.TypeA, "udp", nil, 512, [2]int{20, 32}, true},
		{100, "crowd", dns.TypeA, "udp", edns(100), 512, [2]int{20, 32}, true},
		{100, "crowd", dns.TypeA, "udp", edns(800), 800, [2]int{40, 50}, true},
		{100, "crowd", dns.TypeA, "udp", edns(65535), 1232, [2]int{60, 77}, true},
		{70, "crowd", dns.TypeA, "udp", edns(1232), 1232, [2]int{70, 70}, false},
		{100, "crowd", dns.TypeA, "tcp", nil, dns.MaxMsgSize, [2]int{100, 100}, false},
		{100, "crowd", dns.TypeA, "tcp", edns(512), dns.MaxMsgSize, [2]int{100, 100}, false},
		{9000, "crowd", dns.TypeA, "tcp", nil, dns.MaxMsgSize, [2]int{4000, 4096}, true},
		// Addresses that come along are left out without the mark.
		{18, "_http._tcp.crowd", dns.TypeSRV, "udp", edns(1232), 1232, [2]int{18, 18}, false},
		{100, "_http._tcp.crowd", dns.TypeSRV, "udp", nil, 512, [2]int{5, 12}, true},
		{100, "_http._tcp.crowd", dns.TypeSRV, "tcp", nil, dns.MaxMsgSize, [2]int{100, 100}, false},
		{4000, "_http._tcp.crowd", dns.TypeSRV, "tcp", nil, dns.MaxMsgSize, [2]int{800, 1500}, true},
	} {
		t.Run(fmt.Sprintf("%s of %d over %s within %d", tt.name, tt.endpoints, tt.network, tt.size), func(t *testing.T) {
			s := serve(t, config(), crowd(tt.endpoints))
			q := question(tt.name+".default.svc.cluster.local.", tt.kind)
			if tt.edit != nil {
				tt.edit(q)
			}
			m := ask(t, s, tt.network, q)
			if n := len(m.Answer); n < tt.answers[0] || n > tt.answers[1] || m.Truncated != tt.truncated || m.Rcode != dns.RcodeSuccess {
				t.Errorf("%d answers, truncated: %t; want %d, truncated: %t", n, m.Truncated, tt.answers, tt.truncated)
			}
			m.Compress = true
			if m.Len() > tt.size {
				t.Errorf("the answer has %d bytes, %d are allowed", m.Len(), tt.size)
			}
		})
	}
}

// TestSpread: clients that take the first address spread over all of them.
func TestSpread(t *testing.T) {
	s := serve(t, config(), crowd(4))
	first := map[string]int{}
	for range 200 {
		first[ask(t, s, "udp", question("crowd.default.svc.cluster.local.", dns.TypeA)).Answer[0].String()]++
	}
	if len(first) != 4 {
		t.Errorf("the first addresses of 200 answers: %v", first)
	}
}

// TestCase: names are compared without case, and come back as they were asked for.
func TestCase(t *testing.T) {
	s := serve(t, config(), everything)
	for _, tt := range []struct {
		name string
		kind uint16
	}{
		{"wEb.DeFaUlT.sVc.cLuStEr.LoCaL.", dns.TypeA},
		{"_HTTP._tCp.web.default.svc.cluster.local.", dns.TypeSRV},
		{"DB-0.db.default.svc.cluster.local.", dns.TypeAAAA},
		{"EXT.default.svc.cluster.LOCAL.", dns.TypeA},
		{"10.0.96.10.IN-addr.ARPA.", dns.TypePTR},
		{"DNS-Version.Cluster.Local.", dns.TypeTXT},
	} {
		m := ask(t, s, "udp", question(tt.name, tt.kind))
		if len(m.Answer) == 0 || m.Answer[0].Header().Name != tt.name {
			t.Errorf("%s: %v", tt.name, m.Answer)
		}
	}
}

// TestLifetimes: positive and negative answers may be kept for the same time.
func TestLifetimes(t *testing.T) {
	s := serve(t, config(), everything)
	for _, name := range []string{"web", "none", "_tcp.web", "ext"} {
		m := ask(t, s, "udp", question(name+".default.svc.cluster.local.", dns.TypeA))
		for _, rr := range append(m.Answer, m.Ns...) {
			if rr.Header().Ttl != ttl {
				t.Errorf("%s: %s", name, rr)
			}
			if soa, ok := rr.(*dns.SOA); ok && soa.Minttl != ttl {
				t.Errorf("%s: %s", name, soa)
			}
		}
	}
	serial := func() uint32 {
		return ask(t, s, "udp", question("cluster.local.", dns.TypeSOA)).Answer[0].(*dns.SOA).Serial
	}
	before := serial()
	s.Update(parse(t, service("new", "clusterIP: 10.96.0.77")))
	if after := serial(); after <= before {
		t.Errorf("the serial went from %d to %d", before, after)
	}
}

func TestProtocol(t *testing.T) {
	s := serve(t, config(), everything)
	const web = "web.default.svc.cluster.local."
	for _, tt := range []struct {
		what string
		edit func(*dns.Msg)
		want string // the start of the answer's text
	}{
		{"EDNS version 1", func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) }, "BADSIG"}, // as miekg/dns calls 16, which is BADVERS here
		{"two OPT records", func(m *dns.Msg) { m.SetEdns0(1232, false).SetEdns0(1232, false) }, "FORMERR"},
		{"a zone transfer", func(m *dns.Msg) {
			m.Question[0] = dns.Question{Name: "cluster.local.", Qtype: dns.TypeAXFR, Qclass: dns.ClassINET}
		}, "REFUSED"},
		{"an incremental one", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeIXFR }, "REFUSED"},
		{"class CHAOS", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, "REFUSED"},
		{"class ANY", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }, "REFUSED"},
		{"an update", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, "NOTIMP"},
		{"a notification", func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, "NOTIMP"},
		{"no recursion desired", func(m *dns.Msg) { m.RecursionDesired = false }, "NOERROR aa; " + web + " A 10.96.0.10"},
		{"an unknown type", func(m *dns.Msg) { m.Question[0].Qtype = 65280 }, "NOERROR aa; authority"},
		{"DNSSEC", func(m *dns.Msg) { m.SetEdns0(1232, true) }, "NOERROR aa; " + web + " A 10.96.0.10"},
	} {
		q := question(web, dns.TypeA, tt.edit)
		c := &dns.Client{Timeout: time.Minute}
		m, _, err := c.Exchange(q, s.Addresses()[0].String())
		if err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		if got := text(m); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
		asked, given := q.IsEdns0(), m.IsEdns0()
		if tt.want != "NOTIMP" && (asked == nil) != (given == nil) {
			t.Errorf("%s: OPT in the question: %v, in the answer: %v", tt.what, asked, given)
		}
		if given != nil && (given.UDPSize() != datagram || given.Do() != asked.Do() || given.Version() != 0) {
			t.Errorf("%s: %v", tt.what, given)
		}
	}
}

// TestMalformed sends what is no question: it is refused or ignored, and nothing else
// suffers.
func TestMalformed(t *testing.T) {
	s := serve(t, config(), everything)
	good, err := question("web.default.svc.cluster.local.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	edited := func(edit func(b []byte) []byte) []byte { return edit(append([]byte(nil), good...)) }
	for _, tt := range []struct {
		what    string
		packet  []byte
		want    int // the code of the answer
		ignored bool
	}{
		{"nothing", nil, 0, true},
		{"less than a header", good[:11], 0, true},
		{"a response", edited(func(b []byte) []byte { b[2] |= 0x80; return b }), 0, true},
		{"a header alone", good[:12], dns.RcodeFormatError, false},
		{"half a question", good[:20], dns.RcodeFormatError, false},
		{"no question", edited(func(b []byte) []byte { b[5] = 0; return b }), dns.RcodeFormatError, false},
		{"two questions", edited(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), dns.RcodeFormatError, false},
		{"many answers", edited(func(b []byte) []byte { b[6], b[7] = 255, 255; return b }), dns.RcodeFormatError, false},
		{"a name that leads to itself", edited(func(b []byte) []byte { return append(b[:12], 0xc0, 12, 0, 1, 0, 1) }), dns.RcodeFormatError, false},
		{"a label of 64", edited(func(b []byte) []byte { b[12] = 64; return b }), dns.RcodeFormatError, false},
		{"rubbish behind", edited(func(b []byte) []byte { b[11] = 1; return append(b, 1, 2, 3) }), dns.RcodeFormatError, false},
	} {
		conn, err := net.Dial("udp", s.Addresses()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(tt.packet); err != nil {
			t.Fatal(err)
		}
		// A question after it shows whether an answer was given to it: the server reads
		// one datagram after the other, but answers in any order.
		wait := time.Minute
		if tt.ignored {
			wait = 300 * time.Millisecond // nothing comes meanwhile
		}
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		switch {
		case tt.ignored && err == nil:
			t.Errorf("%s: answered by % x", tt.what, buf[:n])
		case !tt.ignored && err != nil:
			t.Errorf("%s: %v", tt.what, err)
		case !tt.ignored && int(buf[3]&0xf) != tt.want:
			t.Errorf("%s: code %d, want %d", tt.what, buf[3]&0xf, tt.want)
		case !tt.ignored && n > len(tt.packet):
			t.Errorf("%s: %d bytes got an answer of %d", tt.what, len(tt.packet), n)
		}
	}
	if got := text(ask(t, s, "udp", question("web.default.svc.cluster.local.", dns.TypeA))); !strings.HasPrefix(got, "NOERROR") {
		t.Error(got)
	}
}

// TestStream: questions one after the other over one TCP connection, and one that says
// that it is longer than what comes.
func TestStream(t *testing.T) {
	s := serve(t, config(), everything)
	conn, err := net.Dial("tcp", s.Addresses()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream := &dns.Conn{Conn: conn}
	for range 3 {
		q := question("web.default.svc.cluster.local.", dns.TypeA)
		if err := stream.WriteMsg(q); err != nil {
			t.Fatal(err)
		}
		if m, err := stream.ReadMsg(); err != nil || m.Id != q.Id || len(m.Answer) != 1 {
			t.Fatal(m, err)
		}
	}
	if err := binary.Write(conn, binary.BigEndian, uint16(65535)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.ReadMsg(); err == nil {
		t.Errorf("half a message was answered: %v", m)
	}
}

// TestPanic: a question that makes the server panic is answered, and the next one too.
func TestPanic(t *testing.T) {
	s := serve(t, config(), everything)
	s.index.services.Store(serviceKey{"default", "boom"}, "not what the index holds")
	if m := ask(t, s, "udp", question("boom.default.svc.cluster.local.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v", m)
	}
	if m := ask(t, s, "udp", question("web.default.svc.cluster.local.", dns.TypeA)); m.Rcode != dns.RcodeSuccess {
		t.Errorf("%v", m)
	}
}

// TestAliases: a chain of ExternalName Services is followed so far and no further.
func TestAliases(t *testing.T) {
	docs := service("a0", "clusterIP: 10.96.0.10")
	for i := range maxAliases + 1 {
		docs += service(fmt.Sprintf("a%d", i+1), fmt.Sprintf("type: ExternalName, externalName: a%d.default.svc.cluster.local", i))
	}
	s := serve(t, config(), docs)
	m := ask(t, s, "udp", question(fmt.Sprintf("a%d.default.svc.cluster.local.", maxAliases), dns.TypeA, edns(1232)))
	if len(m.Answer) != maxAliases+1 || m.Rcode != dns.RcodeSuccess {
		t.Errorf("%v", m)
	}
	m = ask(t, s, "udp", question(fmt.Sprintf("a%d.default.svc.cluster.local.", maxAliases+1), dns.TypeA, edns(1232)))
	if len(m.Answer) != 0 || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v", m)
	}
}

// TestCount: every answer is counted by its result.
func TestCount(t *testing.T) {
	counted := map[string]int{}
	cfg := config()
	cfg.Count = func(result string) { counted[result]++ }
	s := newServer(cfg, slog.New(slog.DiscardHandler))
	s.Update(parse(t, everything))
	s.Complete()
	from := &net.UDPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 1}
	web := question("web.default.svc.cluster.local.", dns.TypeA)
	for _, q := range []*dns.Msg{
		web, question("web.default.svc.cluster.local.", dns.TypeAAAA), question("none.default.svc.cluster.local.", dns.TypeA),
		question("circle.default.svc.cluster.local.", dns.TypeA), question("example.com.", dns.TypeA),
		question("web.default.svc.cluster.local.", dns.TypeA, edns(512), edns(512)),
	} {
		s.respond(from, q)
	}
	for range 2 * answersAtOnce {
		s.respond(from, web)
	}
	if counted["limited"] == 0 || counted["success"] < answersAtOnce-4 {
		t.Errorf("%v", counted)
	}
	delete(counted, "limited")
	delete(counted, "success")
	if want := map[string]int{"nxdomain": 1, "failed": 1, "refused": 1, "bad": 1}; !maps.Equal(counted, want) {
		t.Errorf("%v, want %v", counted, want)
	}
}

func TestListenInUse(t *testing.T) {
	s := serve(t, config(), everything)
	cfg := config()
	cfg.Addresses = []string{"127.0.0.1:0", s.Addresses()[0].String()}
	if second, err := Listen(cfg, s.log); err == nil || !strings.Contains(err.Error(), "open --dns-listen "+cfg.Addresses[1]) {
		t.Errorf("%v, %v", second, err)
	}
}
