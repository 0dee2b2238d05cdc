package neighbor

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address in the form "02:00:5e:10:00:00".
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// allNodes is ff02::1, all nodes of the segment.
var allNodes = netip.MustParseAddr("ff02::1")

const (
	etherARP  = 0x0806
	etherIPv6 = 0x86dd

	etherLen = 14
	arpLen   = 28
	ipv6Len  = 40
	ndpLen   = 24 // length of a solicitation or an advertisement without options

	arpRequest = 1
	arpReply   = 2

	protoICMPv6   = 58
	hopLimit      = 255 // proves that no router forwarded it (RFC 4861, sections 7.1.1 and 7.1.2)
	solicitation  = 135
	advertisement = 136

	optSource = 1 // source link-layer address
	optTarget = 2 // target link-layer address

	flagSolicited = 0x40
	flagOverride  = 0x20
)

// message is the decoded content of an ARP or NDP frame.
type message struct {
	claims netip.Addr // address claimed by the sender; invalid if none
	by     MAC        // MAC address of the sender
	asks   netip.Addr // address asked for; invalid if none
	from   netip.Addr // address of the asking host; invalid in a probe, before the host uses the address it asks for
	reply  MAC        // destination of the reply
}

// parse decodes an Ethernet frame. It returns false for one that is neither a valid ARP packet (RFC 826) nor a valid message of neighbor
// discovery (RFC 4861).
func parse(frame []byte) (message, bool) {
	if len(frame) < etherLen {
		return message{}, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		return parseARP(frame[etherLen:])
	case etherIPv6:
		return parseNDP(MAC(frame[6:12]), frame[etherLen:])
	}
	return message{}, false
}

// parseARP decodes an ARP packet for IPv4 over Ethernet (RFC 826).
func parseARP(p []byte) (m message, ok bool) {
	if len(p) < arpLen || binary.BigEndian.Uint16(p) != 1 || binary.BigEndian.Uint16(p[2:]) != 0x0800 || p[4] != 6 || p[5] != 4 {
		return m, false
	}
	op := binary.BigEndian.Uint16(p[6:])
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	m.by = MAC(p[8:14])
	if !sender.IsUnspecified() {
		m.claims, m.from = sender, sender
	}
	switch {
	case op == arpReply:
		return m, m.claims.IsValid()
	case op != arpRequest:
		return m, false
	case sender != target: // else it is an announcement
		m.asks, m.reply = target, m.by
	}
	return m, true
}

// parseNDP decodes an IPv6 packet with a neighbor solicitation or advertisement (RFC 4861, sections 4.3, 4.4, 7.1).
func parseNDP(etherSource MAC, p []byte) (m message, ok bool) {
	if len(p) < ipv6Len+ndpLen || p[0]>>4 != 6 || p[6] != protoICMPv6 || p[7] != hopLimit {
		return m, false
	}
	size := int(binary.BigEndian.Uint16(p[4:]))
	if size < ndpLen || len(p) < ipv6Len+size {
		return m, false
	}
	source, destination := netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	icmp := p[ipv6Len : ipv6Len+size]
	target := netip.AddrFrom16([16]byte(icmp[8:24]))
	if icmp[1] != 0 || target.IsMulticast() || checksum(source, destination, icmp) != 0 {
		return m, false
	}
	link, ok := linkOption(icmp)
	if !ok {
		return m, false
	}
	m.by = etherSource
	switch icmp[0] {
	case solicitation:
		if at, given := link[optSource]; given {
			m.by = at
		}
		m.asks, m.reply = target, m.by
		if !source.IsUnspecified() {
			m.from, m.claims = source, source
		} else if !destination.IsMulticast() {
			return m, false
		}
	case advertisement:
		if at, given := link[optTarget]; given {
			m.by = at
		}
		m.claims = target
	default:
		return m, false
	}
	return m, true
}

// linkOption returns the link-layer addresses in the options of an NDP message, by option type; false when an option has no length or is
// cut off.
func linkOption(icmp []byte) (map[byte]MAC, bool) {
	var found map[byte]MAC
	for rest := icmp[ndpLen:]; len(rest) > 0; {
		if len(rest) < 8 || rest[1] == 0 || len(rest) < int(rest[1])*8 {
			return nil, false
		}
		if kind := rest[0]; kind == optSource || kind == optTarget {
			if found == nil {
				found = map[byte]MAC{}
			}
			found[kind] = MAC(rest[2:8])
		}
		rest = rest[int(rest[1])*8:]
	}
	return found, true
}

// arp returns an ARP frame with sender as its Ethernet source.
func arp(op uint16, to, sender MAC, senderIP netip.Addr, target MAC, targetIP netip.Addr) []byte {
	f := make([]byte, 0, etherLen+arpLen)
	f = append(f, to[:]...)
	f = append(f, sender[:]...)
	f = append(f, etherARP>>8, etherARP&0xff, 0, 1, 0x08, 0x00, 6, 4, byte(op>>8), byte(op))
	f = append(f, sender[:]...)
	f = append(f, senderIP.AsSlice()...)
	f = append(f, target[:]...)
	return append(f, targetIP.AsSlice()...)
}

// ndp returns a frame with a neighbor solicitation or advertisement (kind). option is the type of the option that holds sender's link-layer
// address; 0: none.
func ndp(kind, flags, option byte, to, sender MAC, source, destination, target netip.Addr) []byte {
	size := ndpLen
	if option != 0 {
		size += 8
	}
	f := make([]byte, 0, etherLen+ipv6Len+size)
	f = append(f, to[:]...)
	f = append(f, sender[:]...)
	f = append(f, etherIPv6>>8, etherIPv6&0xff, 0x60, 0, 0, 0, 0, byte(size), protoICMPv6, hopLimit)
	f = append(f, source.AsSlice()...)
	f = append(f, destination.AsSlice()...)
	f = append(f, kind, 0, 0, 0, flags, 0, 0, 0)
	f = append(f, target.AsSlice()...)
	if option != 0 {
		f = append(f, option, 1)
		f = append(f, sender[:]...)
	}
	icmp := f[etherLen+ipv6Len:]
	binary.BigEndian.PutUint16(icmp[2:], checksum(source, destination, icmp))
	return f
}

// checksum returns the checksum of an ICMPv6 message (RFC 4443, section 2.3). For a message that includes a correct checksum it is 0.
func checksum(source, destination netip.Addr, icmp []byte) uint16 {
	sum := uint32(len(icmp)) + protoICMPv6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	s, d := source.As16(), destination.As16()
	add(s[:])
	add(d[:])
	add(icmp)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// groupOf returns the solicited-node multicast group of an IPv6 address (RFC 4291, section 2.7.1).
func groupOf(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// GroupMAC returns the Ethernet address of a multicast group (RFC 1112, section 6.4; RFC 2464, section 7).
func GroupMAC(group netip.Addr) net.HardwareAddr {
	b := group.As16()
	if group.Is4() {
		return net.HardwareAddr{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// probe returns the frame that asks whether another host has address a, which this box (MAC address own) does not use yet (RFC 5227,
// section 2.1.1; RFC 4862, section 5.4.2).
func probe(own MAC, a netip.Addr) []byte {
	if a.Is4() {
		return arp(arpRequest, broadcast, own, netip.IPv4Unspecified(), MAC{}, a)
	}
	return ndp(solicitation, 0, 0, MAC(GroupMAC(groupOf(a))), own, netip.IPv6Unspecified(), groupOf(a), a)
}

// announcements returns the frames that announce an address. For IPv4 they are an ARP request and a reply, because some hosts learn from
// only one of them; for IPv6 an unsolicited neighbor advertisement (RFC 4861, section 7.2.6).
func announcements(own MAC, a netip.Addr) [][]byte {
	if a.Is4() {
		return [][]byte{
			arp(arpRequest, broadcast, own, a, MAC{}, a),
			arp(arpReply, broadcast, own, a, broadcast, a),
		}
	}
	return [][]byte{ndp(advertisement, flagOverride, optTarget, MAC(GroupMAC(allNodes)), own, a, allNodes, a)}
}

// answer returns the reply to a query for an address of this box. The reply to a probe goes to all nodes, as its sender has no address (RFC
// 4861, section 7.2.4).
func answer(own MAC, m message) []byte {
	switch {
	case m.asks.Is4():
		to := m.from
		if !to.IsValid() { // a probe
			to = netip.IPv4Unspecified()
		}
		return arp(arpReply, m.reply, own, m.asks, m.reply, to)
	case m.from.IsValid():
		return ndp(advertisement, flagSolicited|flagOverride, optTarget, m.reply, own, m.asks, m.from, m.asks)
	}
	return ndp(advertisement, flagOverride, optTarget, MAC(GroupMAC(allNodes)), own, m.asks, allNodes, m.asks)
}
