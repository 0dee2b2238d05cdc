package nft

import (
	"net/netip"
	"slices"
	"strings"
)

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
//
// Sources that leave so for some destinations alone are looked up before the last statement, and have it in a chain that
// Service ports with the same source sets share:
//
//	ct status ! dnat ip daddr != 10.1.0.0/16 ip saddr vmap @egress-to
//	chain egress-to/partner//lab {
//		ip daddr @source-set/lab return
//		ip daddr @source-set/partner snat ip to ip saddr map @egress
//	}

// Egress configures the source address of connections that the hosts in Sources open to the outside: they leave the box with Addr, an address of
// their Service. Each source belongs to one Service port; package resolve resolves conflicts.
type Egress struct {
	Addr    netip.Addr   // the address of a frontend of the Service
	Sources []netip.Addr // sorted; empty if there is no egress
	To      *SourceSets  // the destinations; nil means all outside destinations
}

// String returns the address, followed by the destinations if they are limited.
func (e *Egress) String() string {
	if to := e.Destinations(); to != "" {
		return e.Addr.String() + " to " + to
	}
	return e.Addr.String()
}

// Destinations returns the source sets in the form of the annotation, such as "partner,!lab"; "" means all destinations.
func (e *Egress) Destinations() string {
	if e.To == nil {
		return ""
	}
	names := e.To.names()
	for _, name := range names.deny {
		names.allow = append(names.allow, "!"+name)
	}
	return strings.Join(names.allow, ",")
}

const (
	setEgress          = "egress"           // map of a source to the address of its Service
	setEgressBack      = "egress-back"      // map of a Service's address to its source, for Services with one source
	setEgressAddresses = "egress-addresses" // addresses of Services with several sources
	setEgressSources   = "egress-sources"   // all sources
	setEgressTo        = "egress-to"        // map of a source with limited destinations to the verdict for the chain that checks them
	setEgressInside    = "egress-inside"    // destinations for which sources keep their addresses, if there are too many to list in a rule

	chainEgress    = "egress"
	prefixEgressTo = "egress-to/" // prefix of the chains that check destinations; the names of source sets follow
)

var egressSets = []Set{
	{Name: setEgress, Key: []Type{TypeAddr}, Data: []Type{TypeAddr}},
	{Name: setEgressBack, Key: []Type{TypeAddr}, Data: []Type{TypeAddr}},
	{Name: setEgressAddresses, Key: []Type{TypeAddr}},
	{Name: setEgressSources, Key: []Type{TypeAddr}},
	{Name: setEgressTo, Key: []Type{TypeAddr}, Data: dataVerdict},
	{Name: setEgressInside, Key: []Type{TypeAddr}, Interval: true},
}

// frontendSets lists the sets that FrontendSets returns.
var frontendSets = []string{setServices, setNodePorts, setPortRanges, setAdopted, setEgressBack}

// egressUses holds, by egress address, the sources of a table that use the address, and the element of egressBack before the current change.
type egressUses struct {
	of  map[string]map[string]bool
	old map[string]placed
}

// addEgress adds the elements for the egress sources of a Service port.
func (p *compiledPort) addEgress(f *fragment) {
	if len(p.Egress.Sources) == 0 {
		return
	}
	addr, to := AddrKey(p.Egress.Addr), ""
	if sets := p.Egress.To; sets != nil {
		f.sourceSets = append(append(f.sourceSets, sets.Allow...), sets.Deny...)
		chain := prefixEgressTo + sets.names().chain()
		f.shared = append(f.shared, chain)
		to = GotoChain(chain).String()
	}
	for _, s := range p.Egress.Sources {
		source := f.keep(Key(nil).Addr(s))
		f.elements = append(f.elements, placed{setEgress, source, addr}, placed{setEgressSources, source, ""})
		if to != "" {
			f.elements = append(f.elements, placed{setEgressTo, source, to})
		}
	}
}

// useEgress(e, true) adds the sources of e to egressUses, useEgress(e, false) removes them.
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

// egressBack returns the element for TCP segments to an egress address that have no conntrack entry; the zero value if the address has no sources.
func (t *tableState) egressBack(addr string) placed {
	for source := range t.egress.of[addr] {
		if len(t.egress.of[addr]) > 1 {
			return placed{setEgressAddresses, addr, ""}
		}
		return placed{setEgressBack, addr, source}
	}
	return placed{}
}

// settleEgress updates the elements of egress addresses after their sources changed.
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

// egressElements yields, for each egress address, the set and the element of egressBack. It returns false once yield does.
func (t *tableState) egressElements(yield func(string, Element) bool) bool {
	for _, addr := range sortedKeys(t.egress.of) {
		if e := t.egressBack(addr); !yield(e.set, Element{e.key, e.data}) {
			return false
		}
	}
	return true
}

// egressInside returns the destinations to which packets of egress sources keep their source address.
func egressInside(f Family, box *Box) []netip.Prefix {
	return MergedPrefixes(append(box.EgressFrom[:len(box.EgressFrom):len(box.EgressFrom)], box.InternalSources...), f)
}

// egressInsideElements returns the elements of setEgressInside, for the destinations of egressInside. There are none if the destinations are few,
// because the rules list those.
func (t *tableState) egressInsideElements(f Family, box *Box) Elements {
	if inside := egressInside(f, box); t.has(setEgress) && len(inside) > fewInternalSources {
		return elementsOf(mergePrefixes(inside, f))
	}
	return Elements{}
}

// egressStrays returns the rule that drops packets from egress sources to the outside if they belong to no connection. Otherwise they would leave
// with the sources' own addresses.
func (t *tableState) egressStrays(f Family, box *Box) (rules []Rule) {
	if t.has(setEgress) {
		drop := append(outside(egressInside(f, box), Daddr, setEgressInside), MatchSet{Key: []Field{Saddr}, Set: setEgressSources})
		rules = append(rules, append(drop, box.counted(RefusedStray, Verdict{Kind: Drop})...))
	}
	return rules
}

// egressChains returns the base chain of egress, nil if there are no sources. Segments of adopted endpoints are matched first, because they belong to
// connections of clients of the Service.
func (t *tableState) egressChains(f Family, box *Box) []Chain {
	if !t.has(setEgress) {
		return nil
	}
	c := Chain{Name: chainEgress, Hook: HookPostrouting, Priority: PrioritySrcNAT - 1}
	if t.has(setAdopted) {
		c.Rules = append(c.Rules, Rule{MatchNotDNAT{}, Verdict{Kind: Jump, Chain: chainAdopt}})
	}
	leaves := append(Rule{MatchNotDNAT{}}, outside(egressInside(f, box), Daddr, setEgressInside)...)
	if t.has(setEgressTo) {
		c.Rules = append(c.Rules, with(leaves, Statement(VerdictMap{Key: []Field{Saddr}, Map: setEgressTo})))
	}
	c.Rules = append(c.Rules, with(leaves, egressSource))
	return []Chain{c}
}

// egressSource is the statement that translates the source address of a connection to its egress address.
var egressSource Statement = SourceMap{Key: []Field{Saddr}, Map: setEgress, KeepPort: true}

// egressTo returns the rules for sources that are limited to some destinations: packets to a set in to.deny keep their source, packets to a set in
// to.allow (to any destination, if it is empty) get the egress address.
func egressTo(to setNames) (rules []Rule) {
	for _, name := range to.deny {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: sourceSetName(name)}, Verdict{Kind: Return}})
	}
	for _, name := range to.allow {
		rules = append(rules, Rule{MatchSet{Key: []Field{Daddr}, Set: sourceSetName(name)}, egressSource})
	}
	if len(to.allow) == 0 {
		rules = append(rules, Rule{egressSource})
	}
	return rules
}

// egressReplies returns the rules of the chain vip for TCP segments to egress addresses.
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

// egress reads the egress sources back from a table. It assigns them to a port with a frontend at their egress address: one port for all sources with
// the same destinations.
func (r *recovery) egress() {
	elements, to := r.table.elements(setEgress), r.table.elements(setEgressTo)
	leaving := map[netip.Addr][]Egress{}
	for _, key := range sortedKeys(elements) {
		source, _ := netip.AddrFromSlice([]byte(key))
		addr, _ := netip.AddrFromSlice([]byte(elements[key]))
		e := Egress{Addr: addr}
		if chain, is := strings.CutPrefix(to[key], "goto "+prefixEgressTo); is {
			names := parseSetNames(chain)
			e.To = &SourceSets{r.sourceSets(names.allow), r.sourceSets(names.deny)}
		}
		i := slices.IndexFunc(leaving[addr], func(o Egress) bool { return o.Destinations() == e.Destinations() })
		if i < 0 {
			i = len(leaving[addr])
			leaving[addr] = append(leaving[addr], e)
		}
		leaving[addr][i].Sources = append(leaving[addr][i].Sources, source)
	}
	for i := range r.ports {
		for _, fe := range r.ports[i].Frontends {
			if of := leaving[fe.Addr]; len(of) > 0 && len(r.ports[i].Egress.Sources) == 0 {
				r.ports[i].Egress, leaving[fe.Addr] = of[0], of[1:]
			}
		}
	}
}
