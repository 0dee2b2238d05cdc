package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/task"
)

const (
	// dialTimeout is the longest time for a connection attempt: three transmissions of a SYN.
	dialTimeout = 5 * time.Second
	// networkControl is the traffic class of routing protocols in the TOS byte (CS6, RFC 4594).
	networkControl = 0xc0
	maxTTL         = 255
)

// dial connects to the peer by TCP, and returns the connection with the addresses of its local side.
func dial(ctx context.Context, p Peer) (link, error) {
	to := p.Addr
	if p.Interface != "" {
		neighbor, err := findNeighbor(p.Interface)
		if err != nil {
			return link{}, err
		}
		to = netip.AddrPortFrom(neighbor, Port)
	}
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1, Control: func(_, _ string, c syscall.RawConn) error {
		return listen.Control(c, func(fd int) error { return prepare(fd, p, to.Addr()) })
	}}
	if p.Source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Source, 0))
	}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return link{}, err
	}
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	l := link{Conn: conn, local: local}
	l.next4, l.next6 = addressesBeside(local)
	if local.Is6() && local.IsLinkLocalUnicast() {
		l.linkLocal = local
	}
	return l, nil
}

// prepare sets the socket options of a peer before the connect: traffic class, TTL or TTL security, MD5 password.
func prepare(fd int, p Peer, to netip.Addr) error {
	ipv6 := to.Is6()
	set := func(what string, level, option, value int) error {
		return os.NewSyscallError("setsockopt "+what, unix.SetsockoptInt(fd, level, option, value))
	}
	level, ttl, minTTL, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL, unix.IP_TOS
	if ipv6 {
		level, ttl, minTTL, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT, unix.IPV6_TCLASS
	}
	if err := set("traffic class", level, class, networkControl); err != nil {
		return err
	}
	switch {
	case p.TTLSecurity > 0:
		if err := set("minimum TTL", level, minTTL, maxTTL+1-p.TTLSecurity); err != nil {
			return err
		}
		if err := set("TTL", level, ttl, maxTTL); err != nil {
			return err
		}
	case !p.MultiHop && !p.internal(p.RemoteAS) && p.Dynamic != Internal:
		if err := set("TTL", level, ttl, 1); err != nil {
			return err
		}
	}
	if p.Password == "" {
		return nil
	}
	key := unix.TCPMD5Sig{Keylen: uint16(len(p.Password))}
	key.Addr.Family = unix.AF_INET
	if ipv6 {
		key.Addr.Family = unix.AF_INET6
		addr := to.As16()
		copy(key.Addr.Data[6:], addr[:]) // after port and flow of sockaddr_in6
	} else {
		addr := to.As4()
		copy(key.Addr.Data[2:], addr[:]) // after the port of sockaddr_in
	}
	copy(key.Key[:], p.Password)
	return os.NewSyscallError("setsockopt TCP_MD5SIG", unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &key))
}

// addressesBeside returns one global address of each family for use as next hop: local itself, or another address of the interface that has
// local. An address is invalid if there is none of its family.
func addressesBeside(local netip.Addr) (ipv4, ipv6 netip.Addr) {
	take := func(a netip.Addr) {
		switch a = a.Unmap(); {
		case !a.IsValid() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast():
		case a.Is4() && !ipv4.IsValid():
			ipv4 = a
		case a.Is6() && !ipv6.IsValid():
			ipv6 = a.WithZone("")
		}
	}
	take(local)
	interfaces, err := net.Interfaces()
	if err != nil {
		return ipv4, ipv6
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil || !has(i, addrs, local) {
			continue
		}
		for _, a := range addrs {
			take(prefixOf(a).Addr())
		}
	}
	return ipv4, ipv6
}

func has(i net.Interface, addrs []net.Addr, local netip.Addr) bool {
	if zone := local.Zone(); zone != "" {
		return zone == i.Name
	}
	return slices.ContainsFunc(addrs, func(a net.Addr) bool { return prefixOf(a).Addr().Unmap() == local })
}

func prefixOf(a net.Addr) netip.Prefix {
	n, is := a.(*net.IPNet)
	if !is {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

// advertiseEvery is the interval of router advertisements on the interface of an unnumbered peer. The peer's answers enter it into the
// kernel's neighbor table, and FRR opens no session without them.
const advertiseEvery = 10 * time.Second

// findNeighbor returns the link-local address of the only router on an interface, from the kernel's table of neighbor discovery (RFC 4861).
// None, or several, are an error.
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
		if usable := n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NOARP) == 0; n.Flags&unix.NTF_ROUTER != 0 && usable && addr.IsLinkLocalUnicast() {
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

// advertise sends router solicitations, and router advertisements with a lifetime of 0 (this box is no default router), on the peer's
// interface until ctx ends.
func (s *Speaker) advertise(ctx context.Context) {
	last := ""
	for again := true; again; again = task.Sleep(ctx, advertiseEvery) {
		words := ""
		if err := advertiseOn(s.peer.Interface); err != nil {
			words = err.Error()
		}
		if words != "" && words != last {
			s.log.Warn("router advertisements not sent: an unnumbered peer may not find this box", "peer", s.peer.String(), "error", words)
		}
		last = words
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
		if err == unix.EPERM {
			return errors.New("router advertisements need CAP_NET_RAW")
		}
		return os.NewSyscallError("socket", err)
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
