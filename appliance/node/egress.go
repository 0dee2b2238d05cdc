package node

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Leaves returns the name of the interface by which forwarded packets from source to an address leave, by all routing rules; "" if there is
// no route.
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
