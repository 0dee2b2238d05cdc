package node

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An address of a connected network is answered for when it is the box's own, by an address or
// by a route of type local; a proxy entry counts when its packets leave by another interface.
func TestAnswersFor(t *testing.T) {
	inNamespace(t, func(t *testing.T, box *box) {
		lo, err := box.LinkByName("lo")
		box.must(err)
		box.must(box.LinkSetUp(lo))
		box.must(box.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "seg0"}, PeerName: "far0"}))
		seg, err := box.LinkByName("seg0")
		box.must(err)
		far, err := box.LinkByName("far0")
		box.must(err)
		box.must(box.LinkSetUp(seg))
		box.must(box.LinkSetUp(far))
		add := func(text string) *netlink.Addr {
			addr, err := netlink.ParseAddr(text)
			box.must(err)
			addr.Flags |= unix.IFA_F_NODAD
			box.must(box.AddrAdd(seg, addr))
			return addr
		}
		add("192.0.2.1/24")
		add("2001:db8::1/64")
		index := seg.Attrs().Index
		want := func(text string, is bool, when string) {
			if got := AnswersFor(netip.MustParseAddr(text), index); got != is {
				t.Errorf("%s: %s is answered for: %v", when, text, got)
			}
		}
		want("192.0.2.1", true, "the box's own")
		want("192.0.2.50", false, "nobody's")
		want("2001:db8::50", false, "nobody's")

		vip := add("192.0.2.50/32")
		want("192.0.2.50", true, "with an address")
		box.must(box.AddrDel(seg, vip))
		want("192.0.2.50", false, "without it again")

		only := func(text string, bits int) *net.IPNet {
			return &net.IPNet{IP: net.ParseIP(text), Mask: net.CIDRMask(bits, bits)}
		}
		for text, bits := range map[string]int{"192.0.2.51": 32, "2001:db8::51": 128} {
			box.must(box.RouteAdd(&netlink.Route{Dst: only(text, bits), LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
			want(text, true, "with a local route")
		}

		for _, text := range []string{"192.0.2.52", "2001:db8::52"} {
			family := netlink.FAMILY_V4
			if netip.MustParseAddr(text).Is6() {
				family = netlink.FAMILY_V6
			}
			box.must(box.NeighAdd(&netlink.Neigh{LinkIndex: index, Family: family, Flags: netlink.NTF_PROXY, IP: net.ParseIP(text)}))
		}
		want("192.0.2.52", false, "with a proxy entry, on the same segment")
		want("2001:db8::52", true, "with a proxy entry")
		box.must(box.RouteAdd(&netlink.Route{Dst: only("192.0.2.52", 32), LinkIndex: far.Attrs().Index, Scope: netlink.SCOPE_LINK}))
		want("192.0.2.52", true, "with a proxy entry and a route elsewhere")
	})
}
