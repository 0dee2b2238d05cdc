package nft

import (
	"slices"
	"strings"
	"time"
)

// The fast path is a flowtable: established connections of some Services that pass the kernel's rules, its routing and
// its connection tracking by. The kernel adds a connection when a rule asks for it in forward. The rule is asked for one
// packet of 16, so that connections of other Services pay next to nothing, and without counting packets, for which the
// kernel would have to count those of all connections (net.netfilter.nf_conntrack_acct). Its chain is the last one of
// forward: a packet that a filter of another program drops does not come there. The kernel adds both directions at once, so
// a packet adds its connection only if one of the other direction came there a moment before. Otherwise a connection of which
// a filter drops one direction would pass that filter by as soon as the other end repeats a segment.
//
// Connections to the box itself, and those that it opens, do not come there.

// The names of the flowtable, the sets and the chains of the fast path.
const (
	flowtableName = "fast"
	setFast       = "fast-services"  // frontends with the fast path, by the address and port that clients connect to
	setNPFast     = "fast-nodeports" // node ports with the fast path
	setFastRanges = "fast-ranges"    // frontends with port ranges and the fast path
	setFastOther  = "fast-other"     // 5-tuples of the replies to recent sampled packets

	chainFastPath = "fast-path"
	chainFastAdd  = "fast-add"
	chainFastBoth = "fast-both"
)

// fastSets has the sets with the frontends whose connections may take the fast path.
var fastSets = []Set{
	{Name: setFast, Key: keyFrontend}, {Name: setNPFast, Key: keyNodePort}, {Name: setFastRanges, Key: keyFrontend, Interval: true},
	fastOther,
}

// fastOther is the set of recently sampled packets, by the 5-tuple of their replies: a packet that matches an element adds its connection to the
// flowtable. While the set is full, connections are added later.
var fastOther = Set{Name: setFastOther, Key: []Type{TypeProto, TypeAddr, TypeService, TypeAddr, TypeService}, Timeout: fastOtherLife, Dynamic: true, Size: affinitySize}

// fastOtherLife is the maximum time between two sampled packets of a connection, one in each direction, that make the kernel add the connection to
// the flowtable. The kernel removes a flow after the same time without packets.
const fastOtherLife = 30 * time.Second

// fastSample is N if one packet in N, at random, requests that its connection be added to the flowtable.
const fastSample = 16

// PriorityFastPath is the priority of the chain of the fast path in forward.
const PriorityFastPath = 100

// Flowtable is the definition of a flowtable.
type Flowtable struct {
	// Devices are the interfaces on which the flowtable intercepts packets of its connections, sorted by name.
	Devices []Device
	// Counter makes the flowtable count packets in the counters of conntrack, if those are enabled (--traffic flows).
	Counter bool
	// Foreign is set for a flowtable read from the kernel that this product could not have made.
	Foreign bool
}

// Device is an interface of a flowtable.
type Device struct {
	Name string
	// Index distinguishes an interface from a later one with the same name: the kernel removes the earlier one from its flowtables. It is 0 in a
	// flowtable that was read from the kernel.
	Index uint32
}

type (
	// MatchFast is `ct status dnat ct status assured numgen random mod 16 0`: it matches one packet in 16, at random, of connections with a
	// translated destination in which both ends have sent packets.
	MatchFast struct{}
	// FlowAdd is `flow add @fast`: the kernel adds the connection to the flowtable.
	FlowAdd struct{ Flowtable string }

	// SetFlowtable creates a flowtable, or changes an existing one to match the definition in Flowtable. Devices that do not exist, or that the
	// kernel refuses, are left out.
	SetFlowtable struct {
		Family    Family
		Name      string
		Flowtable Flowtable
	}
	// DeleteFlowtable deletes a flowtable that no rule refers to. Its connections continue through the rules.
	DeleteFlowtable named
)

func (o SetFlowtable) op() Family    { return o.Family }
func (o DeleteFlowtable) op() Family { return o.Family }

func (MatchFast) text(t ruleText, _ context) ruleText {
	return t.say("ct status dnat ct status assured numgen random mod 16 0")
}
func (s FlowAdd) text(t ruleText, _ context) ruleText { return t.say("flow add @", s.Flowtable) }

// OneOf returns N if the statement matches one packet in N.
func (MatchFast) OneOf() uint32 { return fastSample }

// addFast adds the element for a frontend whose connections may take the fast path.
func (p *compiledPort) addFast(f *fragment, box *Box, fe *Frontend) {
	if !p.Fast || box.Fast == nil || !p.serves(fe) {
		return
	}
	set, key := p.fastKey(fe)
	f.elements = append(f.elements, placed{set, key, ""})
	f.use(p.Protocol)
}

// fastKey returns the set and the key of a frontend's element.
func (p *compiledPort) fastKey(fe *Frontend) (set, key string) {
	switch {
	case fe.IsRange():
		return setFastRanges, p.rangeKey(fe)
	case fe.Addr.IsValid():
		return setFast, string(p.key(fe))
	}
	return setNPFast, string(p.key(fe))
}

// readFast recovers which Service ports use the fast path.
func (r *recovery) readFast() {
	for i := range r.ports {
		p := compiledPort{ServicePort: &r.ports[i]}
		for j := range p.Frontends {
			set, key := p.fastKey(&p.Frontends[j])
			_, is := r.table.elements(set)[key]
			p.Fast = p.Fast || is
		}
	}
}

// hasFast reports whether any Service uses the fast path.
func (t *tableState) hasFast() bool {
	return t.count(setFast)+t.count(setNPFast)+t.count(setFastRanges) > 0
}

// fastChains returns the chains that add connections of the Services in fastSets to the flowtable.
//
//	chain fast-path {
//		type filter hook forward priority 100; policy accept;
//		ct status dnat ct status assured numgen random mod 16 0 goto fast-add
//	}
//	chain fast-add {
//		meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst @fast-services goto fast-both
//	}
//	chain fast-both {
//		meta l4proto . ip saddr . th sport . ip daddr . th dport @fast-other flow add @fast
//		update @fast-other { meta l4proto . ip daddr . th dport . ip saddr . th sport timeout 30s }
//	}
func (t *tableState) fastChains() []Chain {
	if !t.hasFast() {
		return nil
	}
	var rules []Rule
	came := MatchSet{Key: []Field{L4Proto, Saddr, Sport, Daddr, Dport}, Set: setFastOther}
	note := Update{Map: setFastOther, Key: []Field{L4Proto, Daddr, Dport, Saddr, Sport}, Timeout: fastOtherLife}
	for _, proto := range [...]Protocol{TCP, UDP} {
		for _, set := range []string{setFast, setFastRanges, setNPFast} {
			if t.protocols[proto] == 0 || !t.has(set) {
				continue
			}
			rule := Rule{MatchProto{proto}}
			if set == setNPFast {
				rule = append(rule, MatchSet{Key: []Field{OriginalDaddr}, Set: setNPAddresses}, MatchSet{Key: originalNodePort, Set: set})
			} else {
				rule = append(rule, MatchSet{Key: originalFrontend, Set: set})
			}
			rules = append(rules, append(rule, GotoChain(chainFastBoth)))
		}
	}
	return []Chain{
		{Name: chainFastBoth, Rules: []Rule{{came, FlowAdd{flowtableName}}, {note}}},
		{Name: chainFastAdd, Rules: rules},
		{Name: chainFastPath, Hook: HookForward, Priority: PriorityFastPath, Filter: true, Rules: []Rule{{MatchFast{}, GotoChain(chainFastAdd)}}},
	}
}

// setFlowtable sets the table's flowtable while any Service uses the fast path, and otherwise removes it.
func (t *tableState) setFlowtable(box *Box) {
	t.flowtables = nil
	if t.hasFast() {
		t.flowtables = map[string]Flowtable{flowtableName: *box.Fast}
	}
}

// equal reports whether two flowtables have the same settings and devices. It compares devices by name, and by index if both have one.
func (w Flowtable) equal(o Flowtable) bool {
	return w.Counter == o.Counter && w.Foreign == o.Foreign && slices.EqualFunc(w.Devices, o.Devices, func(a, b Device) bool {
		return a.Name == b.Name && (a.Index == b.Index || a.Index == 0 || b.Index == 0)
	})
}

// flowtables compares the flowtables of two states of a table.
func (d *tableDiff) flowtables(have, want map[string]Flowtable) {
	for _, name := range sortedKeys(have) {
		if _, wanted := want[name]; !wanted {
			d.gone = append(d.gone, DeleteFlowtable{d.family, name})
		}
	}
	for _, name := range sortedKeys(want) {
		if old, there := have[name]; !there || !old.equal(want[name]) {
			d.created = append(d.created, SetFlowtable{d.family, name, want[name]})
		}
	}
}

// anyForeign reports whether a wanted flowtable is Foreign in have, so that the table must be created again.
func anyForeign(have, want map[string]Flowtable) bool {
	for name := range want {
		if have[name].Foreign {
			return true
		}
	}
	return false
}

// definition returns the lines between a flowtable's braces, in nft's syntax.
func (w Flowtable) definition() []string {
	lines := []string{"hook ingress priority filter"}
	if len(w.Devices) > 0 {
		names := make([]string, len(w.Devices))
		for i, d := range w.Devices {
			names[i] = `"` + d.Name + `"`
		}
		lines = append(lines, "devices = { "+strings.Join(names, ", ")+" }")
	}
	if w.Counter {
		lines = append(lines, "counter")
	}
	return lines
}

// text returns the operation as an nft command.
func (op SetFlowtable) text() string {
	return "add flowtable " + op.Family.String() + " " + TableName + " " + op.Name + " { " + strings.Join(op.Flowtable.definition(), "; ") + "; }"
}

func (op DeleteFlowtable) text() string {
	return "delete flowtable " + op.Family.String() + " " + TableName + " " + op.Name
}

// RenewFast returns the transaction that makes all connections in flowtables pass the rules again. It is needed after another program changed its
// rules, which may now drop a connection. The transaction is empty while no Service uses the fast path.
func (c *Compiler) RenewFast() (b Batch) {
	for _, f := range Families {
		t := c.tables[f]
		if !t.exists || !t.hasFast() {
			continue
		}
		b.Ops = append(b.Ops,
			SetRules{Family: f, Chain: chainFastBoth}, DeleteFlowtable{f, flowtableName}, DeleteSet{f, setFastOther},
			AddSet{f, fastOther}, SetFlowtable{f, flowtableName, t.flowtables[flowtableName]}, SetRules{f, chainFastBoth, t.chains[chainFastBoth].Rules})
	}
	return b
}

// HasFast reports whether any Service uses the fast path.
func (c *Compiler) HasFast() bool {
	return slices.ContainsFunc(Families[:], func(f Family) bool { return c.tables[f].hasFast() })
}
