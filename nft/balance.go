package nft

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxTableEndpoints is the maximum number of endpoints of a pool with a slot table (by weights or by hashes). From a larger pool, endpoints are
// picked at random.
const MaxTableEndpoints = 4096

// tableSizes holds the numbers of slots by the size of the pool. A row applies to pools whose size is at most its field endpoints. weigh is the
// number of slots in each level of a table by weights, hash the number of slots of a table by hashes.
var tableSizes = [...]struct{ endpoints, weigh, hash int }{
	{16, 64, 256},
	{64, 256, 1024},
	{256, 1024, 4096},
	{MaxTableEndpoints, 4096, 16384},
}

// table maps each slot to an endpoint, by its index in the pool, or to none (a hole). A table by weights may have a second level: a packet that draws
// a hole in the first level draws again in the second.
type table struct {
	form  string // kind and number of slots, such as weigh-64 or hash-256; or formTurns
	slots []uint16
}

// Weight returns the weight of an endpoint in a pool, 1 if none is set.
func (sp *ServicePort) Weight(pool Pool, ap netip.AddrPort) uint32 {
	if w, given := sp.Weights[pool][ap]; given {
		return uint32(w)
	}
	return 1
}

// competitors returns the identities and weights that compete for the slots of a pool: one of each for every endpoint, followed by one for the
// refused share if there is one (Refused).
func (sp *ServicePort) competitors(pool Pool) (ids []uint64, weights []uint32) {
	ids = endpointIDs(sp.Pools[pool])
	for _, ap := range sp.Pools[pool] {
		weights = append(weights, sp.Weight(pool, ap))
	}
	if refused := sp.Refused[pool]; refused > 0 {
		ids, weights = append(ids, refusedID), append(weights, uint32(refused))
	}
	return ids, weights
}

// FitsTable reports whether a table has room for a pool: for all endpoints, and for the holes of the refused share.
func (sp *ServicePort) FitsTable(pool Pool) bool {
	n, refused := len(sp.Pools[pool]), uint64(sp.Refused[pool])
	if n < MaxTableEndpoints/4 || refused == 0 {
		return n <= MaxTableEndpoints
	}
	sum := refused
	for _, ap := range sp.Pools[pool] {
		sum += uint64(sp.Weight(pool, ap))
	}
	return uint64(n)*sum < MaxTableEndpoints*(sum-refused)
}

// refusedID is the identity of the refused share in the result of competitors.
var refusedID = identity([]byte("refused"))

// assign distributes size slots over the endpoints by quota. The slots of the refused share are holes. If a share is refused, the first slot is a
// hole, because packets that drew a hole look up that slot, and the last slot is not a hole, because the number of slots is recovered from it.
func (sp *ServicePort) assign(pool Pool, ids []uint64, quotas []int, size int) []uint16 {
	endpoints := len(sp.Pools[pool])
	slots := spread(ids[:endpoints], quotas[:endpoints], size)
	if sp.Refused[pool] == 0 {
		return slots
	}
	last := len(slots) - 1
	if at := slices.Index(slots, hole); at > 0 {
		slots[0], slots[at] = slots[at], slots[0]
	}
	for at := last; at > 0 && slots[last] == hole; at-- {
		slots[at], slots[last] = slots[last], slots[at]
	}
	return slots
}

// hashed returns a table by hashes. A table with holes has a separate form, because a packet that hits a hole must be refused.
func (sp *ServicePort) hashed(slots []uint16) *table {
	form := chainHash
	if sp.Balance == SourceHash {
		form = chainSource
	}
	if form += strconv.Itoa(len(slots)); slices.Contains(slots, hole) {
		form += withHoles
	}
	return &table{form, slots}
}

// divided returns a table by hashes for the port's Backends. The slots of a backend depend only on the shares of the backends. The slots of a backend
// are divided among its endpoints, so added or removed endpoints move no client of another backend. The slots of a backend without endpoints are
// holes.
func (sp *ServicePort) divided(pool Pool) *table {
	backends := sp.Backends[pool]
	ids, shares := make([]uint64, len(backends)), make([]uint32, len(backends))
	for i, b := range backends {
		ids[i], shares[i] = identity([]byte(b.Name)), b.Share
	}
	sizes := tableSizes[:]
	for len(sizes) > 1 && len(backends) > sizes[0].endpoints {
		sizes = sizes[1:]
	}
	first, size := sizes[0].hash, 0
	parts := quotas(shares, ids, first)
	owners := spread(ids, parts, first)
	members, divided := make([][]netip.AddrPort, len(backends)), make([][]uint16, len(backends))
	for i, b := range backends {
		members[i] = slices.SortedFunc(maps.Keys(b.Weights), netip.AddrPort.Compare)
		var weights []uint32
		for _, ap := range members[i] {
			weights = append(weights, b.Weights[ap])
		}
		of := 0
		for _, s := range sizes { // until each endpoint has some slots
			if of = s.hash; len(weights) <= min(s.endpoints, parts[i]*of/first/4) {
				break
			}
		}
		var own []int
		for slot := range of {
			if int(owners[slot*first/of]) == i {
				own = append(own, slot)
			}
		}
		ids := endpointIDs(members[i])
		divided[i], size = spreadOver(own, ids, quotas(weights, ids, len(own)), of), max(size, of)
	}
	slots := make([]netip.AddrPort, size)
	for slot := range slots {
		of := owners[slot*first/size]
		if at := divided[of][slot*len(divided[of])/size]; at != hole {
			slots[slot] = members[of][at]
		}
	}
	return sp.hashed(sp.places(pool, slots))
}

// drawn reports whether slots of a pool's table are drawn at random.
func (sp *ServicePort) drawn() bool { return sp.Balance == Random || sp.Balance == LeastConnection }

// TableSlots returns numbers of slots in a pool's LeastConnection table: refused for the refused share, whose slots come first, and slots for the
// endpoints. Both are 0 if the pool has no table.
func (sp *ServicePort) TableSlots(pool Pool) (refused, slots int) {
	ids, weights := sp.competitors(pool)
	for _, s := range tableSizes {
		if n := len(ids); 2 <= n && n <= s.endpoints {
			if n > len(sp.Pools[pool]) {
				refused = quotas(weights, ids, s.weigh)[n-1]
			}
			return refused, s.weigh - refused
		}
	}
	return 0, 0
}

// Table returns the endpoint in each slot of a pool's LeastConnection table, the zero AddrPort for a slot that refuses. It returns nil if there is no
// such table.
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

// Shares returns the fraction of new connections that each endpoint of a pool gets, in the order of the pool, for the Balance values Random,
// LeastConnection and RoundRobin. The fractions and RefusedShare add up to 1.
func (sp *ServicePort) Shares(pool Pool) []float64 {
	endpoints := sp.Pools[pool]
	index, slots, sum := make(map[netip.AddrPort]int, len(endpoints)), make([]float64, len(endpoints)), 0.0
	for i, ap := range endpoints {
		index[ap] = i
	}
	if table := sp.Table(pool); table != nil {
		for _, ap := range table {
			if at, is := index[ap]; is {
				slots[at]++
			}
			sum++
		}
	} else {
		sum = float64(sp.Refused[pool])
		for i, ap := range endpoints {
			slots[i] = float64(sp.Weight(pool, ap))
			sum += slots[i]
		}
	}
	for i := range slots {
		slots[i] /= sum
	}
	return slots
}

// RefusedShare returns the share of a pool's new connections that is refused.
func (sp *ServicePort) RefusedShare(pool Pool) float64 {
	if sp.Refused[pool] == 0 {
		return 0
	}
	part := 1.0
	for _, share := range sp.Shares(pool) {
		part -= share
	}
	return part
}

// places returns the slots of a table from the endpoint in each slot: its index in the pool, or hole if the pool does not contain it.
func (sp *ServicePort) places(pool Pool, endpoints []netip.AddrPort) []uint16 {
	index := make(map[netip.AddrPort]uint16, len(sp.Pools[pool]))
	for i, ap := range sp.Pools[pool] {
		index[ap] = uint16(i)
	}
	slots := make([]uint16, len(endpoints))
	for i, ap := range endpoints {
		slots[i] = hole
		if at, is := index[ap]; is {
			slots[i] = at
		}
	}
	return slots
}

// givenTable returns the table that the port's Tables specify for a pool, or nil if they do not have a supported number of slots.
func (sp *ServicePort) givenTable(pool Pool) *table {
	slots := sp.places(pool, sp.Tables[pool])
	for _, s := range tableSizes {
		if sp.drawn() && (len(slots) == s.weigh || len(slots) == 2*s.weigh) {
			return &table{chainWeigh + strconv.Itoa(s.weigh), slots}
		}
		if !sp.drawn() && len(slots) == s.hash {
			return sp.hashed(slots)
		}
	}
	return nil
}

// weigh returns the slots of a table by weights. Each of the size slots of the first level gets 1/size of the connections. An endpoint gets as many
// slots as its share has whole slots; the slots that are left are holes. If shares have fractions, a second level of size slots divides the
// connections that hit a hole by these fractions, so that shares are exact to 1/size² per hole.
//
// The first slot is a hole only if a share is refused: packets that drew two holes, or found no slot during a change, look up the first slot. The
// refused share, last in weights and ids, has no slot in the first level, and holes in the second.
func (sp *ServicePort) weigh(pool Pool, weights []uint32, ids []uint64, size int) []uint16 {
	units := quotas(weights, ids, size*size)
	whole, rests, holes := make([]int, len(units)), make([]uint32, len(units)), false
	for i, u := range units {
		if whole[i], rests[i] = u/size, uint32(u%size); i == len(sp.Pools[pool]) {
			rests[i] = uint32(u)
			continue
		}
		holes = holes || rests[i] > 0
	}
	slots := sp.assign(pool, ids, whole, size)
	switch {
	case !holes:
		return slots
	case sp.Refused[pool] > 0:
		if second := sp.assign(pool, ids, quotas(rests, ids, size, whole...), size); second[size-1] != hole {
			slots = append(slots, second...)
		}
		return slots
	}
	if slots[0] == hole {
		first := first(ids, whole, 0)
		slots[slices.Index(slots, first)], slots[0] = hole, first
	}
	return append(slots, spread(ids, quotas(rests, ids, size), size)...)
}

// first returns the index of the endpoint that ranks highest for a slot (rendezvous hashing), among those with quota left; hole if there is none.
func first(ids []uint64, quotas []int, place uint64) (best uint16) {
	best = hole
	for i, id := range ids {
		if quotas[i] > 0 && (best == hole || rank(id, place) > rank(ids[best], place)) {
			best = uint16(i)
		}
	}
	return best
}

// preferred returns the endpoint that ranks highest (rendezvous hashing) for a frontend's address, or, for a node port, for its port number.
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

// Choice returns a function that maps a client to the endpoint of its new connections to a frontend. The function returns the zero AddrPort and true
// if the connections are refused. It returns false if the client does not determine the endpoint, as with Random, RoundRobin and LeastConnection.
// With Maglev the result depends on the client's port too.
func (sp *ServicePort) Choice(fe *Frontend, pool Pool) func(client netip.AddrPort) (netip.AddrPort, bool) {
	endpoints := sp.Pools[pool]
	always := func(ap netip.AddrPort, ok bool) func(netip.AddrPort) (netip.AddrPort, bool) {
		return func(netip.AddrPort) (netip.AddrPort, bool) { return ap, ok }
	}
	switch {
	case len(endpoints) == 1 && sp.Refused[pool] == 0:
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
		at := t.slots[HashSlot(kind, client, uint32(len(t.slots)))]
		if at == hole {
			return netip.AddrPort{}, true
		}
		return endpoints[at], true
	}
}

// Chooser returns a function that picks the same endpoint of a pool as the kernel, from the address of a client and the address that it connected to.
// Relays use it, because they accept connections themselves. It returns nil if these addresses do not determine the endpoint (Random, RoundRobin,
// LeastConnection), and if there is nothing to choose.
func (sp *ServicePort) Chooser(pool Pool) func(client, asked netip.AddrPort) (netip.AddrPort, bool) {
	switch endpoints := sp.Pools[pool]; {
	case len(endpoints) == 0, len(endpoints) == 1 && sp.Refused[pool] == 0:
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

// sameTable reports whether two ports have the same table for a pool, so that the second one need not be computed.
func sameTable(a, b *ServicePort, pool Pool) bool {
	return a.Balance == b.Balance && maps.Equal(a.Weights[pool], b.Weights[pool]) && a.Refused[pool] == b.Refused[pool] &&
		slices.Equal(a.Pools[pool], b.Pools[pool]) && slices.Equal(a.Tables[pool], b.Tables[pool]) &&
		slices.EqualFunc(a.Backends[pool], b.Backends[pool], func(a, b Backend) bool {
			return a.Name == b.Name && a.Share == b.Share && maps.Equal(a.Weights, b.Weights)
		})
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

// ofBoth calls endpoints for the pool of inside clients and for the pool of outside clients of the frontend, and returns the union of the results.
func (fe *Frontend) ofBoth(endpoints func(Pool) []netip.AddrPort) []netip.AddrPort {
	inside := endpoints(fe.Internal.Pool)
	if fe.External.Pool == fe.Internal.Pool {
		return inside
	}
	return union(inside, endpoints(fe.External.Pool))
}

// tableForms has the names of chains that draw from tables, without a pool's prefix.
var tableForms = func() (forms []string) {
	for _, s := range tableSizes {
		hash := strconv.Itoa(s.hash)
		forms = append(forms, chainWeigh+strconv.Itoa(s.weigh), chainHash+hash, chainSource+hash, chainHash+hash+withHoles, chainSource+hash+withHoles)
	}
	return forms
}()

// splitForm splits one of tableForms into its kind, such as chainHash, and the number of slots.
func splitForm(form string) (kind string, size uint32) {
	at := strings.IndexByte(form, '-') + 1
	return form[:at], numgenOf(strings.TrimSuffix(form[at:], withHoles)).Mod
}

// drawRules returns the rules that draw a slot of a table and translate the destination to its endpoint. If the table was removed after the packet
// was dispatched, the endpoints are in another map, in which `pick-1` looks. A hole in a table by hashes refuses the packet.
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
	if strings.HasSuffix(form, withHoles) {
		end = Rule{GotoChain(chainRefuse)}
	}
	switch kind {
	case chainWeigh:
		return []Rule{lookup(Numgen(mod)), lookup(Field{Kind: FieldNumgen, Mod: mod, Offset: mod}), end}
	case chainSource:
		return []Rule{lookup(Field{Kind: FieldHashSource, Mod: mod}), end}
	}
	return []Rule{lookup(Field{Kind: FieldHashFlow, Mod: mod}), end}
}

// tableOf returns the table of a pool. It is nil if `pick-N` has the same effect (no share is refused, and there is one endpoint, or equal weights
// and Balance Random), if the Balance is DestinationHash, and if the pool is empty or has too many endpoints.
func (sp *ServicePort) tableOf(pool Pool) *table {
	endpoints := sp.Pools[pool]
	refused := sp.Refused[pool]
	if sp.Balance == Random && sp.Weights[pool] == nil && refused == 0 && sp.Tables[pool] == nil { // mostly
		return nil
	}
	ids, weights := sp.competitors(pool)
	if len(endpoints) == 0 || len(ids) == 1 && sp.Tables[pool] == nil || !sp.FitsTable(pool) || sp.Balance == DestinationHash {
		return nil
	}
	if sp.Balance == RoundRobin {
		return sp.turns(pool)
	}
	if sp.Tables[pool] != nil {
		return sp.givenTable(pool)
	}
	if sp.Backends[pool] != nil {
		return sp.divided(pool)
	}
	alike := !slices.ContainsFunc(weights, func(w uint32) bool { return w != weights[0] })
	if sp.Balance == Random && alike && refused == 0 {
		return nil
	}
	for _, s := range tableSizes {
		switch {
		case len(ids) > s.endpoints:
		case sp.Balance == LeastConnection: // one level: its slots move one by one
			slots := sp.assign(pool, ids, quotas(weights, ids, s.weigh), s.weigh)
			slots = slices.DeleteFunc(slots, func(endpoint uint16) bool { return endpoint == hole })
			return &table{chainWeigh + strconv.Itoa(s.weigh), append(slices.Repeat([]uint16{hole}, s.weigh-len(slots)), slots...)}
		case sp.Balance == Random:
			return &table{chainWeigh + strconv.Itoa(s.weigh), sp.weigh(pool, weights, ids, s.weigh)}
		default:
			return sp.hashed(sp.assign(pool, ids, quotas(weights, ids, s.hash), s.hash))
		}
	}
	panic("nft: no table is large enough")
}

// maxTurns is the maximum number of slots of a round-robin table, unless there are more endpoints.
const maxTurns = 128

// turns returns the round-robin table of a pool, in the order of nginx's smooth weighted round robin (ngx_http_upstream_round_robin.c), which spreads
// the slots of an endpoint evenly over the table.
func (sp *ServicePort) turns(pool Pool) *table {
	endpoints := sp.Pools[pool]
	if sp.Tables[pool] != nil {
		return &table{formTurns, sp.places(pool, sp.Tables[pool])}
	}
	ids, weights := sp.competitors(pool)
	sum, divisor := 0, 0
	for _, w := range weights {
		sum += int(w)
		divisor = GCD(divisor, int(w))
	}
	order := smooth(quotas(weights, ids, min(sum/divisor, max(maxTurns, len(ids)))))
	if sp.Refused[pool] > 0 { // as in assign, by the turn that the round begins with
		for i, endpoint := range order {
			if int(endpoint) == len(endpoints) {
				order[i] = hole
			}
		}
		for order[0] != hole || order[len(order)-1] == hole {
			order = append(order[1:], order[0])
		}
	}
	return &table{formTurns, order}
}

// formTurns is the form of a table for round robin, in which the number of slots of an endpoint is proportional to its weight.
const formTurns = "round-robin"
