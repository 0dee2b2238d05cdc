package relay

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Origin finds what a UDP client sent to before the kernel redirected it to one of the listeners.
type Origin func(listener, client netip.AddrPort) (netip.AddrPort, error)

// originalDestination returns the address that a client connected to before the kernel redirected it
// (SO_ORIGINAL_DST of linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h).
func originalDestination(client *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := client.SyscallConn()
	if err != nil {
		return to, err
	}
	v6 := client.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is6()
	var failed error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			// The struct begins with a sockaddr_in6, and is no smaller.
			info, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
			if failed = err; err == nil {
				to = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port)))
			}
			return
		}
		// A struct of 20 bytes, which a sockaddr_in of 16 fits into: family, port, address.
		raw, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if failed = err; err == nil {
			b := raw.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	if failed != nil {
		err = os.NewSyscallError("getsockopt", failed)
	}
	return to, err
}
