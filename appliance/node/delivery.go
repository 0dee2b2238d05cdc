package node

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DeliversForOthers reports whether some packets for addresses that the host does not have are delivered on
// it: whether a rule (ip-rule(8)) leads to a table with a default route of type local. Which packets that are is
// not judged.
func DeliversForOthers(v6 bool) (bool, error) {
	return try(func(h *netlink.Handle) (bool, error) { return deliversForOthers(h, v6) })
}

func deliversForOthers(h *netlink.Handle, v6 bool) (bool, error) {
	family := netlink.FAMILY_V4
	if v6 {
		family = netlink.FAMILY_V6
	}
	rules, err := h.RuleList(family)
	if err != nil {
		return false, fmt.Errorf("read the rules of routing: %w", err)
	}
	for _, rule := range rules {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: rule.Table, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil {
			return false, fmt.Errorf("read the routes of table %d: %w", rule.Table, err)
		}
		for _, r := range routes {
			if isDefault(r) {
				return true, nil
			}
		}
	}
	return false, nil
}
