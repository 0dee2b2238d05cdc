package nft

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// recovery is the reading of one table.
type recovery struct {
	family   Family
	table    *Table
	box      *Box
	ports    []ServicePort
	byID     map[string]int  // ports with affinity, by ID
	timeouts []time.Duration // of affinity, that were found so far
	sets     map[string]*SourceSet
	prefixes map[string]uint8  // AffinityOptions.PrefixLen, by ID
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

// staticSet finds the definition of a set that is not a Service port's own.
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
		if len(key) == keyLen(dataEndpoint, IPv6) {
			f = IPv6
		}
		if values := SplitKey(dataEndpoint, f, key); len(values) == len(dataEndpoint) {
			all = append(all, netip.AddrPortFrom(values[0].Addr, uint16(values[1].Num)))
		}
	}
	return distinct(all)
}

// slots reads the slots of a frontend's pool back from a table.
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

// drawn reads the first slots of a frontend's table of a pool back, with the zero AddrPort
// for holes. It is nil when there is none.
func (t *Table) drawn(p *compiledPort, fe *Frontend, pool Pool, size int) []netip.AddrPort {
	elements, key := t.elements(pools[pool].of(fe).tables), p.key(fe)
	if _, is := elements.endpoint(p.Family, key.Slot(0)); !is {
		return nil // the first slot is never a hole
	}
	slots := make([]netip.AddrPort, size)
	for i := range slots {
		slots[i], _ = elements.endpoint(p.Family, key.Slot(uint32(i)))
	}
	return slots
}

// adopters are the frontends that endpoints of a table are adopted for.
func (t *Table) adopters() map[string]bool {
	frontends := map[string]bool{}
	for _, frontend := range t.elements(setAdopted) {
		frontends[frontend] = true
	}
	return frontends
}
