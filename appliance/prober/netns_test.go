package prober

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/netlab"
)

// link is a box that tracks its connections, and a server behind a wire that has the prefixes
// 10.7.0.0/16 and fd07::/64.
func link(t *testing.T) (box, server *netlab.Host) {
	t.Helper()
	lab := netlab.New(t)
	box, server = lab.Host("box"), lab.Host("server")
	lab.Segment("lan").
		Attach(box, "lan0", "10.9.0.1/24", "fd09::1/64").
		Attach(server, "eth0", "10.9.0.2/24", "fd09::2/64")
	server.Own("10.7.0.0/16")
	server.Own("fd07::/64")
	box.Route("10.7.0.0/16", "10.9.0.2")
	box.Route("fd07::/64", "fd09::2")
	box.LoadNft("table inet track { chain out { type filter hook output priority 0; ct state new accept; }; }")
	return box, server
}

// behind are addresses of the server, of both families in turns.
func behind(n int, port uint16) (all []netip.AddrPort) {
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 7, byte(i >> 8), byte(i)})
		if i%2 == 1 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x07, 14: byte(i >> 8), 15: byte(i)})
		}
		all = append(all, netip.AddrPortFrom(addr, port))
	}
	return all
}

// With every endpoint silent, each has at most three entries in conntrack, however often it was
// asked and whatever it takes to be down; of ports of the kernel's choice, each probe leaves one
// for two minutes.
func TestSilentFewEntries(t *testing.T) {
	for kind, port := range map[health.Kind]string{health.TCP: "tcp dport 8080", health.HTTP: "tcp dport 8080", health.DNS: "udp dport 8080"} {
		t.Run(fmt.Sprint(kind, port), func(t *testing.T) {
			box, server := link(t)
			server.LoadNft("table inet mute { chain in { type filter hook input priority 0; " + port + " drop; }; }")
			check := health.Check{Kind: kind, Name: "web.example", Interval: 200 * time.Millisecond, Timeout: 100 * time.Millisecond, Rise: 2, Fall: 6}
			const n = 40
			c := do(t, box, errand{Addrs: behind(n, 8080), Checks: []health.Check{check}, Start: health.Up})
			eventually(t, "all are down, and asked on", func() bool {
				r := c.report()
				return r.Targets[health.Down] == n && r.count(health.Silent) > 12*n
			})
			for _, family := range []string{"ipv4", "ipv6"} {
				entries := strings.Count(box.Conntrack("-L", "-f", family), "dport=8080 [UNREPLIED]")
				if entries > 3*n/2 || entries < n/2 {
					t.Errorf("%s: %d entries for %d targets, want 1 to 3 for each", family, entries, n/2)
				}
			}
		})
	}
}

// An endpoint that is asked often has one entry, and nothing is left of a connection on either
// side. The server sees the address that its clients' packets come from, too.
func TestNothingIsLeft(t *testing.T) {
	box, server := link(t)
	server.Serve("tcp", 8080)
	capture := server.Capture("eth0")
	check := health.Check{Kind: health.TCP, Interval: 200 * time.Millisecond, Timeout: time.Minute, Rise: 2, Fall: 3}
	const n = 20
	c := do(t, box, errand{Addrs: behind(n, 8080), Checks: []health.Check{check}, Start: health.Up})
	eventually(t, "all were asked", func() bool { return c.report().count(health.Pass) > 10*n })
	entries := 0
	for _, family := range []string{"ipv4", "ipv6"} {
		entries += strings.Count(box.Conntrack("-L", "-f", family), "dport=8080")
	}
	if entries > n {
		t.Errorf("%d entries for %d targets", entries, n)
	}
	for _, h := range []*netlab.Host{box, server} {
		if left, _, err := h.Run("ss", "-Htan", "state", "time-wait"); err != nil || left != "" {
			t.Errorf("%s: connections wait: %v %s", h, err, left)
		}
	}
	ports := map[netip.AddrPort]map[uint16]bool{}
	const fin = 0x01
	opened, acknowledged := 0, 0
	for _, p := range capture.Packets(func(p netlab.Packet) bool { return p.To.Port() == 8080 }) {
		if p.From.Addr() != netip.MustParseAddr("10.9.0.1") && p.From.Addr() != netip.MustParseAddr("fd09::1") {
			t.Errorf("a probe from %s", p.From)
		}
		switch {
		case p.TCPFlags&fin != 0:
			t.Errorf("a connection ends with FIN: %s", p)
		case p.TCPFlags == netlab.TCPSyn:
			opened++
		case p.TCPFlags&netlab.TCPRst == 0:
			acknowledged++ // by a host that was late
		}
		if ports[p.To] == nil {
			ports[p.To] = map[uint16]bool{}
		}
		ports[p.To][p.From.Port()] = true
	}
	if acknowledged > opened/4 {
		t.Errorf("of %d connections %d were opened in full", opened, acknowledged)
	}
	for to, from := range ports {
		for port := range from {
			if len(from) != 1 || port < DefaultPorts.First || port > DefaultPorts.Last {
				t.Errorf("%s was asked from %v", to, from)
			}
		}
	}
	if len(ports) != n {
		t.Errorf("%d targets were asked, want %d", len(ports), n)
	}
}

// A source port that another connection has does not keep a target from being asked.
func TestPortTaken(t *testing.T) {
	box, server := link(t)
	server.Serve("tcp", 8080)
	target := health.Target{Addr: behind(1, 8080)[0], Check: health.Check{Kind: health.TCP, Interval: 200 * time.Millisecond, Timeout: time.Minute, Rise: 1, Fall: 1}}
	taken, err := box.Dial(target.Addr, netlab.FromPort(DefaultPorts.of(hashOf(target))))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := do(t, box, errand{Addrs: []netip.AddrPort{target.Addr}, Checks: []health.Check{target.Check}})
	eventually(t, "it is asked", func() bool { return c.report().count(health.Pass) > 5 })
	if r := c.report(); r.count(health.Refused)+r.count(health.Silent)+r.count(health.Void) > 0 {
		t.Errorf("%+v", r)
	}
	if err := taken.Echo("still there"); err != nil {
		t.Errorf("the connection that had the port: %v", err)
	}
}

// Echo requests are answered, or not; without the right to send them there is no verdict.
func TestICMP(t *testing.T) {
	box, server := link(t)
	check := health.Check{Kind: health.ICMP, Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Rise: 1, Fall: 1}
	up := errand{Addrs: behind(10, 0), Checks: []health.Check{check}}
	raw := do(t, box, up)
	eventually(t, "all are up by raw sockets", func() bool { return raw.report().Targets[health.Up] == 10 })
	up.NoRaw = true
	c := do(t, box, up)
	eventually(t, "it says what is missing", func() bool {
		r := c.report()
		return r.NotMade == 10 && strings.Contains(r.NotMadeWhy, "net.ipv4.ping_group_range")
	})
	if r := c.report(); r.Targets[health.New] != 10 {
		t.Errorf("judged without a right: %+v", r)
	}
	box.Sysctl("net.ipv4.ping_group_range", "0 2147483647")
	eventually(t, "all are up", func() bool { return c.report().Targets[health.Up] == 10 })
	server.LoadNft("table inet mute { chain in { type filter hook input priority 0; icmp type echo-request drop; icmpv6 type echo-request drop; }; }")
	check.Timeout = time.Second
	d := do(t, box, errand{Addrs: behind(10, 0), Checks: []health.Check{check}, Start: health.Up})
	eventually(t, "all are down", func() bool { return d.report().Targets[health.Down] == 10 })
}

// A network without a route is a failure of the endpoint: its clients cannot reach it either. A
// packet filter of this host that drops the probe is not, where the kernel tells: of a SYN it does
// not.
func TestNoWay(t *testing.T) {
	box, _ := link(t)
	check := health.Check{Kind: health.TCP, Interval: 200 * time.Millisecond, Timeout: time.Minute, Rise: 1, Fall: 1}
	c := do(t, box, errand{Addrs: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")}, Checks: []health.Check{check}})
	eventually(t, "both are down", func() bool { return c.report().Targets[health.Down] == 2 })
	box.LoadNft("table inet closed { chain out { type filter hook output priority 0; udp dport 81 drop; }; }")
	check.Kind, check.Name = health.DNS, "web.example"
	d := do(t, box, errand{Addrs: behind(2, 81), Checks: []health.Check{check}, Start: health.Up})
	eventually(t, "the filter is named", func() bool {
		r := d.report()
		return r.NotMade == 2 && strings.Contains(r.NotMadeWhy, "not permitted")
	})
	if r := d.report(); r.Targets[health.Up] != 2 {
		t.Errorf("judged by this host's own filter: %+v", r)
	}
}
