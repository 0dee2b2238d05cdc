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

const (
	// limit is how long a request, and each part of its answer, may take. The kernel answers within the call that
	// sends the request, so nothing waits unless an answer or the runtime's notice of it is lost: after EAGAIN, as
	// after a failed allocation, the library waits for an edge of the poller that does not come.
	limit = time.Second
	// attempts is how often a call is made that fails for a transient reason.
	attempts = 5
)

// The functions of the library open a socket for each call, with a limit of a minute unless it is set here: those
// that appliance/routes, appliance/sockets and appliance/announce/bgp call.
func init() {
	if err := netlink.SetSocketTimeout(limit); err != nil {
		panic(err)
	}
}

// open gives a handle of the network namespace of the calling thread, the calls of which end within limit. The library
// sets none.
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

// Try makes a call of netlink, and again after a transient error, 5 times at most.
func Try[T any](call func() (T, error)) (result T, err error) {
	for range attempts {
		if result, err = call(); !isPassing(err) {
			break
		}
	}
	return result, err
}

// try is Try with a handle that is open for it.
func try[T any](call func(*netlink.Handle) (T, error)) (result T, err error) {
	h, err := open()
	if err != nil {
		return result, err
	}
	defer h.Close()
	return Try(func() (T, error) { return call(h) })
}

// isPassing reports whether an error is transient: the kernel was interrupted or out of memory, the limit expired
// (EAGAIN), or the answer to a request whose limit expired has not been read to its end (EBUSY).
func isPassing(err error) bool {
	return slices.ContainsFunc([]error{unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM}, func(errno error) bool { return errors.Is(err, errno) })
}

// Link is a network interface that is up, with what the sender of frames needs.
type Link struct {
	Index int
	Name  string
	// MAC is its Ethernet address; nil when it is no Ethernet.
	MAC net.HardwareAddr
	// Carrier reports whether frames go out.
	Carrier bool
	// Addresses lists all addresses of the link, each with the prefix length of its segment.
	Addresses []netip.Prefix
}

// WatchLinks is Watch for links, sorted by index.
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

// AnswersFor reports whether the kernel answers requests of neighbors on an interface for an address:
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
		if slices.ContainsFunc(routes, isDefault) {
			return true, nil
		}
	}
	return false, nil
}

// Misrouted is an address in the network of one uplink, replies from which leave by another.
type Misrouted struct {
	Addr         netip.Addr
	Lies, Leaves string // names of interfaces
}

// MisroutedReplies returns those of some VIPs. An uplink is an interface with a default route in some table. A reply of an endpoint
// is routed before its source is the VIP again, so a rule (ip-rule(8)) by the source does not apply to it; where a rule goes by a
// packet mark nothing is reported, as the mark may be that of replies.
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
