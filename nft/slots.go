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

// assignSlots gives every endpoint of want a slot in 0..len(want)-1. An endpoint that has a slot in that range keeps it; endpoints in slots beyond it
// move into the holes, the last one first, then newcomers take the free slots. So replacing an endpoint changes one slot, adding one adds one, and
// removing one moves at most one other. Newcomers are placed in the order of want.
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

// distinct returns the endpoints of a table, each once, in the order of their addresses.
func distinct(slots []netip.AddrPort) []netip.AddrPort {
	all := slices.SortedFunc(slices.Values(slots), netip.AddrPort.Compare)
	return slices.DeleteFunc(slices.Compact(all), func(ap netip.AddrPort) bool { return !ap.IsValid() })
}

// endpoint returns the endpoint in a slot of a table.
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

// A SlotRun lists the elements that one frontend should have in a map of slots: those with the slots 0 to Slots-1. Their keys can be
// computed, so a large map is read from the kernel key by key instead of as a whole.
type SlotRun struct {
	Frontend string // the key, without the slot
	Slots    uint32
	// Spare is the number of slots of the second level, which follow these and exist only if one of these is missing.
	Spare uint32
}

// Key returns the key of one of the slots.
func (r *SlotRun) Key(slot uint32) string {
	return string(Key(r.Frontend).Slot(slot))
}

// IsSlotMap reports whether a map holds slots of frontends.
func IsSlotMap(name string) bool { return secondary[name] }

// SlotRuns returns the slots that a map of slots should have, by the chains that the verdicts of a table lead to. It needs all other sets of the
// table, and its chains. It is a guess: another program may have changed the table.
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

// slotRun derives from a verdict which slots a map should have.
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

// addTurns adds the map and the chain of each pool that is in use.
//
//	chain round-robin/default/web {
//		meta l4proto tcp dnat ip to numgen inc mod 3 map @round-robin/default/web
//		meta l4proto tcp dnat ip to numgen inc mod 1 map @round-robin/default/web
//		goto refuse
//	}
//
// The second rule is for a packet that drew a slot which is gone.
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

// idOf returns the ID of the port whose chain, with one of the prefixes, a verdict goes to; "" for none.
func idOf(verdicts ...string) string {
	for _, v := range verdicts {
		if _, id, own := strings.Cut(strings.TrimPrefix(v, "goto "), "/"); own {
			return id
		}
	}
	return ""
}

// turns reads the round of a port's turns back from a table.
func (r *recovery) turns(p *compiledPort) {
	for pool := range NumPools {
		if slots := r.table.turns(p, pool); slots != nil {
			p.Balance, p.Tables[pool], p.Pools[pool] = RoundRobin, slots, distinct(slots)
		}
	}
}

// turns returns the endpoints of a pool by turn, as a table has them, with the zero AddrPort for turns that are refused; nil if
// there are none.
func (t *Table) turns(p *compiledPort, pool Pool) (slots []netip.AddrPort) {
	elements := t.elements(p.turnsMap(pool).Name)
	for found := 0; found < len(elements); {
		ap, is := elements.endpoint(p.Family, Key(JoinKey(Value{Type: TypeSlot, Num: uint32(len(slots))})))
		if slots = append(slots, ap); is {
			found++
		}
		if len(slots) > MaxTableEndpoints {
			return nil // a stranger's
		}
	}
	return slots
}

// TableVersion is the version of the assignment of endpoints to slots of a table: of the
// hash functions, their seeds, and the sizes. Boxes of one version agree about every client, so
// whatever changes one of the test vectors needs a new version.
const TableVersion = 1

// positions is the number of places that endpoints compete for in a table. Larger tables are the
// same places with more slots each, so a table that grows moves few clients; smaller ones have a
// place for each slot.
const positions = 256

// hole marks a slot without an endpoint.
const hole = math.MaxUint16

// spread returns the endpoint, by index, in each slot of a table. Endpoint i
// gets quotas[i] slots; the sum of them is at most size, and the rest are holes.
// ids are the endpoints' identities (see endpointIDs).
//
// Every endpoint ranks every position by a hash. The pairs are taken in the order of
// their rank, and an endpoint takes the free slots of the position until it has its quota.
// So the result depends on nothing but the arguments, whatever their order, and an
// endpoint that goes moves few of the others' slots.
func spread(ids []uint64, quotas []int, size int) []uint16 {
	all := make([]int, size)
	for i := range all {
		all[i] = i
	}
	return spreadOver(all, ids, quotas, size)
}

// spreadOver spreads endpoints as spread does, but only over the slots in free, which are in ascending order. The others stay holes.
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

// ranking is the rank of an endpoint for a place; pairs are served from the highest rank down.
type ranking struct {
	rank            uint64
	endpoint, place uint16
}

// byRank returns pairs with the highest rank first. Ranks are uniform, so a bucket of equal highest bits has about four.
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

// quotas divides a total by weight, by the method of largest remainders. Each positive weight gets at least one, while there are any left,
// unless it has some already. ids decide between equal remainders.
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

// endpointIDs returns the identities that endpoints are ranked by: their address, so that a
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

// identity returns the 64-bit FNV-1a of some bytes, mixed.
func identity(b []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, c := range b {
		h = (h ^ uint64(c)) * prime
	}
	return mix(h)
}

// rank returns the hash by which endpoints compete for a place; the highest wins.
func rank(id, place uint64) uint64 {
	const golden = 0x9e3779b97f4a7c15
	return mix(id ^ mix((place+1)*golden))
}

// mix returns the finalizer of SplitMix64 for a number (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
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

// smooth returns the order of a round of turns, as many as the sum of the shares.
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

// jhashMix is __jhash_mix. The words exchange their roles after each round.
func jhashMix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, rotation := range [...]int{4, 6, 8, 16, 19, 4} {
		a -= c
		a ^= bits.RotateLeft32(c, rotation)
		c += b
		a, b, c = b, c, a
	}
	return a, b, c
}

// jhashFinal is __jhash_final, with the roles exchanged as in jhashMix.
func jhashFinal(a, b, c uint32) uint32 {
	for _, rotation := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		c ^= b
		c -= bits.RotateLeft32(b, rotation)
		a, b, c = b, c, a
	}
	return b
}

// HashSlot returns the slot in [0, mod) that a field of a hash reads for a client: `jhash ip
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
