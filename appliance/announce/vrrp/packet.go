package vrrp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"
)

// Protocol is the number of VRRP in IPv4 and IPv6 headers, HopLimit that of its packets, which no
// router forwards.
const (
	Protocol = 112
	HopLimit = 255
)

// The groups that adverts are sent to (RFC 9568, sections 5.1.1.2 and 5.1.2.2).
var (
	Group4 = netip.AddrFrom4([4]byte{224, 0, 0, 18})
	Group6 = netip.MustParseAddr("ff02::12")
)

// The limits of fields: 12 bits of centiseconds, and a count of 8 bits.
const (
	MaxInterval  = 4095 * 10 * time.Millisecond
	maxAddresses = 255
	headerLen    = 8
)

// Advert is a VRRP advertisement.
type Advert struct {
	VRID     uint8
	Priority uint8 // 0: the sender leaves
	Interval time.Duration
	// Addresses are at most 255, of the family of the packet.
	Addresses []netip.Addr
	// Source and Destination are of the IP header.
	Source, Destination netip.Addr
}

// Marshal is the payload of an IP packet.
func (a *Advert) Marshal() []byte {
	addrs := a.Addresses
	if len(addrs) > maxAddresses {
		addrs = addrs[:maxAddresses]
	}
	b := make([]byte, headerLen, headerLen+len(addrs)*16)
	b[0], b[1], b[2], b[3] = 3<<4|1, a.VRID, a.Priority, byte(len(addrs))
	binary.BigEndian.PutUint16(b[4:], uint16(a.Interval/(10*time.Millisecond)))
	for _, addr := range addrs {
		b = append(b, addr.AsSlice()...)
	}
	binary.BigEndian.PutUint16(b[6:], Checksum(a.Source, a.Destination, b))
	return b
}

// Errors of Parse.
var (
	errShort    = errors.New("it is too short")
	errVersion  = errors.New("it is no advertisement of VRRP version 3")
	errChecksum = errors.New("its checksum is wrong")
	errInterval = errors.New("its interval is 0")
)

// Parse reads the payload of an IP packet. For IPv4 the checksum may be with the pseudo-header (RFC 5798) or
// without.
func Parse(source, destination netip.Addr, b []byte) (a Advert, err error) {
	if len(b) < headerLen {
		return a, errShort
	}
	if b[0] != 3<<4|1 {
		return a, errVersion
	}
	size, count := source.BitLen()/8, int(b[3])
	if len(b) < headerLen+count*size {
		return a, errShort
	}
	b = b[:headerLen+count*size]
	if Checksum(source, destination, b) != 0 && (source.Is6() || Checksum(netip.Addr{}, netip.Addr{}, b) != 0) {
		return a, errChecksum
	}
	a = Advert{
		VRID: b[1], Priority: b[2], Interval: time.Duration(binary.BigEndian.Uint16(b[4:])&0xfff) * 10 * time.Millisecond,
		Source: source, Destination: destination,
	}
	if a.Interval == 0 {
		return a, errInterval
	}
	for rest := b[headerLen:]; len(rest) > 0; rest = rest[size:] {
		addr, _ := netip.AddrFromSlice(rest[:size])
		a.Addresses = append(a.Addresses, addr)
	}
	return a, nil
}

// Checksum computes the checksum of RFC 9568, section 5.2.8, with a pseudo-header if the addresses are valid;
// without them also the checksum of an IPv4 header (RFC 1071). b has an even length.
func Checksum(source, destination netip.Addr, b []byte) uint16 {
	var sum uint32
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
	}
	if source.IsValid() {
		add(source.AsSlice())
		add(destination.AsSlice())
		sum += uint32(len(b)) + Protocol
	}
	add(b)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
