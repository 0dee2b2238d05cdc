package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// advertiseEvery is the interval of router advertisements on the interface of an unnumbered
// peer: those that answer ours make the peer known to the kernel, and FRR stays idle without.
const advertiseEvery = 10 * time.Second

// findNeighbor returns the link-local address of the one router on an interface, from the kernel's
// table of neighbor discovery (RFC 4861).
func findNeighbor(ifname string) (netip.Addr, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("this box has no interface %s", ifname)
	}
	if i.Flags&net.FlagUp == 0 {
		return netip.Addr{}, fmt.Errorf("the interface %s is down", ifname)
	}
	known, err := netlink.NeighList(i.Index, unix.AF_INET6)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list the neighbors on %s: %w", ifname, err)
	}
	var found []netip.Addr
	for _, n := range known {
		addr, _ := netip.AddrFromSlice(n.IP)
		usable := n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NOARP) == 0
		if n.Flags&unix.NTF_ROUTER != 0 && usable && addr.IsLinkLocalUnicast() {
			found = append(found, addr.WithZone(ifname))
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return netip.Addr{}, fmt.Errorf("no router advertisement came on %s: let the peer send router advertisements there", ifname)
	}
	return netip.Addr{}, fmt.Errorf("%d routers are on %s (%s and %s): give the peer's address", len(found), ifname, found[0], found[1])
}

// advertise sends router advertisements with a lifetime of 0, which make this box no default
// router, and solicitations, until ctx ends.
func (s *Speaker) advertise(ctx context.Context) {
	ticker := time.NewTicker(advertiseEvery)
	defer ticker.Stop()
	last := ""
	for {
		words := ""
		if err := advertiseOn(s.peer.Interface); err != nil {
			words = err.Error()
		}
		if words != "" && words != last {
			s.log.Warn("router advertisements not sent: an unnumbered peer may not find this box", "peer", s.peer.String(), "error", words)
		}
		last = words
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// advertiseOn sends one router advertisement and one solicitation on an interface. The kernel
// fills in the checksum and the link-local source address.
func advertiseOn(ifname string) error {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return os.NewSyscallError("socket (it needs CAP_NET_RAW)", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, maxTTL); err != nil {
		return os.NewSyscallError("setsockopt hop limit", err)
	}
	var source []byte // the option source link-layer address
	if len(i.HardwareAddr) == 6 {
		source = append([]byte{1, 1}, i.HardwareAddr...)
	}
	for _, m := range []struct {
		to      string
		message []byte
	}{
		// A router advertisement: no hop limit, no flags, all times 0 (RFC 4861, section 4.2). A router solicitation.
		{"ff02::1", append([]byte{134, 15: 0}, source...)}, {"ff02::2", append([]byte{133, 7: 0}, source...)},
	} {
		to := &unix.SockaddrInet6{ZoneId: uint32(i.Index), Addr: netip.MustParseAddr(m.to).As16()}
		if err := unix.Sendto(fd, m.message, unix.MSG_DONTWAIT, to); err != nil {
			return os.NewSyscallError("sendto "+m.to+"%"+ifname, err)
		}
	}
	return nil
}
