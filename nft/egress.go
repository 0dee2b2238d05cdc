package nft

import "net/netip"

// Connections that hosts begin themselves leave the box with an address of their Service:
//
//	chain egress {
//		type nat hook postrouting priority srcnat - 1
//		ct status ! dnat ip daddr != 10.1.0.0/16 snat ip to ip saddr map @egress
//	}
//
// The chain is in front of priority srcnat, where the masquerade rules of the operator and of Docker are: of two chains at
// one priority, the one that was loaded last decides. Replies belong to the connection and need no rule.
//
// A box that takes over has no entries for such connections. The source's next segment makes the lost one, as the kernel
// keeps its port. A segment of the server makes the entry's mirror if the address has one source (egress-back); where it has
// several it is dropped and sent again, rather than reset.

// Egress has connections that sources begin themselves leave the box with an address of their Service. A source is one of one
// Service port: package resolve decides between several.
type Egress struct {
	Addr    netip.Addr   // a frontend of the Service is there
	Sources []netip.Addr // sorted; empty: there is no egress
}

const (
	setEgress          = "egress"           // source : address of a Service
	setEgressBack      = "egress-back"      // address of a Service with one source : that source
	setEgressAddresses = "egress-addresses" // addresses of Services with several sources
	setEgressSources   = "egress-sources"   // the sources
	setEgressInside    = "egress-inside"    // destinations for which sources keep their addresses, where they are too many for a rule

	chainEgress = "egress"
)

var egressSets = []Set{
	{Name: setEgress, Key: []Type{TypeAddr}, Data: []Type{TypeAddr}},
	{Name: setEgressBack, Key: []Type{TypeAddr}, Data: []Type{TypeAddr}},
	{Name: setEgressAddresses, Key: []Type{TypeAddr}},
	{Name: setEgressSources, Key: []Type{TypeAddr}},
	{Name: setEgressInside, Key: []Type{TypeAddr}, Interval: true},
}

// frontendSets has the sets of FrontendSets; whether segments are led back to a source is asked for with whether they are adopted.
var frontendSets = []string{setServices, setNodePorts, setPortRanges, setAdopted, setEgressBack}

// egressUses are the sources of a table, by the address that they leave with, and the elements that addresses had before the
// change under way (egressBack).
type egressUses struct {
	of  map[string]map[string]bool
	old map[string]placed
}

// addEgress adds the sources of a Service port.
func (p *compiledPort) addEgress(f *fragment) {
	if len(p.Egress.Sources) == 0 {
		return
	}
	addr := AddrKey(p.Egress.Addr)
	for _, s := range p.Egress.Sources {
		source := f.keep(Key(nil).Addr(s))
		f.elements = append(f.elements, placed{setEgress, source, addr}, placed{setEgressSources, source, ""})
	}
}

// useEgress notes sources, or forgets them.
func (t *tableState) useEgress(e *Egress, is bool) {
	if len(e.Sources) == 0 {
		return
	}
	addr := AddrKey(e.Addr)
	if _, kept := t.egress.old[addr]; !kept {
		t.egress.old[addr] = t.egressBack(addr)
	}
	if t.egress.of[addr] == nil {
		t.egress.of[addr] = map[string]bool{}
	}
	for _, s := range e.Sources {
		if is {
			t.egress.of[addr][AddrKey(s)] = true
		} else {
			delete(t.egress.of[addr], AddrKey(s))
		}
	}
}

// egressBack returns the element for segments to an address that belong to no entry; the zero one: there is none.
func (t *tableState) egressBack(addr string) placed {
	for source := range t.egress.of[addr] {
		if len(t.egress.of[addr]) > 1 {
			return placed{setEgressAddresses, addr, ""}
		}
		return placed{setEgressBack, addr, source}
	}
	return placed{}
}

// settleEgress changes the elements of addresses whose sources changed.
func (t *tableState) settleEgress() {
	for _, addr := range sortedKeys(t.egress.old) {
		if before := t.egress.old[addr]; before.set != "" {
			t.delete(before)
		}
		if now := t.egressBack(addr); now.set != "" {
			t.put(now)
		} else {
			delete(t.egress.of, addr)
		}
	}
	clear(t.egress.old)
}

// egressElements gives the elements of addresses. It reports whether more are wanted.
func (t *tableState) egressElements(yield func(string, Element) bool) bool {
	for _, addr := range sortedKeys(t.egress.of) {
		if e := t.egressBack(addr); !yield(e.set, Element{e.key, e.data}) {
			return false
		}
	}
	return true
}

// egressInside are the destinations for which sources keep their addresses.
func egressInside(f Family, box *Box) []netip.Prefix {
	return mergedPrefixes(append(box.EgressFrom[:len(box.EgressFrom):len(box.EgressFrom)], box.InternalSources...), f)
}

// egressInsideElements are the elements of their set.
func (t *tableState) egressInsideElements(f Family, box *Box) Elements {
	elements := Elements{}
	if inside := egressInside(f, box); t.has(setEgress) && len(inside) > fewInternalSources {
		for _, r := range mergePrefixes(inside, f) {
			elements[AddrKey(r.First)+AddrKey(r.Last)] = ""
		}
	}
	return elements
}

// egressStrays drops what sources send to the outside without a connection: it would leave with their own addresses.
func (t *tableState) egressStrays(f Family, box *Box) (rules []Rule) {
	if t.has(setEgress) {
		drop := append(outside(egressInside(f, box), Daddr, setEgressInside), MatchSet{Key: []Field{Saddr}, Set: setEgressSources})
		rules = append(rules, append(drop, box.counted(RefusedStray, Verdict{Kind: Drop})...))
	}
	return rules
}

// egressChains returns the base chain, none without sources. Adopting comes first: such a segment belongs to a client of the
// Service.
func (t *tableState) egressChains(f Family, box *Box) []Chain {
	if !t.has(setEgress) {
		return nil
	}
	c := Chain{Name: chainEgress, Hook: HookPostrouting, Priority: PrioritySrcNAT - 1}
	if t.has(setAdopted) {
		c.Rules = append(c.Rules, Rule{MatchNotDNAT{}, Verdict{Kind: Jump, Chain: chainAdopt}})
	}
	leaves := append(Rule{MatchNotDNAT{}}, outside(egressInside(f, box), Daddr, setEgressInside)...)
	c.Rules = append(c.Rules, append(leaves, SourceMap{Key: []Field{Saddr}, Map: setEgress, KeepPort: true}))
	return []Chain{c}
}

// egressReplies returns the rules of the chain vip for segments to addresses of sources.
func (t *tableState) egressReplies(box *Box) (rules []Rule) {
	if t.has(setEgressBack) {
		rules = append(rules, Rule{MatchNoSYN{}, DNAT{Key: []Field{Daddr}, Map: setEgressBack, KeepPort: true}})
	}
	if t.has(setEgressAddresses) {
		drop := Rule{MatchNoSYN{}, MatchSet{Key: []Field{Daddr}, Set: setEgressAddresses}}
		rules = append(rules, append(drop, box.counted(RefusedStray, Verdict{Kind: Drop})...))
	}
	return rules
}

// egress reads the sources back. They become those of a port that has a frontend at their address.
func (r *recovery) egress() {
	elements := r.table.elements(setEgress)
	sources := map[netip.Addr][]netip.Addr{}
	for _, key := range sortedKeys(elements) {
		source, _ := netip.AddrFromSlice([]byte(key))
		addr, _ := netip.AddrFromSlice([]byte(elements[key]))
		sources[addr] = append(sources[addr], source)
	}
	for i := range r.ports {
		for _, fe := range r.ports[i].Frontends {
			if of := sources[fe.Addr]; len(of) > 0 && len(r.ports[i].Egress.Sources) == 0 {
				r.ports[i].Egress = Egress{fe.Addr, of}
				delete(sources, fe.Addr)
			}
		}
	}
}
