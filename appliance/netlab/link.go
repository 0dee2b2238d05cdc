package netlab

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type addrOfHost struct {
	link   string
	prefix netip.Prefix
}

// Segment is a layer 2 segment: a bridge that Hosts are attached to.
type Segment struct {
	lab    *Lab
	bridge netlink.Link
	ports  map[string]netlink.Link // of the bridge, by Host
}

// Segment makes a layer 2 segment. The name is at most 11 characters.
func (l *Lab) Segment(name string) *Segment {
	l.t.Helper()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br-" + name, Flags: net.FlagUp}}
	if err := l.fabric.links.LinkAdd(bridge); err != nil {
		l.t.Fatalf("make segment %s: %v", name, err)
	}
	return &Segment{lab: l, bridge: bridge, ports: map[string]netlink.Link{}}
}

// Attach gives a Host an interface on the segment, with addresses written as
// prefixes ("10.1.0.2/24").
func (s *Segment) Attach(h *Host, ifname string, prefixes ...string) *Segment {
	s.lab.t.Helper()
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name:        fmt.Sprintf("port%d", s.lab.ports),
			MasterIndex: s.bridge.Attrs().Index,
			Flags:       net.FlagUp,
			NumTxQueues: 1, NumRxQueues: 1, // each queue has an entry in sysfs
		},
		PeerName:      ifname,
		PeerNamespace: netlink.NsFd(h.Namespace()),
	}
	s.lab.ports++
	var link netlink.Link
	err := s.lab.fabric.links.LinkAdd(veth)
	if err == nil {
		link, err = h.links.LinkByName(ifname)
	}
	if err == nil {
		err = h.links.LinkSetUp(link)
	}
	if err != nil {
		s.lab.t.Fatalf("attach %s to host %s: %v", ifname, h.Name, err)
	}
	s.ports[h.Name] = veth
	h.setSolicitations(ifname, 60)
	for _, p := range prefixes {
		h.addAddr(link, p)
	}
	return s
}

// setSolicitations sets how often, and thus for how many seconds, the Host asks for the Ethernet address of a neighbor before packets to it
// are answered by "no route to host". Attached ones ask for a minute: with the 3 of Linux, a neighbor on a busy machine, where interrupts wait for
// seconds, counts as one that is not there.
func (h *Host) setSolicitations(ifname string, n int) {
	h.t.Helper()
	var all []sysctl
	for _, family := range []string{"ipv4", "ipv6"} {
		key := fmt.Sprintf("net.%s.neigh.%s.mcast_solicit", family, strings.ReplaceAll(ifname, ".", "/"))
		all = append(all, sysctl{key: key, value: strconv.Itoa(n)})
	}
	h.setSysctls(all...)
}

// Unplug takes the carrier from the interface by which a Host is attached.
func (s *Segment) Unplug(h *Host) {
	s.lab.t.Helper()
	if err := s.lab.fabric.links.LinkSetDown(s.ports[h.Name]); err != nil {
		s.lab.t.Fatalf("unplug host %s: %v", h.Name, err)
	}
}

func (h *Host) linkUp(name string) error {
	link, err := h.links.LinkByName(name)
	if err == nil {
		err = h.links.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("host %s: set %s up: %w", h.Name, name, err)
	}
	return nil
}

// link is an interface that must exist.
func (h *Host) link(name string) netlink.Link {
	h.t.Helper()
	link, err := h.links.LinkByName(name)
	if err != nil {
		h.t.Fatalf("host %s: interface %s: %v", h.Name, name, err)
	}
	return link
}

// SetMTU sets the size of the largest packet of an interface, in bytes.
func (h *Host) SetMTU(ifname string, bytes int) {
	h.t.Helper()
	if err := h.links.LinkSetMTU(h.link(ifname), bytes); err != nil {
		h.t.Fatalf("host %s: mtu of %s: %v", h.Name, ifname, err)
	}
}

// SetUp switches an interface on.
func (h *Host) SetUp(ifname string) {
	h.t.Helper()
	if err := h.linkUp(ifname); err != nil {
		h.t.Fatal(err)
	}
}

// SetDown switches an interface off.
func (h *Host) SetDown(ifname string) {
	h.t.Helper()
	if err := h.links.LinkSetDown(h.link(ifname)); err != nil {
		h.t.Fatalf("host %s: set %s down: %v", h.Name, ifname, err)
	}
}

// AddAddr gives an interface an address, written as a prefix. If the interface is up, packets are delivered to the address when it returns: the
// kernel makes the route of an IPv6 address in a work queue (addrconf_dad_work), which a busy machine delays.
func (h *Host) AddAddr(ifname, prefix string) {
	h.t.Helper()
	link := h.link(ifname)
	h.addAddr(link, prefix)
	for start := time.Now(); link.Attrs().Flags&net.FlagUp != 0; time.Sleep(time.Millisecond) { // real time: the kernel's work queue
		routes, err := h.links.RouteGet(addrOf(netip.MustParsePrefix(prefix)).IP)
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		if time.Since(start) > time.Minute {
			h.t.Fatalf("host %s: no local route of %s: %v, %v", h.Name, prefix, routes, err)
		}
	}
}

func (h *Host) addAddr(link netlink.Link, prefix string) {
	h.t.Helper()
	p, ifname := netip.MustParsePrefix(prefix), link.Attrs().Name
	if err := h.links.AddrAdd(link, addrOf(p)); err != nil {
		h.t.Fatalf("host %s: add %s to %s: %v", h.Name, p, ifname, err)
	}
	h.addrs = append(h.addrs, addrOfHost{ifname, p})
}

// RemoveAddr takes an address from an interface.
func (h *Host) RemoveAddr(ifname, prefix string) {
	h.t.Helper()
	p := netip.MustParsePrefix(prefix)
	if err := h.links.AddrDel(h.link(ifname), addrOf(p)); err != nil {
		h.t.Fatalf("host %s: remove %s from %s: %v", h.Name, p, ifname, err)
	}
}

func addrOf(p netip.Prefix) *netlink.Addr {
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Addr4 is the first IPv4 address the Host was given.
func (h *Host) Addr4() netip.Addr { return h.firstAddr(netip.Addr.Is4) }

// Addr6 is the first IPv6 address the Host was given.
func (h *Host) Addr6() netip.Addr { return h.firstAddr(netip.Addr.Is6) }

func (h *Host) firstAddr(family func(netip.Addr) bool) netip.Addr {
	for _, a := range h.addrs {
		if family(a.prefix.Addr()) {
			return a.prefix.Addr()
		}
	}
	return netip.Addr{}
}

// Route sends what is for a prefix to a next hop. The prefix "default" is everything
// of the next hop's family.
func (h *Host) Route(prefix, via string) {
	h.t.Helper()
	gw := netip.MustParseAddr(via)
	route := &netlink.Route{Gw: gw.AsSlice(), Dst: ipNet(destination(prefix, gw))}
	if err := h.links.RouteReplace(route); err != nil {
		h.t.Fatalf("host %s: route %s via %s: %v", h.Name, prefix, via, err)
	}
}

// Narrow has packets for an address leave by an interface, through a hop that takes no
// larger ones, in bytes; via is the next hop, "" when the address is on the segment. The
// interface itself takes larger ones from others: a link of unequal sizes would lose them.
func (h *Host) Narrow(to netip.Addr, ifname, via string, bytes int) {
	h.t.Helper()
	route := &netlink.Route{
		LinkIndex: h.link(ifname).Attrs().Index,
		Dst:       ipNet(netip.PrefixFrom(to, to.BitLen())),
		MTU:       bytes,
	}
	if via != "" {
		route.Gw = netip.MustParseAddr(via).AsSlice()
	} else {
		route.Scope = unix.RT_SCOPE_LINK
	}
	if err := h.links.RouteReplace(route); err != nil {
		h.t.Fatalf("host %s: narrow route to %s by %s: %v", h.Name, to, ifname, err)
	}
}

func destination(prefix string, gw netip.Addr) netip.Prefix {
	switch {
	case prefix != "default":
		return netip.MustParsePrefix(prefix)
	case gw.Is4():
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	default:
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
}

// Own makes every address of a prefix the Host's own, without one of them on an
// interface: packets for it are the Host's, and From may take any of it.
func (h *Host) Own(prefix string) {
	h.t.Helper()
	route := &netlink.Route{
		LinkIndex: h.link("lo").Attrs().Index,
		Dst:       ipNet(netip.MustParsePrefix(prefix)),
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     unix.RT_SCOPE_HOST,
	}
	if err := h.links.RouteReplace(route); err != nil {
		h.t.Fatalf("host %s: own %s: %v", h.Name, prefix, err)
	}
}
