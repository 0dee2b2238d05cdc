package bgp

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialTimeout covers three transmissions of a SYN.
	dialTimeout = 5 * time.Second
	// networkControl is the class that routing protocols are sent with (CS6, RFC 4594).
	networkControl = 0xc0
	maxTTL         = 255
)

// dial connects to the peer.
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
		var err error
		if e := c.Control(func(fd uintptr) { err = prepare(int(fd), p, to.Addr()) }); e != nil {
			return e
		}
		return err
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

// prepare sets the options of a socket before it connects.
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

// addressesBeside are addresses of the interface that has the local address, or of any if none
// has it any more: a global one of each family, the local address itself first.
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
	for _, a := range addrs {
		if prefixOf(a).Addr().Unmap() == local {
			return true
		}
	}
	return false
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
