package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Recover reads Service ports back from a ruleset that Compile made, so that compiling them
// again on the same box gives the same elements. It is for a program that has lost the
// objects while the kernel still serves them.
//
// The names of Services are not in the kernel, except in the chains of session affinity. So
// each frontend is a Service port of its own, and those that share a map of remembered
// clients are one port, as they were. What cannot be read is left out. ServicePort.Serving
// is the union of the pools.
func Recover(have Ruleset, box *Box) []ServicePort {
	var ports []ServicePort
	for _, f := range Families {
		if have[f] != nil {
			r := newRecovery(f, have[f], box)
			r.frontends(setServices)
			r.frontends(setNodePorts)
			r.ranges()
			r.askedForByMore()
			ports = append(ports, r.ports...)
		}
	}
	return ports
}

// CountFrontends returns the number of frontends of a ruleset: addresses with a port or range, and
// node ports.
func CountFrontends(have Ruleset) int {
	n := 0
	for _, t := range have {
		if t != nil {
			n += len(t.elements(setServices)) + len(t.elements(setNodePorts)) + len(t.elements(setPortRanges))
		}
	}
	return n
}

// frontends adds the frontends of one of the two dispatch maps, in the order of their keys.
func (r *recovery) frontends(set string) {
	elements := r.table.elements(set)
	for _, key := range sortedKeys(elements) {
		types := staticSet(set).Key
		values := SplitKey(types, r.family, key)
		if len(values) != len(types) {
			continue // another version of this program defined the map otherwise
		}
		maps, fe, proto := &nodePortMaps, Frontend{}, values[len(values)-2]
		if set == setServices {
			maps, fe.Addr = &vipMaps, values[0].Addr
			_, isVIP := r.table.elements(setVIPs)[AddrKey(fe.Addr)]
			fe.HostOwned = !isVIP
		}
		fe.Port = uint16(values[len(values)-1].Num)
		r.add(key, elements[key], maps, fe, Protocol(proto.Num))
	}
}

// add adds one frontend.
func (r *recovery) add(key, verdict string, maps *frontendMaps, fe Frontend, proto Protocol) {
	inside, outside := verdict, verdict
	admitted, bySets := parseAdmission(strings.TrimPrefix(verdict, "goto "))
	if bySets || verdict == GotoChain(maps.byClient).String() {
		inside = r.table.elements(maps.inside)[key]
		outside = inside
		if v, differs := r.table.elements(maps.outside)[key]; differs {
			outside = v
		}
	}
	p := compiledPort{ServicePort: &ServicePort{Family: r.family, Protocol: proto}}
	inside, outside = r.beyondLimits(&p, &maps.limits, key, inside), r.beyondLimits(&p, &maps.limits, key, outside)
	// In front of the chain of a port that ends idle connections is one that lets SYN through.
	inside, outside = strings.Replace(inside, prefixOnlySYN, "", 1), strings.Replace(outside, prefixOnlySYN, "", 1)
	for pool := range NumPools {
		p.Pools[pool] = r.table.slots(&p, &fe, pool)
		r.balance(&p, &fe, pool, inside, outside)
	}
	limitsID := p.ID
	p.ID = cmp.Or(idOf(inside, outside), limitsID)
	r.turns(&p)
	fe.Inside, fe.Outside = r.route(&p, inside), r.route(&p, outside)
	if bySets {
		fe.Sets = &SourceSets{r.sourceSets(admitted.allow), r.sourceSets(admitted.deny)}
	}
	if _, restricted := r.table.elements(maps.restricted)[key]; restricted || admitted.ranges {
		fe.Sources = r.sources(maps.allowed, key)
	}
	insideOnly := key
	if fe.Addr.IsValid() {
		insideOnly = AddrKey(fe.Addr)
	}
	_, fe.InsideOnly = r.table.elements(maps.insideOnly)[insideOnly]
	fe.Adopt = fe.Addr.IsValid() && proto == TCP && r.adopters[AddrPortData(netip.AddrPortFrom(fe.Addr, fe.Port))]
	id, remember := r.sourceNAT(maps, key, &fe)
	p.Idle = recoverIdle(r.table.elements(maps.sourceNAT)[key])
	if id != "" {
		_, refresh := r.table.elements(maps.refresh)[key]
		p.AffinityOptions = AffinityOptions{PrefixLen: r.prefixes[id], Refresh: refresh} // of a whole Service: that of each port
		p.Affinity = r.timeout(remember, id, fe.Outside.Pool, p.AffinityOptions)
		r.standbys(&p)
	}
	if id == "" && (p.Balance == RoundRobin || p.Limits.Any()) {
		id = p.ID
	}
	if id != "" {
		if i, known := r.byID[id]; known {
			r.join(&r.ports[i], p.ServicePort, fe)
			return
		}
		p.ID, r.byID[id] = id, len(r.ports)
	}
	p.Frontends = []Frontend{fe}
	p.Serving = union(p.Pools[PoolCluster], p.Pools[PoolLocal])
	r.ports = append(r.ports, *p.ServicePort)
}

// join makes a frontend one of a port that is known.
func (r *recovery) join(to, from *ServicePort, fe Frontend) {
	to.Frontends = append(to.Frontends, fe)
	for pool := range NumPools {
		switch {
		case len(to.Pools[pool]) == 0:
			to.Pools[pool], to.Tables[pool] = from.Pools[pool], from.Tables[pool]
		case to.Tables[pool] == nil && len(from.Pools[pool]) == 1 && !slices.Equal(to.Pools[pool], from.Pools[pool]):
			// Frontends with endpoints of their own: of all, each prefers the same one as before.
			to.Balance, to.Pools[pool] = DestinationHash, union(to.Pools[pool], from.Pools[pool])
		}
		to.Balance = max(to.Balance, from.Balance)
	}
	to.Serving = union(to.Serving, union(from.Pools[PoolCluster], from.Pools[PoolLocal]))
}

// beyondLimits gives the verdict behind the limits of a frontend, and what these are.
func (r *recovery) beyondLimits(p *compiledPort, maps *limitedMaps, key, verdict string) string {
	chain, _ := strings.CutPrefix(verdict, "goto ")
	for _, to := range []limitedMap{maps.inside, maps.outside} {
		if chain != to.chain {
			continue
		}
		limits, _ := strings.CutPrefix(r.table.elements(maps.by)[key], "jump ")
		if l, id, ok := parseLimits(limits); ok {
			p.Limits, p.ID = l, id
		}
		return r.table.elements(to.set)[key]
	}
	return verdict
}

// askedForByMore marks frontends as adopting whose endpoints are adopted for no frontend, because several ask for them.
// The kernel does not keep which frontends asked in vain; read back as frontends that do not ask, their endpoints would be
// adopted for the others. Candidates are the frontends without an adopted endpoint, except those with an endpoint that no
// other frontend has. All candidates are marked, which adopts none of their endpoints.
func (r *recovery) askedForByMore() {
	if len(r.adopters) == 0 {
		return
	}
	adopted := r.table.elements(setAdopted)
	asking := map[netip.AddrPort]int{} // how many frontends may ask for an endpoint
	may := map[*Frontend][]netip.AddrPort{}
	for i := range r.ports {
		p := &r.ports[i]
		for j := range p.Frontends {
			fe := &p.Frontends[j]
			if p.Protocol != TCP || !fe.Addr.IsValid() || fe.IsRange() {
				continue
			}
			endpoints := p.Reachable(fe)
			isAdopted := func(ap netip.AddrPort) bool { _, is := adopted[AddrPortData(ap)]; return is }
			if len(endpoints) == 0 || !fe.Adopt && slices.ContainsFunc(endpoints, isAdopted) {
				continue
			}
			for _, ap := range endpoints {
				asking[ap]++
			}
			if !fe.Adopt {
				may[fe] = endpoints
			}
		}
	}
	for before := -1; before != len(may); {
		before = len(may)
		for fe, endpoints := range may {
			if slices.ContainsFunc(endpoints, func(ap netip.AddrPort) bool { return asking[ap] == 1 }) {
				delete(may, fe)
				for _, ap := range endpoints {
					asking[ap]--
				}
			}
		}
	}
	for fe := range may {
		fe.Adopt = true
	}
}
