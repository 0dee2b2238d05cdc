package nft

import (
	"reflect"
	"slices"
)

// An element with `goto` makes the kernel walk all maps of verdicts, which takes 0.6 ms among 10,000 frontends and 12 ms among 50,000. In
// a large table the element of a new frontend, or of one whose number of endpoints changed, has the verdict `continue` instead, which
// leads to the chain `vip`. That asks a small set, which also has the number of endpoints:
//
//	set unsettled {
//		10.96.0.10 . tcp . 80 . 0,
//		10.96.0.10 . tcp . 80 . 3
//	}
//	chain vip {
//		ip daddr . meta l4proto . th dport . numgen random mod 1 offset 0 @unsettled goto unsettled
//	}
//	chain unsettled {
//		ip daddr . meta l4proto . th dport . numgen random mod 1 offset 1 @unsettled goto pick-1
//		... 2 to 8
//		goto pick-1
//	}
//
// Settling gives all of them their `goto` in one transaction. Their elements of slot 0 stay until the next one, for packets that
// found `continue` before; the same holds for a frontend that changes to a kind that is not plain.

// settleFrom is the default of Box.SettleFrom: tables with at least this many VIP frontends have the set named "unsettled". Smaller tables do not
// need it: there the kernel walks the maps in less than 0.3 ms.
const settleFrom = 4096

const (
	setUnsettled    = "unsettled" // keys of unsettled frontends: VIP frontend . 0, and VIP frontend . number of endpoints
	verdictContinue = "continue"
)

// stage is the progress of a Service port from elements with the verdict `continue` to elements with `goto`.
type stage uint8

const (
	settled stage = iota
	leaving       // its elements have `goto`, and stay in setUnsettled for packets in flight
	waiting       // elements of its plain frontends (see waits) have `continue`
)

// Settle makes the next Update change the verdict of all waiting frontends to `goto`, and remove the frontends changed by the previous Settle from
// setUnsettled. Between two calls, every packet in flight must have passed the rules.
func (c *Compiler) Settle() { c.settle = true }

// Unsettled reports whether frontends wait for Settle.
func (c *Compiler) Unsettled() bool { return len(c.unsettled) > 0 }

// waits reports whether an element of the frontend may have the verdict `continue`: all clients pick from the same few endpoints with equal
// probability, or are refused as there is none, and their packets get to the chain `vip`.
func (p *compiledPort) waits(fe *Frontend) bool {
	n := len(p.slots[PoolCluster])
	return fe.wholeAddress() && !fe.asksClient() && fe.Internal.Pool == PoolCluster && (n > 0 || fe.Internal.Fallback != Blackhole) && n <= preparedPicks && p.tables[PoolCluster] == nil &&
		p.Balance != DestinationHash && p.Affinity == 0 && p.Idle == 0 && !p.Limits.Any() && !fe.IsRange()
}

// stageAfter returns the stage of a new version of a port. It depends on the stage of the earlier version, or on the adopted ruleset if there is
// none.
func (c *Compiler) stageAfter(prev []*compiledPort, p *compiledPort) stage {
	was, at := settled, slices.IndexFunc(prev, func(old *compiledPort) bool { return old.ID == p.ID && old.Family == p.Family })
	if table := c.adopted[p.Family]; at >= 0 {
		was = prev[at].stage
	} else if table != nil && len(table.elements(setUnsettled)) > 0 {
		for i := range p.Frontends {
			was = max(was, table.stage(p.key(&p.Frontends[i])))
		}
	}
	switch plain := slices.ContainsFunc(p.Frontends, func(fe Frontend) bool { return p.waits(&fe) }); {
	case plain && (was == waiting || c.tables[p.Family].unsettles &&
		(at < 0 || len(prev[at].slots[PoolCluster]) != len(p.slots[PoolCluster]) || !reflect.DeepEqual(prev[at].Frontends, p.Frontends))):
		return waiting
	case was != settled:
		return leaving
	}
	return settled
}

// stage returns the stage of a frontend in a table.
func (t *Table) stage(key Key) stage {
	if _, is := t.elements(setUnsettled)[string(key.Slot(0))]; !is {
		return settled
	}
	if t.elements(setServices)[string(key)] == verdictContinue {
		return waiting
	}
	return leaving
}

// advance moves the ports of a Service to their next stage.
func (c *Compiler) advance(name string) {
	ports := slices.Clone(c.services[name])
	for i, p := range ports {
		if p.stage != settled {
			next := *p // Foresee has the old one
			next.stage--
			ports[i] = &next
		}
	}
	c.replace(name, ports)
}

// replace sets the ports of a Service, or removes the Service if there are no ports.
func (c *Compiler) replace(name string, ports []*compiledPort) {
	if c.services[name] = ports; len(ports) == 0 {
		delete(c.services, name)
	}
	if slices.ContainsFunc(ports, func(p *compiledPort) bool { return p.stage != settled }) {
		c.unsettled[name] = true
	} else {
		delete(c.unsettled, name)
	}
}

// addUnsettled adds the frontend's elements in setUnsettled, and returns the frontend's verdict for the dispatch map: `continue` while it waits,
// otherwise verdict.
func (p *compiledPort) addUnsettled(f *fragment, fe *Frontend, key Key, verdict string) string {
	if p.stage == settled || !fe.wholeAddress() {
		return verdict
	}
	f.elements = append(f.elements, placed{setUnsettled, f.keep(key.Slot(0)), ""})
	if p.stage == leaving || !p.waits(fe) {
		return verdict
	}
	if n := len(p.slots[PoolCluster]); n > 0 { // without endpoints the chain pick-1 refuses
		f.elements = append(f.elements, placed{setUnsettled, f.keep(key.Slot(uint32(n))), ""})
	}
	return verdictContinue
}

// unsettledRule returns the rule that sends packets to a chain if their frontend is unsettled and has n endpoints. If n is 0, the rule matches all
// unsettled frontends.
func unsettledRule(n uint32, chain string) Rule {
	return Rule{MatchSet{Key: with(frontend, Field{Kind: FieldNumgen, Mod: 1, Offset: n}), Set: setUnsettled}, GotoChain(chain)}
}

// unsettledChain returns the chain that picks an endpoint for packets to unsettled frontends, with a rule for each number of endpoints. The last rule
// is for packets that match none of these, because the number of endpoints is being changed.
func unsettledChain() Chain {
	var rules []Rule
	maps := &pools[PoolCluster].vip
	for n := 1; n <= preparedPicks; n++ {
		rules = append(rules, unsettledRule(uint32(n), maps.pick(n)))
	}
	return Chain{Name: setUnsettled, Rules: append(rules, Rule{GotoChain(maps.firstPick())})}
}

// gotoOf returns the verdict of an element in a dispatch map. It replaces `continue` by the `goto` of a frontend with preparedPicks endpoints, the
// maximum for a frontend with `continue`.
func gotoOf(verdict string) string {
	if verdict == verdictContinue {
		return GotoChain(pools[PoolCluster].vip.pick(preparedPicks)).String()
	}
	return verdict
}
