package node

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Way is the kernel's route to an address.
type Way struct {
	Index int        // of the interface by which packets leave
	Local bool       // the address is the host's
	From  netip.Addr // the host's address that is used on that way
}

// WayTo looks up the route to an address, as `ip route get` does. The error is the kernel's when nothing leads there.
func WayTo(addr netip.Addr) (Way, error) {
	routes, err := try(func(h *netlink.Handle) ([]netlink.Route, error) { return h.RouteGet(addr.AsSlice()) })
	if err != nil {
		return Way{}, err
	}
	if len(routes) == 0 {
		return Way{}, errors.New("no route")
	}
	from, _ := netip.AddrFromSlice(routes[0].Src)
	return Way{routes[0].LinkIndex, routes[0].Type == unix.RTN_LOCAL, from.Unmap()}, nil
}
