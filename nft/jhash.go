package nft

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// HashSeed is the seed of every jhash in the ruleset. Boxes with the same seed send a
// client the same way, so it never changes within a TableVersion.
const HashSeed = 0x73766363 // "svcc"

// jhash is jhash of the kernel (include/linux/jhash.h, Bob Jenkins' lookup3): more than
// the last 12 bytes are read as numbers of this machine's byte order, the rest byte by
// byte.
func jhash(key []byte, seed uint32) uint32 {
	const golden = 0xdeadbeef // JHASH_INITVAL
	a := golden + uint32(len(key)) + seed
	b, c := a, a
	for len(key) > 12 {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		a, b, c = jhashMix(a, b, c)
		key = key[12:]
	}
	if len(key) == 0 {
		return c
	}
	var tail [12]byte
	copy(tail[:], key)
	a += binary.LittleEndian.Uint32(tail[0:])
	b += binary.LittleEndian.Uint32(tail[4:])
	c += binary.LittleEndian.Uint32(tail[8:])
	return jhashFinal(a, b, c)
}

// jhashMix is __jhash_mix.
func jhashMix(a, b, c uint32) (uint32, uint32, uint32) {
	a -= c
	a ^= bits.RotateLeft32(c, 4)
	c += b
	b -= a
	b ^= bits.RotateLeft32(a, 6)
	a += c
	c -= b
	c ^= bits.RotateLeft32(b, 8)
	b += a
	a -= c
	a ^= bits.RotateLeft32(c, 16)
	c += b
	b -= a
	b ^= bits.RotateLeft32(a, 19)
	a += c
	c -= b
	c ^= bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

// jhashFinal is __jhash_final.
func jhashFinal(a, b, c uint32) uint32 {
	c ^= b
	c -= bits.RotateLeft32(b, 14)
	a ^= c
	a -= bits.RotateLeft32(c, 11)
	b ^= a
	b -= bits.RotateLeft32(a, 25)
	c ^= b
	c -= bits.RotateLeft32(b, 16)
	a ^= c
	a -= bits.RotateLeft32(c, 4)
	b ^= a
	b -= bits.RotateLeft32(a, 14)
	c ^= b
	c -= bits.RotateLeft32(b, 24)
	return c
}

// HashSlot is the slot in [0, mod) that a field of a hash reads for a client: `jhash ip
// saddr mod M`, or `jhash ip saddr . th sport mod M`. The kernel scales the hash
// (reciprocal_scale in net/netfilter/nft_hash.c), so the slots of a table of four times
// the size lie where those of the smaller one do.
func HashSlot(kind FieldKind, client netip.AddrPort, mod uint32) uint32 {
	var room [20]byte
	key := Key(room[:0]).Addr(client.Addr())
	if kind == FieldHashFlow {
		key = key.Port(client.Port())
	}
	return uint32(uint64(jhash(key, HashSeed)) * uint64(mod) >> 32)
}
