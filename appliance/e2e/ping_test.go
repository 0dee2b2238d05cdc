package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// ICMP's "host unreachable" and ICMPv6's "address unreachable" (RFC 792, RFC 4443).
const (
	hostUnreachable4 = "3/1"
	hostUnreachable6 = "1/3"
)

// pings asserts that a VIP answers a ping itself.
func (b *box) pings(t *testing.T, from *netlab.Host, vip netip.Addr) {
	t.Helper()
	if err := from.Ping(vip, patiently); err != nil {
		t.Errorf("%s pings %s: %v", from.Name, vip, err)
	}
}

// unreachable asserts that a ping of a VIP is answered by "host unreachable".
func (b *box) unreachable(t *testing.T, from *netlab.Host, vip netip.Addr) {
	t.Helper()
	err := from.Ping(vip, patiently)
	want := family{vip.Is6()}.pick(hostUnreachable4, hostUnreachable6)
	var f *netlab.Failure
	if !errors.As(err, &f) || f.Refusal != netlab.Unreachable || fmt.Sprintf("%d/%d", f.Type, f.Code) != want {
		t.Errorf("%s pings %s: %v, want host unreachable (%s)", from.Name, vip, err, want)
	}
}

// pinged has a Service with every kind of VIP, one without endpoints, and both of their
// load balancer IPs on an interface of the box, as announcing them does.
func pinged(t *testing.T, other flags) *box {
	t.Helper()
	b := newBox(t, setAside(other))
	b.write("web.yaml", func(f family) []string {
		return append(policyDocuments(l1(b))(f),
			f.service("idle", "type: LoadBalancer", "clusterIP: "+f.vip(42), "loadBalancerIP: "+f.lb(5), "ports: [{name: p80, port: 80}]"))
	})
	b.svcctl.Start()
	for _, f := range families {
		for _, n := range []int{4, 5} {
			b.GW1.AddAddr("lo", f.lb(n)+f.pick("/32", "/128"))
		}
	}
	// A ping that is under way while the addresses come may get lost: the box itself sends from
	// them as soon as it has them. That they were read is seen in what is for Services alone.
	for _, f := range families {
		eventually(t, syncTimeout, func() error {
			if owned := b.GW1.Nft("list", "set", f.pick("ip", "ip6"), "svcctl", "owned"); strings.Contains(owned, f.pick("198.51.100.0/28", "2001:db8:198::/124")) {
				return fmt.Errorf("the box has not read its addresses yet:\n%s", owned)
			}
			return nil
		})
	}
	return b
}

func (f family) ready() []netip.Addr {
	return []netip.Addr{f.cluster().Addr(), f.balancer().Addr(), f.externalIP().Addr()}
}

func (f family) idle() []netip.Addr {
	return []netip.Addr{f.at(f.vip(42), 0).Addr(), f.at(f.lb(5), 0).Addr()}
}

func Test017_ping_of_every_vip(t *testing.T) {
	b := pinged(t, nil)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
			for _, vip := range f.ready() {
				b.pings(t, from, vip)
			}
			for _, vip := range f.idle() {
				b.unreachable(t, from, vip)
			}
		}
		b.pings(t, b.EXT, f.nodePort().Addr()) // the box's own address
	})
}

func Test017_ping_always(t *testing.T) {
	b := pinged(t, flags{"vip-ping": {"always"}})
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
			for _, vip := range append(f.ready(), f.idle()...) {
				b.pings(t, from, vip)
			}
		}
	})
}

func Test017_ping_never_of_every_vip(t *testing.T) {
	b := pinged(t, flags{"vip-ping": {"never"}})
	b.each(t, func(t *testing.T, b *box, f family) {
		silent := make(map[string]func(t *testing.T, b *box))
		for _, vip := range append(f.ready(), f.idle()...) {
			silent[vip.String()] = func(t *testing.T, b *box) {
				if err := b.EXT.Ping(vip); netlab.RefusalOf(err) != netlab.Timeout {
					t.Errorf("EXT pings %s: %v, want silence", vip, err)
				}
			}
		}
		b.atOnce(t, silent)
		b.pings(t, b.EXT, f.nodePort().Addr())
	})
}

func Test017_ping_follows_endpoints(t *testing.T) {
	b := web(t, nil, nobody)
	for _, f := range families {
		b.unreachable(t, b.EXT, f.cluster().Addr())
	}
	b.rewrite("web.yaml", b.webDocuments(b.R1))
	for _, f := range families {
		b.pings(t, b.EXT, f.cluster().Addr())
	}
	b.rewrite("web.yaml", b.webDocuments())
	for _, f := range families {
		b.unreachable(t, b.EXT, f.cluster().Addr())
	}
	// An address that is no VIP any more is one that was never given.
	b.change(func() { b.svcctl.Manifests.Remove("web.yaml") })
	b.each(t, func(t *testing.T, b *box, f family) {
		if err := b.EXT.Ping(f.cluster().Addr()); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("EXT pings %s: %v, want silence", f.cluster().Addr(), err)
		}
	})
}
