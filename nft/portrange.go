package nft

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A frontend may be a range of ports (Frontend.Last): packets to one of them go to the same
// port of an endpoint. All ranges are elements of one map of verdicts, in which a packet is looked up
// when no exact frontend took it: an exact port within a range has precedence, and costs nothing more.
// The key of a slot cannot name a port that is one of many, so each Service port of ranges has a
// chain and a map of its own, which all of its frontends share.

// hasRanges reports whether the frontends are ranges of ports. The frontends of a Service port are either all ranges or all single ports.
func (sp *ServicePort) hasRanges() bool {
	return len(sp.Frontends) > 0 && sp.Frontends[0].IsRange()
}

// rangeKey returns the key of a range in the interval maps.
func (p *compiledPort) rangeKey(fe *Frontend) string {
	last := frontendKey(p.Protocol, netip.AddrPortFrom(fe.Addr, fe.Last))
	return string(p.key(fe)) + string(last)
}

// rangeMap returns the map from slots to the addresses of a pool's endpoints. It has no ports, because DNAT keeps the port of the packet.
func (p *compiledPort) rangeMap(pool Pool) Set {
	return Set{Name: chainRange + pools[pool].qualifier + "/" + p.ID, Key: []Type{TypeSlot}, Data: []Type{TypeAddr}}
}

// addRanges adds the elements, maps and chains of a Service port with ranges of ports.
//
//	map port-ranges { 10.96.0.10 . udp . 10000-20000 : goto range/default/sip/rtp }
//	map range/default/sip/rtp { 0 : 10.1.2.11, 1 : 10.1.2.12 }
//	chain range/default/sip/rtp {
//		dnat ip to numgen random mod 2 map @range/default/sip/rtp
//		dnat ip to numgen random mod 1 map @range/default/sip/rtp
//		goto refuse
//	}
func (p *compiledPort) addRanges(f *fragment, box *Box) {
	for i := range p.Frontends {
		p.addRange(f, box, i)
	}
	for pool, used := range p.usedPools() {
		if used && len(p.slots[pool]) > 0 {
			p.addRangePool(f, Pool(pool))
		}
	}
}

func (p *compiledPort) addRange(f *fragment, box *Box, i int) {
	fe := &p.Frontends[i]
	key := p.rangeKey(fe)
	verdict := p.rangeVerdict(f, fe.Internal)
	if fe.asksClient() {
		verdict = p.rangeClients(f, box, i)
	}
	f.elements = append(f.elements, placed{setPortRanges, key, verdict.String()})
	if !fe.wholeAddress() {
		f.elements = append(f.elements, placed{setOpenPortRanges, key, ""})
	}
	if verdict, ok := p.sourceNAT(f, box, fe); ok {
		f.elements = append(f.elements, placed{setRangeSourceNAT, key, verdict})
		f.use(p.Protocol)
		f.original = append(f.original, fe.Addr)
	}
	p.addFast(f, box, fe)
	if fe.InsideOnly {
		f.insideOnly = append(f.insideOnly, fe.Addr)
	}
	f.vips = append(f.vips, vipUse{fe.Addr, p.serves(fe), fe.NamedPortsOnly})
}

// rangeVerdict returns the verdict for clients of a range of ports with the given route.
func (p *compiledPort) rangeVerdict(f *fragment, r Route) Verdict {
	switch n := len(p.slots[r.Pool]); {
	case n == 0 && r.Fallback == Blackhole:
		return Verdict{Kind: Drop}
	case n == 0:
		f.shared = append(f.shared, chainRefuse)
		return GotoChain(chainRefuse)
	}
	return GotoChain(p.rangeMap(r.Pool).Name) // the chain has the map's name
}

// addRangePool adds the map of a pool's endpoints and the chain that picks one.
func (p *compiledPort) addRangePool(f *fragment, pool Pool) {
	m, slots := p.rangeMap(pool), p.rangeSlots(pool)
	f.sets = append(f.sets, m)
	for i, a := range slots {
		if a.IsValid() {
			f.elements = append(f.elements, placed{m.Name, JoinKey(Value{Type: TypeSlot, Num: uint32(i)}), AddrKey(a)})
		}
		if p.Balance == DestinationHash {
			f.endpoints = append(f.endpoints, a)
		}
	}
	form := ""
	if t := p.tables[pool]; t != nil {
		form = t.form
	}
	f.shared = append(f.shared, chainRefuse)
	rules := append(p.limitsRule(), rangeDraws(m.Name, rangeForm(form), uint32(len(slots)))...)
	f.chains = append(f.chains, Chain{Name: m.Name, Rules: append(rules, Rule{GotoChain(chainRefuse)})})
}

// rangeSlots returns the addresses in the slots of a pool; the zero Addr in empty slots.
func (p *compiledPort) rangeSlots(pool Pool) []netip.Addr {
	var slots []netip.Addr
	if t := p.tables[pool]; t != nil {
		for _, endpoint := range t.slots {
			if endpoint == hole {
				slots = append(slots, netip.Addr{})
			} else {
				slots = append(slots, p.slots[pool][endpoint].Addr())
			}
		}
		return slots
	}
	for _, ap := range p.chosen(&p.Frontends[0], pool) { // of DestinationHash one for all of them
		slots = append(slots, ap.Addr())
	}
	return slots
}

// rangeForm returns the part of a table's form that determines the rules of rangeDraws; "" if all slots are equally probable.
func rangeForm(form string) string {
	if form == "" || form == formTurns {
		return form
	}
	kind, size := splitForm(form)
	if kind == chainWeigh {
		return kind + strconv.Itoa(int(size))
	}
	return kind
}

// rangeDraws returns the rules that draw one of n slots. The last rule is for packets that find no endpoint in the slot because the map is being
// changed.
func rangeDraws(set, form string, n uint32) []Rule {
	draw := func(slot Field) Rule { return Rule{DNAT{Key: []Field{slot}, Map: set, KeepPort: true}} }
	last := draw(Numgen(1))
	switch {
	case form == formTurns:
		return []Rule{draw(Field{Kind: FieldTurn, Mod: n}), last}
	case form == chainHash:
		return []Rule{draw(Field{Kind: FieldHashFlow, Mod: n}), last}
	case form == chainSource:
		return []Rule{draw(Field{Kind: FieldHashSource, Mod: n}), last}
	case strings.HasPrefix(form, chainWeigh):
		_, size := splitForm(form)
		return []Rule{draw(Numgen(size)), draw(Field{Kind: FieldNumgen, Mod: size, Offset: size}), last}
	case n == 1:
		return []Rule{last}
	}
	return []Rule{draw(Numgen(n)), last}
}

// rangeClients adds the chain that checks the clients of a range of ports. Ranges with the same checks share the chain.
//
//	chain range-clients-0/default/sip/rtp {
//		ip daddr @inside-only jump inside
//		ip saddr @source-set/scanners counter name "source-range" drop
//		ip saddr != @range-sources-0/default/sip/rtp counter name "source-range" drop
//		fib saddr type local goto range/default/sip/rtp
//		ip saddr != 100.64.0.0/11 goto range-local/default/sip/rtp
//		goto range/default/sip/rtp
//	}
//
// If source sets allow clients, the clients in them and in the source ranges go on to a second chain, range-clients-0-in/default/sip/rtp, and all
// others are dropped.
func (p *compiledPort) rangeClients(f *fragment, box *Box, i int) Verdict {
	fe := &p.Frontends[i]
	if fe.Sets != nil {
		f.sourceSets = append(append(f.sourceSets, fe.Sets.Allow...), fe.Sets.Deny...)
	}
	group := strconv.Itoa(p.rangeGroup(fe))
	name := chainRangeClients + group
	chain := name + "/" + p.ID
	if slices.ContainsFunc(p.Frontends[:i], func(o Frontend) bool { return asksTheSame(&o, fe) }) {
		return GotoChain(chain)
	}
	client := []Field{Saddr}
	var rules []Rule
	if fe.InsideOnly {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: setInsideOnly}, Verdict{Kind: Jump, Chain: chainInside}})
	}
	drop := func(match ...Statement) Rule {
		return append(match, box.counted(RefusedSourceRange, Verdict{Kind: Drop})...)
	}
	ranges := mergePrefixes(fe.Sources, p.Family)
	sources := Set{Name: setRangeSources + group + "/" + p.ID, Key: []Type{TypeAddr}, Interval: true}
	if len(ranges) > 0 {
		f.sets = append(f.sets, sources)
	}
	for _, r := range ranges {
		f.elements = append(f.elements, placed{sources.Name, AddrKey(r.First) + AddrKey(r.Last), ""})
	}
	var allow []Statement
	if fe.Sets != nil {
		names := fe.Sets.names()
		for _, set := range names.deny {
			rules = append(rules, drop(MatchSet{Key: client, Set: sourceSetName(set)}))
		}
		for _, set := range names.allow {
			allow = append(allow, MatchSet{Key: client, Set: sourceSetName(set)})
		}
	}
	switch onward := p.rangeRoutes(f, box, fe); {
	case len(allow) > 0:
		if len(ranges) > 0 {
			allow = append(allow, MatchSet{Key: client, Set: sources.Name})
		}
		in := name + suffixAdmitted + "/" + p.ID
		for _, match := range allow {
			rules = append(rules, Rule{match, GotoChain(in)})
		}
		f.chains = append(f.chains, Chain{Name: in, Rules: onward})
		rules = append(rules, drop())
	case len(ranges) > 0:
		rules = append(append(rules, drop(MatchSet{Key: client, Set: sources.Name, Negate: true})), onward...)
	case fe.Sources != nil:
		rules = append(rules, drop())
	default:
		rules = append(rules, onward...)
	}
	f.chains = append(f.chains, Chain{Name: chain, Rules: rules})
	return GotoChain(chain)
}

// asksClient reports whether the verdict for a frontend depends on the client.
func (fe *Frontend) asksClient() bool {
	return fe.External != fe.Internal || fe.Sources != nil || fe.Sets != nil || fe.InsideOnly
}

// rangeGroup returns the number of the group of fe. The verdict for fe must depend on the client (asksClient). A group consists of the frontends of
// the port that admit the same clients and have the same routes (asksTheSame). Groups are numbered from 0 by their lowest addresses.
func (p *compiledPort) rangeGroup(fe *Frontend) int {
	var asking []*Frontend
	for i := range p.Frontends {
		if p.Frontends[i].asksClient() {
			asking = append(asking, &p.Frontends[i])
		}
	}
	slices.SortFunc(asking, func(a, b *Frontend) int { return a.Addr.Compare(b.Addr) })
	var groups []*Frontend
	for _, fe := range asking {
		if !slices.ContainsFunc(groups, func(o *Frontend) bool { return asksTheSame(o, fe) }) {
			groups = append(groups, fe)
		}
	}
	return slices.IndexFunc(groups, func(o *Frontend) bool { return asksTheSame(o, fe) })
}

// rangeRoutes returns the rules that send permitted clients to their pools.
func (p *compiledPort) rangeRoutes(f *fragment, box *Box, fe *Frontend) []Rule {
	inside := p.rangeVerdict(f, fe.Internal)
	if fe.External == fe.Internal {
		return []Rule{{inside}}
	}
	return []Rule{
		{MatchLocalSource{}, inside},
		append(outsideClients(p.Family, box), p.rangeVerdict(f, fe.External)),
		{inside},
	}
}

// asksTheSame reports whether two frontends of a port admit the same clients and have the same routes.
func asksTheSame(a, b *Frontend) bool {
	sets := func(fe *Frontend) SourceSets {
		if fe.Sets == nil {
			return SourceSets{}
		}
		return *fe.Sets
	}
	return a.Internal == b.Internal && a.External == b.External && a.InsideOnly == b.InsideOnly &&
		(a.Sources == nil) == (b.Sources == nil) && slices.Equal(a.Sources, b.Sources) && (a.Sets == nil) == (b.Sets == nil) &&
		slices.Equal(sets(a).Allow, sets(b).Allow) && slices.Equal(sets(a).Deny, sets(b).Deny)
}

// rangeRule returns the rule that looks up ranges, for packets that match no frontend of a single port.
func rangeRule() Rule { return Rule{VerdictMap{Key: frontend, Map: setPortRanges}} }

// ranges recovers the ranges of ports from a table. Ranges with clients restricted by source sets are left out, because rules cannot be read back.
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
			fe.Internal = r.route(&p, elements[key])
			fe.External = fe.Internal
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
		slots := r.table.slotsIn(p.rangeMap(pool), p.Family)
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

// rangeSources recovers the route and the permitted clients of a range. It returns false if source sets restrict the clients.
func (r *recovery) rangeSources(p *compiledPort, fe *Frontend, verdict string) bool {
	chain, _ := strings.CutPrefix(verdict, "goto ")
	if !strings.HasPrefix(chain, chainRangeClients) {
		fe.Internal = r.route(p, verdict)
		fe.External = fe.Internal
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
	// Try the possible routes until the rules match. Where no client may connect, no rule differs
	// by pool.
	ways := []Route{{Pool: PoolLocal}, {Pool: PoolLocal, Fallback: Blackhole}, {Pool: PoolCluster}}
	if len(p.Pools[PoolLocal]) == 0 {
		slices.Reverse(ways)
	}
	for _, outside := range ways {
		for _, sources := range [][]netip.Prefix{fe.Sources, {}} {
			tried := *fe
			tried.Internal, tried.External, tried.Sources = Route{Pool: PoolCluster}, outside, sources
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

// renumbered returns a rule of the chain range-clients-0 as it is in the chain with another number.
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
