package nft

import (
	"slices"
)

// fill makes f the elements that the port contributes. They are a pure function of the port, its
// slots and the box, so that they can be computed again to be removed.
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
