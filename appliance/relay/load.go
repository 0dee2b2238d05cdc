package relay

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// PortLoad is what a Port has that the kernel redirects clients to.
type PortLoad struct {
	ID, Protocol string
	Listen       netip.AddrPort
	// Taken are connections, or clients of UDP, that were let in since the port is there, and
	// FailedConnects how often an endpoint did not accept one.
	Taken, FailedConnects int64
	// Open are those now, by endpoint, also those of Names; what waits for an endpoint is not among them.
	Open map[netip.AddrPort]int
}

// Load returns the load of the ports of a Service that the kernel redirects clients to, by ID, protocol and
// listener; service "": of all Services.
func (r *Relay) Load(service string) (loads []PortLoad) {
	f := &r.fronts
	f.mu.Lock()
	var ports []*redirected
	for name, of := range f.ports {
		if service == "" || name == service {
			ports = slices.AppendSeq(ports, maps.Values(of))
		}
	}
	f.mu.Unlock()
	for _, p := range ports {
		if p.tcp != nil {
			loads = append(loads, p.tcp.load())
		} else {
			loads = append(loads, p.front.udp.load(p.udp))
		}
	}
	slices.SortFunc(loads, func(a, b PortLoad) int {
		if c := strings.Compare(a.ID+" "+a.Protocol, b.ID+" "+b.Protocol); c != 0 {
			return c
		}
		return a.Listen.Compare(b.Listen)
	})
	return loads
}

func (t *tcpPort) load() PortLoad {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := loadOf(&t.port, t.quota)
	l.FailedConnects = t.failedConnects.Load()
	for c := range t.conns {
		l.Open[c.to]++
	}
	for _, sub := range t.names {
		of := sub.load()
		l.FailedConnects += of.FailedConnects
		for endpoint, n := range of.Open {
			l.Open[endpoint] += n
		}
	}
	return l
}

func (l *udpListener) load(u *udpPort) PortLoad {
	l.mu.Lock()
	defer l.mu.Unlock()
	load := loadOf(&u.port, u.quota)
	for place := u.order.Front(); place != nil; place = place.Next() {
		load.Open[place.Value.(*flow).endpoint]++
	}
	return load
}

func loadOf(p *Port, q *quota) PortLoad {
	return PortLoad{ID: p.ID, Protocol: p.Protocol, Listen: p.Listen, Taken: q.taken.Load(), Open: map[netip.AddrPort]int{}}
}
