package relay

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A relay makes connections of its own, so nothing that the kernel forwards ends a loop of relays that point to each
// other. Therefore it counts as a router: what it sends to an endpoint has one hop less than what came from the client (RFC 791, TTL;
// RFC 8200, hop limit).

// maxHops bounds the relays that a connection or datagram passes in a row, whatever the client's system begins with.
const maxHops = 64

// hopsLeft returns how many hops the next relay or endpoint may see; 0: none is left. known is false when it is not known
// with how many the client's packet came.
func hopsLeft(came int) (left int, known bool) { return min(came, maxHops+1) - 1, came > 0 }

// countHops has the kernel keep with how many hops packets come to a socket, and connections that it accepts (ip(7), IP_RECVTTL;
// ipv6(7), IPV6_RECVHOPLIMIT).
func countHops(network string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_RECVTTL
	if isIPv6(network) {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	return setInt(c, level, option, 1)
}

// sendHops sets with how many hops a socket sends.
func sendHops(network string, c syscall.RawConn, hops int) error {
	level, option := unix.SOL_IP, unix.IP_TTL
	if isIPv6(network) {
		level, option = unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS
	}
	return setInt(c, level, option, hops)
}

// isIPv6 reports whether a network of package net, as "tcp6", is one of IPv6.
func isIPv6(network string) bool { return network[len(network)-1] == '6' }

func setInt(c syscall.RawConn, level, option, value int) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
}

// hopsOf returns with how many hops the handshake of a client came, or over IPv6 its newest packet; 0: it is not known. The kernel
// keeps the number with the connection (tcp_v4_syn_recv_sock, tcp_v6_do_rcv) and returns it as a control message, struct cmsghdr and an int.
func hopsOf(client *net.TCPConn) (hops int) {
	at, is := client.LocalAddr().(*net.TCPAddr)
	raw, err := client.SyscallConn()
	if !is || err != nil {
		return 0
	}
	level, option, kind := unix.SOL_IP, unix.IP_PKTOPTIONS, unix.IP_TTL
	if at.IP.To4() == nil {
		level, option, kind = unix.SOL_IPV6, unix.IPV6_2292PKTOPTIONS, unix.IPV6_HOPLIMIT
	}
	_ = raw.Control(func(fd uintptr) { // of a closed connection nothing is known
		// The struct has room for one message: its Addr begins with level and type, before the value.
		info, err := unix.GetsockoptIPv6MTUInfo(int(fd), level, option)
		if err != nil {
			return
		}
		b := binary.NativeEndian.AppendUint16(nil, info.Addr.Family)
		b = binary.BigEndian.AppendUint16(b, info.Addr.Port)
		b = binary.NativeEndian.AppendUint32(b, info.Addr.Flowinfo)
		hops = hopsIn(append(b, info.Addr.Addr[:]...), level, kind)
	})
	return hops
}

// hopsIn reads the control message with the hops; 0: there is none.
func hopsIn(control []byte, level, kind int) int {
	value := unix.CmsgLen(0)
	if len(control) < value+4 {
		return 0
	}
	if header := control[value-8 : value]; int(binary.NativeEndian.Uint32(header)) != level || int(binary.NativeEndian.Uint32(header[4:])) != kind {
		return 0
	}
	return int(binary.NativeEndian.Uint32(control[value:]))
}

// hopsOfDatagram reads the control message of a received datagram; 0: there is none.
func hopsOfDatagram(control []byte) int {
	return max(hopsIn(control, unix.SOL_IP, unix.IP_TTL), hopsIn(control, unix.SOL_IPV6, unix.IPV6_HOPLIMIT))
}
