package alloc

import (
	"fmt"
	"math/bits"
)

// Limits of the band that automatic node ports leave to people: a 32nd of the range, at
// least 16 and at most 128 ports; none in a range of 16 or fewer (Kubernetes, KEP-3668).
const (
	portBandMin  = 16
	portBandMax  = 128
	portBandPart = 32
)

// Space decides which protocols share port numbers.
type Space int

const (
	// PerProtocol lets different Services hold one number on different protocols.
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

// String is "TCP port 30080".
func (p Port) String() string { return fmt.Sprintf("%s port %d", p.Protocol, p.Number) }

// Ports allocates node ports and health-check node ports from one range. The zero
// value is not usable; see NewPorts.
type Ports struct {
	first, band, last uint64
	space             Space
	used              map[string]*numberSet // by protocol
	owners            map[Port]string
}

// NewPorts is an allocator for the ports from first to last, with nothing held.
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

// Range is "first-last".
func (p *Ports) Range() string { return fmt.Sprintf("%d-%d", p.first, p.last) }

// Contains reports whether a port may be given.
func (p *Ports) Contains(number uint16) bool {
	return uint64(number) >= p.first && uint64(number) <= p.last
}

// Take gives a port that was asked for to its owner. It does nothing if the owner holds
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
	p.owners[port] = owner
	if p.Contains(port.Number) {
		p.set(port.Protocol).add(uint64(port.Number))
	}
	return nil
}

// Next gives the owner one number that is free on all of the protocols: the first one
// from a point that depends on the seed, in the upper band, then in the lower one. The
// seed is the owner's name and, for its second and later numbers, what they are for.
// The only error is ErrFull.
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

// Owner returns the holder of a port.
func (p *Ports) Owner(port Port) (string, bool) {
	owner, held := p.owners[port]
	return owner, held
}

// Holders returns the holders by port. It may not be changed.
func (p *Ports) Holders() map[Port]string { return p.owners }

// rival returns another holder of the port, or in a shared space of its number on any protocol; ""
// when there is none.
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

// taken returns the numbers that a new one must differ from.
func (p *Ports) taken(protocols []string) union {
	var sets union
	if p.space == Shared {
		for _, set := range p.used {
			sets = append(sets, set)
		}
		return sets
	}
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

// nextAbsent is the lowest number from n on that is not in the set.
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

// union is the numbers that are in any of some sets.
type union []*numberSet

// nextAbsent is the lowest number in [n, high] that is in none of the sets.
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

// nextAbsentAround is the lowest number in [n, high] that is in none of the sets, or
// else the lowest one in [low, n).
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
