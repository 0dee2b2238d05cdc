package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Recover reads Service ports back from a ruleset that Compile made, so that compiling them again on the same box gives the same elements. It is for
// a program that has lost the objects while the kernel still serves them.
//
// The names of Services are not in the kernel, except in the names of session affinity chains. So each frontend becomes a separate Service port,
// except that frontends with a common affinity map become one port. Data that cannot be read back is left out. ServicePort.Serving is the union of
// the pools.
func Recover(have Ruleset, box *Box) []ServicePort {
	var ports []ServicePort
	for _, f := range Families {
		if have[f] != nil {
			r := newRecovery(f, have[f], box)
			r.frontends(setServices)
			r.frontends(setNodePorts)
			r.ranges()
			r.askedForByMore()
			r.egress()
			r.readFast()
			ports = append(ports, r.ports...)
		}
	}
	return ports
}

// FrontendSets returns the names of the sets that CountFrontends and Adopts read.
func FrontendSets() []string { return frontendSets }

// CountFrontends returns the number of frontends of a ruleset: addresses with a port or range, and
// node ports.
func CountFrontends(have Ruleset) int {
	n := 0
	for _, t := range have {
		n += len(t.elements(setServices)) + len(t.elements(setNodePorts)) + len(t.elements(setPortRanges))
	}
	return n
}

// frontends recovers the frontends from set, one of the two dispatch maps, in the order of their keys.
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
		r.add(key, gotoOf(elements[key]), maps, fe, Protocol(proto.Num))
	}
}

// add recovers the frontend of one element of a dispatch map, and adds it to a port.
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
	fe.Internal, fe.External = r.route(&p, inside), r.route(&p, outside)
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
		p.Affinity = r.timeout(remember, id, fe.External.Pool, p.AffinityOptions)
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

// join adds a frontend to a port that was recovered already.
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

// beyondLimits returns the verdict for packets within the limits of a port, and sets the limits of p, if verdict leads to a chain of limits.
// Otherwise it returns verdict. key is the key of the frontend.
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

// askedForByMore sets Adopt for frontends that seem to share all their endpoints with other frontends that have Adopt. An endpoint is not adopted if
// several frontends ask for it, and the kernel does not record these frontends. If only one of them were recovered with Adopt, the endpoint would be
// adopted for it. Candidates are the frontends without an adopted endpoint, except those with an endpoint that no other frontend can have asked for.
// Adopt is set for all candidates, so that none of their endpoints is adopted.
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

// recovery is the state of recovering the Service ports of one table.
type recovery struct {
	family   Family
	table    *Table
	box      *Box
	ports    []ServicePort
	byID     map[string]int  // indexes of ports that were recovered with an ID, by ID
	timeouts []time.Duration // the affinity timeouts found so far
	sets     map[string]*SourceSet
	prefixes map[string]uint8  // AffinityOptions.PrefixLen of ports, by ID
	limits   map[string]Limits // limits of ports, by ID
	adopters map[string]bool   // keys of frontends that adopt an endpoint
}

func newRecovery(f Family, table *Table, box *Box) *recovery {
	r := &recovery{
		family: f, table: table, box: box, byID: map[string]int{}, timeouts: []time.Duration{defaultAffinity}, sets: map[string]*SourceSet{},
		prefixes: map[string]uint8{}, limits: map[string]Limits{}, adopters: table.adopters(),
	}
	for name := range table.Sets {
		if bits, id, ok := parsePrefix(name); ok {
			r.prefixes[id] = bits
		}
	}
	for name := range table.Chains {
		if l, id, ok := parseLimits(name); ok && id != "" {
			r.limits[id] = l
		}
	}
	return r
}

// route derives the Route of a frontend from the verdict that its element has in a dispatch map. If the verdict refuses or drops, the
// Route has a pool without endpoints.
func (r *recovery) route(p *compiledPort, verdict string) Route {
	empty := PoolCluster
	if len(p.Pools[PoolCluster]) > 0 {
		empty = PoolLocal
	}
	chain, isGoto := strings.CutPrefix(verdict, "goto ")
	switch {
	case !isGoto:
		return Route{Pool: empty, Fallback: Blackhole}
	case chain == chainRefuse:
		return Route{Pool: empty}
	}
	name, _, _ := strings.Cut(chain, "/")
	if strings.HasPrefix(name, pools[PoolLocal].vip.prefix) || strings.HasSuffix(name, pools[PoolLocal].qualifier) {
		return Route{Pool: PoolLocal}
	}
	return Route{Pool: PoolCluster}
}

// balance recovers the table of a pool and the port's Balance, if one of the verdicts leads to a chain that draws from a table.
func (r *recovery) balance(p *compiledPort, fe *Frontend, pool Pool, verdicts ...string) {
	maps := pools[pool].of(fe)
	for _, form := range tableForms {
		kind, size := splitForm(form)
		if !slices.ContainsFunc(verdicts, func(v string) bool { return r.leadsTo(v, maps.prefix+form) }) {
			continue
		}
		if kind == chainWeigh {
			size *= 2
		}
		slots := r.table.drawn(p, fe, pool, int(size))
		if slots == nil {
			continue // the chain of another pool's frontends has a like name
		}
		switch kind {
		case chainHash:
			p.Balance = Maglev
		case chainSource:
			p.Balance = SourceHash
		case chainWeigh:
			if first := slots[:size/2]; !slices.ContainsFunc(slots[size/2:], netip.AddrPort.IsValid) {
				slots = first
			}
		}
		p.Tables[pool], p.Pools[pool] = slots, distinct(slots)
		return
	}
}

// leadsTo reports whether a verdict leads to a chain, directly or through a chain that recalls affinity.
func (r *recovery) leadsTo(verdict, chain string) bool {
	to, _ := strings.CutPrefix(verdict, "goto ")
	if to == chain {
		return true
	}
	c := r.table.Chains[to]
	if c == nil || !strings.Contains(to, "/") {
		return false
	}
	goes := Rule{GotoChain(chain)}.Mark(r.family)
	return slices.Contains(r.marks(c), goes)
}

// marks returns the marks of a chain's rules.
func (r *recovery) marks(c *Chain) []uint64 {
	if c.Marks != nil {
		return c.Marks
	}
	var marks []uint64
	for _, rule := range c.Rules {
		marks = append(marks, rule.Mark(r.family))
	}
	return marks
}

// standbys restores DestinationHash and the endpoints of a port with affinity. With DestinationHash a frontend has a single endpoint in its slots,
// but the set of members has several.
func (r *recovery) standbys(p *compiledPort) {
	for pool := range NumPools {
		if members := r.table.endpoints(p.members(pool).Name); len(members) > 1 && len(p.Pools[pool]) == 1 {
			p.Balance, p.Pools[pool] = DestinationHash, members
		}
	}
}

// sources returns the prefixes of clients that may connect to a frontend.
func (r *recovery) sources(set, frontend string) []netip.Prefix {
	prefixes := []netip.Prefix{}
	n := r.family.AddrLen()
	for key := range r.table.elements(set) {
		if len(key) != 2*(len(frontend)+n) || !strings.HasPrefix(key, frontend) {
			continue
		}
		first, _ := netip.AddrFromSlice([]byte(key[len(frontend) : len(frontend)+n]))
		last, _ := netip.AddrFromSlice([]byte(key[len(key)-n:]))
		prefixes = append(prefixes, prefixesOf(first, last)...)
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

// prefixesOf returns the fewest prefixes that cover exactly a range of addresses.
func prefixesOf(first, last netip.Addr) (prefixes []netip.Prefix) {
	for first.IsValid() && first.Compare(last) <= 0 {
		bits := first.BitLen()
		for bits > 0 {
			wider := netip.PrefixFrom(first, bits-1)
			if r := PrefixRange(wider); r.First != first || r.Last.Compare(last) > 0 {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(first, bits)
		prefixes = append(prefixes, p)
		first = PrefixRange(p).Last.Next()
	}
	return prefixes
}

// sourceNAT recovers which clients of a frontend are masqueraded, and sets fe.SNAT. If the frontend belongs to a Service port with affinity, id is
// the ID of that port and remember the name of the chain that adds affinity entries; otherwise both are empty.
func (r *recovery) sourceNAT(maps *frontendMaps, key string, fe *Frontend) (id, remember string) {
	verdict, is := r.table.elements(maps.sourceNAT)[key]
	if !is {
		if r.box.hasInternalSources(r.family) && r.box.inServiceRange(fe.Addr) {
			fe.SNAT = SNATOutside // what the rule for the service range does
		}
		return "", ""
	}
	chain, _ := strings.CutPrefix(verdict, "goto ")
	name, id, hasID := strings.Cut(chain, "/")
	if _, isTimeout := parseTimeout(name); isTimeout {
		name, id, hasID = id, "", false
	}
	name, _, _ = strings.Cut(name, qualifierIdle)
	switch {
	case name == chainMasqAlways || strings.HasSuffix(name, "-always"):
		fe.SNAT = SNATAlways
	case name == chainMasqOutside || strings.HasSuffix(name, "-outside"):
		fe.SNAT = SNATOutside
	case name == chainMasqSelf || strings.HasSuffix(name, "-self"):
		fe.SNAT = SNATSelf
	}
	if !hasID {
		return "", ""
	}
	remember, _ = strings.CutPrefix(r.table.elements(maps.answers)[key], "goto ")
	return id, remember
}

// timeout returns the affinity timeout of a port. The kernel returns marks instead of rules, so timeout tries values until the mark of the rule with
// that value is in the chain. It returns defaultAffinity if no value matches.
func (r *recovery) timeout(chain, id string, pool Pool, sticky AffinityOptions) time.Duration {
	var marks []uint64
	if c := r.table.Chains[chain]; c != nil {
		marks = r.marks(c)
	}
	is := func(d time.Duration) bool {
		p := compiledPort{ServicePort: &ServicePort{ID: id, Family: r.family, Affinity: d, AffinityOptions: sticky}}
		update := p.update(pool, byAnswer)
		return slices.Contains(marks, Rule{MatchSet{Key: update.Data, Set: p.members(pool).Name}, update}.Mark(r.family))
	}
	for _, d := range r.timeouts {
		if is(d) {
			return d
		}
	}
	for d := time.Second; d <= affinityLife && len(marks) > 0; d += time.Second {
		if is(d) {
			r.timeouts = append(r.timeouts, d)
			return d
		}
	}
	return defaultAffinity
}

// staticSet returns the definition of a set that exists once in a table, not for a Service port.
func staticSet(name string) Set {
	return staticSets[slices.IndexFunc(staticSets, func(s Set) bool { return s.Name == name })]
}

// defaultAffinity is Kubernetes' default of sessionAffinityConfig.clientIP.timeoutSeconds.
const defaultAffinity = 3 * time.Hour

// endpoints returns the endpoints in a set, sorted by address.
func (t *Table) endpoints(set string) []netip.AddrPort {
	var all []netip.AddrPort
	for key := range t.elements(set) {
		f := IPv4
		if len(key) == KeyLen(dataEndpoint, IPv6) {
			f = IPv6
		}
		if values := SplitKey(dataEndpoint, f, key); len(values) == len(dataEndpoint) {
			all = append(all, netip.AddrPortFrom(values[0].Addr, uint16(values[1].Num)))
		}
	}
	return distinct(all)
}

// slots returns the endpoints in the slots of a frontend's pool in a table.
func (t *Table) slots(p *compiledPort, fe *Frontend, pool Pool) (slots []netip.AddrPort) {
	elements := t.elements(pools[pool].of(fe).backends)
	for key := p.key(fe); ; {
		ap, is := elements.endpoint(p.Family, key.Slot(uint32(len(slots))))
		if !is {
			return slots
		}
		slots = append(slots, ap)
	}
}

// drawn returns the endpoints in the first size slots of a frontend's table in the kernel, the zero AddrPort for a hole. It returns nil if all of
// them are holes.
func (t *Table) drawn(p *compiledPort, fe *Frontend, pool Pool, size int) []netip.AddrPort {
	elements, key := t.elements(pools[pool].of(fe).tables), p.key(fe)
	slots := make([]netip.AddrPort, size)
	for i := range slots {
		slots[i], _ = elements.endpoint(p.Family, key.Slot(uint32(i)))
	}
	if !slices.ContainsFunc(slots, netip.AddrPort.IsValid) {
		return nil
	}
	return slots
}

// adopters returns the keys of the frontends for which endpoints of a table are adopted.
func (t *Table) adopters() map[string]bool {
	frontends := map[string]bool{}
	for _, frontend := range t.elements(setAdopted) {
		frontends[frontend] = true
	}
	return frontends
}

// Strays are packets that conntrack calls invalid: they lie outside of their connection's
// window, or belong to none. No connection means no translation. Sent to a VIP such a
// packet, or to an address that is set aside for Services, would leave the box by its
// default route, and come back from a router that routes the address here, again and again;
// or, where the box has the address itself, be answered by a reset. Sent by an endpoint it
// would reach the client from an address that it never talked to, and the client's reset
// would end the connection. So strays are dropped where they touch a Service, and only there.
//
// This is the one chain that sees every packet, and all that it asks of one is its
// conntrack state. With affinity it also finds first answers: there the first question is
// whether the connection is assured, which is all that is asked of established ones.

// strayChains returns the chains for packets that belong to no connection; none if there are neither Services nor owned addresses.
func (t *tableState) strayChains(f Family, box *Box) []Chain {
	var rules []Rule
	drop := func(of ...Statement) {
		rules = append(rules, append(of, box.counted(RefusedStray, Verdict{Kind: Drop})...))
	}
	if t.has(setVIPs) {
		drop(MatchSet{Key: []Field{Daddr}, Set: setVIPs})
	}
	if t.has(setOwned) {
		rules = append(rules, dropOwned(box, RefusedStray))
	}
	if t.has(setOpenPorts) {
		drop(MatchSet{Key: frontend, Set: setOpenPorts})
	}
	if t.has(setOpenPortRanges) {
		drop(MatchSet{Key: frontend, Set: setOpenPortRanges})
	}
	if t.has(setOpenNodePorts) {
		drop(
			MatchSet{Key: []Field{Daddr}, Set: setNPAddresses},
			MatchSet{Key: nodePort, Set: setOpenNodePorts},
		)
	}
	if t.has(setHairpin) {
		// The set of endpoints with themselves is a set of endpoints. A SYN-ACK passes: to a
		// box that sees one direction alone of other connections of an endpoint, it belongs to
		// nothing.
		drop(MatchNoSYN{}, MatchSet{Key: []Field{Saddr, Saddr}, Set: setHairpin})
	}
	if rules = append(rules, t.egressStrays(f, box)...); rules == nil {
		return nil
	}
	base := []Rule{{MatchInvalid{}, GotoChain(chainStray)}}
	if t.hasAffinity() {
		answers := t.answerRules()
		base = []Rule{answers[0], base[0], answers[1]}
	}
	return []Chain{
		{Name: chainStray, Rules: rules},
		{Name: chainInvalid, Hook: HookPrerouting, Priority: PriorityStray, Filter: true, Rules: base},
	}
}

// dropOwned returns the rule that drops packets to an owned address without a Service.
func dropOwned(box *Box, reason string) Rule {
	return append(Rule{MatchSet{Key: []Field{Daddr}, Set: setOwned}}, box.counted(reason, Verdict{Kind: Drop})...)
}
