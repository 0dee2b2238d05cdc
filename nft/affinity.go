package nft

import (
	"net/netip"
	"slices"
)

// Session affinity of a Service port: a map of clients, a chain that recalls a
// client before an endpoint is picked, and chains that remember it where the
// packet already carries its endpoint. The cost is one lookup for any number of
// endpoints. Where clients get different pools each pool has a map, since an endpoint
// of the one may not serve the other; a client whose endpoint serves both is
// remembered in both, so that it meets the same one by every address.

func (p *compiledPort) affinityMap(pool Pool) Set {
	return Set{
		Name:    "affinity" + pools[pool].qualifier + "/" + p.ID,
		Key:     []Type{TypeAddr},
		Data:    dataEndpoint,
		Timeout: affinityLife,
		Dynamic: true,
		Size:    affinitySize,
	}
}

// inBothPools is the set of the endpoints that serve both pools. Neither pool holds the
// other: hints and fallbacks choose for each by itself.
func (p *compiledPort) inBothPools() Set { return Set{Name: "both-pools/" + p.ID, Key: dataEndpoint} }

// recall names the chain in which a frontend's clients are recalled. Node ports have
// one of their own: who is new there picks from other maps.
func (p *compiledPort) recall(fe *Frontend, pool Pool) string {
	name := "recall"
	if !fe.Addr.IsValid() {
		name = "nodeport-recall"
	}
	return name + pools[pool].qualifier + "/" + p.ID
}

// remember names the chain in which a frontend's clients are remembered: frontends
// differ in the pools they use and in what comes after.
func (p *compiledPort) remember(fe *Frontend) string {
	name := prefixRemember
	switch {
	case fe.Inside.Pool != fe.Outside.Pool:
		name += "-both"
	case fe.Inside.Pool == PoolLocal:
		name += "-local"
	}
	return name + [...]string{SNATNever: "", SNATOutside: "-outside", SNATSelf: "-self", SNATAlways: "-always"}[fe.SNAT] + "/" + p.ID
}

// addAffinity adds the port's maps and chains: for each pool in use a map, for each
// kind of frontend its recall and remember chains.
func (p *compiledPort) addAffinity(f *fragment, box *Box) {
	used := p.usedPools()
	for pool := range NumPools {
		if used[pool] {
			f.sets = append(f.sets, p.affinityMap(pool))
		}
	}
	both := p.endpointsInBothPools()
	if len(both) > 0 {
		f.sets = append(f.sets, p.inBothPools())
	}
	for _, ap := range both {
		f.elements = append(f.elements, placed{p.inBothPools().Name, AddrPortData(ap), ""})
	}
	done := map[string]bool{}
	local := p.hasLocalEndpoint(box)
	for i := range p.Frontends {
		fe := &p.Frontends[i]
		if !p.serves(fe) {
			continue
		}
		for _, pool := range []Pool{fe.Inside.Pool, fe.Outside.Pool} {
			if name := p.recall(fe, pool); len(p.slots[pool]) > 0 && !done[name] {
				done[name] = true
				f.chains = append(f.chains, p.recallChain(f, fe, pool))
			}
		}
		if name := p.remember(fe); !done[name] {
			done[name] = true
			f.chains = append(f.chains, p.rememberChain(f, box, fe, name))
		}
		if local {
			p.addRememberInput(f, box, fe, done)
		}
	}
}

// usedPools tells which pools the port's clients are sent to.
func (p *compiledPort) usedPools() (used [NumPools]bool) {
	for i := range p.Frontends {
		if fe := &p.Frontends[i]; p.serves(fe) {
			used[fe.Inside.Pool], used[fe.Outside.Pool] = true, true
		}
	}
	return used
}

// endpointsInBothPools are those that serve both pools, where both are in use.
func (p *compiledPort) endpointsInBothPools() []netip.AddrPort {
	if p.usedPools() != [NumPools]bool{PoolCluster: true, PoolLocal: true} {
		return nil
	}
	inCluster := make(map[netip.AddrPort]bool, len(p.slots[PoolCluster]))
	for _, ap := range p.slots[PoolCluster] {
		inCluster[ap] = true
	}
	return slices.DeleteFunc(slices.Clone(p.slots[PoolLocal]), func(ap netip.AddrPort) bool { return !inCluster[ap] })
}

// recallChain sends a client that is remembered where it went before and lets the
// others pick.
//
//	meta l4proto tcp dnat ip to ip saddr map @affinity/default/web
//	goto pick-3
func (p *compiledPort) recallChain(f *fragment, fe *Frontend, pool Pool) Chain {
	return Chain{Name: p.recall(fe, pool), Rules: []Rule{
		// Every packet here is of this protocol; nft has to read it to take the port.
		{MatchProto{p.Protocol}, DNAT{Key: []Field{Saddr}, Map: p.affinityMap(pool).Name}},
		{f.pick(fe, pool, len(p.slots[pool]))},
	}}
}

// rememberChain records the client's endpoint and goes on to source NAT.
//
//	update @affinity/default/web { ip saddr timeout 3h : ip daddr . th dport }
//	goto masquerade-outside
func (p *compiledPort) rememberChain(f *fragment, box *Box, fe *Frontend, name string) Chain {
	next := p.masquerade(fe.SNAT, box)
	if next == "" {
		next = chainSameInterf
	} else {
		f.shared = append(f.shared, next)
	}
	end := GotoChain(next)
	return Chain{Name: name, Rules: append(p.updates(box, fe, end), Rule{end})}
}

// updates are the rules that record a client of the frontend, for the pool that it was
// sent to and, when its endpoint is in the other pool too, for that one. end is where a
// client goes on for which that is all.
//
//	ip daddr . th dport @both-pools/default/web update @affinity-local/default/web { ... }
//	update @affinity/default/web { ... }
func (p *compiledPort) updates(box *Box, fe *Frontend, end Verdict) []Rule {
	inside, outside := p.update(fe.Inside.Pool), p.update(fe.Outside.Pool)
	var rules []Rule
	if len(p.endpointsInBothPools()) > 0 {
		both := MatchSet{Key: []Field{Daddr, Dport}, Set: p.inBothPools().Name}
		rules = append(rules,
			Rule{both, p.update(PoolCluster)},
			Rule{both, p.update(PoolLocal), end})
	}
	if fe.Inside.Pool == fe.Outside.Pool {
		return append(rules, Rule{inside})
	}
	rules = append(rules, Rule{MatchLocalSource{}, inside, end})
	for _, client := range insideClients(p.Family, box) {
		rules = append(rules, Rule{client, inside, end})
	}
	return append(rules, Rule{outside})
}

func (p *compiledPort) update(pool Pool) Update {
	return Update{
		Map:     p.affinityMap(pool).Name,
		Key:     []Field{Saddr},
		Data:    []Field{Daddr, Dport},
		Timeout: p.Affinity,
	}
}

// addRememberInput adds the twin of a remember chain for endpoints that are the box
// itself. Nothing is masqueraded on the way in.
func (p *compiledPort) addRememberInput(f *fragment, box *Box, fe *Frontend, done map[string]bool) {
	name := prefixRemember + "-input/" + p.ID
	if fe.Inside.Pool != fe.Outside.Pool {
		name = prefixRemember + "-input-both/" + p.ID
	} else if fe.Inside.Pool == PoolLocal {
		name = prefixRemember + "-input-local/" + p.ID
	}
	maps := &vipMaps
	if !fe.Addr.IsValid() {
		maps = &nodePortMaps
	}
	f.elements = append(f.elements, placed{maps.rememberInput, string(p.key(fe)), GotoChain(name).String()})
	f.use(p.Protocol)
	if done[name] {
		return
	}
	done[name] = true
	f.chains = append(f.chains, Chain{Name: name, Rules: p.updates(box, fe, Verdict{Kind: Accept})})
}
