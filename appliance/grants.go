package appliance

import (
	"net/netip"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// grants is what every Service has of what it asks for. The loop writes it, and who asks what
// became of a Service reads it without waiting for the loop.
type grants struct {
	mu  sync.RWMutex
	of  map[string]grant // by Service
	box nft.Box
}

func newGrants() *grants { return &grants{of: map[string]grant{}} }

func (g *grants) place(box nft.Box) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.box = box
}

// get is for the loop, which alone writes.
func (g *grants) get(key string) grant { return g.of[key] }

func (g *grants) set(key string, granted grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(granted.ports) == 0 {
		delete(g.of, key)
		return
	}
	g.of[key] = granted
}

// clear forgets all Services.
func (g *grants) clear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.of)
}

// state is what a Service came to.
func (g *grants) state(namespace, name string) wire.ServiceState {
	key := namespace + "/" + name
	g.mu.RLock()
	ports, box := g.of[key].ports, g.box
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
		s.Ports = append(s.Ports, state)
		addrs = append(addrs, frontendAddrs(p)...)
	}
	s.Unanswered = unanswered(&box, sortedAddrs(addrs))
	return s
}

// unanswered are the addresses of all Services for which neighbours get no answer, at most so
// many of them, and how many more there are.
func (g *grants) unanswered(most int) (list []wire.Unanswered, more int) {
	g.mu.RLock()
	box := g.box
	by := map[netip.Addr][]string{}
	for key, granted := range g.of {
		var addrs []netip.Addr
		for i := range granted.ports {
			addrs = append(addrs, frontendAddrs(&granted.ports[i])...)
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
		list[i].Services = sortedOnce(by[netip.MustParseAddr(list[i].Address)])
	}
	return list, more
}
