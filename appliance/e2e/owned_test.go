package e2e

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// An address of a pool that no Service has comes in once, and goes nowhere: RTR routes the pool
// to the box, and the box has its default route to RTR.
func Test260_unassigned_addresses_do_not_loop(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	capture := b.GW1.Capture("ext0")
	b.each(t, func(t *testing.T, b *box, f family) {
		free := f.at(f.lb(9), 80)
		b.atOnce(t, map[string]func(t *testing.T, b *box){
			"tcp":         func(t *testing.T, b *box) { b.drops(t, b.EXT, "tcp", free) },
			"udp":         func(t *testing.T, b *box) { b.drops(t, b.EXT, "udp", free) },
			"own traffic": func(t *testing.T, b *box) { b.drops(t, b.GW1, "tcp", free) },
			"ping": func(t *testing.T, b *box) {
				if err := b.EXT.Ping(free.Addr()); netlab.RefusalOf(err) != netlab.Timeout {
					t.Errorf("EXT pings %s: %v, want silence", free, err)
				}
			},
			// A packet of no connection: conntrack calls it invalid, and NAT chains do not see it.
			"reset": func(t *testing.T, b *box) { sendReset(t, b.EXT, f, free) },
		})
		if in := len(capture.Packets(func(p netlab.Packet) bool { return !p.Outgoing && p.To.Addr() == free.Addr() })); in < 4 {
			t.Errorf("%d packets to %s came in, want those of the test", in, free)
		}
		if out := capture.Packets(func(p netlab.Packet) bool { return p.Outgoing && p.To.Addr() == free.Addr() }); len(out) != 0 {
			t.Errorf("%d packets to %s left again: %v", len(out), free, out[0])
		}
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
	})
}

// sendReset sends a TCP RST that belongs to no connection. It has no checksum of its own: conntrack
// calls it invalid all the more.
func sendReset(t *testing.T, from *netlab.Host, f family, to netip.AddrPort) {
	t.Helper()
	segment := make([]byte, 20)
	segment[0], segment[1] = 0x9c, 0x40
	segment[2], segment[3] = byte(to.Port()>>8), byte(to.Port())
	segment[12], segment[13] = 5<<4, 4 // length, RST
	err := from.Do(func() error {
		domain := unix.AF_INET
		var at unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(to.Addr().AsSlice()[:4])}
		if f.v6 {
			domain, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}
		}
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, segment, 0, at)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A pool on a segment of the box: what no Service has there may be another host's, and is left
// alone, also when the address of the box comes later.
func Test261_pools_on_a_segment_keep_their_hosts(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": {"192.0.2.128/25", "2001:db8::f0-2001:db8::ff", "198.51.100.0/28", "2001:db8:198::/124"}})
	for _, f := range families {
		b.RTR.AddAddr("box", f.lb(3)+f.pick("/28", "/124"))
	}
	b.RTR.Serve("tcp", 8081)
	b.svcctl.Start()
	router := map[family]string{ipv4: "192.0.2.254", ipv6: "2001:db8::fe"}
	ask := func(f family, addr string) error {
		_, err := b.GW1.Ask("tcp", f.at(addr, 8081), patiently)
		return err
	}
	for _, f := range families {
		if err := ask(f, router[f]); err != nil {
			t.Errorf("the box to its router, in a pool: %v", err)
		}
		if _, err := b.GW1.Ask("tcp", f.at(f.lb(3), 8081)); err == nil {
			t.Errorf("%s is reached before its network is there", f.lb(3))
		}
		b.GW1.AddAddr("ext0", f.lb(2)+f.pick("/28", "/124"))
		eventually(t, syncTimeout, func() error {
			_, err := b.GW1.Ask("tcp", f.at(f.lb(3), 8081))
			return err
		})
	}
}

// A traceroute ends at the box for every VIP and protocol, and goes no further for an address that
// nobody has.
func Test262_traceroute_of_VIPs(t *testing.T) {
	b := web(t, nil, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		first, vip := f.pick("203.0.113.254", "2001:db8:203:0:ffff::1"), f.vip(41)
		for how, want := range map[string][]string{
			"-U -p 33434": {first, f.boxAddr()}, // port unreachable, by the box
			"-I":          {first, vip},         // echo reply, by the VIP
			// Two hops away: the box, whose error comes from the address that the client knows, and
			// the backend.
			"-T -p 80": {first, vip, vip},
		} {
			if got := hops(t, b.EXT, vip, how); strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("traceroute %s %s: %v, want %v", how, vip, got, want)
			}
		}
		if got := hops(t, b.EXT, f.vip(99), "-U -m 4"); strings.Join(got, " ") != strings.Join([]string{first, "*", "*", "*"}, " ") {
			t.Errorf("traceroute of an unassigned address: %v", got)
		}
	})
}

// hops are the hosts that traceroute names; * is one that did not answer.
func hops(t *testing.T, from *netlab.Host, to, options string) (all []string) {
	t.Helper()
	out, errOut, err := from.Run("traceroute", append(strings.Fields("-n -q 1 -w 3 "+options), to)...)
	if err != nil {
		t.Fatalf("traceroute: %v: %s", err, errOut)
	}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
		all = append(all, strings.Fields(line)[1])
	}
	return all
}
