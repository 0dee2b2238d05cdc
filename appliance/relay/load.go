package relay

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// PortLoad counts the connections of a Port that the kernel redirects clients to.
type PortLoad struct {
	ID, Protocol string
	Listen       netip.AddrPort
	// Taken are connections, or clients of UDP, that were let in since the port is there, and
	// FailedConnects how often an endpoint did not accept one.
	Taken, FailedConnects int64
	// Open counts the open connections by endpoint, also those of Names; connections that wait for an
	// endpoint do not count.
	Open map[netip.AddrPort]int
}

// Load returns the load of the ports of a Service that the kernel redirects clients to, by ID, protocol and
// listener; service "": of all Services.
func (r *Relay) Load(service string) (loads []PortLoad) {
	for _, p := range r.fronts.of(service) {
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

// of are the ports of a Service that the kernel redirects clients to; service "": of all Services.
func (f *fronts) of(service string) (ports []*redirected) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if service != "" {
		return slices.Collect(maps.Values(f.ports[service]))
	}
	for _, of := range f.ports {
		ports = slices.AppendSeq(ports, maps.Values(of))
	}
	return ports
}

// Passage is a connection of a client, or a client of UDP, that is relayed to an endpoint. A client of HTTP has one for
// each endpoint that there is a connection to for it.
type Passage struct {
	Protocol                   string
	Client, Listener, Endpoint netip.AddrPort // Client as the listener sees it
}

// Passages lists those of all ports that the kernel redirects clients to.
func (r *Relay) Passages() (list []Passage) {
	for _, p := range r.fronts.of("") {
		if p.tcp != nil {
			list = p.tcp.passages(list)
		} else {
			list = p.front.udp.passages(p.udp, list)
		}
	}
	return list
}

// EndpointsOf returns the endpoints that a client of a Port with Logged had, through a listener at a port of the box: while it is
// connected, and for a while after that. Over HTTP there can be several, of which the first 16 are kept. Nil: it is not known.
func (r *Relay) EndpointsOf(protocol string, client netip.AddrPort, listener uint16) []netip.AddrPort {
	return r.lately.endpoints(lateKey{protocol, unmapped(client), listener})
}

// passages adds those of a port to a list. The listener is the client's: a server name may have led it here from another port.
func (t *tcpPort) passages(list []Passage) []Passage {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		client, is := c.client.RemoteAddr().(*net.TCPAddr)
		listener, bound := c.client.LocalAddr().(*net.TCPAddr)
		if is && bound { // else it has gone
			list = append(list, Passage{TCP, unmapped(client.AddrPort()), unmapped(listener.AddrPort()), c.to})
		}
	}
	return list
}

func (l *udpListener) passages(u *udpPort, list []Passage) []Passage {
	l.mu.Lock()
	defer l.mu.Unlock()
	for place := u.order.Front(); place != nil; place = place.Next() {
		f := place.Value.(*flow)
		list = append(list, Passage{UDP, f.client, u.port.Listen, f.endpoint})
	}
	return list
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
