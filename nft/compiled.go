package nft

import (
	"net/netip"
	"slices"
)

// fragment is the share of one Service port in the table of its family. It has more than 15 fields: one for
// each kind of set or chain that a port adds to or takes from as a whole.
type fragment struct {
	elements  []placed     // elements that are its own
	endpoints []netip.Addr // for the hairpin set, shared with other ports
	vips      []vipUse     // the VIPs it is reached by
	original  []netip.Addr // addresses with an element in source-nat, one for each
	// insideOnly are the addresses of frontends that only clients inside reach, one for each.
	insideOnly []netip.Addr
	hosted     []string          // keys of frontends that it takes from the host
	chains     []Chain           // chains that are its own
	shared     []string          // shared chains it goes to
	sets       []Set             // maps that are its own
	uses       map[Protocol]bool // protocols that postrouting or answer must look at
	// sourceSets has the source sets of its frontends, once for each frontend.
	sourceSets []*SourceSet
	// timeouts has the idle timeouts of its frontends, once for each frontend.
	timeouts []Timeout
	// adopted has the elements that exist while no other frontend adopts their endpoint.
	adopted []placed
	// answersHere is 1 when clients of endpoints that are the box itself are remembered.
	answersHere int
	// limits is 1 when the port has limits.
	limits int
	keeper
}

type placed struct{ set, key, data string }

type vipUse struct {
	addr  netip.Addr
	ready bool // some client of it is served
	named bool // only the ports of frontends are taken there
}

// compiledPort is a Service port with the slots of its endpoints.
type compiledPort struct {
	*ServicePort
	slots  [NumPools][]netip.AddrPort
	tables [NumPools]*table // nil: an endpoint is picked from the slots, each as likely
	// others are the ports of the Service for which a client is remembered together with this one.
	others []*compiledPort
}

// maps are the maps a frontend's elements stand in.
type frontendMaps struct {
	all, byClient, inside, outside, sourceNAT, answers, refresh, restricted, allowed string

	insideOnly    string
	insideOnlyKey []Field // what of a packet is looked up in it

	limits limitedMaps
}

func (f *fragment) use(proto Protocol) {
	if f.uses == nil {
		f.uses = make(map[Protocol]bool, 1)
	}
	f.uses[proto] = true
}

// key is the frontend's key in the dispatch maps.
func (p *compiledPort) key(fe *Frontend) Key {
	return frontendKey(p.Protocol, netip.AddrPortFrom(fe.Addr, fe.Port))
}

// leadsTo reports whether a frontend sends clients to a pool.
func (p *compiledPort) leadsTo(pool Pool) bool {
	for i := range p.Frontends {
		if fe := &p.Frontends[i]; fe.Inside.Pool == pool || fe.Outside.Pool == pool {
			return true
		}
	}
	return false
}

// serves reports whether any connection to the frontend reaches an endpoint.
func (p *compiledPort) serves(fe *Frontend) bool {
	return len(p.slots[fe.Inside.Pool])+len(p.slots[fe.Outside.Pool]) > 0
}

// servesAny reports whether any connection to the port reaches an endpoint.
func (p *compiledPort) servesAny() bool {
	return slices.ContainsFunc(p.Frontends, func(fe Frontend) bool { return p.serves(&fe) })
}

// hasLocalEndpoint reports whether an endpoint is the box itself: its answers come from
// output instead of prerouting.
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

// limitedMaps names the maps of the verdicts of frontends with limits, which apply before these
// verdicts.
type limitedMaps struct {
	by              string
	inside, outside limitedMap
}

// limitedMap is a map of verdicts, and the chain that leads there.
type limitedMap struct{ set, chain string }

// masquerade is the chain that a class of frontends goes to in postrouting, "" for none.
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

// pick goes to the chain that picks one of the pool's slots, or draws one of its table. That
// one goes on to the chain for one slot, and that to the refusal.
func (p *compiledPort) pick(f *fragment, fe *Frontend, pool Pool) Verdict {
	maps := pools[pool].of(fe)
	if t := p.tables[pool]; t != nil {
		f.shared = append(f.shared, chainRefuse)
		if t.form == formTurns {
			return GotoChain(p.turnsMap(pool).Name) // the chain has the map's name
		}
		f.shared = append(f.shared, maps.firstPick())
		return GotoChain(maps.prefix + t.form) // which is there as long as the tables are
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
			used[fe.Inside.Pool], used[fe.Outside.Pool] = true, true
		}
	}
	return used
}

// chosen are the endpoints that a frontend's clients pick from at random, each in a slot.
func (p *compiledPort) chosen(fe *Frontend, pool Pool) []netip.AddrPort {
	return p.among(p.slots[pool], fe)
}

func (p *compiledPort) turnsMap(pool Pool) Set {
	return Set{Name: formTurns + pools[pool].qualifier + "/" + p.ID, Key: []Type{TypeSlot}, Data: dataEndpoint}
}
