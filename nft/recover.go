package nft

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
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

// defaultAffinity is Kubernetes' default of sessionAffinityConfig.clientIP.timeoutSeconds.
const defaultAffinity = 3 * time.Hour

// recovery is the reading of one table.
type recovery struct {
	family   Family
	table    *Table
	box      *Box
	ports    []ServicePort
	byID     map[string]int  // ports with affinity, by ID
	timeouts []time.Duration // of affinity, that were found so far
	sets     map[string]*SourceSet
	prefixes map[string]uint8  // Sticky.PrefixLen, by ID
	limits   map[string]Limits // by ID
	adopters map[string]bool   // frontends with Adopt
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
		p.Sticky = Sticky{PrefixLen: r.prefixes[id], Refresh: refresh} // of a whole Service: that of each port
		p.Affinity = r.timeout(remember, id, fe.Outside.Pool, p.Sticky)
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

func union(a, b []netip.AddrPort) []netip.AddrPort {
	all := slices.Clone(a)
	for _, ap := range b {
		if !slices.Contains(a, ap) {
			all = append(all, ap)
		}
	}
	return all
}

// route returns the route of a verdict of the dispatch. The pool of a verdict that refuses is one
// without endpoints.
func (r *recovery) route(p *compiledPort, verdict string) Route {
	empty := PoolCluster
	if len(p.Pools[PoolCluster]) > 0 {
		empty = PoolLocal
	}
	chain, isGoto := strings.CutPrefix(verdict, "goto ")
	switch {
	case !isGoto:
		return Route{Pool: empty, Otherwise: Blackhole}
	case chain == chainRefuse:
		return Route{Pool: empty}
	}
	name, _, _ := strings.Cut(chain, "/")
	if strings.HasPrefix(name, pools[PoolLocal].vip.prefix) || strings.HasSuffix(name, pools[PoolLocal].qualifier) {
		return Route{Pool: PoolLocal}
	}
	return Route{Pool: PoolCluster}
}

// balance reads the table of a pool, if a verdict leads to a chain that draws from one.
func (r *recovery) balance(p *compiledPort, fe *Frontend, pool Pool, verdicts ...string) {
	maps := pools[pool].of(fe)
	for _, form := range tableForms {
		kind, size := splitForm(form)
		if !slices.ContainsFunc(verdicts, func(v string) bool { return r.leadsTo(v, maps.prefix+form) }) {
			continue
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
			if slices.Contains(slots, netip.AddrPort{}) {
				slots = r.table.drawn(p, fe, pool, int(2*size))
			}
		}
		p.Tables[pool], p.Pools[pool] = slots, distinct(slots)
		return
	}
}

// leadsTo reports whether a verdict goes to a chain, at once or from a recall chain.
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

// standbys finds the endpoints of a port with affinity that no slot has: with
// DestinationHash each frontend has one, and all of them are members.
func (r *recovery) standbys(p *compiledPort) {
	for pool := range NumPools {
		if members := r.table.endpoints(p.members(pool).Name); len(members) > 1 && len(p.Pools[pool]) == 1 {
			p.Balance, p.Pools[pool] = DestinationHash, members
		}
	}
}

// sources are the prefixes that may connect to a frontend.
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

// prefixesOf are the fewest prefixes that make up a range of addresses.
func prefixesOf(first, last netip.Addr) (prefixes []netip.Prefix) {
	for first.IsValid() && first.Compare(last) <= 0 {
		bits := first.BitLen()
		for bits > 0 {
			wider := netip.PrefixFrom(first, bits-1)
			if _, end := PrefixRange(wider); wider.Masked().Addr() != first || end.Compare(last) > 0 {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(first, bits)
		prefixes = append(prefixes, p)
		_, end := PrefixRange(p)
		first = end.Next()
	}
	return prefixes
}

// sourceNAT reads which clients of a frontend are masqueraded. id names the Service port with
// affinity that it belongs to, if its clients are remembered, and remember the chain that does.
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

// timeout finds how long clients are remembered. The kernel gives no rule back, only its
// mark: so it is the one whose rule has a mark that is there.
func (r *recovery) timeout(chain, id string, pool Pool, sticky Sticky) time.Duration {
	var marks []uint64
	if c := r.table.Chains[chain]; c != nil {
		marks = r.marks(c)
	}
	is := func(d time.Duration) bool {
		p := compiledPort{ServicePort: &ServicePort{ID: id, Family: r.family, Affinity: d, Sticky: sticky}}
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

// staticSet finds the definition of a set that is not a Service port's own.
func staticSet(name string) Set {
	return staticSets[slices.IndexFunc(staticSets, func(s Set) bool { return s.Name == name })]
}
