package node

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Leaves returns the name of the interface by which this host forwards packets from source to the address to. All routing rules are applied. The name
// is "" if there is no route, or it cannot be looked up.
func Leaves(source, to netip.Addr) string {
	in, err := WayTo(source)
	routes, _ := try(func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{SrcAddr: source.AsSlice(), IifIndex: in.Index})
	})
	if err != nil || len(routes) == 0 {
		return ""
	}
	link, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return link.Name
}
