package nft

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ranges reads the ranges of a table back. Ranges whose clients are restricted by source sets are
// left out: rules cannot be read back.
func (r *recovery) ranges() {
	elements := r.table.elements(setPortRanges)
	for _, key := range sortedKeys(elements) {
		ends := SplitKey(keyFrontend, r.family, key)
		if len(ends) != 2*len(keyFrontend) {
			continue
		}
		p := compiledPort{ServicePort: &ServicePort{Family: r.family, Protocol: Protocol(ends[1].Num), ID: idOf(elements[key])}}
		fe := Frontend{Addr: ends[0].Addr, Port: uint16(ends[2].Num), Last: uint16(ends[5].Num)}
		_, fe.NamedPortsOnly = r.table.elements(setOpenPortRanges)[key]
		_, fe.InsideOnly = r.table.elements(setInsideOnly)[AddrKey(fe.Addr)]
		if p.ID == "" { // it has no endpoint
			fe.Inside = r.route(&p, elements[key])
			fe.Outside = fe.Inside
		} else if r.rangePools(&p); !r.rangeSources(&p, &fe, elements[key]) {
			continue
		}
		p.Limits = r.limits[p.ID]
		r.sourceNAT(&frontendMaps{sourceNAT: setRangeSourceNAT}, key, &fe)
		if i, known := r.byID[p.ID]; known && p.ID != "" {
			r.ports[i].Frontends = append(r.ports[i].Frontends, fe)
			continue
		}
		if p.ID != "" {
			r.byID[p.ID] = len(r.ports)
		}
		p.Frontends = []Frontend{fe}
		p.Serving = union(p.Pools[PoolCluster], p.Pools[PoolLocal])
		r.ports = append(r.ports, *p.ServicePort)
	}
}

// rangePools reads the endpoints of a port's ranges.
func (r *recovery) rangePools(p *compiledPort) {
	for pool := range NumPools {
		slots := r.table.rangeSlots(p, pool)
		c := r.table.Chains[p.rangeMap(pool).Name]
		if len(slots) == 0 || c == nil {
			continue
		}
		n := uint32(len(slots))
		draws := func(form string, n uint32) bool {
			return slices.Contains(r.marks(c), rangeDraws(c.Name, form, n)[0].Mark(r.family))
		}
		p.Pools[pool] = distinct(slots)
		switch {
		case draws("", n) && len(p.Pools[pool]) == len(slots):
			p.Pools[pool] = slots
			continue
		case draws(chainSource, n):
			p.Balance = SourceHash
		case draws(chainHash, n):
			p.Balance = Maglev
		case draws(formTurns, n):
			p.Balance = RoundRobin
		default:
			for _, s := range tableSizes {
				if form := chainWeigh + strconv.Itoa(s.weigh); draws(form, n) && int(n) > s.weigh && int(n) < 2*s.weigh {
					slots = append(slots, make([]netip.AddrPort, 2*s.weigh-int(n))...)
				}
			}
		}
		p.Tables[pool] = slots
	}
}

// rangeSlots reads the slots of a pool, with the zero AddrPort for holes; nil when there are none.
func (t *Table) rangeSlots(p *compiledPort, pool Pool) []netip.AddrPort {
	elements := t.elements(p.rangeMap(pool).Name)
	var slots []netip.AddrPort
	for key, data := range elements {
		slot, addr := SplitKey([]Type{TypeSlot}, p.Family, key), SplitKey([]Type{TypeAddr}, p.Family, data)
		if len(slot) != 1 || len(addr) != 1 || slot[0].Num > 2*MaxTableEndpoints*4 {
			return nil // a stranger's
		}
		if n := int(slot[0].Num) + 1; n > len(slots) {
			slots = append(slots, make([]netip.AddrPort, n-len(slots))...)
		}
		slots[slot[0].Num] = netip.AddrPortFrom(addr[0].Addr, 0)
	}
	return slots
}

// rangeSources reads the route and the permitted clients of a range; false when source sets restrict
// them.
func (r *recovery) rangeSources(p *compiledPort, fe *Frontend, verdict string) bool {
	chain, _ := strings.CutPrefix(verdict, "goto ")
	if !strings.HasPrefix(chain, chainRangeClients) {
		fe.Inside = r.route(p, verdict)
		fe.Outside = fe.Inside
		return true
	}
	c := r.table.Chains[chain]
	name, id, _ := strings.Cut(chain, "/")
	if c == nil || r.table.Chains[name+suffixAdmitted+"/"+id] != nil {
		return false
	}
	number := strings.TrimPrefix(name, chainRangeClients)
	if sources := r.table.elements(setRangeSources + number + "/" + id); len(sources) > 0 {
		fe.Sources = []netip.Prefix{}
		for key := range sources {
			if ends := SplitKey([]Type{TypeAddr}, r.family, key); len(ends) == 2 {
				fe.Sources = append(fe.Sources, prefixesOf(ends[0].Addr, ends[1].Addr)...)
			}
		}
		slices.SortFunc(fe.Sources, netip.Prefix.Compare)
	}
	// Try the possible routes until the rules match. Where no client may connect, no rule tells the
	// pools apart.
	ways := []Route{{Pool: PoolLocal}, {Pool: PoolLocal, Otherwise: Blackhole}, {Pool: PoolCluster}}
	if len(p.Pools[PoolLocal]) == 0 {
		slices.Reverse(ways)
	}
	for _, outside := range ways {
		for _, sources := range [][]netip.Prefix{fe.Sources, {}} {
			tried := *fe
			tried.Inside, tried.Outside, tried.Sources = Route{Pool: PoolCluster}, outside, sources
			made := compiledPort{ServicePort: &ServicePort{ID: p.ID, Family: p.Family, Protocol: p.Protocol, Frontends: []Frontend{tried}}, slots: p.Pools}
			var f fragment
			made.rangeClients(&f, r.box, 0)
			if slices.EqualFunc(r.marks(c), f.chains[len(f.chains)-1].Rules, func(mark uint64, rule Rule) bool {
				return mark == renumbered(rule, number, p.ID).Mark(r.family)
			}) {
				*fe = tried
				return true
			}
		}
	}
	return false
}

// renumbered is a rule of the first chain about clients as another one has it.
func renumbered(r Rule, number, id string) Rule {
	r = slices.Clone(r)
	for i, s := range r {
		if m, is := s.(MatchSet); is && m.Set == setRangeSources+"0/"+id {
			m.Set = setRangeSources + number + "/" + id
			r[i] = m
		}
	}
	return r
}
