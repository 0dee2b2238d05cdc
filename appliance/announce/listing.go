package announce

import (
	"encoding/binary"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
)

// listing summarizes a set of addresses for adverts of the election: the lowest ones of each family, and a digest of
// all, so that boxes notice that they have others. It costs as much as the set changes, but when a listed
// address goes that was not among the last of the set.
type listing struct {
	low    [2][]netip.Addr // IPv4 and IPv6, in their order
	count  [2]int
	digest uint64
}

// mostListed bounds the addresses of a family that an advert lists.
const mostListed = 20

func (l *listing) add(addr netip.Addr) {
	f := familyOf(addr)
	l.digest ^= digestOf(addr)
	l.count[f]++
	if len(l.low[f]) < min(mostListed, l.count[f]-1) {
		return // it is not complete
	}
	i, _ := slices.BinarySearchFunc(l.low[f], addr, netip.Addr.Compare)
	l.low[f] = slices.Insert(l.low[f], i, addr)
	l.low[f] = l.low[f][:min(len(l.low[f]), mostListed)]
}

func (l *listing) remove(addr netip.Addr) {
	f := familyOf(addr)
	l.digest ^= digestOf(addr)
	l.count[f]--
	if i, listed := slices.BinarySearchFunc(l.low[f], addr, netip.Addr.Compare); listed {
		l.low[f] = slices.Delete(l.low[f], i, i+1)
	}
}

// complete lists again what is missing since listed addresses went.
func (l *listing) complete(all iter.Seq[netip.Addr]) {
	for f := range l.low {
		if len(l.low[f]) == min(mostListed, l.count[f]) {
			continue
		}
		var family []netip.Addr
		for addr := range all {
			if familyOf(addr) == f {
				family = append(family, addr)
			}
		}
		slices.SortFunc(family, netip.Addr.Compare)
		l.low[f] = slices.Clone(family[:min(len(family), mostListed)])
	}
}

// listed are the addresses of adverts by family, each list ended by the digest: an address that no host can have,
// of 240.0.0.0/4 (RFC 1112) or 100::/64 (RFC 6666).
func (l *listing) listed() (by [2][]netip.Addr) {
	digest4 := [4]byte{}
	binary.BigEndian.PutUint32(digest4[:], 0xf0000000|uint32(l.digest^l.digest>>28)&0x0fffffff)
	digest6 := [16]byte{0: 1}
	binary.BigEndian.PutUint64(digest6[8:], l.digest)
	by[0] = append(slices.Clone(l.low[0]), netip.AddrFrom4(digest4))
	by[1] = append(slices.Clone(l.low[1]), netip.AddrFrom16(digest6))
	return by
}

// isDigest reports whether an address stands for the digest.
func isDigest(addr netip.Addr) bool {
	b := addr.As16()
	return addr.Is4() && addr.As4()[0]&0xf0 == 0xf0 || addr.Is6() && binary.BigEndian.Uint64(b[:8]) == 1<<56
}

// familyOf is 0 of IPv4 and 1 of IPv6.
func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

func digestOf(addr netip.Addr) uint64 {
	h := fnv.New64a()
	b := addr.As16()
	_, _ = h.Write(b[:])
	n := h.Sum64()
	n ^= n >> 33 // neighboring addresses differ in a few bits: spread them (MurmurHash3's finalizer)
	n *= 0xff51afd7ed558ccd
	n ^= n >> 33
	return n
}
