package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Facts has the addresses, interfaces and routes of the host. Its lists are sorted, so that equal hosts have equal Facts.
type Facts struct {
	Addresses  []Address
	Interfaces []Interface
	// Primary are the default source addresses of the host. For each family it has the preferred source of the default route, or else the first
	// address of that route's interface.
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
	Prefix    netip.Prefix // the address with the prefix length of its network
	Interface string
	Index     uint32
	// First is set for the oldest address of each family on an interface that leads to other hosts, apart from link-local addresses. It is the
	// address that the interface was set up with.
	First bool
}

// Interface is a network interface that is up.
type Interface struct {
	Index    uint32
	Name     string
	Loopback bool
	Bridge   bool // it is a bridge device, such as that of containers
	// Forwards is set for an Ethernet link that is not a port of a bridge or bond: routed packets leave by such links.
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

// BridgeOf returns the name of the bridge with a network that contains addr; "" if there is none, or addr is the box's own address.
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

// Read returns the facts of the network namespace of the calling thread.
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

// usable reports whether the host answers on an address. It does not answer while duplicate address detection is in progress (except for optimistic
// addresses, RFC 4429) or after it has failed (RFC 4862, section 5.4). A deprecated address is usable (section 5.5.4).
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

// markFirst sets First of the oldest address of each family on each interface whose index is in outward. The kernel lists the IPv4 addresses of one
// scope oldest first, and IPv6 addresses newest first (inet_insert_ifa, ipv6_link_dev_addr).
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

// addPrimary adds the primary address of a family: the preferred source of the default route, or else the first address of its interface. found is
// false if there is no default route. The first address of any interface is primary then.
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

// sort sorts all lists but Primary, which is ordered by family, and removes duplicates.
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

// partial ignores the error of a netlink dump that was interrupted by a change. Its results can be used, since everything is read again after the
// notification of that change.
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

const (
	// limit is the timeout of a request, and of each part of its answer. The kernel answers during the call that sends the request. The timeout
	// therefore expires only if the answer, or the poller event for it, is lost: after EAGAIN, for example because of a failed allocation, the
	// library waits for a poller event that does not come.
	limit = time.Second
	// attempts is the largest number of calls that are made while they fail with a transient error.
	attempts = 5
)

// The package-level functions of the library open a socket for each call. Its timeout is a minute unless it is set here. appliance/routes,
// appliance/sockets and appliance/announce/bgp use these functions.
func init() {
	if err := netlink.SetSocketTimeout(limit); err != nil {
		panic(err)
	}
}

// open returns a handle of the network namespace of the calling thread. Its calls time out after limit.
func open() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	if err := h.SetSocketTimeout(limit); err != nil {
		h.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return h, nil
}

// Try calls a function of netlink until it does not fail with a transient error, at most 5 times.
func Try[T any](call func() (T, error)) (result T, err error) {
	for range attempts {
		if result, err = call(); !isPassing(err) {
			break
		}
	}
	return result, err
}

// try opens a handle, calls Try with it, and closes the handle.
func try[T any](call func(*netlink.Handle) (T, error)) (result T, err error) {
	h, err := open()
	if err != nil {
		return result, err
	}
	defer h.Close()
	return Try(func() (T, error) { return call(h) })
}

// isPassing reports whether an error is transient: the kernel was interrupted or out of memory, the timeout expired (EAGAIN), or the answer to an
// earlier request that timed out has not been read completely (EBUSY).
func isPassing(err error) bool {
	return slices.ContainsFunc([]error{unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM}, func(errno error) bool { return errors.Is(err, errno) })
}

// Link is a network interface that is up, with the data to send frames on it.
type Link struct {
	Index int
	Name  string
	// MAC is the Ethernet address of the link; nil if it is not Ethernet.
	MAC net.HardwareAddr
	// Carrier reports whether the link has a carrier, so that frames can be sent.
	Carrier bool
	// Addresses lists all addresses of the link, each with the prefix length of its network.
	Addresses []netip.Prefix
}

// WatchLinks watches the links in the same way as Watch watches the facts. The links are sorted by index.
func WatchLinks(ctx context.Context, log *slog.Logger) (<-chan []Link, error) {
	return watch(ctx, log, readLinks, func(a, b *[]Link) bool { return reflect.DeepEqual(*a, *b) })
}

func readLinks(h *netlink.Handle) ([]Link, error) {
	all, err := h.LinkList()
	if err := partial(err); err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	var links []Link
	for _, l := range all {
		a := l.Attrs()
		if a.Flags&net.FlagUp == 0 {
			continue
		}
		link := Link{Index: a.Index, Name: a.Name, Carrier: a.Flags&net.FlagRunning != 0}
		if a.EncapType == "ether" && len(a.HardwareAddr) == 6 {
			link.MAC = a.HardwareAddr
		}
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		if errors.Is(err, unix.ENODEV) {
			continue // it has just gone
		}
		if err := partial(err); err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", a.Name, err)
		}
		for _, addr := range addrs {
			if p, ok := prefixOf(addr.IPNet); ok && usable(addr) {
				link.Addresses = append(link.Addresses, p)
			}
		}
		slices.SortFunc(link.Addresses, netip.Prefix.Compare)
		links = append(links, link)
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
	return links, nil
}

// Way is the kernel's route to an address.
type Way struct {
	Index int        // the index of the interface by which packets leave
	Local bool       // the address belongs to the host
	From  netip.Addr // the source address that the host uses on that route
}

// WayTo looks up the route to an address, as `ip route get` does. Without a route it returns the error of the kernel.
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

// AnswersFor reports whether the kernel answers ARP or NDP requests for an address on an interface. It does for an address of the host, including one
// that a route of type local covers. It also does if the neighbor table has a proxy entry for the address, or if proxy_arp is set; for IPv4 only if
// packets to the address leave by another interface (arp_process and ndisc_recv_ns of the kernel). If this cannot be read, AnswersFor returns true,
// so that no problem is reported.
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

// proxies reports whether an interface has proxy_arp set. For IPv6 it returns false, as proxy_ndp needs an entry for each address.
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

// DeliversForOthers reports whether a routing rule (ip-rule(8)) leads to a table with a default route of type local: the host then accepts
// some packets for addresses that it does not have. It does not examine which packets match the rule.
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
		if slices.ContainsFunc(routes, isDefault) {
			return true, nil
		}
	}
	return false, nil
}

// Misrouted is an address that lies in the network of one uplink (Lies), while replies from it leave by another uplink (Leaves).
type Misrouted struct {
	Addr         netip.Addr
	Lies, Leaves string // names of interfaces
}

// MisroutedReplies returns the VIPs with replies that leave by another uplink than the one in the VIP's network. An uplink is an interface with a
// default route in some table. Replies of endpoints are routed before NAT restores the VIP as their source, so ip-rule(8) rules by source do not
// apply. If a rule matches a packet mark, nothing is reported, since replies may have that mark.
func MisroutedReplies(vips []netip.Addr) ([]Misrouted, error) {
	return try(func(h *netlink.Handle) (list []Misrouted, err error) {
		facts, err := read(h)
		if err != nil {
			return nil, err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			of := slices.DeleteFunc(slices.Clone(vips), func(a netip.Addr) bool { return a.Is4() != (family == netlink.FAMILY_V4) })
			if len(of) == 0 {
				continue
			}
			some, err := misroutedReplies(h, &facts, family, of)
			if err != nil {
				return nil, err
			}
			list = append(list, some...)
		}
		return list, nil
	})
}

func misroutedReplies(h *netlink.Handle, facts *Facts, family int, vips []netip.Addr) (list []Misrouted, err error) {
	rules, err := h.RuleList(family)
	if err != nil {
		return nil, fmt.Errorf("read the rules of routing: %w", err)
	}
	if slices.ContainsFunc(rules, func(r netlink.Rule) bool { return r.Mark != 0 }) {
		return nil, nil
	}
	routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err := partial(err); err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	uplinks, leaves, priority := map[uint32]bool{}, uint32(0), 0
	for _, r := range routes {
		if !isDefault(r) || r.LinkIndex == 0 || r.Type != unix.RTN_UNICAST {
			continue
		}
		uplinks[uint32(r.LinkIndex)] = true
		if r.Table == unix.RT_TABLE_MAIN && (leaves == 0 || r.Priority < priority) {
			leaves, priority = uint32(r.LinkIndex), r.Priority
		}
	}
	i := slices.IndexFunc(facts.Interfaces, func(i Interface) bool { return i.Index == leaves })
	if i < 0 || len(uplinks) < 2 {
		return nil, nil
	}
	for _, vip := range vips {
		at := slices.IndexFunc(facts.Addresses, func(a Address) bool { return !a.Prefix.IsSingleIP() && a.Prefix.Contains(vip) && uplinks[a.Index] })
		if at >= 0 && facts.Addresses[at].Index != leaves {
			list = append(list, Misrouted{vip, facts.Addresses[at].Interface, facts.Interfaces[i].Name})
		}
	}
	return list, nil
}
