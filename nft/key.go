package nft

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Key builds the bytes of a concatenation, field by field. Each field is padded with zeros to a multiple of 4 bytes, the size of a register of
// nf_tables (NFT_REG32_SIZE). A key or data of a single field is not padded: see AddrKey and JoinKey.
//
//	Key(nil).Addr(vip).Proto(TCP).Port(80).Slot(0)
//
// Like append, a method may write into the spare capacity of the Key it extends.
type Key []byte

// Addr adds an address. It must be of the set's family, so not an IPv4-mapped IPv6 address.
func (k Key) Addr(a netip.Addr) Key {
	if a.Is4() {
		b := a.As4()
		return append(k, b[:]...)
	}
	b := a.As16()
	return append(k, b[:]...)
}

// Proto adds an IP protocol.
func (k Key) Proto(p Protocol) Key { return append(k, byte(p), 0, 0, 0) }

// Port adds a transport port.
func (k Key) Port(p uint16) Key { return append(k, byte(p>>8), byte(p), 0, 0) }

// Slot adds the number of a slot, counted from 0.
func (k Key) Slot(n uint32) Key { return binary.NativeEndian.AppendUint32(k, n) }

// Iface adds the index of a network interface.
func (k Key) Iface(index uint32) Key { return binary.NativeEndian.AppendUint32(k, index) }

// keeper copies keys and data into strings that share large allocations, for elements that stay in memory.
type keeper struct{ room strings.Builder }

func (p *keeper) keep(k Key) string {
	const piece = 512
	if p.room.Cap()-p.room.Len() < len(k) {
		p.room = strings.Builder{}
		p.room.Grow(piece)
	}
	start := p.room.Len()
	p.room.Write(k)
	return p.room.String()[start:]
}

// AddrKey returns the key of an address in a set of addresses.
func AddrKey(a netip.Addr) string {
	var room [16]byte
	return string(Key(room[:0]).Addr(a))
}

// pairKey returns the key that pairs an address with itself, for hairpin connections.
func (p *keeper) pairKey(a netip.Addr) string {
	var room [32]byte
	return p.keep(Key(room[:0]).Addr(a).Addr(a))
}

// AddrPortData returns the data for an endpoint in a map to address and port.
func AddrPortData(ap netip.AddrPort) string {
	var room [20]byte
	return string(Key(room[:0]).Addr(ap.Addr()).Port(ap.Port()))
}

// Value is one field of a key or of data.
type Value struct {
	Type Type
	Addr netip.Addr // for TypeAddr
	Num  uint32     // for every other type: the number in host byte order
}

// JoinKey returns the bytes of a key or data with these values, as the kernel holds them. A single value is not padded.
func JoinKey(values ...Value) string {
	var room [64]byte
	k := Key(room[:0])
	for _, v := range values {
		switch v.Type {
		case TypeAddr:
			k = k.Addr(v.Addr)
		case TypeProto:
			k = k.Proto(Protocol(v.Num))
		case TypeService:
			k = k.Port(uint16(v.Num))
		case TypeSlot:
			k = k.Slot(v.Num)
		case TypeIface:
			k = k.Iface(v.Num)
		default:
			panic("nft: value of no type")
		}
	}
	if len(values) == 1 && values[0].Type != TypeAddr {
		k = k[:values[0].Type.Len(IPv4)] // the same length in both families
	}
	return string(k)
}

// SplitKey splits a key, or data, into values of the given types. For the key of an interval set it returns the values of the first key, then those
// of the last. It returns nil if the length of key does not match the types.
func SplitKey(types []Type, f Family, key string) []Value {
	n := KeyLen(types, f)
	if n == 0 || len(key) != n && len(key) != 2*n {
		return nil
	}
	values := make([]Value, 0, len(types)*(len(key)/n))
	for len(key) > 0 {
		for _, t := range types {
			size := t.Len(f)
			values = append(values, t.value(key[:size]))
			if len(types) > 1 {
				size = padded(size)
			}
			key = key[size:]
		}
	}
	return values
}

// KeyLen returns the length in bytes of a key, or of a map's data, of these types; see Elements.
func KeyLen(types []Type, f Family) int {
	if len(types) == 1 {
		return types[0].Len(f)
	}
	n := 0
	for _, t := range types {
		n += padded(t.Len(f))
	}
	return n
}

func padded(n int) int {
	const register = 4
	return (n + register - 1) / register * register
}

func (t Type) value(bytes string) Value {
	v := Value{Type: t}
	switch t {
	case TypeAddr:
		v.Addr, _ = netip.AddrFromSlice([]byte(bytes)) // 4 or 16 of them
	case TypeProto:
		v.Num = uint32(bytes[0])
	case TypeService:
		v.Num = uint32(bytes[0])<<8 | uint32(bytes[1])
	default:
		v.Num = binary.NativeEndian.Uint32([]byte(bytes))
	}
	return v
}

// protoName returns the lowercase name of TCP, UDP or SCTP, and the number of any other protocol.
func protoName(n uint32) string {
	switch p := Protocol(n); p {
	case TCP, UDP, SCTP:
		return p.String()
	}
	return strconv.FormatUint(uint64(n), 10)
}

// mergePrefixes is like mergeRanges, for prefixes.
func mergePrefixes(prefixes []netip.Prefix, f Family) []Range {
	ranges := make([]Range, 0, len(prefixes))
	for _, p := range prefixes {
		ranges = append(ranges, PrefixRange(p))
	}
	return mergeRanges(ranges, f)
}

// mergeRanges returns the ranges of a family in order, with overlapping and adjacent ranges merged, because the kernel refuses overlapping ranges.
func mergeRanges(all []Range, f Family) []Range {
	ranges := slices.DeleteFunc(slices.Clone(all), func(r Range) bool { return FamilyOf(r.First) != f })
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	merged := ranges[:0]
	for _, r := range ranges {
		if n := len(merged); n > 0 {
			prev := &merged[n-1]
			if next := prev.Last.Next(); !next.IsValid() || r.First.Compare(next) <= 0 {
				if r.Last.Compare(prev.Last) > 0 {
					prev.Last = r.Last
				}
				continue
			}
		}
		merged = append(merged, r)
	}
	return merged
}

// MergedPrefixes returns the prefixes of a family in order, without prefixes that are contained in another one.
func MergedPrefixes(prefixes []netip.Prefix, f Family) []netip.Prefix {
	var merged []netip.Prefix
	for _, p := range prefixes {
		if FamilyOf(p.Addr()) == f {
			merged = append(merged, p.Masked())
		}
	}
	// One that holds others comes before them.
	slices.SortFunc(merged, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	kept := merged[:0]
	for _, p := range merged {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// PrefixRange returns the addresses of a prefix, the ends of which are those of its
// element in an interval set.
func PrefixRange(p netip.Prefix) Range {
	first := p.Masked().Addr()
	end := first.AsSlice()
	for i := p.Bits(); i < len(end)*8; i++ {
		end[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(end)
	return Range{first, last}
}

// Range is an inclusive range of addresses of one family.
type Range struct{ First, Last netip.Addr }

// Contains reports whether an address lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether the ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return r.Contains(o.First) || o.Contains(r.First) }

// prefix returns the prefix with exactly the addresses of the range; false if there is none.
func (r Range) prefix() (p netip.Prefix, is bool) {
	p = netip.PrefixFrom(r.First, r.First.BitLen())
	for p.IsValid() && !p.Contains(r.Last) {
		p = netip.PrefixFrom(r.First, p.Bits()-1)
	}
	return p, p.IsValid() && PrefixRange(p) == r
}

// String returns the range as in "192.0.2.16-192.0.2.31".
func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// Family is an IP version. Each family has a separate table.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families, in the order in which everything is printed and committed.
var Families = [...]Family{IPv4, IPv6}

// String returns the family of the table in nft syntax: "ip" or "ip6".
func (f Family) String() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

// Name returns the name of the family in Kubernetes (core/v1 IPFamily): "IPv4" or "IPv6".
func (f Family) Name() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// AddrLen returns the length of an address in bytes.
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

// Len returns the length of a value in bytes, without the padding of a concatenation.
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
