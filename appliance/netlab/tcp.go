package netlab

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Flags of a TCP header (RFC 9293, section 3.1).
const (
	TCPSyn = 0x02
	TCPRst = 0x04
	TCPAck = 0x10
)

// TCPHeader is a TCP header without options, for packets that no connection sends.
type TCPHeader struct {
	From, To netip.AddrPort
	Seq, Ack uint32
	Flags    uint8
}

// SendTCP sends TCP segments that belong to no socket, all from one address and to one.
func (h *Host) SendTCP(segments ...TCPHeader) {
	h.t.Helper()
	p := segments[0]
	err := h.Do(func() error {
		fd, err := unix.Socket(domainOf(p.To.Addr()), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		level, freebind := unix.SOL_IP, unix.IP_FREEBIND
		if p.To.Addr().Is6() {
			level, freebind = unix.SOL_IPV6, unix.IPV6_FREEBIND
		}
		if err := unix.SetsockoptInt(fd, level, freebind, 1); err != nil {
			return os.NewSyscallError("setsockopt FREEBIND", err)
		}
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.From.Addr(), 0))); err != nil {
			return os.NewSyscallError("bind", err)
		}
		to := sockaddr(netip.AddrPortFrom(p.To.Addr(), 0))
		for _, segment := range segments {
			if err := unix.Sendto(fd, segment.bytes(), 0, to); err != nil {
				return os.NewSyscallError("sendto", err)
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatalf("host %s: send TCP segments from %s to %s: %v", h.Name, p.From, p.To, err)
	}
}

// bytes is the header with its checksum, which is over a pseudo-header too: addresses,
// length and protocol (RFC 9293, RFC 8200 section 8.1).
func (p TCPHeader) bytes() []byte {
	const size, window = 20, 65535
	b := make([]byte, size)
	binary.BigEndian.PutUint16(b[0:], p.From.Port())
	binary.BigEndian.PutUint16(b[2:], p.To.Port())
	binary.BigEndian.PutUint32(b[4:], p.Seq)
	binary.BigEndian.PutUint32(b[8:], p.Ack)
	b[12], b[13] = size/4<<4, p.Flags
	binary.BigEndian.PutUint16(b[14:], window)
	pseudo := append(p.From.Addr().AsSlice(), p.To.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, size)
	binary.BigEndian.PutUint16(b[16:], internetChecksum(append(pseudo, b...)))
	return b
}
