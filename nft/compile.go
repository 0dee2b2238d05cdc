package nft

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Compiler keeps the Ruleset that a State asks for. Its work for a change is
// proportional to the Services that the change touches.
//
// A Compiler is not safe for concurrent use.
type Compiler struct {
	box      Box
	services map[string][]*compiledPort
	tables   map[Family]*tableState
	adopted  Ruleset  // the ruleset passed to Adopt, from which endpoints take their slots; nil after Adopt
	brings   fragment // scratch space of exchange

	unsettled map[string]bool // Services with a port in a stage other than settled (see unsettled.go)
	settle    bool            // the next Update advances the stages of the unsettled Services
}

// NewCompiler returns a Compiler without Services, for a box without addresses.
func NewCompiler() *Compiler {
	c := &Compiler{services: map[string][]*compiledPort{}, tables: map[Family]*tableState{}, unsettled: map[string]bool{}}
	for _, f := range Families {
		c.tables[f] = newTableState()
	}
	return c
}

// remembering identifies a Service port for which the chain that adds its affinity entries has changed.
type remembering struct {
	family Family
	id     string
}

func changedRemembers(b *Batch) map[remembering]bool {
	changed := map[remembering]bool{}
	for _, op := range b.Ops {
		if op, ok := op.(SetRules); ok && strings.HasPrefix(op.Chain, prefixRemember) {
			_, id, _ := strings.Cut(op.Chain, "/")
			changed[remembering{op.Family, id}] = true
		}
	}
	return changed
}

// Load replaces the box and all Services with the contents of s.
func (c *Compiler) Load(s State) Transition {
	var tr Transition
	c.load(s, &tr)
	return tr
}

// load replaces the box and all Services with the contents of s and, if tr is not nil, appends the operations of the change to tr.
func (c *Compiler) load(s State, tr *Transition) {
	changes := maps.Clone(s.Services)
	if changes == nil {
		changes = map[string][]ServicePort{}
	}
	for name := range c.services {
		if _, ok := changes[name]; !ok {
			changes[name] = nil
		}
	}
	c.update(&s.Box, changes, tr)
	c.adopted = nil
}

// Update replaces the box, if box is not nil, and the ports of the Services in changes; a Service with no ports is removed. Frontends must be unique
// among all Services, which package resolve ensures. The Compiler keeps the ports, so they must not be changed afterwards.
func (c *Compiler) Update(box *Box, changes map[string][]ServicePort) Transition {
	var tr Transition
	c.update(box, changes, &tr)
	return tr
}

// manyServices is the number of changed Services above which the maps that record a change are not reused for the next one.
const manyServices = 64

// Foresee returns the Transition that Update would return, with Dropped set. It makes the change and reverts it, so the Compiler stays as it is.
// before holds the current ports of the Services in changes; the caller must not change them.
func (c *Compiler) Foresee(box *Box, changes map[string][]ServicePort) (tr Transition, before map[string][]ServicePort) {
	was, had := c.box, make(map[string][]*compiledPort, len(changes))
	before = make(map[string][]ServicePort, len(changes))
	for name := range changes {
		had[name] = c.services[name]
		for _, p := range had[name] {
			before[name] = append(before[name], *p.ServicePort)
		}
	}
	for _, t := range c.tables {
		t.listsDropped = true
	}
	touched := c.update(box, changes, &tr)
	for _, t := range c.tables {
		t.listsDropped = false
	}
	if box != nil {
		box = &was
	}
	c.exchange(box, touched, func(name string) {
		if _, ok := changes[name]; ok {
			c.replace(name, had[name])
		}
	}, nil)
	return tr, before
}

func (c *Compiler) update(box *Box, changes map[string][]ServicePort, tr *Transition) (touched []string) {
	touched = slices.Sorted(maps.Keys(changes))
	if box != nil {
		// Whatever a Service brings may depend on the box.
		names := touched
		touched = c.dependents(box, changes)
		for _, name := range names {
			if _, ok := c.services[name]; !ok {
				touched = append(touched, name)
			}
		}
	}
	if c.settle {
		touched = slices.Compact(slices.Sorted(slices.Values(slices.Concat(touched, sortedKeys(c.unsettled)))))
	}
	c.exchange(box, touched, func(name string) {
		if ports, ok := changes[name]; ok {
			c.setService(name, ports)
		}
		if c.settle && c.unsettled[name] {
			c.advance(name)
		}
	}, tr)
	c.settle = false
	return touched
}

// exchange replaces the box, if box is not nil, and calls set to replace the ports of each touched Service. If tr is not nil, it appends the
// operations of the change to tr.
func (c *Compiler) exchange(box *Box, touched []string, set func(name string), tr *Transition) {
	for _, t := range c.tables {
		t.begin(tr != nil, len(touched) > manyServices)
	}
	f := &c.brings
	for _, name := range touched {
		for _, p := range c.services[name] {
			f.fill(p, &c.box)
			c.tables[p.Family].remove(f)
		}
	}
	if box != nil {
		c.box = *box
	}
	for _, name := range touched {
		set(name)
		for _, p := range c.services[name] {
			f.fill(p, &c.box)
			c.tables[p.Family].add(f, p.Family, &c.box)
		}
	}
	for _, f := range Families {
		c.tables[f].finish(f, &c.box, box != nil, tr)
	}
}

// dependents returns, sorted, the Services with elements that may change when box replaces c.box. If only addresses, interfaces and the flowtable
// (Fast) differ, it returns the changed Services and the Services with an endpoint at an address that was added or removed; tableState.finish updates
// everything else that depends on these fields. Otherwise it returns all Services.
func (c *Compiler) dependents(box *Box, changes map[string][]ServicePort) []string {
	was := c.box
	was.LocalAddresses, was.NodePortAddresses, was.Interfaces, was.Owned, was.Fast = box.LocalAddresses, box.NodePortAddresses, box.Interfaces, box.Owned, box.Fast
	if !reflect.DeepEqual(was, *box) {
		return slices.Sorted(maps.Keys(c.services))
	}
	moved := map[netip.Addr]bool{}
	for _, pair := range [][2][]netip.Addr{{c.box.LocalAddresses, box.LocalAddresses}, {box.LocalAddresses, c.box.LocalAddresses}} {
		for _, addr := range pair[0] {
			if !slices.Contains(pair[1], addr) {
				moved[addr] = true
			}
		}
	}
	var names []string
	for name, ports := range c.services {
		if _, changed := changes[name]; changed || slices.ContainsFunc(ports, func(p *compiledPort) bool { return p.hasEndpointAt(moved) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// hasEndpointAt reports whether an endpoint has one of the addresses.
func (p *compiledPort) hasEndpointAt(addrs map[netip.Addr]bool) bool {
	isAt := func(ap netip.AddrPort) bool { return addrs[ap.Addr()] }
	for pool := range NumPools {
		if slices.ContainsFunc(p.slots[pool], isAt) || slices.ContainsFunc(p.Pools[pool], isAt) {
			return true
		}
	}
	return false
}

// setService assigns slots to the endpoints of a Service's new ports, and records removed endpoints for the affinity maps.
func (c *Compiler) setService(name string, ports []ServicePort) {
	prev := c.services[name]
	now := make([]*compiledPort, len(ports))
	for i := range ports {
		sp := &ports[i]
		p := &compiledPort{ServicePort: sp}
		c.capTimeouts(prev, p)
		for pool := range NumPools {
			before := c.slotsBefore(prev, p, pool)
			p.place(prev, before, pool)
			if left := removed(before, p.slots[pool]); len(left) > 0 && sp.Affinity > 0 {
				t := c.tables[p.Family]
				t.forget = append(t.forget, forgotten{p.affinityMap(pool), left}, forgotten{p.unansweredMap(pool), left})
			}
		}
		p.stage = c.stageAfter(prev, p)
		now[i] = p
	}
	for _, p := range now {
		p.others = p.remembersWith(now)
	}
	c.replace(name, now)
}

// place assigns slots to the endpoints of a pool. before holds the earlier slots, which a pool with a table ignores.
func (p *compiledPort) place(prev []*compiledPort, before []netip.AddrPort, pool Pool) {
	if !p.Relay[pool].IsValid() { // else the relay picks
		for _, old := range prev {
			if old.ID == p.ID && old.Family == p.Family && old.tables[pool] != nil && sameTable(old.ServicePort, p.ServicePort, pool) {
				p.slots[pool], p.tables[pool] = old.slots[pool], old.tables[pool]
				return
			}
		}
		t := p.tableOf(pool)
		p.tables[pool] = t
		if t != nil && !(t.form == formTurns && len(t.slots) == len(p.Pools[pool]) && p.Tables[pool] == nil) {
			p.slots[pool] = p.Pools[pool]
			return
		}
	}
	p.slots[pool] = assignSlots(before, p.targets(pool))
	if slices.Equal(p.slots[pool], p.slots[PoolCluster]) {
		p.slots[pool] = p.slots[PoolCluster] // held once
	}
}

// capTimeouts records that the affinity timeout of a Service port was reduced. It does so for every adopted port too, since the entries in the kernel
// may have a longer timeout.
func (c *Compiler) capTimeouts(prev []*compiledPort, p *compiledPort) {
	if p.Affinity == 0 {
		return
	}
	shorter := c.adopted[p.Family] != nil
	for _, old := range prev {
		if old.ID == p.ID && old.Family == p.Family {
			shorter = old.Affinity > p.Affinity
		}
	}
	if !shorter {
		return
	}
	t := c.tables[p.Family]
	for pool := range NumPools {
		t.caps = append(t.caps, CapTimeouts{Family: p.Family, Set: p.affinityMap(pool), Timeout: p.Affinity})
	}
}

// slotsBefore returns the endpoints of a pool in the order of their previous slots, from the earlier version of the port or from the adopted ruleset.
func (c *Compiler) slotsBefore(prev []*compiledPort, p *compiledPort, pool Pool) []netip.AddrPort {
	for _, old := range prev {
		if old.ID == p.ID && old.Family == p.Family {
			return old.slots[pool]
		}
	}
	table := c.adopted[p.Family]
	if table == nil {
		return nil
	}
	if slots := table.slotsIn(p.turnsMap(pool), p.Family); slots != nil {
		return slots
	}
	if p.hasRanges() {
		return table.slotsIn(p.rangeMap(pool), p.Family)
	}
	for i := range p.Frontends {
		if slots := table.slots(p, &p.Frontends[i], pool); slots != nil && p.Balance != DestinationHash {
			return slots
		}
	}
	// Tables have no history; clients are remembered for members only.
	return table.endpoints(p.members(pool).Name)
}

// VIPs returns the number of VIPs, the addresses that are dedicated to Services.
func (c *Compiler) VIPs() int {
	n := 0
	for _, t := range c.tables {
		n += t.count(setVIPs)
	}
	return n
}

// Serves reports whether a frontend occupies a port of the host: the port of a host address, or, with the zero Addr, a node port.
func (c *Compiler) Serves(f Family, proto Protocol, at netip.AddrPort) bool {
	return c.tables[f].hosted[string(frontendKey(proto, at))] > 0
}

// fragment holds what one Service port adds to the table of its family. It has more than 15 fields: one for each kind of set, chain or shared object.
type fragment struct {
	elements  []placed     // elements of this port only
	endpoints []netip.Addr // addresses for the hairpin set, which may be shared with other ports
	vips      []vipUse     // the VIPs of its frontends
	original  []netip.Addr // addresses of frontends with an element in source-nat, once per frontend
	// insideOnly are the addresses of frontends that accept inside clients only, once per frontend.
	insideOnly []netip.Addr
	hosted     []string          // keys of frontends on ports of the host: node ports and ports of host addresses
	chains     []Chain           // chains of this port only
	shared     []string          // names of shared chains that its verdicts lead to
	sets       []Set             // maps of this port only
	uses       map[Protocol]bool // protocols that the chains postrouting and answer must match
	// sourceSets holds the source sets of the port's frontends, once per frontend.
	sourceSets []*SourceSet
	// timeouts holds the idle timeouts of the port's frontends, once per frontend.
	timeouts []Timeout
	// adopted has the port's elements of setAdopted. Each is in the set only while no other frontend adopts its endpoint.
	adopted []placed
	egress  *Egress
	// answersHere is 1 if the port's clients are remembered by replies that the box itself sends, as an endpoint; otherwise 0.
	answersHere int
	// limits is 1 if the port has limits, otherwise 0.
	limits int
	keeper
}

type placed struct{ set, key, data string }

type vipUse struct {
	addr  netip.Addr
	ready bool // the frontend has endpoints
	named bool // the Service has only the frontend's port, not the whole address
}

// compiledPort is a Service port with the slots of its endpoints.
type compiledPort struct {
	*ServicePort
	slots  [NumPools][]netip.AddrPort
	tables [NumPools]*table // slot tables by pool; nil if endpoints are picked from slots with equal probability
	// others are the ports of the same Service that share the affinity of a client with this port.
	others []*compiledPort
	stage  stage
}

// frontendMaps holds the names of the maps that can have an element for a frontend; "" if there is no such map.
type frontendMaps struct {
	all, byClient, inside, outside, sourceNAT, answers, refresh, restricted, allowed string

	insideOnly    string
	insideOnlyKey []Field // the fields of a packet that are looked up in insideOnly

	limits limitedMaps
}

func (f *fragment) use(proto Protocol) {
	if f.uses == nil {
		f.uses = make(map[Protocol]bool, 1)
	}
	f.uses[proto] = true
}

// key returns the frontend's key in the dispatch maps.
func (p *compiledPort) key(fe *Frontend) Key {
	return frontendKey(p.Protocol, netip.AddrPortFrom(fe.Addr, fe.Port))
}

// leadsTo reports whether any frontend of the port sends clients to a pool.
func (p *compiledPort) leadsTo(pool Pool) bool {
	return slices.ContainsFunc(p.Frontends, func(fe Frontend) bool { return fe.Internal.Pool == pool || fe.External.Pool == pool })
}

// serves reports whether any connection to the frontend reaches an endpoint.
func (p *compiledPort) serves(fe *Frontend) bool {
	return len(p.slots[fe.Internal.Pool])+len(p.slots[fe.External.Pool]) > 0
}

// hasLocalEndpoint reports whether an endpoint is the box itself, so that its replies pass output instead of prerouting.
func (p *compiledPort) hasLocalEndpoint(box *Box) bool {
	for pool := range NumPools {
		for _, ap := range p.slots[pool] {
			if slices.Contains(box.LocalAddresses, ap.Addr()) {
				return true
			}
		}
	}
	return false
}

var (
	vipMaps = frontendMaps{setServices, chainByClient, setInsideServices, setOutsideServices,
		setSourceNAT, setAnswers, setRefresh, setRestricted, setAllowed, setInsideOnly, []Field{Daddr},
		limitedMaps{setLimitedBy, limitedMap{setLimited, chainLimited}, limitedMap{setLimitedOutside, chainLimitedOutside}}}
	nodePortMaps = frontendMaps{setNodePorts, chainNPByClient, setInsideNodePorts, setOutsideNodePorts,
		setNPSourceNAT, setNPAnswers, setNPRefresh, setNPRestricted, setNPAllowed, setNPInsideOnly, nodePort,
		limitedMaps{setNPLimitedBy, limitedMap{setNPLimited, chainNPLimited}, limitedMap{setNPLimitedOutside, chainNPLimitedOutside}}}
)

// limitedMaps names the maps for frontends with limits. The field by names the map whose verdicts lead to the chain that checks the limits. inside
// and outside name the maps with the verdicts for packets of inside and outside clients within the limits.
type limitedMaps struct {
	by              string
	inside, outside limitedMap
}

// limitedMap is a map of verdicts for frontends with limits, and the chain that looks up its elements.
type limitedMap struct{ set, chain string }

// masquerade returns the name of the postrouting chain for frontends of an SNAT class; "" if none of their clients is masqueraded.
func (p *compiledPort) masquerade(class SNAT, box *Box) string {
	switch {
	case class == SNATAlways:
		return chainMasqAlways
	case class == SNATSelf:
		return chainMasqSelf
	case class == SNATOutside && box.hasInternalSources(p.Family):
		return chainMasqOutside
	}
	return ""
}

// pick returns the goto verdict for the chain that picks one of the pool's slots, or draws from its table. A packet that finds no endpoint there goes
// on to the chain for one slot (`pick-1`), and from there to the chain that refuses.
func (p *compiledPort) pick(f *fragment, fe *Frontend, pool Pool) Verdict {
	maps := pools[pool].of(fe)
	if t := p.tables[pool]; t != nil {
		f.shared = append(f.shared, chainRefuse)
		if t.form == formTurns {
			return GotoChain(p.turnsMap(pool).Name) // the chain has the map's name
		}
		chain := maps.prefix + t.form
		if f.shared = append(f.shared, maps.firstPick()); strings.HasSuffix(chain, withHoles) {
			f.shared = append(f.shared, chain)
		}
		return GotoChain(chain) // without holes it is there as long as the tables are
	}
	slots := len(p.slots[pool])
	if p.Balance == DestinationHash {
		slots = 1
	}
	chain := maps.pick(slots)
	f.shared = append(f.shared, chain, maps.firstPick(), chainRefuse)
	return GotoChain(chain)
}

// usedPools returns which pools are in use by the port's clients.
func (p *compiledPort) usedPools() (used [NumPools]bool) {
	for i := range p.Frontends {
		if fe := &p.Frontends[i]; p.serves(fe) {
			used[fe.Internal.Pool], used[fe.External.Pool] = true, true
		}
	}
	return used
}

// chosen returns the endpoints that the clients of a frontend pick from at random, in the order of their slots.
func (p *compiledPort) chosen(fe *Frontend, pool Pool) []netip.AddrPort {
	return p.among(p.slots[pool], fe)
}

func (p *compiledPort) turnsMap(pool Pool) Set {
	return Set{Name: formTurns + pools[pool].qualifier + "/" + p.ID, Key: []Type{TypeSlot}, Data: dataEndpoint}
}

// Serves reports whether a ruleset has a frontend: an address and port, or, with the zero
// Addr, a node port.
func (rs Ruleset) Serves(f Family, proto Protocol, at netip.AddrPort) bool {
	set := setNodePorts
	if at.Addr().IsValid() {
		set = setServices
	}
	_, ok := rs[f].elements(set)[string(frontendKey(proto, at))]
	return ok
}

// HasVIP reports whether an address is in the set of VIPs of a ruleset.
func (rs Ruleset) HasVIP(addr netip.Addr) bool {
	_, ok := rs[FamilyOf(addr)].elements(setVIPs)[AddrKey(addr)]
	return ok
}

// frontendKey returns the key of a frontend in the dispatch maps: an address and port, or, with
// the zero Addr, a node port.
func frontendKey(proto Protocol, at netip.AddrPort) Key {
	k := make(Key, 0, 32)
	if at.Addr().IsValid() {
		k = k.Addr(at.Addr())
	}
	return k.Proto(proto).Port(at.Port())
}
