package reconcile

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Grants is the Part that keeps the ports of every Service as they are planned, for the API, which reads them without waiting for
// the loop.
type Grants struct {
	NopPart
	mu  sync.RWMutex
	of  map[string][]nft.ServicePort // by Service
	box nft.Box
	// near are the Services that have an address in a network of an interface, which are few.
	near map[string]struct{}
	// loopback are the loopback addresses that node ports answer on.
	loopback []netip.Addr
	// changes counts what was Planned, but for endpoints of ports that are not relayed.
	changes uint64

	seenTo    func(addr netip.Addr, ifname string) bool
	relayLoad func(service string, p *nft.ServicePort) *wire.RelayLoad // nil: unknown
}

// CountRelayed sets the source of the load of relayed ports. It is called before State.
func (g *Grants) CountRelayed(load func(service string, p *nft.ServicePort) *wire.RelayLoad) {
	g.relayLoad = load
}

// NewGrants returns Grants without Services. seenTo reports whether another process makes neighbors on an interface get answers
// for an address; nil: no process does.
func NewGrants(seenTo func(addr netip.Addr, ifname string) bool) *Grants {
	if seenTo == nil {
		seenTo = func(netip.Addr, string) bool { return false }
	}
	return &Grants{of: map[string][]nft.ServicePort{}, near: map[string]struct{}{}, seenTo: seenTo}
}

// Name implements Part.
func (g *Grants) Name() string { return "grants" }

// Planned implements Part.
func (g *Grants) Planned(host *Host, services []Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, svc := range services {
		if !slices.EqualFunc(g.of[svc.Key], svc.Ports, samePlaces) {
			g.changes++
		}
		g.of[svc.Key] = svc.Ports
		g.place(svc.Key)
		if len(svc.Ports) == 0 {
			delete(g.of, svc.Key)
		}
	}
	if host != nil {
		g.changes++
		g.box, g.loopback = host.Box, host.Loopback
		for key := range g.of {
			g.place(key)
		}
	}
}

// samePlaces reports whether connections are attributed to two versions of a port in the same way.
func samePlaces(a, b nft.ServicePort) bool {
	return a.ID == b.ID && a.Family == b.Family && a.Protocol == b.Protocol && len(a.Egress.Sources)+len(b.Egress.Sources) == 0 && !a.Relayed() && !b.Relayed() &&
		slices.EqualFunc(a.Frontends, b.Frontends, func(a, b nft.Frontend) bool {
			return a.Addr == b.Addr && a.Port == b.Port && a.Last == b.Last && a.Adopt == b.Adopt
		})
}

// place records in near whether a Service has an address in a network of the box.
func (g *Grants) place(key string) {
	delete(g.near, key)
	for _, p := range g.of[key] {
		if slices.ContainsFunc(p.Frontends, func(f nft.Frontend) bool { return f.Addr.IsValid() && onSegment(&g.box, f.Addr) != nil }) {
			g.near[key] = struct{}{}
		}
	}
}

// Changes returns a count that rises when the results of Served may have changed in more than the endpoints of ports that are not relayed.
func (g *Grants) Changes() uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.changes
}

// Served are the ports of all Services, "namespace/name", and the box they are served on. Neither is
// to be changed.
func (g *Grants) Served() (map[string][]nft.ServicePort, nft.Box) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return maps.Clone(g.of), g.box
}

// Of returns the ports of a Service, "namespace/name". They may not be changed.
func (g *Grants) Of(service string) []nft.ServicePort {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.of[service]
}

// State lists the ports that a Service has in the kernel. client is a client whose endpoint is asked for; the
// zero AddrPort: none; port 0: any port.
func (g *Grants) State(namespace, name string, client netip.AddrPort) wire.ServiceState {
	key := namespace + "/" + name
	g.mu.RLock()
	ports, box := g.of[key], g.box
	g.mu.RUnlock()
	s := wire.ServiceState{Ports: []wire.PortState{}}
	var addrs []netip.Addr
	for i := range ports {
		p := &ports[i]
		_, portName := nft.SplitID(p.ID)
		state := wire.PortState{
			Name:      portName,
			Protocol:  p.Protocol.Name(),
			Family:    p.Family.Name(),
			Frontends: object.Texts(p.Frontends, nft.Frontend.Text),
			Balance:   resolve.BalanceName(p.Balance),
			Endpoints: object.Texts(p.Pools[nft.PoolCluster], nft.EndpointText),
			Local:     object.Texts(p.Pools[nft.PoolLocal], nft.EndpointText),
			Fast:      p.Fast && box.Fast != nil, Slow: p.Slow,
		}
		for i := range p.Frontends {
			if p.Frontends[i].Adopt {
				state.Adopted = append(state.Adopted, p.Frontends[i].Text())
			}
			if p.Frontends[i].InsideOnly {
				s.InsideOnly = append(s.InsideOnly, p.Frontends[i].Text())
			}
		}
		balanceState(&state, p, &box, client)
		if p.Relayed() {
			state.Relay = p.Relay[nft.PoolCluster].String()
			if g.relayLoad != nil {
				state.RelayLoad = g.relayLoad(key, p)
			}
		}
		s.Ports = append(s.Ports, state)
		addrs = append(addrs, frontendAddrs(p)...)
	}
	s.Unanswered = g.unanswered(&box, sortedAddrs(addrs))
	return s
}

// Addresses lists the addresses of the box.
func (g *Grants) Addresses() []wire.BoxAddress {
	g.mu.RLock()
	defer g.mu.RUnlock()
	list := make([]wire.BoxAddress, 0, len(g.box.LocalAddresses))
	for _, a := range g.box.LocalAddresses {
		list = append(list, wire.BoxAddress{Address: a.String(), NodePorts: slices.Contains(g.box.NodePortAddresses, a) || slices.Contains(g.loopback, a)})
	}
	return list
}

// Unanswered are the addresses of all Services for which neighbors get no answer, at most so
// many of them, and how many more there are.
func (g *Grants) Unanswered(most int) (list []wire.Unanswered, more int) {
	g.mu.RLock()
	box := g.box
	by := map[netip.Addr][]string{}
	for key := range g.near {
		var addrs []netip.Addr
		for i := range g.of[key] {
			addrs = append(addrs, frontendAddrs(&g.of[key][i])...)
		}
		for _, a := range sortedAddrs(addrs) {
			if onSegment(&box, a) != nil {
				by[a] = append(by[a], key)
			}
		}
	}
	g.mu.RUnlock()
	addrs := slices.SortedFunc(maps.Keys(by), netip.Addr.Compare)
	if len(addrs) > most {
		addrs, more = addrs[:most], len(addrs)-most
	}
	list = g.unanswered(&box, addrs)
	for i := range list {
		list[i].Services = slices.Compact(slices.Sorted(slices.Values(by[netip.MustParseAddr(list[i].Address)])))
	}
	return list, more
}

// balanceState adds the shares of a port's endpoints, and the endpoint of the next connection of a client of its family.
func balanceState(s *wire.PortState, p *nft.ServicePort, box *nft.Box, client netip.AddrPort) {
	passing := p.Balance == nft.LeastConnection && !p.Relayed() || len(p.Starting) > 0
	for pool, endpoints := range p.Pools {
		if passing && len(endpoints) > 0 && nft.Pool(pool) == nft.PoolCluster {
			s.Shares = map[string]float64{}
			for i, share := range p.Shares(nft.PoolCluster) {
				s.Shares[endpoints[i].String()] = share
			}
		}
		for _, ap := range endpoints {
			if w, differs := p.Weights[pool][ap]; differs && len(p.Starting) == 0 {
				if s.Weights == nil {
					s.Weights = map[string]uint16{}
				}
				s.Weights[nft.EndpointText(ap)] = w
			}
		}
	}
	s.Refused = p.RefusedShare(nft.PoolCluster)
	s.Starting = object.Texts(p.Starting, netip.AddrPort.String)
	if !client.IsValid() || nft.FamilyOf(client.Addr()) != p.Family {
		return
	}
	s.Client = client.Addr().String()
	if client.Port() != 0 {
		s.Client = client.String()
	}
	inside := box.IsInside(client.Addr())
	for i := range p.Frontends {
		fe := &p.Frontends[i]
		pool := fe.External.Pool
		if inside {
			pool = fe.Internal.Pool
		}
		chosen := wire.Chosen{Frontend: fe.Text()}
		known := p.Balance != nft.Maglev || client.Port() != 0 || len(p.Pools[pool]) == 1 && p.Refused[pool] == 0
		if ap, ok := p.Choice(fe, pool)(client); ok && known {
			if chosen.Refused = !ap.IsValid(); !chosen.Refused {
				chosen.Endpoint = nft.EndpointText(ap)
			}
		}
		s.Chosen = append(s.Chosen, chosen)
	}
}

// unanswered returns the addresses that lie in the network of an interface and that neither the box
// answers for nor the announcer takes care of: neighbors get no answer by ARP (RFC 826) or NDP
// (RFC 4861), and only clients whose packets are routed to the box reach them.
func (g *Grants) unanswered(box *nft.Box, addrs []netip.Addr) []wire.Unanswered {
	var list []wire.Unanswered
	for _, a := range addrs {
		if at := onSegment(box, a); at != nil && !g.seenTo(a, at.name) && !node.AnswersFor(a, int(at.index)) {
			list = append(list, wire.Unanswered{Address: a.String(), Interface: at.name, Network: at.prefix.String()})
		}
	}
	return list
}

// segment is a network of an interface.
type segment struct {
	index  uint32
	name   string
	prefix netip.Prefix
}

// onSegment is the network that an address lies in which is none of the box's own; nil when
// there is none.
func onSegment(box *nft.Box, a netip.Addr) *segment {
	if slices.Contains(box.LocalAddresses, a) {
		return nil
	}
	for i := range box.Interfaces {
		for _, p := range box.Interfaces[i].Prefixes {
			if p.Contains(a) {
				return &segment{box.Interfaces[i].Index, box.Interfaces[i].Name, p}
			}
		}
	}
	return nil
}

// frontendAddrs are the addresses of a port.
func frontendAddrs(p *nft.ServicePort) (addrs []netip.Addr) {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Addr.IsValid() {
			addrs = append(addrs, f.Addr)
		}
	}
	return addrs
}

func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
