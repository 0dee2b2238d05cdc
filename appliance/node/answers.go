package node

import (
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AnswersFor reports whether the kernel answers neighbors on an interface who ask for an address:
// because it is the host's own, also by a route of type local, or because the neighbor table has a
// proxy entry for it whose packets leave by another interface (arp_process and ndisc_recv_ns of the
// kernel), or proxy_arp does so for all. When it cannot be read, it counts as answered: an error
// raises no problem.
func AnswersFor(addr netip.Addr, index int) bool {
	h, err := open()
	if err != nil {
		return true
	}
	defer h.Close()
	routes, err := Try(func() ([]netlink.Route, error) { return h.RouteGet(addr.AsSlice()) })
	if isPassing(err) {
		return true
	}
	if err != nil || len(routes) == 0 {
		return false // nothing leads there: the kernel does not answer either
	}
	if routes[0].Type == unix.RTN_LOCAL {
		return true
	}
	elsewhere := routes[0].LinkIndex != index
	if addr.Is4() && !elsewhere {
		return false // neither proxy_arp nor an entry counts
	}
	family := netlink.FAMILY_V6
	if addr.Is4() {
		family = netlink.FAMILY_V4
	}
	entries, err := Try(func() ([]netlink.Neigh, error) { return h.NeighProxyList(index, family) })
	if err != nil {
		return true
	}
	for _, e := range entries {
		if ip, ok := netip.AddrFromSlice(e.IP); ok && ip.Unmap() == addr {
			return true
		}
	}
	return elsewhere && proxies(h, index, addr.Is4())
}

// proxies reports whether an interface has proxy_arp (proxy_ndp needs an entry for each address).
func proxies(h *netlink.Handle, index int, is4 bool) bool {
	if !is4 {
		return false
	}
	link, err := Try(func() (netlink.Link, error) { return h.LinkByIndex(index) })
	if err != nil {
		return false
	}
	text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link.Attrs().Name + "/proxy_arp")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}
