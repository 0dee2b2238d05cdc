package sim_test

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	. "svcctl.io/svcctl/nft/sim"
)

// encode is an IP datagram with the first packet of a connection. id is its source
// port, or the identifier of a ping, by which all that becomes of it is known again.
func encode(p Packet, id uint16) []byte {
	be := binary.BigEndian
	ports := be.AppendUint16(be.AppendUint16(nil, id), p.Dport)
	proto := byte(p.Proto)
	var payload []byte
	switch {
	case p.ICMPEcho && p.Daddr.Is6():
		proto, payload = ProtoICMPv6, be.AppendUint16([]byte{128, 0, 0, 0}, id)
		payload = append(payload, 0, 1)
	case p.ICMPEcho:
		proto, payload = ProtoICMP, be.AppendUint16([]byte{8, 0, 0, 0}, id)
		payload = append(payload, 0, 1)
	case p.Proto == nft.TCP: // SYN (RFC 9293)
		payload = append(ports, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 0x02, 0x40, 0, 0, 0, 0, 0)
	case p.Proto == nft.UDP:
		payload = append(ports, 0, 8, 0, 0)
	case p.Proto == nft.SCTP: // INIT (RFC 9260)
		payload = append(ports, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	}
	offset := map[byte]int{ProtoICMP: 2, ProtoICMPv6: 2, byte(nft.TCP): 16, byte(nft.UDP): 6}[proto]
	switch proto {
	case byte(nft.SCTP):
		binary.LittleEndian.PutUint32(payload[8:], crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli)))
	case ProtoICMP:
		be.PutUint16(payload[offset:], checksum(payload))
	default:
		be.PutUint16(payload[offset:], checksum(pseudoHeader(proto, p.Saddr, p.Daddr, len(payload)), payload))
	}
	if p.Daddr.Is6() {
		return prependIPv6(proto, p.Saddr, p.Daddr, payload)
	}
	header := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0x40, 0, 64, proto, 0, 0}
	header = append(append(header, p.Saddr.AsSlice()...), p.Daddr.AsSlice()...)
	be.PutUint16(header[10:], checksum(header))
	return append(header, payload...)
}

func prependIPv6(proto byte, src, dst netip.Addr, payload []byte) []byte {
	header := []byte{0x60, 0, 0, 0, 0, byte(len(payload)), proto, 64}
	header = append(append(header, src.AsSlice()...), dst.AsSlice()...)
	return append(header, payload...)
}

func pseudoHeader(proto byte, src, dst netip.Addr, length int) []byte {
	return append(append(src.AsSlice(), dst.AsSlice()...), 0, proto, 0, byte(length))
}

// checksum is that of the internet (RFC 1071).
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for ; len(part) > 1; part = part[2:] {
			sum += uint32(binary.BigEndian.Uint16(part))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sighting is something that was seen of a packet: itself, where it was delivered, or
// what its sender was told.
type sighting struct {
	id    uint16
	local bool // on the box
	with  nft.RejectWith
	src   netip.Addr
	dst   netip.AddrPort // where it was delivered, or who was told
}

// decode parses a datagram. It returns false for answers of the box's own stack.
func decode(datagram []byte) (sighting, bool) {
	proto, src, dst, payload := ipHeader(datagram)
	if len(payload) < 8 {
		return sighting{}, false
	}
	sport, dport := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
	s := sighting{id: sport, src: src, dst: netip.AddrPortFrom(dst, dport)}
	switch proto {
	case byte(nft.TCP):
		const rst = 0x04
		if len(payload) < 20 {
			return sighting{}, false
		}
		if payload[13]&rst != 0 {
			return sighting{id: dport, with: nft.RejectTCPReset, dst: s.dst}, true
		}
	case byte(nft.UDP), byte(nft.SCTP):
	case ProtoICMP, ProtoICMPv6:
		return decodeICMP(proto, s, payload)
	default:
		return sighting{}, false
	}
	return s, true
}

func decodeICMP(proto byte, s sighting, payload []byte) (sighting, bool) {
	s.dst = netip.AddrPortFrom(s.dst.Addr(), 0)
	switch [3]byte{proto, payload[0], payload[1]} {
	case [3]byte{ProtoICMP, 8, 0}, [3]byte{ProtoICMPv6, 128, 0}:
		s.id = binary.BigEndian.Uint16(payload[4:])
		return s, true
	case [3]byte{ProtoICMP, 3, 3}, [3]byte{ProtoICMPv6, 1, 4}:
		s.with = nft.RejectPortUnreachable
	case [3]byte{ProtoICMP, 3, 1}, [3]byte{ProtoICMPv6, 1, 3}:
		s.with = nft.RejectHostUnreachable
	default:
		return sighting{}, false
	}
	inner, ok := decode(payload[8:]) // an error repeats what it is about
	s.id = inner.id
	return s, ok
}

func ipHeader(datagram []byte) (proto byte, src, dst netip.Addr, payload []byte) {
	switch {
	case len(datagram) > 20 && datagram[0] == 0x45:
		src, dst = netip.AddrFrom4([4]byte(datagram[12:16])), netip.AddrFrom4([4]byte(datagram[16:20]))
		return datagram[9], src, dst, datagram[20:]
	case len(datagram) > 40 && datagram[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(datagram[8:24])), netip.AddrFrom16([16]byte(datagram[24:40]))
		return datagram[6], src, dst, datagram[40:]
	}
	return unix.IPPROTO_NONE, netip.Addr{}, netip.Addr{}, nil
}
