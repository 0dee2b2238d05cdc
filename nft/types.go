package nft

import "net/netip"

// Family is an IP version; each has a table of its own.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both, in the order everything is printed and committed.
var Families = [...]Family{IPv4, IPv6}

// String is the table family in nft syntax.
func (f Family) String() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

// Name is the family in Kubernetes (core/v1 IPFamily).
func (f Family) Name() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// AddrLen is the length of an address in bytes.
func (f Family) AddrLen() int {
	if f == IPv6 {
		return 16
	}
	return 4
}

// Type is the datatype of one field of a set's key or a map's data.
type Type uint8

const (
	TypeAddr    Type = iota + 1 // ipv4_addr or ipv6_addr, network byte order
	TypeProto                   // inet_proto, 1 byte
	TypeService                 // inet_service, 2 bytes, network byte order
	TypeSlot                    // integer, 4 bytes, host byte order (what numgen gives)
	TypeIface                   // iface_index, 4 bytes, host byte order
	TypeVerdict                 // a verdict map's data
)

// Len is the length of a value in bytes, without the padding of a concatenation.
func (t Type) Len(f Family) int {
	switch t {
	case TypeAddr:
		return f.AddrLen()
	case TypeProto:
		return 1
	case TypeService:
		return 2
	case TypeSlot, TypeIface:
		return 4
	}
	panic("nft: type without a length")
}
