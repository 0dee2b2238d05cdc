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
	adopted  Ruleset // where endpoints had their slots before the first Update
}

// NewCompiler starts with no Services on a box without addresses.
func NewCompiler() *Compiler {
	c := &Compiler{services: map[string][]*compiledPort{}, tables: map[Family]*tableState{}}
	for _, f := range Families {
		c.tables[f] = newTableState()
	}
	return c
}

// remembering is a Service port whose clients are remembered in another way than before.
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

// Load sets the whole State at once.
func (c *Compiler) Load(s State) Transition {
	var tr Transition
	c.load(s, &tr)
	return tr
}

// load takes over s and, if tr is not nil, appends the operations of the change to it.
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

// Update takes a new box, if box is not nil, and the new ports of the Services
// that changed (none: the Service is gone). Frontends are unique among all
// Services: who decides between two that claim one is package resolve. The ports are
// kept, and must not be changed afterwards.
func (c *Compiler) Update(box *Box, changes map[string][]ServicePort) Transition {
	var tr Transition
	c.update(box, changes, &tr)
	return tr
}

func (c *Compiler) update(box *Box, changes map[string][]ServicePort, tr *Transition) {
	names := slices.Sorted(maps.Keys(changes))
	var touched []string
	if box != nil {
		// Whatever a Service brings may depend on the box.
		touched = c.dependents(box, changes)
		for _, name := range names {
			if _, ok := c.services[name]; !ok {
				touched = append(touched, name)
			}
		}
	} else {
		touched = names
	}
	for _, t := range c.tables {
		t.begin(tr != nil)
	}
	var f fragment // used again and again
	for _, name := range touched {
		for _, p := range c.services[name] {
			f.fill(p, &c.box)
			c.tables[p.Family].remove(&f)
		}
	}
	if box != nil {
		c.box = *box
	}
	for _, name := range touched {
		if ports, ok := changes[name]; ok {
			c.setService(name, ports)
		}
		for _, p := range c.services[name] {
			f.fill(p, &c.box)
			c.tables[p.Family].add(&f, p.Family, &c.box)
		}
	}
	for _, f := range Families {
		c.tables[f].finish(f, &c.box, tr)
	}
}

// dependents returns the Services whose elements may be other ones on another box, sorted: where only its addresses and
// interfaces differ, those with an endpoint at an address that came or went, and those that change themselves. The rest
// of what depends on these is made by tableState.finish.
func (c *Compiler) dependents(box *Box, changes map[string][]ServicePort) []string {
	was := c.box
	was.LocalAddresses, was.NodePortAddresses, was.Interfaces, was.Owned = box.LocalAddresses, box.NodePortAddresses, box.Interfaces, box.Owned
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

// setService places the endpoints of a Service's new ports and remembers which of
// them are gone, for the affinity maps.
func (c *Compiler) setService(name string, ports []ServicePort) {
	prev := c.services[name]
	if len(ports) == 0 {
		delete(c.services, name)
		return
	}
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
		now[i] = p
	}
	for _, p := range now {
		p.others = p.remembersWith(now)
	}
	c.services[name] = now
}

// place gives the endpoints of a pool their slots. Those of a table have no history.
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

// capTimeouts notes that a Service port now remembers its clients for less long. What
// the kernel holds from before a start may have been for longer too: the remember
// chains tell.
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

// slotsBefore returns the endpoints of a pool by their earlier slots, in this compiler or in the
// adopted ruleset.
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
	if slots := table.turns(p, pool); slots != nil {
		return slots
	}
	if p.hasRanges() {
		return table.rangeSlots(p, pool)
	}
	for i := range p.Frontends {
		if slots := table.slots(p, &p.Frontends[i], pool); slots != nil && p.Balance != DestinationHash {
			return slots
		}
	}
	// Tables have no history; clients are remembered for members only.
	return table.endpoints(p.members(pool).Name)
}

// VIPs counts the addresses that Services are reached by.
func (c *Compiler) VIPs() int {
	n := 0
	for _, t := range c.tables {
		n += t.count(setVIPs)
	}
	return n
}

// Serves reports whether something is taken from the host: an address of its own and a port, or,
// with the zero Addr, a node port.
func (c *Compiler) Serves(f Family, proto Protocol, at netip.AddrPort) bool {
	return c.tables[f].hosted[string(frontendKey(proto, at))] > 0
}

// HasSet reports whether there is a set or map of the name.
func (c *Compiler) HasSet(f Family, name string) bool { return c.tables[f].set(name) != nil }
