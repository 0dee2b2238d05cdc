package netlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// flow has the fields of a packet that an ICMP error quotes. port of an ICMP echo is its
// identifier.
type flow struct {
	protocol   uint8
	sourcePort uint16
	to         netip.AddrPort
}

type icmpError struct {
	typ, code uint8
	from      netip.Addr
}

// icmpLog keeps the ICMP errors that came to a Host, by the flow they are about.
// They are read when asked for: the kernel puts an error in the socket here before
// it tells the socket the error is about.
type icmpLog struct {
	mu   sync.Mutex
	fd   int
	open bool
	seen map[flow]icmpError
}

// ICMP errors, by type. The filters of raw sockets block what has its bit set.
const (
	icmp4Errors = 1<<3 | 1<<11 | 1<<12 // unreachable, time exceeded, parameter problem
	icmp6Errors = 1<<1 | 1<<2 | 1<<3 | 1<<4
)

// watchICMP starts to keep ICMP errors of the flow's family and forgets what is
// known about the flow.
func (h *Host) watchICMP(about flow) error {
	log := &h.icmp[familyIndex(about.to.Addr())]
	log.mu.Lock()
	defer log.mu.Unlock()
	if !log.open {
		if err := h.Do(func() error { return log.listen(about.to.Addr().Is6()) }); err != nil {
			return fmt.Errorf("host %s: listen for ICMP errors: %w", h.Name, err)
		}
		h.onClose(func() { _ = unix.Close(log.fd) })
	}
	delete(log.seen, about)
	return nil
}

func (l *icmpLog) listen(v6 bool) error {
	domain, protocol, level, option := unix.AF_INET, unix.IPPROTO_ICMP, unix.SOL_RAW, unix.ICMP_FILTER
	if v6 {
		domain, protocol, level, option = unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.SOL_ICMPV6, unix.ICMPV6_FILTER
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	if v6 {
		filter := unix.ICMPv6Filter{Data: [8]uint32{^uint32(icmp6Errors), ^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0)}}
		err = unix.SetsockoptICMPv6Filter(fd, level, option, &filter)
	} else {
		allowed := uint32(icmp4Errors)
		err = unix.SetsockoptInt(fd, level, option, int(^allowed))
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	l.fd, l.open, l.seen = fd, true, map[flow]icmpError{}
	return nil
}

// icmpErrorAbout is the last ICMP error about a flow. It is given once.
func (h *Host) icmpErrorAbout(about flow) (icmpError, bool) {
	log := &h.icmp[familyIndex(about.to.Addr())]
	log.mu.Lock()
	defer log.mu.Unlock()
	if !log.open {
		return icmpError{}, false
	}
	buf := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(log.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			break // EAGAIN: all were read
		}
		packet := buf[:n]
		if about.to.Addr().Is4() {
			packet = afterIPv4Header(packet)
		}
		if len(packet) < 8 {
			continue
		}
		if quoted, ok := parseFlow(packet[8:]); ok {
			log.seen[quoted] = icmpError{packet[0], packet[1], sockaddrIP(from)}
		}
	}
	e, ok := log.seen[about]
	delete(log.seen, about)
	return e, ok
}

func afterIPv4Header(packet []byte) []byte {
	if len(packet) < 20 || len(packet) < int(packet[0]&0xf)*4 {
		return nil
	}
	return packet[int(packet[0]&0xf)*4:]
}

// parseFlow reads the beginning of a packet, from the IP header on.
func parseFlow(packet []byte) (flow, bool) {
	_, f, ok := parsePacket(packet)
	return f, ok
}

// parsePacket reads addresses and ports of an IP packet without extension headers.
func parsePacket(packet []byte) (source netip.Addr, f flow, ok bool) {
	var payload []byte
	var to netip.Addr
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		f.protocol, payload = packet[9], afterIPv4Header(packet)
		source, to = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
	case len(packet) >= 40 && packet[0]>>4 == 6:
		f.protocol, payload = packet[6], packet[40:]
		source, to = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
	default:
		return source, f, false
	}
	if len(payload) < 8 {
		return source, f, false
	}
	switch f.protocol {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		f.sourcePort = binary.BigEndian.Uint16(payload[4:])
		f.to = netip.AddrPortFrom(to, 0)
	default:
		f.sourcePort = binary.BigEndian.Uint16(payload)
		f.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(payload[2:]))
	}
	return source, f, true
}

func familyIndex(addr netip.Addr) int {
	if addr.Is6() {
		return 1
	}
	return 0
}
