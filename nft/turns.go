package nft

import (
	"net/netip"
	"slices"
	"strings"
)

// Round robin is state of its own: `numgen inc` counts for each rule, so a Service port has a
// chain and a map. One counter for all Services of N endpoints would resonate: two Services
// that are called in turns would send each all of its connections to one endpoint.

// addTurns adds the map and the chain of each pool that is in use.
//
//	chain round-robin/default/web {
//		meta l4proto tcp dnat ip to numgen inc mod 3 map @round-robin/default/web
//		meta l4proto tcp dnat ip to numgen inc mod 1 map @round-robin/default/web
//		goto refuse
//	}
//
// The second rule is for a packet that drew a slot which is gone.
func (p *compiledPort) addTurns(f *fragment) {
	for pool, used := range p.usedPools() {
		t := p.tables[pool]
		if t == nil || !used {
			continue
		}
		m := p.turnsMap(Pool(pool))
		f.sets = append(f.sets, m)
		for i, endpoint := range t.slots {
			key := JoinKey(Value{Type: TypeSlot, Num: uint32(i)})
			f.elements = append(f.elements, placed{m.Name, key, AddrPortData(p.slots[pool][endpoint])})
		}
		draw := func(mod int) Rule {
			return Rule{MatchProto{p.Protocol}, DNAT{Key: []Field{{Kind: FieldTurn, Mod: uint32(mod)}}, Map: m.Name}}
		}
		f.chains = append(f.chains, Chain{Name: m.Name, Rules: []Rule{draw(len(t.slots)), draw(1), {GotoChain(chainRefuse)}}})
	}
}

// idOf is the ID of the port that a verdict goes to a chain of, "" if none does.
func idOf(verdicts ...string) string {
	for _, v := range verdicts {
		if _, id, own := strings.Cut(strings.TrimPrefix(v, "goto "), "/"); own {
			return id
		}
	}
	return ""
}

// turns reads the turns of a port back.
func (r *recovery) turns(p *compiledPort) {
	for pool := range NumPools {
		if slots := r.table.turns(p, pool); slots != nil {
			p.Balance, p.Tables[pool], p.Pools[pool] = RoundRobin, slots, distinct(slots)
		}
	}
}

// turns returns the endpoints of a pool by turn, as a table has them, nil if there are none.
func (t *Table) turns(p *compiledPort, pool Pool) []netip.AddrPort {
	elements := t.elements(p.turnsMap(pool).Name)
	if len(elements) == 0 {
		return nil
	}
	slots := make([]netip.AddrPort, len(elements))
	for i := range slots {
		slots[i], _ = elements.endpoint(p.Family, Key(JoinKey(Value{Type: TypeSlot, Num: uint32(i)})))
	}
	if slices.Contains(slots, netip.AddrPort{}) {
		return nil // a stranger's
	}
	return slots
}
