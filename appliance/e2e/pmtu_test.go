package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// narrow is the size of the largest packet of a hop that is smaller than those around it.
const narrow = 1400

// distant is an endpoint behind one more router, which is behind int1: 10.182.0.1.
type distant struct{ router, host *netlab.Host }

func (b *box) distant(t *testing.T) distant {
	t.Helper()
	d := distant{b.Router("far"), b.Host("distant")}
	b.Segment("far").
		Attach(d.router, "near", "10.182.255.254/16", "fd00:10:182::ffff/64").
		Attach(d.host, "eth0", "10.182.0.1/16", "fd00:10:182::1/64")
	b.Segment("transit").
		Attach(b.GW1, "int3", "10.183.0.1/24", "fd00:10:183::1/64").
		Attach(d.router, "box", "10.183.0.2/24", "fd00:10:183::2/64")
	for _, f := range families {
		b.GW1.Route(f.pick("10.182.0.0/16", "fd00:10:182::/64"), f.pick("10.183.0.2", "fd00:10:183::2"))
		d.router.Route("default", f.pick("10.183.0.1", "fd00:10:183::1"))
		d.host.Route("default", f.pick("10.182.255.254", "fd00:10:182::ffff"))
	}
	d.host.Serve("tcp", 80)
	d.host.Serve("udp", 80)
	return d
}

// narrow makes the hop before the distant endpoint a narrow one.
func (d distant) narrow() {
	for _, f := range families {
		d.router.Narrow(f.of(d.host), "near", "", narrow)
	}
}

// narrowToEXT makes the hop before EXT a narrow one.
func (b *box) narrowToEXT() {
	for _, f := range families {
		b.RTR.Narrow(f.of(b.EXT), "clients", "", narrow)
	}
}

// far writes and serves a Service on the distant endpoint: clients of the cluster IP that
// are inside are not masqueraded, those of the load balancer IP are.
func far(t *testing.T) (*box, distant) {
	t.Helper()
	b := newBox(t, nil)
	d := b.distant(t)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
				"ports: [{name: p80, port: 80}, {name: udp, port: 80, protocol: UDP}]"),
			f.rawSlice("web", "web", "p80: 80, udp: 80/UDP", f.nodeless(d.host)),
		}
	})
	b.svcctl.Start()
	return b, d
}

// clientsOf are a client that stays as it is, and one that is masqueraded, with where they
// connect to.
func (b *box) clientsOf(f family) map[*netlab.Host]netip.AddrPort {
	return map[*netlab.Host]netip.AddrPort{b.IN: f.cluster(), b.EXT: f.balancer()}
}

// transfers asserts that much goes through a connection, in both directions.
func transfers(t *testing.T, from *netlab.Host, to netip.AddrPort) {
	t.Helper()
	c, err := from.Dial(to, patiently)
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to, err)
	}
	defer c.Close()
	for i := range 3 {
		// More than is in one window, less than is in the buffers on the way.
		if err := c.Echo(strings.Repeat(fmt.Sprint(i), 50_000), patiently); err != nil {
			t.Errorf("%s to %s: 50,000 bytes: %v", from.Name, to, err)
		}
	}
}

// toldTooBig reports whether a host got an ICMP error that says that a packet was too big
// (or, of IPv4, unreachable for another reason). Who sent it is not to be seen: the error
// comes from where the connection seems to lead. That the host understood what it quotes
// is shown by what is transferred.
func toldTooBig(f family, seen *netlab.Capture) bool {
	protocol, packetTooBig := uint8(unix.IPPROTO_ICMP), uint8(3)
	if f.v6 {
		protocol, packetTooBig = unix.IPPROTO_ICMPV6, 2
	}
	return len(seen.Packets(func(p netlab.Packet) bool {
		return !p.Outgoing && p.Protocol == protocol && p.ICMPType == packetTooBig
	})) > 0
}

func Test018_narrow_hop_towards_the_endpoint(t *testing.T) {
	b, d := far(t)
	d.narrow()
	b.each(t, func(t *testing.T, b *box, f family) {
		for client, to := range b.clientsOf(f) {
			seen := client.Capture("eth0")
			transfers(t, client, to)
			if !toldTooBig(f, seen) {
				t.Errorf("%s to %s: no ICMP error of the narrow hop reached the client", client.Name, to)
			}
		}
	})
}

func Test018_narrow_hop_towards_the_client(t *testing.T) {
	b, d := far(t)
	b.narrowToEXT()
	b.each(t, func(t *testing.T, b *box, f family) {
		seen := d.host.For(t).Capture("eth0")
		transfers(t, b.EXT, f.balancer())
		if !toldTooBig(f, seen) {
			t.Errorf("no ICMP error of the narrow hop reached the endpoint")
		}
	})
}

// The narrow hop is the box itself.
func Test018_narrow_link_of_the_box(t *testing.T) {
	b, d := far(t)
	for _, f := range families {
		b.GW1.Narrow(f.of(d.host), "int3", f.pick("10.183.0.2", "fd00:10:183::2"), narrow)
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		for client, to := range b.clientsOf(f) {
			transfers(t, client, to)
		}
		transfers(t, b.GW1, f.balancer())
	})
}

// Segments that may be fragmented on the way are.
func Test018_tcp_fragments(t *testing.T) {
	b, _ := far(t)
	b.EXT.Sysctl("net.ipv4.ip_no_pmtu_disc", "1") // no "don't fragment" in what it sends
	b.RTR.Narrow(ipv4.balancer().Addr(), "box", netlab.BoxAddr4, narrow)
	fragments := b.RTR.Capture("box")
	transfers(t, b.EXT, ipv4.balancer())
	if sent := fragments.Packets(func(p netlab.Packet) bool { return p.Outgoing && p.Fragment }); len(sent) == 0 {
		t.Error("nothing was fragmented on the way")
	}
}

func Test018_udp_fragments(t *testing.T) {
	b, _ := far(t)
	b.each(t, func(t *testing.T, b *box, f family) {
		for client, to := range b.clientsOf(f) {
			for _, size := range []int{1400, 4000, 15_000} {
				answers(t, client, "udp", to, netlab.Sized(size))
			}
		}
	})
}

// tooLarge is whether a host was told that a packet is too large for a hop: ICMP 3/4,
// ICMPv6 2/0.
func tooLarge(f family, err error) bool {
	var failure *netlab.Failure
	if !errors.As(err, &failure) || failure.Refusal != netlab.Unreachable {
		return false
	}
	return f.pick("3/4", "2/0") == fmt.Sprintf("%d/%d", failure.Type, failure.Code)
}

// A datagram that is too large for a hop is lost, and its sender told: the next one comes
// in fragments.
func Test018_udp_narrow_hop_towards_the_endpoint(t *testing.T) {
	b, d := far(t)
	d.narrow()
	b.each(t, func(t *testing.T, b *box, f family) {
		for client, to := range b.clientsOf(f) {
			if reply, err := client.Ask("udp", to, netlab.Sized(1440), patiently); !tooLarge(f, err) {
				t.Errorf("%s to %s: a datagram that is too large: %v, %v, want the ICMP error that says so", client.Name, to, reply, err)
			}
			answers(t, client, "udp", to, netlab.Sized(1440))
		}
	})
}

func Test018_udp_narrow_hop_towards_the_client(t *testing.T) {
	b, d := far(t)
	b.narrowToEXT()
	b.each(t, func(t *testing.T, b *box, f family) {
		seen := d.host.For(t).Capture("eth0")
		// The question goes through: the answer is what is too large.
		eventually(t, syncTimeout, func() error {
			_, err := b.EXT.Ask("udp", f.balancer(), netlab.Sized(1440), netlab.FromPort(40000), netlab.Within(promptly))
			return err
		})
		if !toldTooBig(f, seen) {
			t.Errorf("no ICMP error of the narrow hop reached the endpoint")
		}
	})
}

// ICMP errors about accepted connections are none of the source ranges' business.
func Test018_narrow_hop_outside_of_source_ranges(t *testing.T) {
	b := restricted(t, nil, extOnly, etpLocal)
	b.narrowToEXT()
	b.each(t, func(t *testing.T, b *box, f family) {
		transfers(t, b.EXT, f.balancer())
	})
}
