package nft

import (
	"net/netip"
	"slices"
)

// fragment is the share of one Service port in the table of its family. It has more than 15 fields: one for
// each kind of set or chain that a port adds to or takes from as a whole.
type fragment struct {
	elements  []placed     // elements that are its own
	endpoints []netip.Addr // for the hairpin set, shared with other ports
	vips      []vipUse     // the VIPs it is reached by
	original  []netip.Addr // addresses with an element in source-nat, one for each
	// insideOnly are the addresses of frontends that only clients inside reach, one for each.
	insideOnly []netip.Addr
	hosted     []string          // keys of frontends that it takes from the host
	chains     []Chain           // chains that are its own
	shared     []string          // shared chains it goes to
	sets       []Set             // maps that are its own
	uses       map[Protocol]bool // protocols that postrouting or answer must look at
	// sourceSets has the source sets of its frontends, once for each frontend.
	sourceSets []*SourceSet
	// timeouts has the idle timeouts of its frontends, once for each frontend.
	timeouts []Timeout
	// adopted has the elements that exist while no other frontend adopts their endpoint.
	adopted []placed
	// answersHere is 1 when clients of endpoints that are the box itself are remembered.
	answersHere int
	// limits is 1 when the port has limits.
	limits int
	keeper
}

type placed struct{ set, key, data string }

type vipUse struct {
	addr  netip.Addr
	ready bool // some client of it is served
	named bool // only the ports of frontends are taken there
}

// compiledPort is a Service port with the slots of its endpoints.
type compiledPort struct {
	*ServicePort
	slots  [NumPools][]netip.AddrPort
	tables [NumPools]*table // nil: an endpoint is picked from the slots, each as likely
	// others are the ports of the Service for which a client is remembered together with this one.
	others []*compiledPort
}

// fill makes f the elements that the port contributes. They are a pure function of the port, its
// slots and the box, so that they can be computed again to be removed.
func (f *fragment) fill(p *compiledPort, box *Box) {
	clear(f.uses)
	f.answersHere, f.limits = 0, 0
	f.elements, f.endpoints, f.vips, f.original, f.hosted = f.elements[:0], f.endpoints[:0], f.vips[:0], f.original[:0], f.hosted[:0]
	f.insideOnly = f.insideOnly[:0]
	f.chains, f.shared, f.sets, f.sourceSets = f.chains[:0], f.shared[:0], f.sets[:0], f.sourceSets[:0]
	f.timeouts, f.adopted = f.timeouts[:0], f.adopted[:0]
	if p.hasRanges() {
		p.addRanges(f, box)
	} else {
		for i := range p.Frontends {
			p.addFrontend(f, box, &p.Frontends[i])
		}
	}
	if p.Limits.Any() && p.servesAny() {
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

// maps are the maps a frontend's elements stand in.
type frontendMaps struct {
	all, byClient, inside, outside, sourceNAT, answers, refresh, restricted, allowed string

	insideOnly    string
	insideOnlyKey []Field // what of a packet is looked up in it

	limits limitedMaps
}

var (
	vipMaps = frontendMaps{setServices, chainByClient, setInsideServices, setOutsideServices,
		setSourceNAT, setAnswers, setRefresh, setRestricted, setAllowed, setInsideOnly, []Field{Daddr},
		limitedMaps{setLimitedBy, limitedMap{setLimited, chainLimited}, limitedMap{setLimitedOutside, chainLimitedOutside}}}
	nodePortMaps = frontendMaps{setNodePorts, chainNPByClient, setInsideNodePorts, setOutsideNodePorts,
		setNPSourceNAT, setNPAnswers, setNPRefresh, setNPRestricted, setNPAllowed, setNPInsideOnly, nodePort,
		limitedMaps{setNPLimitedBy, limitedMap{setNPLimited, chainNPLimited}, limitedMap{setNPLimitedOutside, chainNPLimitedOutside}}}
)

func (p *compiledPort) addFrontend(f *fragment, box *Box, fe *Frontend) {
	maps := &vipMaps
	if !fe.Addr.IsValid() {
		maps = &nodePortMaps
	}
	key := p.key(fe)
	frontend := f.keep(key)
	inside, limited := p.limited(f, maps.limits.inside, frontend, p.verdict(f, fe, fe.Inside))
	if !fe.asksClient() {
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
	p.addSlots(f, fe, key, fe.Inside.Pool)
	if fe.Outside != fe.Inside {
		outside, also := p.limited(f, maps.limits.outside, frontend, p.verdict(f, fe, fe.Outside))
		limited = limited || also
		f.elements = append(f.elements, placed{maps.outside, frontend, outside})
		if fe.Outside.Pool != fe.Inside.Pool {
			p.addSlots(f, fe, key, fe.Outside.Pool)
		}
	}
	if limited {
		f.elements = append(f.elements, placed{maps.limits.by, frontend, p.jumpToLimits().String()})
	}
	p.addIdle(f, box, fe)
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
		ready := len(p.slots[fe.Inside.Pool])+len(p.slots[fe.Outside.Pool]) > 0
		f.vips = append(f.vips, vipUse{fe.Addr, ready, fe.NamedPortsOnly})
	}
}

// addClients adds the clients that may connect to a frontend, and returns the verdict that leads to
// the chain that checks them.
func (p *compiledPort) addClients(f *fragment, fe *Frontend, maps *frontendMaps, frontend string) Verdict {
	ranges := mergePrefixes(fe.Sources, p.Family)
	for _, r := range ranges {
		first, last := frontend+AddrKey(r.First), frontend+AddrKey(r.Last)
		f.elements = append(f.elements, placed{maps.allowed, first + last, ""})
	}
	if fe.Sets != nil && (len(ranges) > 0 || fe.Sources == nil || len(fe.Sets.Allow) > 0) {
		f.sourceSets = append(append(f.sourceSets, fe.Sets.Allow...), fe.Sets.Deny...)
		chain := admissionOf(fe, len(ranges) > 0).chain()
		f.shared = append(f.shared, chain)
		return GotoChain(chain)
	}
	if fe.Sources != nil { // no client at all, with sets
		f.elements = append(f.elements, placed{maps.restricted, frontend, ""})
	}
	return GotoChain(maps.byClient)
}

func (f *fragment) use(proto Protocol) {
	if f.uses == nil {
		f.uses = make(map[Protocol]bool, 1)
	}
	f.uses[proto] = true
}

// key is the frontend's key in the dispatch maps.
func (p *compiledPort) key(fe *Frontend) Key {
	return frontendKey(p.Protocol, netip.AddrPortFrom(fe.Addr, fe.Port))
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

// addTable adds the slots of a table that have an endpoint.
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

// verdict returns the verdict by which the dispatch sends a frontend's clients on.
func (p *compiledPort) verdict(f *fragment, fe *Frontend, r Route) string {
	n := len(p.slots[r.Pool])
	switch {
	case n == 0 && r.Otherwise == Blackhole:
		return Verdict{Kind: Drop}.String()
	case n == 0:
		f.shared = append(f.shared, chainRefuse)
		return GotoChain(chainRefuse).String()
	case p.Affinity > 0:
		return p.onlySYN(f, GotoChain(p.recall(fe, r.Pool))).String() // the port's own chain
	}
	return p.onlySYN(f, p.pick(f, fe, r.Pool)).String()
}

// pick goes to the chain that picks one of the pool's slots, or draws one of its table. That
// one goes on to the chain for one slot, and that to the refusal.
func (p *compiledPort) pick(f *fragment, fe *Frontend, pool Pool) Verdict {
	maps := pools[pool].of(fe)
	if t := p.tables[pool]; t != nil {
		f.shared = append(f.shared, chainRefuse)
		if t.form == formTurns {
			return GotoChain(p.turnsMap(pool).Name) // the chain has the map's name
		}
		f.shared = append(f.shared, maps.firstPick())
		return GotoChain(maps.prefix + t.form) // which is there as long as the tables are
	}
	slots := len(p.slots[pool])
	if p.Balance == DestinationHash {
		slots = 1
	}
	chain := maps.pick(slots)
	f.shared = append(f.shared, chain, maps.firstPick(), chainRefuse)
	return GotoChain(chain)
}

// masquerade is the chain that a class of frontends goes to in postrouting, "" for none.
func (p *compiledPort) masquerade(class SNAT, box *Box) string {
	switch {
	case class == SNATAlways:
		return chainMasqAlways
	case class == SNATSelf:
		return chainMasqSelf
	case class == SNATOutside && box.hasInternalSources(p.Family):
		return chainMasqOutside
	}
	return ""
}

// sourceNAT is the frontend's verdict in postrouting: note newcomers first, if the
// port is sticky, then masquerade it or not. What the rules for cluster IPs do anyway
// needs none.
func (p *compiledPort) sourceNAT(f *fragment, box *Box, fe *Frontend) (string, bool) {
	if !p.serves(fe) {
		return "", false
	}
	if p.Affinity > 0 {
		return GotoChain(p.newcomer(fe)).String(), true
	}
	chain := p.masquerade(fe.SNAT, box)
	byRange := chainMasqOutside // what becomes of a client where there is no element
	if !box.hasInternalSources(p.Family) || !box.inServiceRange(fe.Addr) {
		byRange = ""
	}
	timeout, idle := p.idle()
	if chain == byRange && !idle {
		return "", false
	}
	if chain == "" {
		chain = chainSameInterf
	} else {
		f.shared = append(f.shared, chain)
	}
	if idle {
		chain = idleChain(timeout, chain)
		f.shared = append(f.shared, chain)
	}
	return GotoChain(chain).String(), true
}

// leadsTo reports whether a frontend sends clients to a pool.
func (p *compiledPort) leadsTo(pool Pool) bool {
	for i := range p.Frontends {
		if fe := &p.Frontends[i]; fe.Inside.Pool == pool || fe.Outside.Pool == pool {
			return true
		}
	}
	return false
}

// serves reports whether any connection to the frontend reaches an endpoint.
func (p *compiledPort) serves(fe *Frontend) bool {
	return len(p.slots[fe.Inside.Pool])+len(p.slots[fe.Outside.Pool]) > 0
}

// servesAny reports whether any connection to the port reaches an endpoint.
func (p *compiledPort) servesAny() bool {
	return slices.ContainsFunc(p.Frontends, func(fe Frontend) bool { return p.serves(&fe) })
}

// hasLocalEndpoint reports whether an endpoint is the box itself: its answers come from
// output instead of prerouting.
func (p *compiledPort) hasLocalEndpoint(box *Box) bool {
	for pool := range NumPools {
		for _, ap := range p.slots[pool] {
			if slices.Contains(box.LocalAddresses, ap.Addr()) {
				return true
			}
		}
	}
	return false
}
