package sim_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"svcctl.io/svcctl/nft"
)

// universe is the little world that random rulesets and packets are about: so small
// that packets often meet elements.
type universe struct {
	family    nft.Family
	clients   []netip.Addr // by in0, the last one by out0 too
	vips      []netip.Addr // by default route to in0
	endpoints []netip.Addr // by out0, by in0, a client, the box
	box       []netip.Addr // of in0, of out0
	networks  []netip.Prefix
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var universes = []universe{{
	family:    nft.IPv4,
	clients:   addrs("192.0.2.10", "192.0.2.77", "203.0.113.5", "10.1.0.1"),
	vips:      addrs("10.96.0.1", "10.96.0.2", "10.96.0.9"),
	endpoints: addrs("10.1.0.1", "10.1.0.2", "192.0.2.77", "192.0.2.10", "192.0.2.1"),
	box:       addrs("192.0.2.1", "198.51.100.1"),
	networks:  prefixes("192.0.2.0/26", "192.0.2.77/32", "203.0.113.0/24", "10.1.0.0/31", "10.96.0.0/30", "198.51.100.0/24"),
}, {
	family:    nft.IPv6,
	clients:   addrs("2001:db8:1::10", "2001:db8:1::77", "2001:db8:9::5", "fd00:1::1"),
	vips:      addrs("fd00:96::1", "fd00:96::2", "fd00:96::9"),
	endpoints: addrs("fd00:1::1", "fd00:1::2", "2001:db8:1::77", "2001:db8:1::10", "2001:db8:1::1"),
	box:       addrs("2001:db8:1::1", "2001:db8:2::1"),
	networks:  prefixes("2001:db8:1::/122", "2001:db8:1::77/128", "2001:db8:9::/48", "fd00:1::/127", "fd00:96::/125", "2001:db8:2::/64"),
}}

var (
	protocols = []nft.Protocol{nft.TCP, nft.UDP, nft.SCTP}
	ports     = []uint16{53, 80, 443}
)

func (u *universe) Route(dst netip.Addr) (uint32, bool) {
	if u.IsLocal(dst) {
		return loopback, true
	}
	for _, p := range prefixes("10.1.0.0/16", "198.51.100.0/24", "fd00:1::/64", "2001:db8:2::/64") {
		if p.Contains(dst) {
			return out0, false
		}
	}
	return in0, false
}

func (u *universe) IsLocal(a netip.Addr) bool {
	return a.IsLoopback() || a == u.box[0] || a == u.box[1]
}

// MasqueradeAddr returns the source address of masquerading on an interface. The loopback
// interface uses an address of the first other one: its own is of host scope.
func (u *universe) MasqueradeAddr(iface uint32) netip.Addr {
	if iface == out0 {
		return u.box[1]
	}
	return u.box[0]
}

// generator makes random rulesets out of the whole vocabulary, such as the kernel
// accepts: chains go to later ones of their kind only, and translate or refuse only
// where their hooks may.
type generator struct {
	*rand.Rand
	*universe
	table *nft.Table
}

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// some is a random selection of a list.
func some[T any](g *generator, list []T) []T {
	var out []T
	for _, i := range g.Perm(len(list))[:g.IntN(len(list)+1)] {
		out = append(out, list[i])
	}
	return out
}

// The kinds of chains, by the hooks they are reached from, and how many there are of each.
const (
	front  = "front-"  // prerouting and output
	back   = "back-"   // postrouting
	inside = "inside-" // input
	kin    = 4
	mapped = 2 // the first that verdict maps go to: only chains before it look into them
)

func (g *generator) ruleset() nft.Ruleset {
	g.table = &nft.Table{Sets: map[string]*nft.SetContent{}, Chains: map[string]*nft.Chain{}}
	g.sets()
	for _, kind := range []string{front, back, inside} {
		for i := range kin {
			g.chain(nft.Chain{Name: fmt.Sprint(kind, i)}, kind, i+1)
		}
	}
	for _, base := range []struct {
		hook     nft.Hook
		priority int
		kind     string
	}{
		{nft.HookPrerouting, nft.PriorityDstNAT, front},
		{nft.HookOutput, nft.PriorityDstNAT, front},
		{nft.HookInput, nft.PrioritySrcNAT, inside},
		{nft.HookPostrouting, nft.PrioritySrcNAT, back},
	} {
		for i := range 1 + g.IntN(2) {
			name := fmt.Sprint(base.hook, "-", i)
			g.chain(nft.Chain{Name: name, Hook: base.hook, Priority: base.priority + 10*i}, base.kind, 0)
		}
	}
	return nft.Ruleset{g.family: g.table}
}

func (g *generator) chain(c nft.Chain, kind string, next int) {
	if next == 0 && g.IntN(2) == 0 { // the main road, as it is in earnest
		c.Rules = append(c.Rules, pick(g, g.dispatches(kind, pick(g, protocols))))
	}
	for range 1 + g.IntN(4) {
		c.Rules = append(c.Rules, g.rule(kind, next))
	}
	g.table.Chains[c.Name] = &c
}

// rule is some matches and an action.
func (g *generator) rule(kind string, next int) nft.Rule {
	var r nft.Rule
	proto := nft.Protocol(0)
	if g.IntN(3) == 0 {
		proto = pick(g, protocols)
		r = append(r, nft.MatchProto{Proto: proto})
	}
	for range g.IntN(2) + g.IntN(2) {
		r = append(r, g.match())
	}
	if proto == 0 && g.IntN(10) == 0 {
		return append(nft.Rule{nft.MatchEchoRequest{}}, pick(g, []nft.Rule{{nft.Verdict{Kind: nft.Accept}}, {nft.MatchNotDNAT{}}, g.icmpAction(kind)})...)
	}
	if g.IntN(4) == 0 {
		return append(r, g.verdict(kind, next))
	}
	if proto == 0 {
		proto = pick(g, protocols)
	}
	var actions []nft.Rule
	switch kind {
	case front:
		actions = g.frontActions(proto)
	case back:
		actions = g.backActions(proto)
	case inside:
		actions = g.insideActions(proto)
	}
	if next <= mapped {
		actions = append(actions, g.dispatches(kind, proto)...)
	}
	action := pick(g, actions)
	if m, ok := action[0].(nft.MatchProto); ok && len(r) > 0 && r[0] == m {
		action = action[1:]
	}
	return append(r, action...)
}

func (g *generator) icmpAction(kind string) nft.Rule {
	if kind == front {
		return nft.Rule{nft.Redirect{}}
	}
	return nft.Rule{nft.Verdict{Kind: nft.Drop}}
}

func (g *generator) match() nft.Statement {
	negate := g.IntN(2) == 0
	set := func(name string, key ...nft.Field) nft.Statement {
		return nft.MatchSet{Key: key, Set: name, Negate: negate}
	}
	return pick(g, []nft.Statement{
		nft.MatchPrefix{Field: pick(g, []nft.Field{nft.Saddr, nft.Daddr, nft.OriginalDaddr}), Prefix: pick(g, g.networks), Negate: negate},
		nft.MatchNotDNAT{},
		nft.MatchLocalSource{},
		nft.MatchNotICMP{},
		set("networks", pick(g, []nft.Field{nft.Saddr, nft.Daddr, nft.OriginalDaddr})),
		set("hairpin", nft.Saddr, nft.Daddr),
		set("same-interface", nft.Iif, nft.Oif),
		set("on-link", nft.Field{Kind: nft.FieldIif, Ranged: true}, nft.Saddr),
		set("allowed", nft.Daddr, nft.L4Proto, nft.Dport, nft.Saddr),
		set("protocols", nft.L4Proto),
		set("ports", nft.Dport),
		set("seen", nft.Saddr, nft.Dport),
	})
}

var (
	frontend         = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	originalFrontend = []nft.Field{nft.OriginalDaddr, nft.L4Proto, nft.OriginalDport}
)

// dispatches look into verdict maps.
func (g *generator) dispatches(kind string, proto nft.Protocol) []nft.Rule {
	if kind != front {
		return []nft.Rule{{nft.MatchProto{Proto: proto}, nft.VerdictMap{Key: originalFrontend, Map: kind[:len(kind)-1]}}}
	}
	return []nft.Rule{
		{nft.VerdictMap{Key: frontend, Map: "front"}},
		{nft.VerdictMap{Key: frontend, Map: "front"}},
		{nft.VerdictMap{Key: []nft.Field{nft.Daddr}, Map: "front-addresses"}},
		{nft.VerdictMap{Key: []nft.Field{nft.L4Proto, nft.Dport}, Map: "front-nodeports"}},
		{nft.VerdictMap{Key: []nft.Field{nft.Dport}, Map: "front-ports"}},
	}
}

func (g *generator) frontActions(proto nft.Protocol) []nft.Rule {
	only := nft.MatchProto{Proto: proto}
	slot := pick(g, []nft.Field{
		nft.Numgen(1 + g.Uint32N(3)),
		{Kind: nft.FieldNumgen, Mod: 2, Offset: 1},
		{Kind: nft.FieldHashSource, Mod: 1 + g.Uint32N(4)},
		{Kind: nft.FieldHashFlow, Mod: 1 + g.Uint32N(4)},
		{Kind: nft.FieldTurn, Mod: 1 + g.Uint32N(3)},
	})
	balance := nft.Rule{nft.DNAT{Key: append(frontend[:3:3], slot), Map: "backends"}}
	return []nft.Rule{
		balance, balance, balance,
		{only, nft.DNAT{Key: []nft.Field{nft.Saddr}, Map: "affinity"}},
		{only, nft.DNAT{Key: []nft.Field{nft.Saddr}, Map: "affinity"}},
		{only, nft.Redirect{}},
		g.refusal(only),
	}
}

func (g *generator) backActions(proto nft.Protocol) []nft.Rule {
	only := nft.MatchProto{Proto: proto}
	return []nft.Rule{
		{nft.Masquerade{}}, {nft.Masquerade{}},
		{nft.SourceMap{Key: []nft.Field{nft.Saddr}, Map: "sources", KeepPort: true}},
		g.remember(only), g.remember(only), g.see(only),
	}
}

func (g *generator) insideActions(proto nft.Protocol) []nft.Rule {
	only := nft.MatchProto{Proto: proto}
	return []nft.Rule{
		g.remember(only), g.see(only), g.refusal(only),
	}
}

func (g *generator) refusal(only nft.MatchProto) nft.Rule {
	with := []nft.RejectWith{nft.RejectPortUnreachable, nft.RejectHostUnreachable}
	if only.Proto == nft.TCP {
		with = append(with, nft.RejectTCPReset, nft.RejectTCPReset)
	}
	return nft.Rule{only, nft.Reject{With: pick(g, with)}}
}

// remember is affinity. In IPv6 nft 1.0.6 cannot load it (see WriteText).
func (g *generator) remember(only nft.MatchProto) nft.Rule {
	if g.family == nft.IPv6 {
		return g.see(only)
	}
	return nft.Rule{only, nft.Update{Map: "affinity", Key: []nft.Field{nft.Saddr}, Data: []nft.Field{nft.Daddr, nft.Dport}, Timeout: time.Hour}}
}

func (g *generator) see(only nft.MatchProto) nft.Rule {
	return nft.Rule{only, nft.Update{Map: "seen", Key: []nft.Field{nft.Saddr, nft.Dport}, Timeout: time.Hour}}
}

func (g *generator) verdict(kind string, next int) nft.Verdict {
	plain := []nft.Verdict{{Kind: nft.Accept}, {Kind: nft.Return}, {Kind: nft.Drop}}
	if next == kin || g.IntN(3) == 0 {
		return pick(g, plain)
	}
	return nft.Verdict{Kind: pick(g, []nft.VerdictKind{nft.Goto, nft.Jump}), Chain: fmt.Sprint(kind, next+g.IntN(kin-next))}
}
