package alloc

import "math/bits"

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
