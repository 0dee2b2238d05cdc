package nft

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Ruleset is the ruleset the compiler stands at, made from all that it compiles. The chains
// are the compiler's: they must not be changed.
func (c *Compiler) Ruleset() Ruleset {
	rs := Ruleset{}
	for _, f := range Families {
		if want := c.content(f); want != nil {
			rs[f] = want.table()
		}
	}
	return rs
}

func (c *content) table() *Table {
	t := &Table{Sets: make(map[string]*SetContent, len(c.sets)), Chains: maps.Clone(c.chains), Timeouts: maps.Clone(c.timeouts), Flowtables: maps.Clone(c.flowtables), Counters: c.counters}
	for name, s := range c.sets {
		t.Sets[name] = &SetContent{Set: s, Elements: make(Elements, c.counts[name])}
	}
	for set, e := range c.elements {
		t.Sets[set].Elements[e.Key] = e.Data
	}
	return t
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

// content returns the wanted table of a family; nil: it needs none.
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

// portElements yields the elements that each Service port has for itself. It returns false once yield does.
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

// sharedElements yields the elements that Service ports share: hairpin pairs, addresses, adopted connections, and those of the box.
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

// Adopt sets the whole State on top of what the kernel holds already: endpoints that
// have a slot there keep it. The transition leads from that ruleset to the State.
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

// The reasons for which packets are refused or dropped are the names of counters.
const (
	RefusedNoEndpoint   = "no-endpoint"        // a frontend whose Service has no endpoint for the client
	RefusedNoSuchPort   = "no-such-port"       // a port of a VIP that no Service has
	RefusedNotAllocated = "not-allocated"      // an address of a service range that no Service has
	RefusedSourceRange  = "source-range"       // a client that the frontend's source ranges leave out
	RefusedInsideOnly   = "inside-only"        // a client outside, of what only clients inside reach
	RefusedRate         = "rate-limit"         // more new connections than a Service's limit
	RefusedClientRate   = "client-rate-limit"  // more new connections than a client's limit
	RefusedClientConns  = "client-connections" // more open connections than a client's limit
	RefusedStray        = "stray"              // a packet of no connection, to or from a Service
)

// Refusals are the names of the counters, sorted.
var Refusals = []string{
	RefusedClientConns, RefusedClientRate, RefusedInsideOnly, RefusedNoEndpoint, RefusedNoSuchPort, RefusedNotAllocated, RefusedRate, RefusedSourceRange, RefusedStray,
}

// ofLimits are the names of the counters that are there while something is limited.
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

// on is the definition of a set on a box.
func (s Set) on(box *Box) Set {
	s.Counted = box.Counters && IsCounted(s.Name)
	return s
}

// counted is a rule's last statements, with a counter before them if the box counts.
func (b *Box) counted(reason string, then ...Statement) []Statement {
	if !b.Counters {
		return then
	}
	return append([]Statement{Counter{reason}}, then...)
}

// setCounters keeps the counters that rules name. A table that is there has all of them, but for those of
// limits, which come with the first limit.
func (t *tableState) setCounters(box *Box) {
	t.counters = nil
	if t.exists && box.Counters {
		t.counters = Refusals
		if t.limits == 0 {
			t.counters = slices.DeleteFunc(slices.Clone(Refusals), func(name string) bool { return slices.Contains(ofLimits, name) })
		}
	}
}
