package node

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestDeliversForOthers(t *testing.T) {
	inNamespace(t, func(t *testing.T, box *box) {
		lo, err := box.LinkByName("lo")
		box.must(err)
		box.must(box.LinkSetUp(lo))
		want := func(v6, is bool, when string) {
			t.Helper()
			if got, err := DeliversForOthers(v6); got != is || err != nil {
				t.Errorf("%s, IPv6 %t: %t, %v", when, v6, got, err)
			}
		}
		for _, v6 := range []bool{false, true} {
			family, all, one := netlink.FAMILY_V4, "0.0.0.0/0", "192.0.2.0/24"
			if v6 {
				family, all, one = netlink.FAMILY_V6, "::/0", "2001:db8::/64"
			}
			route := func(text string) *netlink.Route {
				_, to, err := net.ParseCIDR(text)
				box.must(err)
				return &netlink.Route{Dst: to, LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: 100, Scope: netlink.SCOPE_HOST}
			}
			want(v6, false, "at first")
			box.must(box.RouteAdd(route(all)))
			want(v6, false, "with a route that no rule leads to")
			rule := netlink.NewRule()
			rule.Family, rule.Mark, rule.Table = family, 1, 100
			box.must(box.RuleAdd(rule))
			want(v6, true, "with a rule and a route")
			box.must(box.RouteDel(route(all)))
			box.must(box.RouteAdd(route(one)))
			want(v6, false, "with a route for some")
		}
	})
}
