package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Facts has the addresses, interfaces and routes of the host. Its lists are sorted, so that equal hosts have equal Facts.
type Facts struct {
	Addresses  []Address
	Interfaces []Interface
	// Primary are the addresses that the host itself sends from by default: for each
	// family the first address of the default route's interface, or the route's own
	// preferred source.
	Primary []netip.Addr
	// Gateways are the next hops of all routes.
	Gateways []netip.Addr
	// Connected are the destinations of routes without a next hop: networks whose hosts
	// the box reaches directly. The default route is not among them.
	Connected []netip.Prefix
}

// Address is an address of the host on an interface that is up. The host does not answer on addresses of interfaces that are
// down.
type Address struct {
	Prefix    netip.Prefix // the address with the length of its segment
	Interface string
	Index     uint32
	// First is set for the oldest address of its family, apart from link-local ones, on an interface that leads to other
	// hosts: it came with the interface.
	First bool
}

// Interface is a network interface that is up.
type Interface struct {
	Index    uint32
	Name     string
	Loopback bool
	Bridge   bool // it connects ports of its own, as those of containers
	// Forwards is set for an Ethernet link that is no port of a bridge or bond: the frames of what the box routes leave by it.
	Forwards bool
}

// Bridges returns the names of bridges with an address that hosts can use as their router.
func (f *Facts) Bridges() []string {
	var names []string
	for _, i := range f.Interfaces {
		if i.Bridge && slices.ContainsFunc(f.Addresses, func(a Address) bool { return a.Index == i.Index && !a.Prefix.Addr().IsLinkLocalUnicast() }) {
			names = append(names, i.Name)
		}
	}
	return names
}

// BridgeOf returns the name of the bridge in one of whose networks an address is, other than the box's own; "" for none.
func (f *Facts) BridgeOf(addr netip.Addr) string {
	name := ""
	for _, a := range f.Addresses {
		switch {
		case a.Prefix.Addr() == addr:
			return ""
		case !a.Prefix.IsSingleIP() && a.Prefix.Contains(addr) && slices.ContainsFunc(f.Interfaces, func(i Interface) bool { return i.Bridge && i.Index == a.Index }):
			name = a.Interface
		}
	}
	return name
}

// Read gives the facts of the network namespace of the calling thread.
func Read() (Facts, error) {
	return try(read)
}

func read(h *netlink.Handle) (Facts, error) {
	var f Facts
	links, err := h.LinkList()
	if err := partial(err); err != nil {
		return f, fmt.Errorf("list the interfaces: %w", err)
	}
	up := map[int]string{}
	outward := map[uint32]bool{} // interfaces that other hosts can be behind
	for _, l := range links {
		if a := l.Attrs(); a.Flags&net.FlagUp != 0 {
			up[a.Index] = a.Name
			outward[uint32(a.Index)] = a.Flags&net.FlagLoopback == 0 && l.Type() != "dummy"
			f.Interfaces = append(f.Interfaces, Interface{uint32(a.Index), a.Name, a.Flags&net.FlagLoopback != 0, l.Type() == "bridge", a.EncapType == "ether" && a.MasterIndex == 0})
		}
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err := partial(err); err != nil {
		return f, fmt.Errorf("list the addresses: %w", err)
	}
	for _, a := range addrs {
		name, isUp := up[a.LinkIndex]
		if p, ok := prefixOf(a.IPNet); ok && isUp && usable(a) {
			f.Addresses = append(f.Addresses, Address{Prefix: p, Interface: name, Index: uint32(a.LinkIndex)})
		}
	}
	f.markFirst(outward)
	if err := f.readRoutes(h); err != nil {
		return f, err
	}
	f.sort()
	return f, nil
}

// usable leaves out addresses that the host does not answer on: those whose uniqueness
// is not proven yet (unless it is used meanwhile: RFC 4429), or is disproven (RFC 4862,
// section 5.4). A deprecated one still answers (section 5.5.4).
func usable(a netlink.Addr) bool {
	proven := a.Flags&unix.IFA_F_TENTATIVE == 0 || a.Flags&unix.IFA_F_OPTIMISTIC != 0
	return proven && a.Flags&unix.IFA_F_DADFAILED == 0
}

func (f *Facts) readRoutes(h *netlink.Handle) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteList(nil, family)
		if err := partial(err); err != nil {
			return fmt.Errorf("list the routes: %w", err)
		}
		best, found := netlink.Route{}, false
		for _, r := range routes {
			hops := []net.IP{r.Gw}
			for _, hop := range r.MultiPath {
				hops = append(hops, hop.Gw)
			}
			for _, ip := range hops {
				if a, ok := netip.AddrFromSlice(ip); ok && !a.IsUnspecified() {
					f.Gateways = append(f.Gateways, a.Unmap())
				}
			}
			f.addConnected(r)
			if isDefault(r) && (!found || r.Priority < best.Priority) {
				best, found = r, true
			}
		}
		f.addPrimary(family, best, found)
	}
	return nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

func (f *Facts) addConnected(r netlink.Route) {
	if r.Type != unix.RTN_UNICAST || isDefault(r) || len(r.Gw) > 0 || r.Via != nil || len(r.MultiPath) > 0 || r.Encap != nil {
		return
	}
	if p, ok := prefixOf(r.Dst); ok {
		f.Connected = append(f.Connected, p.Masked())
	}
}

// markFirst marks the oldest address of each family and interface. The kernel lists IPv4
// addresses of one scope in the order in which they came, and IPv6 addresses the other way
// round (inet_insert_ifa, ipv6_link_dev_addr).
func (f *Facts) markFirst(outward map[uint32]bool) {
	first := map[[2]int]int{} // by interface and address length
	for i, a := range f.Addresses {
		addr, key := a.Prefix.Addr(), [2]int{int(a.Index), a.Prefix.Addr().BitLen()}
		if addr.IsLinkLocalUnicast() || addr.IsLoopback() || !outward[a.Index] {
			continue
		}
		if _, found := first[key]; !found || addr.Is6() {
			first[key] = i
		}
	}
	for _, i := range first {
		f.Addresses[i].First = true
	}
}

// addPrimary finds the primary address of a family. Without a default route it is the
// first address of the first interface that has one.
func (f *Facts) addPrimary(family int, route netlink.Route, found bool) {
	if a, ok := netip.AddrFromSlice(route.Src); found && ok {
		f.Primary = append(f.Primary, a.Unmap())
		return
	}
	index := route.LinkIndex
	if found && index == 0 && len(route.MultiPath) > 0 {
		index = route.MultiPath[0].LinkIndex
	}
	onRoute := func(a Address) bool { return found && int(a.Index) == index }
	for _, wanted := range []func(Address) bool{
		func(a Address) bool { return onRoute(a) && a.First },
		onRoute,
		func(a Address) bool { return a.First },
		func(Address) bool { return true },
	} {
		for _, a := range f.Addresses {
			addr := a.Prefix.Addr()
			if addr.Is4() == (family == netlink.FAMILY_V4) && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() && wanted(a) {
				f.Primary = append(f.Primary, addr)
				return
			}
		}
	}
}

// sort orders all but Primary, which is by family, and drops duplicates.
func (f *Facts) sort() {
	slices.SortFunc(f.Addresses, func(a, b Address) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	slices.SortFunc(f.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(f.Gateways, netip.Addr.Compare)
	f.Gateways = slices.Compact(f.Gateways)
	slices.SortFunc(f.Connected, netip.Prefix.Compare)
	f.Connected = slices.Compact(f.Connected)
}

func (f *Facts) equal(o *Facts) bool {
	return slices.Equal(f.Addresses, o.Addresses) && slices.Equal(f.Interfaces, o.Interfaces) &&
		slices.Equal(f.Primary, o.Primary) && slices.Equal(f.Gateways, o.Gateways) && slices.Equal(f.Connected, o.Connected)
}

// partial accepts a dump that the kernel marked as interrupted by a change: a notification
// of that change comes too, and then everything is read again.
func partial(err error) error {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return err
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if a.Is4In6() && bits == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones), ok
}
