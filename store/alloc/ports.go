package alloc

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math/bits"
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
	used              map[string]*numberSet // allocated numbers by protocol
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
		used:   map[string]*numberSet{},
		owners: map[Port]string{},
	}
	p.band = p.first + band(p.last-p.first, portBandMin, portBandPart, portBandMax)
	return p, nil
}

// band returns the size of the band at the low end of a range from 0 to highest, which automatic allocation uses last: the given part of the range, but
// at least and at most so many values, and none of a range that has no more than the least.
func band(highest, least, part, most uint64) uint64 {
	switch {
	case highest < least:
		return 0
	case highest >= most*part:
		return most
	}
	return max(least, (highest+1)/part)
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
	p.owners[port] = owner
	if p.Contains(port.Number) {
		p.set(port.Protocol).add(uint64(port.Number))
	}
	return nil
}

// Next allocates to the owner a port number that is free for all of the protocols. It searches upward from a point that depends on the seed, first
// above the band, then in the band. The seed is the owner's name; for further numbers of the same owner it also contains their purpose. The only
// error is ErrFull.
func (p *Ports) Next(protocols []string, owner, seed string) (uint16, error) {
	n, ok := pick(p.taken(protocols), p.first, p.band, p.last, seed)
	if !ok {
		return 0, ErrFull
	}
	for _, protocol := range protocols {
		p.owners[Port{protocol, uint16(n)}] = owner
		p.set(protocol).add(n)
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
		p.set(port.Protocol).remove(uint64(port.Number))
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

func (p *Ports) set(protocol string) *numberSet {
	set := p.used[protocol]
	if set == nil {
		set = newNumberSet(p.last)
		p.used[protocol] = set
	}
	return set
}

// taken returns the set of port numbers that are not free for a new allocation with the protocols.
func (p *Ports) taken(protocols []string) union {
	if p.space == Shared {
		return slices.Collect(maps.Values(p.used))
	}
	var sets union
	for _, protocol := range protocols {
		sets = append(sets, p.set(protocol))
	}
	return sets
}

// wordBits is the binary logarithm of the bits in a word of a numberSet.
const wordBits = 6

// numberSet is a set of numbers between 0 and last that finds the lowest absent
// number from any point on in O(log last) steps. It is a sparse bitmap: level 0 has a
// bit for each number, and each level above has a bit for every word of the level
// below that is full. Words without a bit are not stored.
type numberSet struct {
	last   uint64
	levels []map[uint64]uint64
}

func newNumberSet(last uint64) *numberSet {
	s := &numberSet{last: last}
	for top := last; ; top >>= wordBits {
		s.levels = append(s.levels, map[uint64]uint64{})
		if top < 1<<wordBits {
			return s
		}
	}
}

func (s *numberSet) add(n uint64) {
	for _, words := range s.levels {
		word := words[n>>wordBits] | bit(n)
		words[n>>wordBits] = word
		if word != ^uint64(0) {
			return
		}
		n >>= wordBits
	}
}

func (s *numberSet) remove(n uint64) {
	for _, words := range s.levels {
		index := n >> wordBits
		old := words[index]
		if word := old &^ bit(n); word != 0 {
			words[index] = word
		} else {
			delete(words, index)
		}
		if old != ^uint64(0) {
			return
		}
		n = index
	}
}

// nextAbsent returns the lowest number from n to last that is not in the set; false if there is none.
func (s *numberSet) nextAbsent(n uint64) (uint64, bool) {
	for level := range s.levels {
		if n > s.last>>(wordBits*level) {
			return 0, false
		}
		word := s.levels[level][n>>wordBits]
		if free := ^word &^ (bit(n) - 1); free != 0 {
			n = n&^(1<<wordBits-1) | uint64(bits.TrailingZeros64(free))
			for n <= s.last>>(wordBits*level) && level > 0 {
				level--
				n = n<<wordBits | uint64(bits.TrailingZeros64(^s.levels[level][n]))
			}
			return n, level == 0 && n <= s.last
		}
		n = n>>wordBits + 1
	}
	return 0, false
}

// union is the union of several sets.
type union []*numberSet

// nextAbsent returns the lowest number in [n, high] that is in none of the sets; false if there is none.
func (u union) nextAbsent(n, high uint64) (uint64, bool) {
	for moved := true; moved; {
		moved = false
		for _, set := range u {
			found, ok := set.nextAbsent(n)
			if !ok || found > high {
				return 0, false
			}
			moved = moved || found != n
			n = found
		}
	}
	return n, n <= high
}

// nextAbsentAround returns the lowest number in [n, high] that is in none of the sets, or else the lowest one in [low, n); false if there is none.
func (u union) nextAbsentAround(low, high, n uint64) (uint64, bool) {
	if found, ok := u.nextAbsent(n, high); ok {
		return found, true
	}
	if n == low {
		return 0, false
	}
	return u.nextAbsent(low, n-1)
}

func bit(n uint64) uint64 { return 1 << (n & (1<<wordBits - 1)) }

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
	used       *numberSet
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
		band:   1 + band(highest, addressBandMin, addressBandPart, addressBandMax),
		last:   last,
		used:   newNumberSet(last),
		owners: map[netip.Addr]string{},
	}, nil
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
	a.owners[addr] = owner
	if a.Contains(addr) {
		a.used.add(a.offset(addr))
	}
	return nil
}

// Next allocates a free address to the owner. It searches upward from a point that depends on the owner's name, first above the band, then in the
// band. It skips addresses for which avoid returns true; a nil avoid skips none. The only error is ErrFull.
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

// pick returns a number that is in none of the sets: in [band, last] if one is free there, otherwise in [first, band). It searches upward from a
// point that depends on the seed, and returns false if no number is free.
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

// pickFree works like pick for offsets of addresses from a base address. It skips addresses for which avoid returns true.
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
