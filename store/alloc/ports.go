package alloc

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
)

// Limits of the band at the low end of the range that automatic node ports use last, so
// that it is left for ports that users choose: a 32nd of the range, at least 16 and at most
// 128 ports; none in a range of 16 or fewer (Kubernetes, KEP-3668).
const (
	portBandMin  = 16
	portBandMax  = 128
	portBandPart = 32
)

// Space decides which protocols share port numbers.
type Space int

const (
	// PerProtocol allows different Services to hold one number on different protocols.
	PerProtocol Space = iota
	// Shared gives a number to one Service on all protocols, as Kubernetes does. The
	// Service itself may use it on several.
	Shared
)

// Port is a port number of a transport protocol: "TCP", "UDP" or "SCTP".
type Port struct {
	Protocol string
	Number   uint16
}

// String returns protocol and number, as in "TCP port 30080".
func (p Port) String() string { return fmt.Sprintf("%s port %d", p.Protocol, p.Number) }

// Ports allocates node ports and health-check node ports from one range. The zero
// value is not usable; see NewPorts.
type Ports struct {
	first, band, last uint64
	space             Space
	used              map[string]uint64 // the number of ports of the range that are held, by protocol
	owners            map[Port]string
}

// NewPorts returns an allocator for the ports from first to last, with nothing held.
func NewPorts(first, last uint16, space Space) (*Ports, error) {
	if first == 0 || last < first {
		return nil, fmt.Errorf("node port range %d-%d is empty: write it like 30000-32767", first, last)
	}
	p := &Ports{
		first:  uint64(first),
		last:   uint64(last),
		space:  space,
		used:   map[string]uint64{},
		owners: map[Port]string{},
	}
	p.band = p.first + portBand(p.last-p.first+1)
	return p, nil
}

// portBand returns the number of ports at the low end that automatic values avoid, in a range of
// this size.
func portBand(size uint64) uint64 {
	if size <= portBandMin {
		return 0
	}
	return min(max(portBandMin, size/portBandPart), portBandMax)
}

// Range returns the text "first-last".
func (p *Ports) Range() string { return fmt.Sprintf("%d-%d", p.first, p.last) }

// Contains reports whether a port lies in the range, so that it can be allocated.
func (p *Ports) Contains(number uint16) bool {
	return uint64(number) >= p.first && uint64(number) <= p.last
}

// Take registers an owner for a port that it asks for. It does nothing if the owner holds
// it already. Errors: *RangeError, *HeldError.
func (p *Ports) Take(port Port, owner string) error {
	if _, held := p.owners[port]; !held && !p.Contains(port.Number) {
		return &RangeError{Range: p.Range()}
	}
	return p.Hold(port, owner)
}

// Hold registers what an owner already has, also outside of the range. The only
// error is *HeldError.
func (p *Ports) Hold(port Port, owner string) error {
	if holder, held := p.rival(port, owner); held {
		return &HeldError{What: "port", Owner: holder}
	}
	p.put(port, owner)
	return nil
}

func (p *Ports) put(port Port, owner string) {
	if _, held := p.owners[port]; !held && p.Contains(port.Number) {
		p.used[port.Protocol]++
	}
	p.owners[port] = owner
}

// Next allocates to the owner one port number that is free on all of the protocols: the
// first one from a point that depends on the seed, in the upper band, then in the lower
// one. The seed is the owner's name, for further numbers of the owner followed by their
// purpose. The only error is ErrFull.
func (p *Ports) Next(protocols []string, owner, seed string) (uint16, error) {
	checked := protocols
	if p.space == Shared {
		checked = slices.Collect(maps.Keys(p.used))
	}
	if slices.ContainsFunc(checked, func(protocol string) bool { return p.used[protocol] == p.last-p.first+1 }) {
		return 0, ErrFull
	}
	n, ok := pick(p.first, p.band, p.last, seed, func(n uint64) bool {
		return slices.ContainsFunc(checked, func(protocol string) bool { _, held := p.owners[Port{protocol, uint16(n)}]; return held })
	})
	if !ok {
		return 0, ErrFull
	}
	for _, protocol := range protocols {
		p.put(Port{protocol, uint16(n)}, owner)
	}
	return uint16(n), nil
}

// Release frees a port that owner holds; otherwise it does nothing.
func (p *Ports) Release(port Port, owner string) {
	if holder, held := p.owners[port]; !held || holder != owner {
		return
	}
	delete(p.owners, port)
	if p.Contains(port.Number) {
		p.used[port.Protocol]--
	}
}

// Owner returns the holder of a port.
func (p *Ports) Owner(port Port) (string, bool) {
	owner, held := p.owners[port]
	return owner, held
}

// Holders returns the holders by port. It may not be changed.
func (p *Ports) Holders() map[Port]string { return p.owners }

// rival returns another owner that holds the port or, with Space Shared, its number on any protocol;
// "" if there is none.
func (p *Ports) rival(port Port, owner string) (string, bool) {
	if holder, held := p.owners[port]; held && holder != owner {
		return holder, true
	}
	if p.space == PerProtocol {
		return "", false
	}
	for protocol := range p.used {
		if holder, held := p.owners[Port{protocol, port.Number}]; held && holder != owner {
			return holder, true
		}
	}
	return "", false
}

// Limits of the band at the low end of the range that automatic cluster IPs use last,
// so that it is left for addresses that users choose: a sixteenth of the range, at
// least 16 and at most 256 addresses; none in a range of 16 or fewer (Kubernetes,
// KEP-3070).
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
	// band and last are offsets from the network address. [1, band) is left for
	// addresses that users choose; automatic ones come from [band, last] first.
	band, last uint64
	used       uint64 // the number of addresses of the range that are held
	owners     map[netip.Addr]string
}

// NewAddresses returns an allocator for a prefix, with nothing held. It refuses prefixes
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

// Prefix returns the range.
func (a *Addresses) Prefix() netip.Prefix { return a.prefix }

// Contains reports whether an address lies in the range and can be allocated.
func (a *Addresses) Contains(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) {
		return false
	}
	n := a.offset(addr)
	return n >= 1 && n <= a.last
}

// Take registers an owner for an address that it asks for. It does nothing if the owner
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
	a.put(addr, owner)
	return nil
}

func (a *Addresses) put(addr netip.Addr, owner string) {
	if _, held := a.owners[addr]; !held && a.Contains(addr) {
		a.used++
	}
	a.owners[addr] = owner
}

// Next allocates a free address to the owner: the first one from a point that depends on the
// owner's name, in the upper band, then in the lower one. It skips addresses for which avoid
// returns true; a nil avoid skips none. The only error is ErrFull.
func (a *Addresses) Next(owner string, avoid func(netip.Addr) bool) (netip.Addr, error) {
	if a.used == a.last {
		return netip.Addr{}, ErrFull
	}
	addr, ok := a.Home(owner, func(addr netip.Addr) bool {
		_, held := a.owners[addr]
		return held || avoid != nil && avoid(addr)
	})
	if !ok {
		return netip.Addr{}, ErrFull
	}
	a.put(addr, owner)
	return addr, nil
}

// Release frees an address that owner holds; otherwise it does nothing.
func (a *Addresses) Release(addr netip.Addr, owner string) {
	if holder, held := a.owners[addr]; !held || holder != owner {
		return
	}
	delete(a.owners, addr)
	if a.Contains(addr) {
		a.used--
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

// pick returns the first number for which taken returns false: in [band, last] if there is one, else in [first, band), in each range from a
// number on that depends on the seed.
func pick(first, band, last uint64, seed string, taken func(uint64) bool) (uint64, bool) {
	if n, ok := pickIn(band, last, seed, taken); ok {
		return n, true
	}
	if band > first {
		return pickIn(first, min(band-1, last), seed, taken)
	}
	return 0, false
}

// pickIn is pick for one range, which is empty if last is less than first.
func pickIn(first, last uint64, seed string, taken func(uint64) bool) (uint64, bool) {
	if last < first {
		return 0, false
	}
	start := startAt(seed, first, last)
	n := start
	for taken(n) {
		if n++; n > last || n == 0 {
			n = first
		}
		if n == start {
			return 0, false
		}
	}
	return n, true
}

// startAt returns a number in [first, last] that depends on the seed alone.
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

// low64 returns an IPv4 address as a number, or the last 64 bits of an IPv6 one.
func low64(addr netip.Addr) uint64 {
	if addr.Is4() {
		b := addr.As4()
		return uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := addr.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// plus returns the address n after another one, which must be of the same family.
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
