package reconcile

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Grants is the Part that keeps what every Service has of what it asks for, for requests of the API,
// which read it without waiting for the loop.
type Grants struct {
	NopPart
	mu  sync.RWMutex
	of  map[string][]nft.ServicePort // by Service
	box nft.Box
}

func NewGrants() *Grants { return &Grants{of: map[string][]nft.ServicePort{}} }

// Name implements Part.
func (g *Grants) Name() string { return "grants" }

// Planned implements Part.
func (g *Grants) Planned(host *Host, services []Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if host != nil {
		g.box = host.Box
	}
	for _, svc := range services {
		if len(svc.Ports) == 0 {
			delete(g.of, svc.Key)
		} else {
			g.of[svc.Key] = svc.Ports
		}
	}
}

// Served are the ports of all Services, "namespace/name", and the box they are served on. Neither is
// to be changed.
func (g *Grants) Served() (map[string][]nft.ServicePort, nft.Box) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return maps.Clone(g.of), g.box
}

// State is what a Service came to.
func (g *Grants) State(namespace, name string) wire.ServiceState {
	key := namespace + "/" + name
	g.mu.RLock()
	ports, box := g.of[key], g.box
	g.mu.RUnlock()
	s := wire.ServiceState{Ports: []wire.PortState{}}
	var addrs []netip.Addr
	for i := range ports {
		p := &ports[i]
		state := wire.PortState{
			Name:     strings.TrimPrefix(strings.TrimPrefix(p.ID, key), "/"),
			Protocol: map[nft.Protocol]string{nft.TCP: object.ProtocolTCP, nft.UDP: object.ProtocolUDP, nft.SCTP: object.ProtocolSCTP}[p.Protocol],
			Family:   map[nft.Family]string{nft.IPv4: object.IPv4, nft.IPv6: object.IPv6}[p.Family],
			Frontends: texts(p.Frontends, func(f nft.Frontend) string {
				if !f.Addr.IsValid() {
					return portText(f.Port)
				}
				return netip.AddrPortFrom(f.Addr, f.Port).String()
			}),
			Endpoints: texts(p.Pools[nft.PoolCluster], netip.AddrPort.String),
			Local:     texts(p.Pools[nft.PoolLocal], netip.AddrPort.String),
		}
		if p.Relayed() {
			state.Relay = p.Relay[nft.PoolCluster].String()
		}
		s.Ports = append(s.Ports, state)
		addrs = append(addrs, frontendAddrs(p)...)
	}
	s.Unanswered = unanswered(&box, sortedAddrs(addrs))
	return s
}

// Unanswered are the addresses of all Services for which neighbors get no answer, at most so
// many of them, and how many more there are.
func (g *Grants) Unanswered(most int) (list []wire.Unanswered, more int) {
	g.mu.RLock()
	box := g.box
	by := map[netip.Addr][]string{}
	for key, ports := range g.of {
		var addrs []netip.Addr
		for i := range ports {
			addrs = append(addrs, frontendAddrs(&ports[i])...)
		}
		for _, a := range sortedAddrs(addrs) {
			if onSegment(&box, a) != nil {
				by[a] = append(by[a], key)
			}
		}
	}
	g.mu.RUnlock()
	var addrs []netip.Addr
	for a := range by {
		addrs = append(addrs, a)
	}
	addrs = sortedAddrs(addrs)
	if len(addrs) > most {
		addrs, more = addrs[:most], len(addrs)-most
	}
	list = unanswered(&box, addrs)
	for i := range list {
		list[i].Services = slices.Compact(slices.Sorted(slices.Values(by[netip.MustParseAddr(list[i].Address)])))
	}
	return list, more
}
