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

// Grants is a Part that holds a copy of the planned ports of every Service, so that the API can read them without waiting for the loop.
type Grants struct {
	NopPart
	mu  sync.RWMutex
	of  map[string][]nft.ServicePort // planned ports by Service key
	box nft.Box
	// near holds the Services that have an address in a network attached to the box. They are few.
	near map[string]struct{}
	// loopback holds the loopback addresses on which node ports are served.
	loopback []netip.Addr
	// changed lists the Services that changed, oldest first; "" stands for a change of the host. forgotten counts older entries, which were dropped.
	// Changes that affect only endpoints are not listed, except for relayed ports and ports with egress.
	changed   []string
	forgotten int

	seenTo    func(addr netip.Addr, ifname string) bool                // see NewGrants; nil if there is no announcer
	relayLoad func(service string, p *nft.ServicePort) *wire.RelayLoad // see NewGrants; nil if there is no relay
}

// NewGrants returns Grants without Services. seenTo reports whether the announcer, another process, answers ARP or NDP requests for an address on an
// interface; it is nil if there is no announcer. relayLoad returns the load of a relayed port; it is nil if there is no relay.
func NewGrants(seenTo func(addr netip.Addr, ifname string) bool, relayLoad func(service string, p *nft.ServicePort) *wire.RelayLoad) *Grants {
	return &Grants{of: map[string][]nft.ServicePort{}, near: map[string]struct{}{}, seenTo: seenTo, relayLoad: relayLoad}
}

// Name implements Part.
func (g *Grants) Name() string { return "grants" }

// Planned implements Part.
func (g *Grants) Planned(host *Host, services []Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, svc := range services {
		if !slices.EqualFunc(g.of[svc.Key], svc.Ports, samePlaces) {
			g.changed = append(g.changed, svc.Key)
		}
		g.of[svc.Key] = svc.Ports
		g.place(svc.Key)
		if len(svc.Ports) == 0 {
			delete(g.of, svc.Key)
		}
	}
	if host != nil {
		g.changed = append(g.changed, "")
		g.box, g.loopback = host.Box, host.Loopback
		for key := range g.of {
			g.place(key)
		}
	}
	if len(g.changed) > 1000 {
		g.changed, g.forgotten = nil, g.forgotten+len(g.changed)
	}
}

// samePlaces reports whether two versions of a port have the same frontends, so that connections are still attributed to the port. It returns false
// if a port is relayed or has egress sources.
func samePlaces(a, b nft.ServicePort) bool {
	return a.ID == b.ID && a.Family == b.Family && a.Protocol == b.Protocol && len(a.Egress.Sources)+len(b.Egress.Sources) == 0 && !a.Relayed() && !b.Relayed() &&
		slices.EqualFunc(a.Frontends, b.Frontends, func(a, b nft.Frontend) bool {
			return a.Addr == b.Addr && a.Port == b.Port && a.Last == b.Last && a.Adopt == b.Adopt
		})
}

// place adds a Service to g.near or removes it, according to its planned ports.
func (g *Grants) place(key string) {
	delete(g.near, key)
	for _, p := range g.of[key] {
		if slices.ContainsFunc(p.Frontends, func(f nft.Frontend) bool { return f.Addr.IsValid() && onSegment(&g.box, f.Addr) != nil }) {
			g.near[key] = struct{}{}
		}
	}
}

// Since returns the ports of the Services that changed since an earlier state, by "namespace/name". now is the number of the present state, at least
// 1. A deleted Service has no ports. If state is 0 or too old, all is true and the result has all Services. Changes that affect only endpoints are
// left out, except for relayed ports and ports with egress. The caller must not modify the ports.
func (g *Grants) Since(state int) (of map[string][]nft.ServicePort, all bool, now int) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	now = 1 + g.forgotten + len(g.changed)
	if state <= g.forgotten {
		return maps.Clone(g.of), true, now
	}
	of = map[string][]nft.ServicePort{}
	for _, key := range g.changed[state-1-g.forgotten:] {
		of[key] = g.of[key]
	}
	return of, false, now
}

// Changes returns a counter that rises when the results of Served may have changed. Changes that affect only endpoints do not raise it, except for
// relayed ports and ports with egress.
func (g *Grants) Changes() uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return uint64(g.forgotten + len(g.changed))
}

// Served returns the ports of all Services, by "namespace/name", and the nft.Box they were planned for. The caller must not modify either.
func (g *Grants) Served() (map[string][]nft.ServicePort, nft.Box) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return maps.Clone(g.of), g.box
}

// Of returns the ports of the Service with the key "namespace/name". The caller must not modify them.
func (g *Grants) Of(service string) []nft.ServicePort {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.of[service]
}

// State returns the planned state of the ports of a Service. If client is valid, it includes the endpoint that the client's next connection goes to.
// The port of client may be 0.
func (g *Grants) State(namespace, name string, client netip.AddrPort) wire.ServiceState {
	key := namespace + "/" + name
	g.mu.RLock()
	ports, box := g.of[key], g.box
	g.mu.RUnlock()
	s := wire.ServiceState{Ports: []wire.PortState{}}
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
	}
	s.Unanswered = g.unanswered(&box, frontendAddrs(ports))
	return s
}

// Addresses returns the addresses of the box, and which of them serve node ports.
func (g *Grants) Addresses() []wire.BoxAddress {
	g.mu.RLock()
	defer g.mu.RUnlock()
	list := make([]wire.BoxAddress, 0, len(g.box.LocalAddresses))
	for _, a := range g.box.LocalAddresses {
		list = append(list, wire.BoxAddress{Address: a.String(), NodePorts: slices.Contains(g.box.NodePortAddresses, a) || slices.Contains(g.loopback, a)})
	}
	return list
}

// Unanswered returns the addresses of Services, in networks attached to the box, for which nothing answers ARP and NDP requests. It checks the
// addresses in order, up to the number most; more is the number of addresses that it does not check.
func (g *Grants) Unanswered(most int) (list []wire.Unanswered, more int) {
	g.mu.RLock()
	box := g.box
	by := map[netip.Addr][]string{}
	for key := range g.near {
		for _, a := range frontendAddrs(g.of[key]) {
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

// balanceState sets in s the shares and weights of a port's endpoints. For a valid client of the port's family it also sets the endpoint that the
// client's next connection goes to, for each frontend.
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
		chosen := wire.Chosen{Frontend: fe.Text(), Excluded: !box.Admits(fe, client.Addr())}
		known := p.Balance != nft.Maglev || client.Port() != 0 || len(p.Pools[pool]) == 1 && p.Refused[pool] == 0
		if ap, ok := p.Choice(fe, pool)(client); ok && known && !chosen.Excluded {
			if chosen.Refused = !ap.IsValid(); !chosen.Refused {
				chosen.Endpoint = nft.EndpointText(ap)
			}
		}
		s.Chosen = append(s.Chosen, chosen)
	}
}

// unanswered returns the addresses in addrs that are in a network attached to the box, but for which neither the box nor the announcer answers ARP
// (RFC 826) or NDP (RFC 4861) requests. Such an address is reachable only for clients whose packets are routed to the box.
func (g *Grants) unanswered(box *nft.Box, addrs []netip.Addr) []wire.Unanswered {
	var list []wire.Unanswered
	for _, a := range addrs {
		if at := onSegment(box, a); at != nil && (g.seenTo == nil || !g.seenTo(a, at.name)) && !node.AnswersFor(a, int(at.index)) {
			list = append(list, wire.Unanswered{Address: a.String(), Interface: at.name, Network: at.prefix.String()})
		}
	}
	return list
}

// segment is a network attached to an interface of the box.
type segment struct {
	index  uint32
	name   string
	prefix netip.Prefix
}

// onSegment returns the attached network that contains an address. It returns nil if there is none, or if the address is one of the box itself.
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

// frontendAddrs returns the addresses of the frontends of ports, sorted and without duplicates.
func frontendAddrs(ports []nft.ServicePort) (addrs []netip.Addr) {
	for i := range ports {
		for j := range ports[i].Frontends {
			if addr := ports[i].Frontends[j].Addr; addr.IsValid() {
				addrs = append(addrs, addr)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
