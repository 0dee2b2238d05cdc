package netlab

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// ruleset is the one that the lab is tested with: balanced, refused and dropped addresses.
const ruleset = `
table ip t {
	chain pre {
		type nat hook prerouting priority dstnat;
		ip daddr 198.51.100.1 meta l4proto { tcp, udp, sctp } th dport 80 dnat to 10.180.0.1:8080
		ip daddr 198.51.100.1 meta l4proto { tcp, udp, sctp } th dport 53 dnat to 10.180.0.1:53
		ip daddr 198.51.100.2 tcp dport 80 dnat to numgen random mod 2 map { 0: 10.180.0.1, 1: 10.181.1.1 }
	}
	chain filter {
		type filter hook prerouting priority 0;
		ip daddr 198.51.100.3 meta l4proto tcp reject with tcp reset
		ip daddr 198.51.100.3 reject
		ip daddr 198.51.100.4 reject with icmp admin-prohibited
		ip daddr 198.51.100.5 drop
	}
	chain post {
		type nat hook postrouting priority srcnat;
		ip saddr 203.0.113.128/25 masquerade
	}
}
table ip6 t {
	chain pre {
		type nat hook prerouting priority dstnat;
		ip6 daddr 2001:db8:198::1 meta l4proto { tcp, udp, sctp } th dport 80 dnat to [fd00:10:180::1]:8080
		ip6 daddr 2001:db8:198::1 meta l4proto { tcp, udp, sctp } th dport 53 dnat to [fd00:10:180::1]:53
		ip6 daddr 2001:db8:198::2 tcp dport 80 dnat to numgen random mod 2 map { 0: fd00:10:180::1, 1: fd00:10:181::1 }
	}
	chain filter {
		type filter hook prerouting priority 0;
		ip6 daddr 2001:db8:198::3 meta l4proto tcp reject with tcp reset
		ip6 daddr 2001:db8:198::3 reject
		ip6 daddr 2001:db8:198::4 reject with icmpv6 admin-prohibited
		ip6 daddr 2001:db8:198::5 drop
	}
	chain post {
		type nat hook postrouting priority srcnat;
		ip6 saddr 2001:db8:203:0:8000::/65 masquerade
	}
}`

func newProved(t *testing.T) *Standard {
	t.Helper()
	s := NewStandard(t)
	s.GW1.LoadNft(ruleset)
	return s
}

// vips returns the addresses with the last digit n, one of each family.
func vips(n string) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("198.51.100." + n), netip.MustParseAddr("2001:db8:198::" + n)}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	for _, vip := range vips("1") {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 80, "sctp": 53} {
			reply, err := s.EXT.Ask(network, netip.AddrPortFrom(vip, port), FromPort(40001))
			if err != nil {
				t.Errorf("%s %s: %v", network, vip, err)
				continue
			}
			at, client := s.L1.Addr4(), s.EXT.Addr4()
			if vip.Is6() {
				at, client = s.L1.Addr6(), s.EXT.Addr6()
			}
			atPort := uint16(8080)
			if port == 53 {
				atPort = 53
			}
			want := Reply{"L1", netip.AddrPortFrom(at, atPort), netip.AddrPortFrom(client, 40001)}
			if reply != want {
				t.Errorf("%s %s: got %v, want %v", network, vip, reply, want)
			}
		}
	}
}

// The first question over SCTP is lost.
func TestAskAgain(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	for n, vip := range vips("1") {
		family, daddr := []string{"ip", "ip6"}[n], vip.String()
		s.GW1.LoadNft("table " + family + " once { chain pre { type filter hook prerouting priority raw; " + family + " daddr " + daddr +
			" meta l4proto sctp limit rate 1/day burst 1 packets counter drop; }; }")
		if reply, err := s.EXT.Ask("sctp", netip.AddrPortFrom(vip, 53), Within(time.Minute)); err != nil || reply.Server != "L1" {
			t.Errorf("%s: %v, %v, want an answer by L1", vip, reply, err)
		}
		if rules := s.GW1.Nft("list", "table", family, "once"); !strings.Contains(rules, "counter packets 1 ") {
			t.Errorf("%s: no question was lost:\n%s", vip, rules)
		}
	}
}

// A neighbor whose interrupts wait for longer than the 3 s for which Linux asks for its Ethernet address is there.
func TestNeighborThatIsSlow(t *testing.T) {
	t.Parallel()
	client, server, _ := pair(t)
	server.LoadNft("table netdev slow { chain in { type filter hook ingress device \"eth0\" priority 0; drop; }; }")
	var wg sync.WaitGroup
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []netip.Addr{server.Addr4(), server.Addr6()} {
			wg.Go(func() {
				if _, err := client.Ask(network, netip.AddrPortFrom(to, 80), Within(time.Minute)); err != nil {
					t.Errorf("%s to %s: %v", network, to, err)
				}
			})
		}
	}
	time.Sleep(4 * time.Second) // real time: the kernel counts it
	server.Nft("delete", "table", "netdev", "slow")
	wg.Wait()
}

func TestAskFrom(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	for i, from := range []string{"203.0.113.77", "2001:db8:203::77", "203.0.113.200", "2001:db8:203:0:8000::77"} {
		client, want := s.EXT, netip.MustParseAddr(from)
		vip := vips("1")[i%2]
		if i >= 2 { // masqueraded
			client, want = s.BLK, netip.MustParseAddr([]string{"10.180.255.254", "fd00:10:180::ffff"}[i%2])
		}
		for _, network := range []string{"tcp", "udp", "sctp"} {
			reply, err := client.Ask(network, netip.AddrPortFrom(vip, 53), From(netip.MustParseAddr(from)))
			if err != nil {
				t.Errorf("%s from %s: %v", network, from, err)
			} else if reply.Client.Addr() != want {
				t.Errorf("%s from %s: server saw %s, want %s", network, from, reply.Client, want)
			}
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	tests := []struct {
		vip, network string
		port         uint16
		want         Failure
	}{
		{vip: "3", network: "tcp", port: 80, want: Failure{Refusal: Refused}},
		{vip: "3", network: "udp", port: 80, want: Failure{Refusal: Unreachable, Type: 3, Code: 3}},
		{vip: "3", network: "sctp", port: 80, want: Failure{Refusal: Unreachable, Type: 3, Code: 3}},
		{vip: "4", network: "tcp", port: 80, want: Failure{Refusal: Unreachable, Type: 3, Code: 13}},
		{vip: "4", network: "udp", port: 80, want: Failure{Refusal: Unreachable, Type: 3, Code: 13}},
		{vip: "5", network: "tcp", port: 80, want: Failure{Refusal: Timeout}},
		{vip: "5", network: "udp", port: 80, want: Failure{Refusal: Timeout}},
		{vip: "5", network: "sctp", port: 80, want: Failure{Refusal: Timeout}},
	}
	v6codes := map[uint8]uint8{3: 4, 13: 1} // of type 1
	for _, tt := range tests {
		for _, vip := range vips(tt.vip) {
			t.Run(tt.network+" "+vip.String(), func(t *testing.T) {
				t.Parallel()
				want := tt.want
				if vip.Is6() && want.Refusal == Unreachable {
					want.Type, want.Code = 1, v6codes[want.Code]
				}
				wait := time.Minute
				if want.Refusal == Timeout {
					wait = 500 * time.Millisecond // real time: silence
				}
				_, err := s.EXT.Ask(tt.network, netip.AddrPortFrom(vip, tt.port), Within(wait))
				var got *Failure
				if !errors.As(err, &got) {
					t.Fatalf("got %v, want a failure", err)
				}
				if got.Refusal != want.Refusal || got.Type != want.Type || got.Code != want.Code {
					t.Errorf("got %v, want %v", got, &want)
				}
				if port := tt.vip == "3" && tt.network != "tcp"; got.PortUnreachable() != port {
					t.Errorf("PortUnreachable() = %t", !port)
				}
			})
		}
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	for _, to := range []netip.Addr{s.L1.Addr4(), s.L1.Addr6()} {
		if err := s.IN.Ping(to); err != nil {
			t.Errorf("ping %s: %v", to, err)
		}
	}
	for _, to := range vips("5") {
		// real time: nobody answers
		if err := s.EXT.Ping(to, Within(200*time.Millisecond)); RefusalOf(err) != Timeout {
			t.Errorf("ping %s: got %v, want a timeout", to, err)
		}
	}
	for _, to := range vips("4") {
		if err := s.EXT.Ping(to, Within(time.Minute)); RefusalOf(err) != Unreachable {
			t.Errorf("ping %s: got %v, want an ICMP error", to, err)
		}
	}
}

func TestAskManyIsFast(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	for _, vip := range vips("2") {
		start := time.Now()
		tally := s.EXT.AskMany(400, "tcp", netip.AddrPortFrom(vip, 80))
		t.Logf("%s: %s in %s", vip, tally, time.Since(start))
		if len(tally.Failures) != 0 || len(tally.Servers) != 2 || tally.Servers["L1"] < 100 || tally.Servers["R1"] < 100 {
			t.Errorf("%s: %s", vip, tally)
		}
	}
}

func TestEchoAndReset(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	c, err := s.EXT.Dial(netip.AddrPortFrom(vips("1")[0], 80))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Echo("one"); err != nil {
		t.Fatal(err)
	}
	s.GW1.LoadNft(`insert rule ip t filter ct state established tcp dport 80 counter reject with tcp reset`)
	s.GW1.LoadNft(`table ip t2 { chain c { type filter hook forward priority 0; tcp dport 8080 ct state established reject with tcp reset; }; }`)
	if err := c.Echo("two"); RefusalOf(err) != Reset {
		t.Errorf("got %v, want a reset", err)
	}
}

func TestCapture(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	c := s.GW1.Capture("ext0")
	to := netip.AddrPortFrom(vips("1")[0], 80)
	if _, err := s.EXT.Ask("udp", to, FromPort(40001)); err != nil {
		t.Fatal(err)
	}
	about := c.Packets(func(p Packet) bool { return p.To == to || p.From == to })
	if len(about) != 2 || about[0].Outgoing || !about[1].Outgoing {
		t.Errorf("saw %v, want one packet in and one out", about)
	}
}

func TestMonitor(t *testing.T) {
	t.Parallel()
	l := New(t)
	h := l.Host("h")
	m := h.Monitor()
	h.LoadNft(`table ip t { set s { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2, 192.0.2.3 }; }; }`)
	h.Nft("list", "ruleset")
	h.LoadNft(`delete element ip t s { 192.0.2.1, 192.0.2.2 }`)
	got := m.Transactions()
	if len(got) != 2 {
		t.Fatalf("saw %v, want two transactions", got)
	}
	if got[0].Process != "nft" || got[0].Count("add element") != 3 || got[0].Changes[Change{"add table", "ip t"}] != 1 {
		t.Errorf("first transaction: %v", got[0])
	}
	if got[1].Changes[Change{"delete element", "ip t"}] != 2 || got[1].Count("") != 2 {
		t.Errorf("second transaction: %v", got[1])
	}
	m.Forget()
	h.Nft("list", "ruleset")
	if got := m.Transactions(); len(got) != 0 {
		t.Errorf("listing committed %v", got)
	}
}

func TestLinkChanges(t *testing.T) {
	t.Parallel()
	s := newProved(t)
	s.GW1.AddAddr("ext0", "192.0.2.9/24")
	s.RTR.Serve("tcp", 7)
	s.GW1.Serve("tcp", 7)
	to := netip.MustParseAddrPort("192.0.2.9:7")
	if reply, err := s.EXT.Ask("tcp", to); err != nil || reply.At != to {
		t.Errorf("got %v, %v", reply, err)
	}
	s.GW1.RemoveAddr("ext0", "192.0.2.9/24")
	// real time: nobody answers
	if reply, err := s.EXT.Ask("tcp", to, Within(200*time.Millisecond)); err == nil {
		t.Errorf("a removed address answered: %v", reply)
	}
	s.GW1.SetMTU("int0", 1400)
	if mtu := s.GW1.link("int0").Attrs().MTU; mtu != 1400 {
		t.Errorf("mtu %d, want 1400", mtu)
	}
	s.GW1.SetDown("int0")
	// real time: nobody answers
	if _, err := s.EXT.Ask("tcp", netip.AddrPortFrom(vips("1")[0], 80), Within(200*time.Millisecond)); err == nil {
		t.Error("an endpoint answered over an interface that is down")
	}
	s.GW1.SetUp("int0")
	if _, err := s.EXT.Ask("tcp", netip.AddrPortFrom(vips("1")[0], 80)); err != nil {
		t.Errorf("after the interface is up again: %v", err)
	}
}

func BenchmarkStandard(b *testing.B) {
	for b.Loop() {
		NewStandard(b).close()
	}
}
