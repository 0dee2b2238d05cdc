package nft

import (
	"net/netip"
	"slices"
	"strings"
)

// Round robin is state of its own: `numgen inc` counts for each rule, so a Service port has a
// chain and a map. One counter for all Services of N endpoints would resonate: two Services
// that are called in turns would send each all of its connections to one endpoint.

// formTurns is the form of a table of turns: one round, in which an endpoint comes as often
// as its weight is.
const formTurns = "round-robin"

// maxTurns bounds the length of a round, unless there are more endpoints.
const maxTurns = 128

func (p *compiledPort) turnsMap(pool Pool) Set {
	return Set{Name: formTurns + pools[pool].qualifier + "/" + p.ID, Key: []Type{TypeSlot}, Data: dataEndpoint}
}

// turns makes the round of a pool: the smooth order of nginx (ngx_http_upstream_round_robin.c),
// in which the turns of an endpoint are apart.
func (sp *ServicePort) turns(pool Pool) *table {
	endpoints := sp.Pools[pool]
	if sp.Tables[pool] != nil {
		return &table{formTurns, sp.givenSlots(pool)}
	}
	weights, sum, divisor := make([]uint32, len(endpoints)), 0, 0
	for i, ap := range endpoints {
		weights[i] = sp.Weight(ap)
		sum += int(weights[i])
		divisor = gcd(divisor, int(weights[i]))
	}
	shares := quotas(weights, endpointIDs(endpoints), min(sum/divisor, max(maxTurns, len(endpoints))))
	return &table{formTurns, smooth(shares)}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// smooth orders as many turns as the shares sum up to.
func smooth(shares []int) (order []uint16) {
	total := 0
	for _, n := range shares {
		total += n
	}
	credit := make([]int, len(shares))
	for range total {
		next := 0
		for i, n := range shares {
			if credit[i] += n; credit[i] > credit[next] {
				next = i
			}
		}
		credit[next] -= total
		order = append(order, uint16(next))
	}
	return order
}

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
