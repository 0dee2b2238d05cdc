package nft

import (
	"cmp"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
)

// TableVersion is the version of who stands in which slot of a table: of the hash
// functions, their seeds, and the sizes. Boxes of one version agree about every client, so
// whatever changes one of the test vectors needs a new version.
const TableVersion = 1

// positions is the number of places that endpoints compete for in a table. Larger tables are the
// same places with more slots each, so a table that grows moves few clients; smaller ones have a
// place for each slot.
const positions = 256

// hole marks a slot without an endpoint.
const hole = math.MaxUint16

// spread gives the endpoint, by index, in each slot of a table. Endpoint i
// gets quotas[i] slots; the sum of them is at most size, and what is left over is holes.
// ids are the endpoints' identities (see endpointIDs).
//
// Every endpoint ranks every position by a hash. The pairs are taken in the order of
// their rank, and an endpoint takes what is free of the position until it has its quota.
// So the result depends on nothing but the arguments, whatever their order, and an
// endpoint that goes moves few of the others' slots.
func spread(ids []uint64, quotas []int, size int) []uint16 {
	places := min(positions, size)
	each := size / places
	pairs := make([]ranking, 0, len(ids)*places)
	for i, id := range ids {
		if quotas[i] == 0 {
			continue
		}
		for at := range places {
			pairs = append(pairs, ranking{rank(id, uint64(at)), uint16(i), uint16(at)})
		}
	}
	slices.SortFunc(pairs, func(a, b ranking) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(ids[a.endpoint], ids[b.endpoint]), cmp.Compare(a.place, b.place))
	})
	slots := make([]uint16, size)
	for i := range slots {
		slots[i] = hole
	}
	taken, left := make([]int, places), slices.Clone(quotas)
	for _, p := range pairs {
		for left[p.endpoint] > 0 && taken[p.place] < each {
			slots[int(p.place)*each+taken[p.place]] = p.endpoint
			taken[p.place]++
			left[p.endpoint]--
		}
	}
	return slots
}

// ranking is the rank that an endpoint gives a place; the highest of all is served first.
type ranking struct {
	rank            uint64
	endpoint, place uint16
}

// quotas shares total things out by weight, by the method of largest remainders. Each positive
// weight gets at least one; there are at most total of them. ids decide between equal remainders.
func quotas(weights []uint32, ids []uint64, total int) []int {
	shares := make([]int, len(weights))
	left, sum := uint64(total), uint64(0)
	for _, w := range weights {
		sum += uint64(w)
	}
	// Those with less than one share get one, which makes the shares of others smaller.
	for again := true; again; {
		again = false
		for i, w := range weights {
			if w > 0 && shares[i] == 0 && uint64(w)*left < sum {
				shares[i], left, sum, again = 1, left-1, sum-uint64(w), true
			}
		}
	}
	type remainder struct {
		endpoint int
		rest     uint64
	}
	var rests []remainder
	over := left
	for i, w := range weights {
		if w > 0 && shares[i] == 0 {
			shares[i] = int(uint64(w) * left / sum)
			over -= uint64(shares[i])
			rests = append(rests, remainder{i, uint64(w) * left % sum})
		}
	}
	slices.SortFunc(rests, func(a, b remainder) int {
		return cmp.Or(cmp.Compare(b.rest, a.rest), cmp.Compare(ids[a.endpoint], ids[b.endpoint]))
	})
	for _, r := range rests[:over] {
		shares[r.endpoint]++
	}
	return shares
}

// endpointIDs are the identities that endpoints are ranked by: their address, so that a
// client meets one server on all ports of a Service. Where an address stands there more
// than once, its ports are part of them.
func endpointIDs(endpoints []netip.AddrPort) []uint64 {
	count := make(map[netip.Addr]int, len(endpoints))
	for _, ap := range endpoints {
		count[ap.Addr()]++
	}
	ids := make([]uint64, len(endpoints))
	for i, ap := range endpoints {
		id := ap.Addr().AsSlice()
		if count[ap.Addr()] > 1 {
			id = binary.BigEndian.AppendUint16(id, ap.Port())
		}
		ids[i] = identity(id)
	}
	return ids
}

// identity is the 64-bit FNV-1a of some bytes, mixed.
func identity(b []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	return mix(h)
}

// rank is the hash by which endpoints compete for a place; the highest wins.
func rank(id, place uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15
	return mix(id ^ mix((place+1)*golden))
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
// Number Generators, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// smooth orders as many turns as the shares sum up to.
func smooth(shares []int) (order []uint16) {
	total := 0
	for _, n := range shares {
		total += n
	}
	credit := make([]int, len(shares))
	for range total {
		next := 0
		for i, n := range shares {
			if credit[i] += n; credit[i] > credit[next] {
				next = i
			}
		}
		credit[next] -= total
		order = append(order, uint16(next))
	}
	return order
}
