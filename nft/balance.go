package nft

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxTableEndpoints bounds the endpoints of a pool with a table by weights or hashes. Larger pools
// are picked from at random.
const MaxTableEndpoints = 4096

// tableSizes holds the slots of a table by weights and of one by hashes, for pools of up to that
// many endpoints.
var tableSizes = [...]struct{ endpoints, weigh, hash int }{
	{16, 64, 256},
	{64, 256, 1024},
	{256, 1024, 4096},
	{MaxTableEndpoints, 4096, 16384},
}

// table maps each slot to an endpoint, by index in the pool. One by weights has two levels: a draw
// that meets a hole of the first half is repeated in the second.
type table struct {
	form  string // weigh-64, hash-256
	slots []uint16
}

// Weight is an endpoint's.
func (sp *ServicePort) Weight(ap netip.AddrPort) uint32 {
	if w, given := sp.Weights[ap]; given {
		return uint32(w)
	}
	return 1
}

func (sp *ServicePort) hashChain() string {
	if sp.Balance == SourceHash {
		return chainSource
	}
	return chainHash
}

// drawn reports whether slots are drawn by chance.
func (sp *ServicePort) drawn() bool { return sp.Balance == Random || sp.Balance == LeastConnection }

// TableSlots returns the number of slots in the table of LeastConnection for that many endpoints, 0 where
// it has none.
func TableSlots(endpoints int) int {
	for _, s := range tableSizes {
		if 2 <= endpoints && endpoints <= s.endpoints {
			return s.weigh
		}
	}
	return 0
}

// Table returns the endpoint in each slot of a pool's table of LeastConnection; nil: there is none.
func (sp *ServicePort) Table(pool Pool) []netip.AddrPort {
	if sp.Balance != LeastConnection || sp.Relayed() {
		return nil
	}
	t := sp.tableOf(pool)
	if t == nil {
		return nil
	}
	slots := make([]netip.AddrPort, len(t.slots))
	for i, endpoint := range t.slots {
		if endpoint != hole {
			slots[i] = sp.Pools[pool][endpoint]
		}
	}
	return slots
}

// Shares are the parts of a pool's new connections that its endpoints get, in their order, where they are
// drawn by chance or have turns. The sum is 1.
func (sp *ServicePort) Shares(pool Pool) []float64 {
	endpoints := sp.Pools[pool]
	index, slots, sum := make(map[netip.AddrPort]int, len(endpoints)), make([]float64, len(endpoints)), 0.0
	for i, ap := range endpoints {
		index[ap] = i
	}
	if table := sp.Table(pool); table != nil {
		for _, ap := range table {
			slots[index[ap]]++
			sum++
		}
	} else {
		for i, ap := range endpoints {
			slots[i] = float64(sp.Weight(ap))
			sum += slots[i]
		}
	}
	for i := range slots {
		slots[i] /= sum
	}
	return slots
}

// givenSlots are the slots of the table that the port names itself.
func (sp *ServicePort) givenSlots(pool Pool) []uint16 {
	index := make(map[netip.AddrPort]uint16, len(sp.Pools[pool]))
	for i, ap := range sp.Pools[pool] {
		index[ap] = uint16(i)
	}
	slots := make([]uint16, len(sp.Tables[pool]))
	for i, ap := range sp.Tables[pool] {
		slots[i] = hole
		if at, is := index[ap]; is {
			slots[i] = at
		}
	}
	return slots
}

// givenTable makes the table that the port names itself.
func (sp *ServicePort) givenTable(pool Pool) *table {
	slots := sp.givenSlots(pool)
	for _, s := range tableSizes {
		if sp.drawn() && (len(slots) == s.weigh || len(slots) == 2*s.weigh) {
			return &table{chainWeigh + strconv.Itoa(s.weigh), slots}
		}
		if !sp.drawn() && len(slots) == s.hash {
			return &table{sp.hashChain() + strconv.Itoa(s.hash), slots}
		}
	}
	return nil
}

// weigh makes the two levels of a table by weights. The first has size slots, of which
// each stands for 1/size of the connections. What an endpoint has a right to beyond whole
// slots stays a hole; the second level, of size slots too, is there if there are any, and
// shares the holes out. So shares are right to 1/size² for each hole.
//
// The first slot is never a hole: it is where a packet goes that falls between two changes.
func weigh(weights []uint32, ids []uint64, size int) []uint16 {
	units := quotas(weights, ids, size*size)
	whole, rests, holes := make([]int, len(units)), make([]uint32, len(units)), false
	for i, u := range units {
		whole[i], rests[i] = u/size, uint32(u%size)
		holes = holes || rests[i] > 0
	}
	slots := spread(ids, whole, size)
	if !holes {
		return slots
	}
	if slots[0] == hole {
		first := first(ids, whole, 0)
		slots[slices.Index(slots, first)], slots[0] = hole, first
	}
	return append(slots, spread(ids, quotas(rests, ids, size), size)...)
}

// first is the endpoint with a quota that ranks highest at a place.
func first(ids []uint64, quotas []int, place uint64) (best uint16) {
	best = hole
	for i, id := range ids {
		if quotas[i] > 0 && (best == hole || rank(id, place) > rank(ids[best], place)) {
			best = uint16(i)
		}
	}
	return best
}

// preferred is the endpoint that ranks highest for a frontend's address, or the port of a
// node port.
func preferred(endpoints []netip.AddrPort, fe *Frontend) netip.AddrPort {
	place := uint64(fe.Port)
	if fe.Addr.IsValid() {
		place = identity(fe.Addr.AsSlice())
	}
	ids := endpointIDs(endpoints)
	best := 0
	for i := range ids {
		if rank(ids[i], place) > rank(ids[best], place) {
			best = i
		}
	}
	return endpoints[best]
}

// Choice gives the endpoint that a new connection of a client gets at a frontend, where that
// does not depend on chance. With Maglev it depends on the client's port.
func (sp *ServicePort) Choice(fe *Frontend, pool Pool) func(client netip.AddrPort) (netip.AddrPort, bool) {
	endpoints := sp.Pools[pool]
	always := func(ap netip.AddrPort, ok bool) func(netip.AddrPort) (netip.AddrPort, bool) {
		return func(netip.AddrPort) (netip.AddrPort, bool) { return ap, ok }
	}
	switch {
	case len(endpoints) == 1:
		return always(endpoints[0], true)
	case len(endpoints) > 1 && sp.Balance == DestinationHash && fe.IsRange():
		return always(preferred(endpoints, &sp.Frontends[0]), true)
	case len(endpoints) > 1 && sp.Balance == DestinationHash:
		return always(preferred(endpoints, fe), true)
	}
	t := sp.tableOf(pool)
	if t == nil || sp.drawn() || sp.Balance == RoundRobin {
		return always(netip.AddrPort{}, false)
	}
	kind := FieldHashFlow
	if sp.Balance == SourceHash {
		kind = FieldHashSource
	}
	return func(client netip.AddrPort) (netip.AddrPort, bool) {
		return endpoints[t.slots[HashSlot(kind, client, uint32(len(t.slots)))]], true
	}
}

// Chooser returns the function by which the kernel chooses an endpoint of a pool for a client and the address that
// it connected to; nil where chance, turns or open connections decide. A relay uses it, which accepts connections
// in the kernel's place.
func (sp *ServicePort) Chooser(pool Pool) func(client, asked netip.AddrPort) (netip.AddrPort, bool) {
	endpoints := sp.Pools[pool]
	switch {
	case len(endpoints) < 2:
	case sp.Balance == DestinationHash:
		at := make(map[netip.AddrPort]netip.AddrPort, len(sp.Frontends))
		for i := range sp.Frontends {
			fe := &sp.Frontends[i]
			at[netip.AddrPortFrom(fe.Addr, fe.Port)] = preferred(endpoints, fe)
		}
		return func(_, asked netip.AddrPort) (netip.AddrPort, bool) {
			if endpoint, is := at[asked]; is {
				return endpoint, true
			}
			if endpoint, is := at[netip.AddrPortFrom(netip.Addr{}, asked.Port())]; is { // a node port
				return endpoint, true
			}
			return preferred(endpoints, &Frontend{Addr: asked.Addr(), Port: asked.Port()}), true // a balancer in front named it
		}
	case sp.Balance == Maglev || sp.Balance == SourceHash:
		choose := sp.Choice(&Frontend{}, pool)
		return func(client, _ netip.AddrPort) (netip.AddrPort, bool) { return choose(client) }
	}
	return nil
}

// sameTable reports whether a port has the table of another for a pool, so that it need
// not be made.
func sameTable(a, b *ServicePort, pool Pool) bool {
	return a.Balance == b.Balance && maps.Equal(a.Weights, b.Weights) &&
		slices.Equal(a.Pools[pool], b.Pools[pool]) && slices.Equal(a.Tables[pool], b.Tables[pool])
}

// among returns the endpoints of a list that clients of fe may be sent to.
func (sp *ServicePort) among(endpoints []netip.AddrPort, fe *Frontend) []netip.AddrPort {
	if sp.Balance == DestinationHash && len(endpoints) > 1 {
		return []netip.AddrPort{preferred(endpoints, fe)}
	}
	return endpoints
}

// Reachable returns the endpoints that clients of fe may be sent to.
func (sp *ServicePort) Reachable(fe *Frontend) []netip.AddrPort {
	return fe.ofBoth(func(pool Pool) []netip.AddrPort { return sp.among(sp.Pools[pool], fe) })
}

// ofBoth joins what clients inside and outside may have, by their pools.
func (fe *Frontend) ofBoth(endpoints func(Pool) []netip.AddrPort) []netip.AddrPort {
	inside := endpoints(fe.Internal.Pool)
	if fe.External.Pool == fe.Internal.Pool {
		return inside
	}
	return union(inside, endpoints(fe.External.Pool))
}

// tableForms are the chains of all forms, without a pool's prefix.
var tableForms = func() (forms []string) {
	for _, s := range tableSizes {
		forms = append(forms, chainWeigh+strconv.Itoa(s.weigh), chainHash+strconv.Itoa(s.hash), chainSource+strconv.Itoa(s.hash))
	}
	return forms
}()

// splitForm takes the name of a form apart.
func splitForm(form string) (kind string, size uint32) {
	at := strings.IndexByte(form, '-') + 1
	return form[:at], numgenOf(form[at:]).Mod
}

// drawRules draw a slot of a table and go to its endpoint. A frontend whose table is gone
// meanwhile has slots of another kind, which `pick-1` looks up.
//
//	chain weigh-64 {
//		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 64 map @tables
//		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 64 offset 64 map @tables
//		goto pick-1
//	}
//	chain hash-256 {
//		dnat ip to ip daddr . meta l4proto . th dport . jhash ip saddr . th sport mod 256 seed 0x73766363 map @tables
//		goto pick-1
//	}
func drawRules(form string, m *slotMaps) []Rule {
	lookup := func(slot Field) Rule { return Rule{DNAT{Key: with(m.key, slot), Map: m.tables}} }
	kind, mod := splitForm(form)
	end := Rule{GotoChain(m.firstPick())}
	switch kind {
	case chainWeigh:
		return []Rule{lookup(Numgen(mod)), lookup(Field{Kind: FieldNumgen, Mod: mod, Offset: mod}), end}
	case chainSource:
		return []Rule{lookup(Field{Kind: FieldHashSource, Mod: mod}), end}
	}
	return []Rule{lookup(Field{Kind: FieldHashFlow, Mod: mod}), end}
}

// tableOf makes the table of a pool, nil where `pick-N` does the same: where all
// endpoints are alike and picked at random, and where there is one.
func (sp *ServicePort) tableOf(pool Pool) *table {
	endpoints := sp.Pools[pool]
	if sp.Balance == Random && sp.Weights == nil && sp.Tables[pool] == nil { // mostly
		return nil
	}
	if n := len(endpoints); n < 2 || n > MaxTableEndpoints || sp.Balance == DestinationHash {
		return nil
	}
	if sp.Balance == RoundRobin {
		return sp.turns(pool)
	}
	if sp.Tables[pool] != nil {
		return sp.givenTable(pool)
	}
	weights, alike := make([]uint32, len(endpoints)), true
	for i, ap := range endpoints {
		weights[i] = sp.Weight(ap)
		alike = alike && weights[i] == weights[0]
	}
	if sp.Balance == Random && alike {
		return nil
	}
	ids := endpointIDs(endpoints)
	for _, s := range tableSizes {
		switch {
		case len(endpoints) > s.endpoints:
		case sp.Balance == LeastConnection: // no holes: its slots move one by one
			return &table{chainWeigh + strconv.Itoa(s.weigh), spread(ids, quotas(weights, ids, s.weigh), s.weigh)}
		case sp.Balance == Random:
			return &table{chainWeigh + strconv.Itoa(s.weigh), weigh(weights, ids, s.weigh)}
		default:
			return &table{sp.hashChain() + strconv.Itoa(s.hash), spread(ids, quotas(weights, ids, s.hash), s.hash)}
		}
	}
	panic("nft: no table is large enough")
}

// maxTurns bounds the length of a round, unless there are more endpoints.
const maxTurns = 128

// turns makes the round of a pool: the smooth order of nginx (ngx_http_upstream_round_robin.c),
// in which the turns of an endpoint are apart.
func (sp *ServicePort) turns(pool Pool) *table {
	endpoints := sp.Pools[pool]
	if sp.Tables[pool] != nil {
		return &table{formTurns, sp.givenSlots(pool)}
	}
	weights, sum, divisor := make([]uint32, len(endpoints)), 0, 0
	for i, ap := range endpoints {
		weights[i] = sp.Weight(ap)
		sum += int(weights[i])
		divisor = gcd(divisor, int(weights[i]))
	}
	shares := quotas(weights, endpointIDs(endpoints), min(sum/divisor, max(maxTurns, len(endpoints))))
	return &table{formTurns, smooth(shares)}
}

// formTurns is the form of a table of turns: one round, in which an endpoint comes as often
// as its weight is.
const formTurns = "round-robin"
