package nft

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// assignSlots assigns each endpoint of want a slot from 0 to len(want)-1. An endpoint with a slot in that range in prev keeps it. The free slots then
// go to endpoints that had a higher slot, and after them to new endpoints in the order of want. So replacing an endpoint changes one slot, adding one
// adds one, and removing one moves at most one other.
func assignSlots(prev, want []netip.AddrPort) []netip.AddrPort {
	if len(prev) == 0 || slices.Equal(prev, want) {
		return want // which is held anyway
	}
	wanted := make(map[netip.AddrPort]bool, len(want))
	for _, ap := range want {
		wanted[ap] = true // true: has no slot yet
	}
	slots := make([]netip.AddrPort, len(want))
	var displaced []netip.AddrPort
	for i, ap := range prev {
		if !wanted[ap] {
			continue
		}
		wanted[ap] = false
		if i < len(slots) {
			slots[i] = ap
		} else {
			displaced = append(displaced, ap)
		}
	}
	newcomers := append(displaced, slices.DeleteFunc(slices.Clone(want), func(ap netip.AddrPort) bool { return !wanted[ap] })...)
	for i := range slots {
		if !slots[i].IsValid() {
			slots[i], newcomers = newcomers[0], newcomers[1:]
		}
	}
	return slots
}

// removed lists the endpoints of prev that are not in now, in the order of prev.
func removed(prev, now []netip.AddrPort) []netip.AddrPort {
	if len(prev) == 0 || slices.Equal(prev, now) {
		return nil
	}
	here := make(map[netip.AddrPort]bool, len(now))
	for _, ap := range now {
		here[ap] = true
	}
	return slices.DeleteFunc(slices.Clone(prev), func(ap netip.AddrPort) bool { return here[ap] || !ap.IsValid() })
}

// distinct returns the endpoints in the slots of a table, without duplicates and holes, sorted by address.
func distinct(slots []netip.AddrPort) []netip.AddrPort {
	all := slices.SortedFunc(slices.Values(slots), netip.AddrPort.Compare)
	return slices.DeleteFunc(slices.Compact(all), func(ap netip.AddrPort) bool { return !ap.IsValid() })
}

// endpoint returns the endpoint in the element with a key; false if there is no such element.
func (e Elements) endpoint(f Family, key Key) (netip.AddrPort, bool) {
	data, is := e[string(key)]
	n := f.AddrLen()
	if !is || len(data) < n+2 {
		return netip.AddrPort{}, false
	}
	addr, _ := netip.AddrFromSlice([]byte(data[:n]))
	return netip.AddrPortFrom(addr, uint16(data[n])<<8|uint16(data[n+1])), true
}

func union(a, b []netip.AddrPort) []netip.AddrPort {
	return append(slices.Clone(a), removed(b, a)...)
}

// A SlotRun describes the elements that one frontend should have in a map of slots: slots 0 to Slots-1. Their keys can be computed, so a large map
// can be read from the kernel key by key instead of by a dump.
type SlotRun struct {
	Frontend string // the key, without the slot
	Slots    uint32
	// Spare is the number of slots of the second level of a table, which follow the first level and exist only if a slot of the first level is
	// missing.
	Spare uint32
}

// Key returns the key of the frontend's element for a slot.
func (r *SlotRun) Key(slot uint32) string {
	return string(Key(r.Frontend).Slot(slot))
}

// IsSlotMap reports whether the keys of a map are frontends with slots.
func IsSlotMap(name string) bool { return secondary[name] }

// SlotRuns returns the slots that the frontends of a table should have in the map named set, derived from their verdicts. It needs all other sets of
// the table, and its chains. The result is a guess, because another program may have changed the table.
func (t *Table) SlotRuns(f Family, set string) []SlotRun {
	r := recovery{family: f, table: t}
	var runs []SlotRun
	for i, maps := range allSlotMaps() {
		if maps.backends != set && maps.tables != set {
			continue
		}
		pool, dispatch := Pool(i/2), &vipMaps
		if i%2 == 1 {
			dispatch = &nodePortMaps
		}
		found := map[string]SlotRun{}
		for _, name := range []string{dispatch.all, dispatch.inside, dispatch.outside, dispatch.limits.inside.set, dispatch.limits.outside.set} {
			for key, verdict := range t.elements(name) {
				if run, is := r.slotRun(gotoOf(verdict), maps, pool, set); is {
					run.Frontend = key
					found[key] = run
				}
			}
		}
		for _, key := range sortedKeys(found) {
			runs = append(runs, found[key])
		}
	}
	return runs
}

// slotRun derives the slots of a frontend in the map named set from its verdict; false if it has none there.
func (r *recovery) slotRun(verdict string, maps *slotMaps, pool Pool, set string) (SlotRun, bool) {
	chain, _ := strings.CutPrefix(verdict, "goto ")
	if name, id, own := strings.Cut(chain, "/"); own && strings.HasSuffix(name, "recall"+pools[pool].qualifier) {
		members := compiledPort{ServicePort: &ServicePort{ID: id}}
		if n := len(r.table.elements(members.members(pool).Name)); set == maps.backends {
			return SlotRun{Slots: uint32(n)}, n > 0
		}
	}
	if n, is := strings.CutPrefix(chain, maps.prefix+chainPick); is && set == maps.backends {
		slots, err := strconv.ParseUint(n, 10, 32)
		return SlotRun{Slots: uint32(slots)}, err == nil
	}
	if set == maps.backends {
		return SlotRun{}, false
	}
	at := slices.IndexFunc(tableForms, func(form string) bool { return r.leadsTo(verdict, maps.prefix+form) })
	if at < 0 {
		return SlotRun{}, false
	}
	kind, size := splitForm(tableForms[at])
	run := SlotRun{Slots: size}
	if kind == chainWeigh {
		run.Spare = size
	}
	return run, true
}

// Round robin is state of its own: `numgen inc` counts for each rule, so a Service port has a
// chain and a map. One counter for all Services of N endpoints would resonate: two Services
// that are called in turns would send each all of its connections to one endpoint.

// addTurns adds the round-robin map and chain of each pool in use.
//
//	chain round-robin/default/web {
//		meta l4proto tcp dnat ip to numgen inc mod 3 map @round-robin/default/web
//		meta l4proto tcp dnat ip to numgen inc mod 1 map @round-robin/default/web
//		goto refuse
//	}
//
// The second rule is for a packet that drew a slot that no longer exists.
func (p *compiledPort) addTurns(f *fragment) {
	for pool, used := range p.usedPools() {
		t := p.tables[pool]
		if t == nil || !used {
			continue
		}
		m := p.turnsMap(Pool(pool))
		f.sets = append(f.sets, m)
		for i, endpoint := range t.slots {
			if endpoint != hole {
				key := JoinKey(Value{Type: TypeSlot, Num: uint32(i)})
				f.elements = append(f.elements, placed{m.Name, key, AddrPortData(p.slots[pool][endpoint])})
			}
		}
		draw := func(mod int) Rule {
			return Rule{MatchProto{p.Protocol}, DNAT{Key: []Field{{Kind: FieldTurn, Mod: uint32(mod)}}, Map: m.Name}}
		}
		f.chains = append(f.chains, Chain{Name: m.Name, Rules: []Rule{draw(len(t.slots)), draw(1), {GotoChain(chainRefuse)}}})
	}
}

// idOf returns the ID of the Service port that the chain names in the verdicts contain; "" if none does.
func idOf(verdicts ...string) string {
	for _, v := range verdicts {
		if _, id, own := strings.Cut(strings.TrimPrefix(v, "goto "), "/"); own {
			return id
		}
	}
	return ""
}

// turns recovers the round-robin tables of a port from the kernel's table.
func (r *recovery) turns(p *compiledPort) {
	for pool := range NumPools {
		if slots := r.table.slotsIn(p.turnsMap(pool), p.Family); slots != nil {
			p.Balance, p.Tables[pool], p.Pools[pool] = RoundRobin, slots, distinct(slots)
		}
	}
}

// slotsIn returns the endpoints in the slots of a table's map m, whose keys are slots, with the zero AddrPort for holes; nil if there is no such map.
func (t *Table) slotsIn(m Set, f Family) (slots []netip.AddrPort) {
	for key, data := range t.elements(m.Name) {
		slot, at := SplitKey(m.Key, f, key), SplitKey(m.Data, f, data)
		if len(slot) != 1 || len(at) != len(m.Data) || slot[0].Num > 2*MaxTableEndpoints*4 {
			return nil // a stranger's
		}
		if n := int(slot[0].Num) + 1; n > len(slots) {
			slots = append(slots, make([]netip.AddrPort, n-len(slots))...)
		}
		port := uint16(0) // of a range of ports
		if len(at) > 1 {
			port = uint16(at[1].Num)
		}
		slots[slot[0].Num] = netip.AddrPortFrom(at[0].Addr, port)
	}
	return slots
}

// TableVersion is the version of the algorithm that assigns endpoints to slots of a table: the hash functions, their seeds, and the table sizes.
// Boxes with the same version send every client to the same endpoint, so a change that alters one of the test vectors requires a new version.
const TableVersion = 1

// positions is the number of places of a table for which endpoints compete by rank. A larger table has several slots per place, so a table that grows
// moves few clients. A smaller table has one place per slot.
const positions = 256

// hole marks a slot without an endpoint.
const hole = math.MaxUint16

// spread returns the index of the endpoint in each slot of a table. Endpoint i gets quotas[i] slots; the sum of quotas is at most size, and the
// remaining slots are holes. ids are the endpoints' identities (see endpointIDs).
//
// Every endpoint has a rank, a hash, for every place of the table. Pairs of endpoint and place are processed by descending rank: the endpoint takes
// the free slots of the place until its quota is reached. So the result does not depend on the order of the endpoints, and removing an endpoint
// changes few slots of the others.
func spread(ids []uint64, quotas []int, size int) []uint16 {
	all := make([]int, size)
	for i := range all {
		all[i] = i
	}
	return spreadOver(all, ids, quotas, size)
}

// spreadOver works like spread, but fills only the slots in free, which must be in ascending order. All other slots are holes.
func spreadOver(free []int, ids []uint64, quotas []int, size int) []uint16 {
	places := min(positions, size)
	begin := make([]int, places+1) // of the slots of each place in free
	for _, slot := range free {
		begin[slot*places/size+1]++
	}
	for at := range places {
		begin[at+1] += begin[at]
	}
	pairs := make([]ranking, 0, len(ids)*places)
	for i, id := range ids {
		if quotas[i] == 0 {
			continue
		}
		for at := range places {
			pairs = append(pairs, ranking{rank(id, uint64(at)), uint16(i), uint16(at)})
		}
	}
	slots := slices.Repeat([]uint16{hole}, size)
	next, left := slices.Clone(begin), slices.Clone(quotas)
	for _, p := range byRank(pairs, ids) {
		for left[p.endpoint] > 0 && next[p.place] < begin[p.place+1] {
			slots[free[next[p.place]]] = p.endpoint
			next[p.place]++
			left[p.endpoint]--
		}
	}
	return slots
}

// ranking is the rank of an endpoint for a place of a table.
type ranking struct {
	rank            uint64
	endpoint, place uint16
}

// byRank returns pairs sorted by descending rank, using a bucket sort. Ranks are uniformly distributed, so a bucket has about four of them.
func byRank(pairs []ranking, ids []uint64) []ranking {
	shift := 64 - bits.Len(uint(len(pairs)/4))
	begin := make([]int, 1<<(64-shift)+1) // of each bucket in sorted
	for _, p := range pairs {
		begin[^p.rank>>shift]++
	}
	for i := range begin[1:] {
		begin[i+1] += begin[i]
	}
	sorted := make([]ranking, len(pairs))
	for _, p := range pairs {
		begin[^p.rank>>shift]--
		sorted[begin[^p.rank>>shift]] = p
	}
	for i, from := range begin[:len(begin)-1] {
		slices.SortFunc(sorted[from:begin[i+1]], func(a, b ranking) int {
			return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(ids[a.endpoint], ids[b.endpoint]), cmp.Compare(a.place, b.place))
		})
	}
	return sorted
}

// quotas divides total among weights by the method of largest remainders. Each positive weight gets at least one unit, as long as any are left. If
// has is given, this applies only to weights with an index i for which has[i] is 0. The ids break ties between equal remainders.
func quotas(weights []uint32, ids []uint64, total int, has ...int) []int {
	shares := make([]int, len(weights))
	left, sum := uint64(total), uint64(0)
	for _, w := range weights {
		sum += uint64(w)
	}
	// Those with less than one share get one, which makes the shares of others smaller.
	for again := true; again; {
		again = false
		for i, w := range weights {
			if w > 0 && shares[i] == 0 && left > 0 && uint64(w)*left < sum && (has == nil || has[i] == 0) {
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
	for _, r := range rests[:min(over, uint64(len(rests)))] { // without weights there are none
		shares[r.endpoint]++
	}
	return shares
}

// endpointIDs returns the identities by which endpoints are ranked. An identity is a hash of the address alone, so that a client reaches the same
// server on all ports of a Service. If an address occurs more than once, the hash includes the port.
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

// identity returns the 64-bit FNV-1a hash of b, finalized by mix.
func identity(b []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	return mix(h)
}

// rank returns the rank of an endpoint for a place (rendezvous hashing); the highest rank wins.
func rank(id, place uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15
	return mix(id ^ mix((place+1)*golden))
}

// mix applies the finalizer of SplitMix64 to a number (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// GCD returns the greatest common divisor of two numbers.
func GCD[T int | uint64](a, b T) T {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// smooth returns a smooth round-robin order: each index i occurs shares[i] times, spread evenly.
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

// HashSeed is the seed of every jhash in the ruleset. Boxes with the same seed send a
// client the same way, so it never changes within a TableVersion.
const HashSeed = 0x73766363 // "svcc"

// jhash is jhash of the kernel (include/linux/jhash.h, Bob Jenkins' lookup3): blocks of 12 bytes are read as numbers in host byte order, the last 1
// to 12 bytes one by one.
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

// jhashMix is the kernel's __jhash_mix, with the three words rotated after each step.
func jhashMix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, rotation := range [...]int{4, 6, 8, 16, 19, 4} {
		a -= c
		a ^= bits.RotateLeft32(c, rotation)
		c += b
		a, b, c = b, c, a
	}
	return a, b, c
}

// jhashFinal is the kernel's __jhash_final, with the three words rotated after each step.
func jhashFinal(a, b, c uint32) uint32 {
	for _, rotation := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		c ^= b
		c -= bits.RotateLeft32(b, rotation)
		a, b, c = b, c, a
	}
	return b
}

// HashSlot returns the slot in [0, mod) for a client: the value of `jhash ip saddr mod M`, or of `jhash ip saddr . th sport mod M` for FieldHashFlow.
// The kernel scales the hash instead of dividing it (reciprocal_scale in net/netfilter/nft_hash.c). So in a table of four times the size, the slot is
// at the same relative position.
func HashSlot(kind FieldKind, client netip.AddrPort, mod uint32) uint32 {
	var room [20]byte
	key := Key(room[:0]).Addr(client.Addr())
	if kind == FieldHashFlow {
		key = key.Port(client.Port())
	}
	return uint32(uint64(jhash(key, HashSeed)) * uint64(mod) >> 32)
}
