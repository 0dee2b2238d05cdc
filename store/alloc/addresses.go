package alloc

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// Limits of the band that automatic cluster IPs leave to people: a sixteenth of the
// range, at least 16 and at most 256 addresses; none in a range of 16 or fewer
// (Kubernetes, KEP-3070).
const (
	addressBandMin  = 16
	addressBandMax  = 256
	addressBandPart = 16
)

// minIPv6Bits is the shortest IPv6 service prefix: 64 bits, as in Kubernetes 1.33.
const minIPv6Bits = 64

// Addresses allocates the cluster IPs of one family from one prefix. The network
// address and the IPv4 broadcast address are never given. The zero value is not
// usable; see NewAddresses.
type Addresses struct {
	prefix netip.Prefix
	// band and last are offsets from the network address: people's values lie in
	// [1, band), automatic ones in [band, last] first.
	band, last uint64
	used       *numberSet
	owners     map[netip.Addr]string
}

// NewAddresses is an allocator for a prefix, with nothing held. It refuses prefixes
// without a usable address and IPv6 prefixes shorter than 64 bits.
func NewAddresses(prefix netip.Prefix) (*Addresses, error) {
	if !prefix.IsValid() {
		return nil, fmt.Errorf("service range %q is not a valid prefix: write it like 10.96.0.0/16", prefix)
	}
	prefix = prefix.Masked()
	if prefix.Addr().Is6() && prefix.Bits() < minIPv6Bits {
		return nil, fmt.Errorf("service range %s is too large: an IPv6 range must have a prefix of at least %d bits", prefix, minIPv6Bits)
	}
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	highest := ^uint64(0) >> (64 - hostBits) // a shift by 64 gives 0
	last := highest
	if prefix.Addr().Is4() && last > 0 {
		last--
	}
	if last == 0 {
		return nil, fmt.Errorf("service range %s is too small: it has no address to give", prefix)
	}
	return &Addresses{
		prefix: prefix,
		band:   1 + addressBand(highest),
		last:   last,
		used:   newNumberSet(last),
		owners: map[netip.Addr]string{},
	}, nil
}

// addressBand returns the number of addresses at the low end that automatic values avoid, in a
// range with the given highest offset.
func addressBand(highest uint64) uint64 {
	switch {
	case highest < addressBandMin:
		return 0
	case highest >= addressBandMax*addressBandPart:
		return addressBandMax
	}
	return max(addressBandMin, (highest+1)/addressBandPart)
}

// Prefix is the range.
func (a *Addresses) Prefix() netip.Prefix { return a.prefix }

// Contains reports whether an address may be given.
func (a *Addresses) Contains(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) {
		return false
	}
	n := a.offset(addr)
	return n >= 1 && n <= a.last
}

// Take gives an address that was asked for to its owner. It does nothing if the owner
// holds it already. Errors: *RangeError, *HeldError.
func (a *Addresses) Take(addr netip.Addr, owner string) error {
	if _, held := a.owners[addr]; !held && !a.Contains(addr) {
		return &RangeError{Value: addr.String(), Range: a.prefix.String()}
	}
	return a.Hold(addr, owner)
}

// Hold registers what an owner already has, also outside of the range. The only
// error is *HeldError.
func (a *Addresses) Hold(addr netip.Addr, owner string) error {
	if holder, held := a.owners[addr]; held && holder != owner {
		return &HeldError{What: "IP", Owner: holder}
	}
	a.owners[addr] = owner
	if a.Contains(addr) {
		a.used.add(a.offset(addr))
	}
	return nil
}

// Next gives the owner a free address: the first one from a point that depends on the
// owner's name, in the upper band, then in the lower one. It passes over those that avoid
// reports true of; nil avoids none. The only error is ErrFull.
func (a *Addresses) Next(owner string, avoid func(netip.Addr) bool) (netip.Addr, error) {
	n, ok := pickFree(a.used, a.prefix.Addr(), 1, a.band, a.last, owner, avoid)
	if !ok {
		return netip.Addr{}, ErrFull
	}
	addr := plus(a.prefix.Addr(), n)
	a.used.add(n)
	a.owners[addr] = owner
	return addr, nil
}

// Release frees an address that owner holds; otherwise it does nothing.
func (a *Addresses) Release(addr netip.Addr, owner string) {
	if holder, held := a.owners[addr]; !held || holder != owner {
		return
	}
	delete(a.owners, addr)
	if a.Contains(addr) {
		a.used.remove(a.offset(addr))
	}
}

// Owner returns the holder of an address.
func (a *Addresses) Owner(addr netip.Addr) (string, bool) {
	owner, held := a.owners[addr]
	return owner, held
}

// Holders returns the holders by address. It may not be changed.
func (a *Addresses) Holders() map[netip.Addr]string { return a.owners }

func (a *Addresses) offset(addr netip.Addr) uint64 {
	return low64(addr) - low64(a.prefix.Addr())
}

// pick is a number that is in none of the sets: in [band, last] if one is left there, else
// in [first, band).
func pick(used union, first, band, last uint64, seed string) (uint64, bool) {
	if band <= last {
		if n, ok := used.nextAbsentAround(band, last, startAt(seed, band, last)); ok {
			return n, true
		}
	}
	if high := min(band-1, last); band > first {
		return used.nextAbsentAround(first, high, startAt(seed, first, high))
	}
	return 0, false
}

// pickFree is pick of an offset from an address, passing over those to avoid.
func pickFree(used *numberSet, base netip.Addr, first, band, last uint64, seed string, avoid func(netip.Addr) bool) (uint64, bool) {
	var passed []uint64 // they look used meanwhile
	defer func() {
		for _, n := range passed {
			used.remove(n)
		}
	}()
	for {
		n, ok := pick(union{used}, first, band, last, seed)
		if !ok || avoid == nil || !avoid(plus(base, n)) {
			return n, ok
		}
		used.add(n)
		passed = append(passed, n)
	}
}

// startAt is a number in [first, last] that depends on the seed alone.
func startAt(seed string, first, last uint64) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(seed)) // never fails
	n := mix(hash.Sum64())
	if span := last - first + 1; span != 0 {
		n %= span
	}
	return first + n
}

// mix spreads a hash over all its bits (the finalizer of MurmurHash3), since FNV of
// names that differ in their last letter alone differs in few of them.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// low64 is an IPv4 address as a number, or the last 64 bits of an IPv6 one.
func low64(addr netip.Addr) uint64 {
	if addr.Is4() {
		b := addr.As4()
		return uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := addr.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// plus is the address n after another one, which must be of the same family.
func plus(addr netip.Addr, n uint64) netip.Addr {
	if addr.Is4() {
		b := addr.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := addr.As16()
	low := binary.BigEndian.Uint64(b[8:])
	binary.BigEndian.PutUint64(b[8:], low+n)
	if low+n < low {
		binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+1)
	}
	return netip.AddrFrom16(b)
}
