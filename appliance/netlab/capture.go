package netlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Packet is a captured packet. Ports of an ICMP packet are its identifier and 0.
type Packet struct {
	Outgoing bool // sent by the Host
	Protocol uint8
	From, To netip.AddrPort
	// Fragment reports whether it is a part of an IPv4 packet; From and To have ports
	// when it is the first one.
	Fragment bool
	// ICMPType is the type of an ICMP or ICMPv6 packet (RFC 792, RFC 4443).
	ICMPType uint8
	// TCPFlags has the flags of a TCP segment: TCPSyn and others.
	TCPFlags uint8
}

func (p Packet) String() string {
	direction := "in"
	if p.Outgoing {
		direction = "out"
	}
	return fmt.Sprintf("%s protocol %d %s > %s", direction, p.Protocol, p.From, p.To)
}

// Capture sees the IP packets of one interface.
type Capture struct {
	mu   sync.Mutex
	fd   int
	buf  []byte
	seen []Packet
}

// Capture starts to see the IP packets that come in and go out at an interface.
func (h *Host) Capture(ifname string) *Capture {
	h.t.Helper()
	c := &Capture{buf: make([]byte, 256)}
	index := h.link(ifname).Attrs().Index
	err := h.Do(func() error {
		// Protocol 0 until bound: no packet of another interface gets in.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian16(unix.ETH_P_ALL), Ifindex: index})
		}
		if err != nil {
			_ = unix.Close(fd)
			return err
		}
		c.fd = fd
		return nil
	})
	if err != nil {
		h.t.Fatalf("host %s: capture on %s: %v", h.Name, ifname, err)
	}
	h.onClose(func() { _ = unix.Close(c.fd) })
	return c
}

func bigEndian16(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// Packets returns all packets seen so far that match.
func (c *Capture) Packets(match func(Packet) bool) []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			break // EAGAIN: all were read
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			continue
		}
		source, f, ok := parsePacket(c.buf[:n])
		if !ok {
			continue
		}
		c.seen = append(c.seen, Packet{
			Outgoing: link.Pkttype == unix.PACKET_OUTGOING,
			Protocol: f.protocol,
			From:     netip.AddrPortFrom(source, f.sourcePort),
			To:       f.to,
			Fragment: isFragment(c.buf[:n]),
			ICMPType: icmpType(c.buf[:n], f.protocol),
			TCPFlags: tcpFlags(c.buf[:n], f.protocol),
		})
	}
	var matching []Packet
	for _, p := range c.seen {
		if match(p) {
			matching = append(matching, p)
		}
	}
	return matching
}

// isFragment reports whether an IPv4 packet has more fragments or an offset (RFC 791).
func isFragment(packet []byte) bool {
	const moreFragments, offset = 0x2000, 0x1fff
	return packet[0]>>4 == 4 && binary.BigEndian.Uint16(packet[6:])&(moreFragments|offset) != 0
}

func icmpType(packet []byte, protocol uint8) uint8 {
	switch protocol {
	case unix.IPPROTO_ICMP:
		return afterIPv4Header(packet)[0]
	case unix.IPPROTO_ICMPV6:
		return packet[40]
	}
	return 0
}

func tcpFlags(packet []byte, protocol uint8) uint8 {
	const offset = 13
	segment := packet[min(len(packet), 40):]
	if packet[0]>>4 == 4 {
		segment = afterIPv4Header(packet)
	}
	if protocol != unix.IPPROTO_TCP || len(segment) <= offset {
		return 0
	}
	return segment[offset]
}
