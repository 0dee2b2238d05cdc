package nft

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Ruleset returns the current ruleset of the compiler, built from all Services. Its chains are shared with the compiler and must not be changed.
func (c *Compiler) Ruleset() Ruleset {
	rs := Ruleset{}
	for _, f := range Families {
		if want := c.content(f); want != nil {
			t := &Table{Sets: make(map[string]*SetContent, len(want.sets)), Chains: maps.Clone(want.chains), Timeouts: maps.Clone(want.timeouts), Flowtables: maps.Clone(want.flowtables), Counters: want.counters}
			for name, s := range want.sets {
				t.Sets[name] = &SetContent{Set: s, Elements: make(Elements, want.counts[name])}
			}
			for set, e := range want.elements {
				t.Sets[set].Elements[e.Key] = e.Data
			}
			rs[f] = t
		}
	}
	return rs
}

// From returns the Transition from the ruleset have, as read from the kernel, to the ruleset of the
// compiler. A table that cannot be changed into the wanted one, because a set or a base chain
// is defined otherwise, is replaced as a whole in the same transaction.
func (c *Compiler) From(have Ruleset) Transition {
	var tr Transition
	for _, f := range Families {
		diffTable(f, have[f], c.content(f), &tr)
	}
	return tr
}

// content returns the wanted table of a family, or nil if the family needs no table.
func (c *Compiler) content(f Family) *content {
	t := c.tables[f]
	if !t.exists {
		return nil
	}
	want := &content{sets: t.sets, chains: t.chains, timeouts: t.timeouts, flowtables: t.flowtables, counters: t.counters, counts: make(map[string]int, len(t.sets)), sorted: true}
	for set := range t.sets {
		want.counts[set] = t.count(set)
	}
	want.elements = func(yield func(string, Element) bool) {
		_ = c.portElements(f, yield) && t.sourceElements(f, yield) && t.sharedElements(yield)
	}
	return want
}

// portElements yields the elements that belong to a single Service port. It returns false once yield does.
func (c *Compiler) portElements(f Family, yield func(string, Element) bool) bool {
	var brings fragment // used again and again
	for _, name := range sortedKeys(c.services) {
		for _, p := range c.services[name] {
			if p.Family != f {
				continue
			}
			brings.fill(p, &c.box)
			for _, e := range brings.elements {
				if !yield(e.set, Element{e.key, e.data}) {
					return false
				}
			}
		}
	}
	return true
}

// sharedElements yields the elements that Service ports share (hairpin pairs, addresses, adopted connections), and the elements that describe the
// box.
func (t *tableState) sharedElements(yield func(string, Element) bool) bool {
	var keys keeper
	for _, key := range slices.SortedFunc(maps.Keys(t.endpoints), func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }) {
		if !yield(setHairpin, Element{Key: keys.pairKey(netip.AddrFrom16(key).Unmap())}) {
			return false
		}
	}
	var room [4]placed
	for _, a := range slices.SortedFunc(maps.Keys(t.addresses), netip.Addr.Compare) {
		for _, e := range t.addresses[a].elements(a, room[:0]) {
			if !yield(e.set, Element{e.key, e.data}) {
				return false
			}
		}
	}
	if !t.adoptedElements(yield) || !t.egressElements(yield) {
		return false
	}
	for _, set := range sortedKeys(t.box) {
		for _, key := range sortedKeys(t.box[set]) {
			if !yield(set, Element{Key: key}) {
				return false
			}
		}
	}
	return true
}

// Compile returns the ruleset of a State.
func Compile(s State) Ruleset {
	c := NewCompiler()
	c.Load(s)
	return c.Ruleset()
}

// Adopt loads the State as a change of the ruleset have, which is in the kernel. An endpoint with a slot in have keeps that slot. The Transition
// leads from have to the ruleset of the State.
func (c *Compiler) Adopt(have Ruleset, s State) Transition {
	if len(have) == 0 {
		return c.Load(s)
	}
	c.adopted = have
	c.load(s, nil)
	tr := c.From(have)
	remembers := changedRemembers(&tr.Apply)
	for _, f := range Families {
		held := func(s *Set) bool { return have[f] != nil && have[f].Sets[s.Name] != nil }
		for _, x := range c.tables[f].forget {
			if held(&x.set) {
				tr.Apply.Ops = append(tr.Apply.Ops, x.op(f))
				tr.Forget = append(tr.Forget, x.op(f))
			}
		}
		for _, x := range c.tables[f].caps {
			if _, id, _ := strings.Cut(x.Set.Name, "/"); held(&x.Set) && remembers[remembering{f, id}] {
				tr.Apply.Ops = append(tr.Apply.Ops, x)
			}
		}
	}
	return tr
}

// The dispatch maps count: each element has a counter of the first packets of connections that it
// decided about, of both directions none but the first, for these are NAT chains. Its verdict gives
// the reason that was counted (Refuses). Packets without an element are counted by named counters, in rules
// that only refused packets reach.

// The names of counters. Each counts the packets that are refused or dropped for one reason.
const (
	RefusedNoEndpoint   = "no-endpoint"        // packets to a frontend without an endpoint for the client
	RefusedNoSuchPort   = "no-such-port"       // packets to a port of a VIP that no Service has
	RefusedNotAllocated = "not-allocated"      // packets to an address reserved for Services that no Service has
	RefusedSourceRange  = "source-range"       // packets of a client outside the frontend's source ranges
	RefusedInsideOnly   = "inside-only"        // packets of an outside client to a frontend that accepts inside clients only
	RefusedRate         = "rate-limit"         // new connections that exceed the rate limit of a Service
	RefusedClientRate   = "client-rate-limit"  // new connections that exceed the rate limit of a client
	RefusedClientConns  = "client-connections" // new connections that exceed the connection limit of a client
	RefusedStray        = "stray"              // packets to or from a Service that belong to no connection
)

// Refusals lists the names of all counters of refused packets, sorted.
var Refusals = []string{
	RefusedClientConns, RefusedClientRate, RefusedInsideOnly, RefusedNoEndpoint, RefusedNoSuchPort, RefusedNotAllocated, RefusedRate, RefusedSourceRange, RefusedStray,
}

// ofLimits are the names of the counters that exist only while a Service port has limits.
var ofLimits = []string{RefusedClientConns, RefusedClientRate, RefusedRate}

// reasons maps the chains that refuse to their reasons.
var reasons = map[string]string{chainRefuse: RefusedNoEndpoint, chainRefusePort: RefusedNoSuchPort, chainRefuseClient: RefusedClientConns}

// IsCounted reports whether the elements of a map count connections: those with the verdicts of frontends, and the sources
// of egress.
func IsCounted(set string) bool {
	switch set {
	case setEgress, setLimited, setLimitedOutside, setNPLimited, setNPLimitedOutside, setPortRanges, setServices, setInsideServices, setOutsideServices, setNodePorts, setInsideNodePorts, setOutsideNodePorts:
		return true
	}
	return false
}

// on returns s as it is defined for a box: with counters if box.Counters is set and IsCounted(s.Name).
func (s Set) on(box *Box) Set {
	s.Counted = box.Counters && IsCounted(s.Name)
	return s
}

// counted returns the statements in then. If the box has counters, the counter named reason comes before them.
func (b *Box) counted(reason string, then ...Statement) []Statement {
	if !b.Counters {
		return then
	}
	return append([]Statement{Counter{reason}}, then...)
}

// setCounters sets the names of the table's counters: Refusals if the box has counters, otherwise none. The counters of limits are left out while no
// Service port has limits.
func (t *tableState) setCounters(box *Box) {
	t.counters = nil
	if t.exists && box.Counters {
		t.counters = Refusals
		if t.limits == 0 {
			t.counters = slices.DeleteFunc(slices.Clone(Refusals), func(name string) bool { return slices.Contains(ofLimits, name) })
		}
	}
}

// fill sets the elements that the port contributes to f. They are a pure function of the port, its slots and the box, so that they can be
// computed again for removal.
func (f *fragment) fill(p *compiledPort, box *Box) {
	clear(f.uses)
	f.answersHere, f.limits = 0, 0
	f.elements, f.endpoints, f.vips, f.original, f.hosted = f.elements[:0], f.endpoints[:0], f.vips[:0], f.original[:0], f.hosted[:0]
	f.insideOnly = f.insideOnly[:0]
	f.chains, f.shared, f.sets, f.sourceSets = f.chains[:0], f.shared[:0], f.sets[:0], f.sourceSets[:0]
	f.timeouts, f.adopted, f.egress = f.timeouts[:0], f.adopted[:0], &p.Egress
	p.addEgress(f)
	if p.hasRanges() {
		p.addRanges(f, box)
	} else {
		for i := range p.Frontends {
			p.addFrontend(f, box, &p.Frontends[i])
		}
	}
	if p.Limits.Any() && slices.ContainsFunc(p.Frontends, func(fe Frontend) bool { return p.serves(&fe) }) {
		p.addLimits(f, box)
	}
	if p.Balance == RoundRobin && !p.hasRanges() {
		p.addTurns(f)
	}
	if p.Affinity > 0 {
		p.addAffinity(f, box)
	}
	for pool := range NumPools {
		if !p.leadsTo(pool) {
			continue // no client is sent to these, and a start would not find them in the kernel
		}
		if pool > 0 && p.leadsTo(pool-1) && slices.Equal(p.slots[pool], p.slots[pool-1]) {
			continue // mostly
		}
		if p.Balance == DestinationHash {
			continue // those that are chosen for a frontend
		}
		for _, ap := range p.slots[pool] {
			f.endpoints = append(f.endpoints, ap.Addr())
		}
	}
}

func (p *compiledPort) addFrontend(f *fragment, box *Box, fe *Frontend) {
	maps := &vipMaps
	if !fe.Addr.IsValid() {
		maps = &nodePortMaps
	}
	key := p.key(fe)
	frontend := f.keep(key)
	inside, limited := p.limited(f, maps.limits.inside, frontend, p.verdict(f, fe, fe.Internal))
	if inside = p.addUnsettled(f, fe, key, inside); !fe.asksClient() {
		f.elements = append(f.elements, placed{maps.all, frontend, inside})
	} else {
		f.elements = append(f.elements,
			placed{maps.all, frontend, p.addClients(f, fe, maps, frontend).String()},
			placed{maps.inside, frontend, inside})
	}
	if !fe.Addr.IsValid() {
		f.elements = append(f.elements, placed{setOpenNodePorts, frontend, ""})
	} else if !fe.wholeAddress() {
		f.elements = append(f.elements, placed{setOpenPorts, frontend, ""})
	}
	if !fe.Addr.IsValid() || fe.HostOwned {
		f.hosted = append(f.hosted, frontend)
	}
	p.addSlots(f, fe, key, fe.Internal.Pool)
	if fe.External != fe.Internal {
		outside, also := p.limited(f, maps.limits.outside, frontend, p.verdict(f, fe, fe.External))
		limited = limited || also
		f.elements = append(f.elements, placed{maps.outside, frontend, outside})
		if fe.External.Pool != fe.Internal.Pool {
			p.addSlots(f, fe, key, fe.External.Pool)
		}
	}
	if limited {
		f.elements = append(f.elements, placed{maps.limits.by, frontend, p.jumpToLimits().String()})
	}
	p.addIdle(f, box, fe)
	p.addFast(f, box, fe)
	p.addAdopted(f, fe)
	if verdict, ok := p.sourceNAT(f, box, fe); ok {
		f.elements = append(f.elements, placed{maps.sourceNAT, frontend, verdict})
		f.use(p.Protocol)
		if fe.Addr.IsValid() {
			f.original = append(f.original, fe.Addr)
		}
	}
	switch {
	case fe.InsideOnly && fe.Addr.IsValid():
		f.insideOnly = append(f.insideOnly, fe.Addr)
	case fe.InsideOnly:
		f.elements = append(f.elements, placed{maps.insideOnly, frontend, ""})
	}
	if fe.Addr.IsValid() && !fe.HostOwned {
		f.vips = append(f.vips, vipUse{fe.Addr, len(p.slots[fe.Internal.Pool])+len(p.slots[fe.External.Pool]) > 0, fe.NamedPortsOnly})
	}
}

// addClients adds the source ranges and source sets that restrict the clients of a frontend, and returns the verdict that leads to the chain that
// checks them.
func (p *compiledPort) addClients(f *fragment, fe *Frontend, maps *frontendMaps, frontend string) Verdict {
	ranges := mergePrefixes(fe.Sources, p.Family)
	for _, r := range ranges {
		first, last := frontend+AddrKey(r.First), frontend+AddrKey(r.Last)
		f.elements = append(f.elements, placed{maps.allowed, first + last, ""})
	}
	if fe.Sets != nil && (len(ranges) > 0 || fe.Sources == nil || len(fe.Sets.Allow) > 0) {
		f.sourceSets = append(append(f.sourceSets, fe.Sets.Allow...), fe.Sets.Deny...)
		chain := admission{!fe.Addr.IsValid(), len(ranges) > 0, fe.Sets.names()}.chain()
		f.shared = append(f.shared, chain)
		return GotoChain(chain)
	}
	if fe.Sources != nil { // no client at all, with sets
		f.elements = append(f.elements, placed{maps.restricted, frontend, ""})
	}
	return GotoChain(maps.byClient)
}

func (p *compiledPort) addSlots(f *fragment, fe *Frontend, key Key, pool Pool) {
	maps := pools[pool].of(fe)
	switch t := p.tables[pool]; {
	case t != nil && t.form == formTurns:
		return // those of all frontends are in the port's own map
	case t != nil:
		p.addTable(f, maps.tables, key, pool)
		return
	}
	chosen := p.chosen(fe, pool)
	var room [20]byte
	for i, ap := range chosen {
		data := Key(room[:0]).Addr(ap.Addr()).Port(ap.Port())
		f.elements = append(f.elements, placed{maps.backends, f.keep(key.Slot(uint32(i))), f.keep(data)})
		if p.Balance == DestinationHash {
			f.endpoints = append(f.endpoints, ap.Addr())
		}
	}
}

// addTable adds an element for each slot of a table that has an endpoint.
func (p *compiledPort) addTable(f *fragment, set string, key Key, pool Pool) {
	data := make([]string, len(p.slots[pool]))
	for i, ap := range p.slots[pool] {
		data[i] = AddrPortData(ap)
	}
	for i, endpoint := range p.tables[pool].slots {
		if endpoint != hole {
			f.elements = append(f.elements, placed{set, f.keep(key.Slot(uint32(i))), data[endpoint]})
		}
	}
}

// verdict returns the verdict in a dispatch map for the frontend's clients with the given route.
func (p *compiledPort) verdict(f *fragment, fe *Frontend, r Route) string {
	switch n := len(p.slots[r.Pool]); {
	case n == 0 && r.Fallback == Blackhole:
		return Verdict{Kind: Drop}.String()
	case n == 0:
		f.shared = append(f.shared, chainRefuse)
		return GotoChain(chainRefuse).String()
	case p.Affinity > 0:
		return p.onlySYN(f, GotoChain(p.recall(fe, r.Pool))).String() // the port's own chain
	}
	return p.onlySYN(f, p.pick(f, fe, r.Pool)).String()
}
