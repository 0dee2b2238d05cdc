package nft

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
)

// Key builds the bytes of a concatenation, a field at a time: each is padded with
// zeros to a multiple of 4 bytes, the size of a register of nf_tables
// (NFT_REG32_SIZE). A key or data of a single field is not padded: see AddrKey and
// JoinKey.
//
//	Key(nil).Addr(vip).Proto(TCP).Port(80).Slot(0)
//
// Like append, a method may write into the spare room of the Key it extends.
type Key []byte

// Addr adds an address. It must be of the set's family, so not a mapped one.
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

// keeper makes strings of keys and data that are to stay, many in one piece of memory.
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

// AddrKey is the key of a set of addresses.
func AddrKey(a netip.Addr) string {
	var room [16]byte
	return string(Key(room[:0]).Addr(a))
}

// pairKey is the key of a set of pairs of addresses, for an address with itself.
func (p *keeper) pairKey(a netip.Addr) string {
	var room [32]byte
	return p.keep(Key(room[:0]).Addr(a).Addr(a))
}

// AddrPortData is the data of a map to endpoints.
func AddrPortData(ap netip.AddrPort) string {
	var room [20]byte
	return string(Key(room[:0]).Addr(ap.Addr()).Port(ap.Port()))
}

// Value is one field of a key or of data.
type Value struct {
	Type Type
	Addr netip.Addr // TypeAddr
	Num  uint32     // every other type: the number in host byte order
}

// JoinKey is the bytes the kernel holds for a key or data of these values, of which
// a single one is not padded.
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

// SplitKey takes a key (or data) of the given types apart; of an interval set's key
// it gives the first values, then the last ones. It is nil when the length of the key
// is not that of the types.
func SplitKey(types []Type, f Family, key string) []Value {
	n := keyLen(types, f)
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

// keyLen is the length of a key, or of a map's data, of these types.
func keyLen(types []Type, f Family) int {
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

// protoName is the name of a protocol that has services, else its number.
func protoName(n uint32) string {
	switch p := Protocol(n); p {
	case TCP, UDP, SCTP:
		return p.String()
	}
	return strconv.FormatUint(uint64(n), 10)
}
