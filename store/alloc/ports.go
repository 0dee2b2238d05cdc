package alloc

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
)

// Size of the band at the low end of the node port range. Automatic allocation uses the band last, to leave it for ports that users choose. It is
// 1/32 of the range, at least 16 and at most 128 ports; a range of 16 or fewer ports has no band (Kubernetes, KEP-3668).
const (
	portBandMin  = 16
	portBandMax  = 128
	portBandPart = 32
)

// Space determines whether a port number is allocated per protocol or for all protocols.
type Space int

const (
	// PerProtocol allows different Services to have the same number for different protocols.
	PerProtocol Space = iota
	// Shared allocates a number to one Service for all protocols, as Kubernetes does. That Service may use it with several protocols.
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

// NewPorts returns an allocator for the ports from first to last, without allocations.
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

// portBand returns the size of the band at the low end of a range of size ports, which automatic allocation uses last.
func portBand(size uint64) uint64 {
	if size <= portBandMin {
		return 0
	}
	return min(max(portBandMin, size/portBandPart), portBandMax)
}

// Range returns the range in the form "first-last".
func (p *Ports) Range() string { return fmt.Sprintf("%d-%d", p.first, p.last) }

// Contains reports whether a port is in the range.
func (p *Ports) Contains(number uint16) bool {
	return uint64(number) >= p.first && uint64(number) <= p.last
}

// Take allocates a specific port to an owner. It does nothing if the owner already holds the port. Errors: *RangeError, *HeldError.
func (p *Ports) Take(port Port, owner string) error {
	if _, held := p.owners[port]; !held && !p.Contains(port.Number) {
		return &RangeError{Range: p.Range()}
	}
	return p.Hold(port, owner)
}

// Hold records that an owner already has a port, which may be outside of the range. The only error is *HeldError.
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

// Next allocates to the owner a port number that is free for all of the protocols. It searches upward from a point that depends on the seed, first
// above the band, then in the band. The seed is the owner's name; for further numbers of the same owner it also contains their purpose. The only
// error is ErrFull.
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

// Owner returns the owner that holds a port; false if none does.
func (p *Ports) Owner(port Port) (string, bool) {
	owner, held := p.owners[port]
	return owner, held
}

// Holders returns the owners by port. The caller must not change the map.
func (p *Ports) Holders() map[Port]string { return p.owners }

// rival returns another owner that holds the port or, with Space Shared, the same number for any protocol; false if there is none.
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

// Size of the band at the low end of the cluster IP range. Automatic allocation uses the band last, to leave it for addresses that users choose. It
// is 1/16 of the range, at least 16 and at most 256 addresses; a range of 16 or fewer addresses has no band (Kubernetes, KEP-3070).
const (
	addressBandMin  = 16
	addressBandMax  = 256
	addressBandPart = 16
)

// minIPv6Bits is the minimum prefix length of an IPv6 service range, as in Kubernetes 1.33.
const minIPv6Bits = 64

// Addresses allocates the cluster IPs of one family from one prefix. The network
// address and the IPv4 broadcast address are never given. The zero value is not
// usable; see NewAddresses.
type Addresses struct {
	prefix netip.Prefix
	// band and last are offsets from the network address. [1, band) is the band for addresses that users choose. Automatic allocation uses [band,
	// last] first.
	band, last uint64
	used       uint64 // the number of addresses of the range that are held
	owners     map[netip.Addr]string
}

// NewAddresses returns an allocator for a prefix, without allocations. It returns an error for a prefix without a usable address, and for an IPv6
// prefix shorter than 64 bits.
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

// addressBand returns the size of the band at the low end of a range with the given highest offset, which automatic allocation uses last.
func addressBand(highest uint64) uint64 {
	switch {
	case highest < addressBandMin:
		return 0
	case highest >= addressBandMax*addressBandPart:
		return addressBandMax
	}
	return max(addressBandMin, (highest+1)/addressBandPart)
}

// Prefix returns the prefix from which addresses are allocated.
func (a *Addresses) Prefix() netip.Prefix { return a.prefix }

// Contains reports whether an address lies in the range and can be allocated.
func (a *Addresses) Contains(addr netip.Addr) bool {
	if !a.prefix.Contains(addr) {
		return false
	}
	n := a.offset(addr)
	return n >= 1 && n <= a.last
}

// Take allocates a specific address to an owner. It does nothing if the owner already holds the address. Errors: *RangeError, *HeldError.
func (a *Addresses) Take(addr netip.Addr, owner string) error {
	if _, held := a.owners[addr]; !held && !a.Contains(addr) {
		return &RangeError{Value: addr.String(), Range: a.prefix.String()}
	}
	return a.Hold(addr, owner)
}

// Hold records that an owner already has an address, which may be outside of the range. The only error is *HeldError.
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

// Next allocates a free address to the owner. It searches upward from a point that depends on the owner's name, first above the band, then in the
// band. It skips addresses for which avoid returns true; a nil avoid skips none. The only error is ErrFull.
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

// Owner returns the owner that holds an address; false if none does.
func (a *Addresses) Owner(addr netip.Addr) (string, bool) {
	owner, held := a.owners[addr]
	return owner, held
}

// Holders returns the owners by address. The caller must not change the map.
func (a *Addresses) Holders() map[netip.Addr]string { return a.owners }

func (a *Addresses) offset(addr netip.Addr) uint64 {
	return low64(addr) - low64(a.prefix.Addr())
}

// pick returns a number for which taken returns false. It searches [band, last], then [first, band). In each range it starts at a number derived from
// the seed, and wraps around. The result is false if all numbers are taken.
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

// mix spreads a hash over all of its bits, with the finalizer of MurmurHash3. FNV hashes of names that differ only in the last letter differ in few
// bits.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// low64 returns an IPv4 address, or the low 64 bits of an IPv6 address, as a number.
func low64(addr netip.Addr) uint64 {
	if addr.Is4() {
		b := addr.As4()
		return uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := addr.As16()
	return binary.BigEndian.Uint64(b[8:])
}

// plus returns addr + n. The result must be of the same family.
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
