package traffic

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// Answers tells the API about connections through Services. It is api.Traffic.
type Answers struct {
	served   func() (map[string][]nft.ServicePort, nft.Box)
	observer *Observer
}

// NewAnswers tells of what served gives: the ports of all Services, "namespace/name", and the box
// that they are served on. totals are what the kernel counted since the start; nil: it does not count.
func NewAnswers(served func() (map[string][]nft.ServicePort, nft.Box), totals func() (nft.Totals, error)) *Answers {
	a := &Answers{served: served}
	a.observer = New(look, func() []Port {
		of, _ := served()
		return portsOf(of, wire.ConnectionQuery{})
	}, totals)
	return a
}

// look reads the table of this network namespace.
func look(each func(*conntrack.Connection)) (int, error) { return conntrack.Look(0, each) }

// portsOf are the ports of Services as connections are attributed to them, of one Service or
// namespace if q names them.
func portsOf(of map[string][]nft.ServicePort, q wire.ConnectionQuery) []Port {
	var ports []Port
	for key, list := range of {
		namespace, name, _ := strings.Cut(key, "/")
		if q.Namespace != "" && q.Namespace != namespace || q.Service != "" && q.Service != name {
			continue
		}
		for i := range list {
			p := &list[i]
			port := Port{
				Service: key, Name: strings.TrimPrefix(strings.TrimPrefix(p.ID, key), "/"),
				Family: p.Family, Protocol: p.Protocol, Endpoints: endpointsOf(p),
			}
			for _, fe := range p.Frontends {
				port.Frontends = append(port.Frontends, netip.AddrPortFrom(fe.Addr, fe.Port))
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// endpointsOf are the endpoints that new connections go to by any way.
func endpointsOf(p *nft.ServicePort) []netip.AddrPort {
	all := slices.Concat(p.Pools[nft.PoolCluster], p.Pools[nft.PoolLocal])
	if p.Relayed() {
		all = slices.Clone(p.Relay[:]) // clients' connections end there
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Traffic tells which Services have connections.
func (a *Answers) Traffic(q wire.TrafficQuery) (*wire.Traffic, error) {
	l, err := a.observer.Look()
	if err != nil {
		return nil, err
	}
	answer := &wire.Traffic{At: l.At, Seconds: l.Since.Seconds(), Tracked: l.Entries, Ports: []wire.PortTraffic{}, Counted: l.Counted, Refusals: l.Refusals, RefusalRates: l.RefusalRates}
	merged := map[string]*merging{}
	for i := range l.Ports {
		p := &l.Ports[i]
		namespace, name, _ := strings.Cut(p.Port.Service, "/")
		if q.Namespace != "" && q.Namespace != namespace || q.Service != "" && q.Service != name {
			continue
		}
		key := p.Port.Key()
		m := merged[key]
		if m == nil {
			m = &merging{key: key, PortTraffic: wire.PortTraffic{
				Namespace: namespace, Service: name, Port: p.Port.Name, Protocol: p.Port.Protocol.Name(),
			}}
			merged[key] = m
		}
		m.Open += p.Open
		m.Unanswered += p.Unanswered
		m.fresh += p.New
		m.made += p.Connections
		m.refused += p.Refused
		m.refusing += p.Refusing
		m.parts = append(m.parts, p)
	}
	rows := make([]*merging, 0, len(merged))
	for _, m := range merged {
		rows = append(rows, m)
	}
	slices.SortFunc(rows, func(m, o *merging) int { return cmp.Or(m.order(o, q.Sort), strings.Compare(m.key, o.key)) })
	if len(rows) > q.Limit {
		rows, answer.More = rows[:q.Limit], len(rows)-q.Limit
	}
	for _, m := range rows {
		m.Rate = rate(m.fresh, l.Since)
		if l.Counted {
			m.Connections, m.Refused, m.RefusedRate = &m.made, &m.refused, rate(int(m.refusing), l.Since)
		}
		if q.Endpoints {
			m.endpoints(l.Since)
		}
		if q.History {
			for _, s := range a.observer.History(m.key) {
				sample := wire.TrafficSample{At: s.At, Open: s.Open}
				if s.Rate >= 0 {
					sample.Rate = &s.Rate
				}
				m.History = append(m.History, sample)
			}
		}
		answer.Ports = append(answer.Ports, m.PortTraffic)
	}
	return answer, nil
}

// merging is a Service port of which both families are put together.
type merging struct {
	wire.PortTraffic
	key   string
	fresh int // new connections
	// made and refused are since the start, refusing of refused since the look before.
	made, refused, refusing uint64
	parts                   []*PortCounts
}

// order compares by one of wire.TrafficSorts, the largest first.
func (m *merging) order(o *merging, by string) int {
	switch by {
	case "open":
		return cmp.Or(cmp.Compare(o.Open, m.Open), cmp.Compare(o.fresh, m.fresh))
	case "rate":
		return cmp.Or(cmp.Compare(o.fresh, m.fresh), cmp.Compare(o.Open, m.Open))
	case "refused":
		return cmp.Or(cmp.Compare(o.refusing, m.refusing), cmp.Compare(o.refused, m.refused))
	case "unanswered":
		return cmp.Compare(o.Unanswered, m.Unanswered)
	}
	return 0
}

// endpoints lists the endpoints of all families, those without connections included.
func (m *merging) endpoints(since time.Duration) {
	for _, p := range m.parts {
		for _, at := range p.Port.Endpoints {
			if p.Endpoints[at] == nil {
				m.Endpoints = append(m.Endpoints, wire.EndpointTraffic{Endpoint: at.String(), ConnectionCounts: wire.ConnectionCounts{Rate: rate(0, since)}})
			}
		}
		for at, e := range p.Endpoints {
			m.Endpoints = append(m.Endpoints, wire.EndpointTraffic{
				Endpoint: at.String(), Leaving: e.Leaving,
				ConnectionCounts: wire.ConnectionCounts{Open: e.Open, Unanswered: e.Unanswered, Rate: rate(e.New, since)},
			})
		}
	}
	slices.SortFunc(m.Endpoints, func(a, b wire.EndpointTraffic) int {
		return netip.MustParseAddrPort(a.Endpoint).Compare(netip.MustParseAddrPort(b.Endpoint))
	})
}

// rate is connections a second; nil where there is nothing to compare with.
func rate(fresh int, since time.Duration) *float64 {
	if since <= 0 {
		return nil
	}
	r := float64(fresh) / since.Seconds()
	return &r
}

// Connections lists connections.
func (a *Answers) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	of, _ := a.served()
	ports := portsOf(of, q)
	found := indexOf(ports)
	answer := &wire.Connections{At: time.Now(), Connections: []wire.Connection{}}
	_, err := conntrack.Look(0, func(conn *conntrack.Connection) {
		i, ok := found.of(conn)
		switch {
		case !ok,
			q.Endpoint.IsValid() && conn.Endpoint != q.Endpoint,
			q.EndpointAddr.IsValid() && conn.Endpoint.Addr() != q.EndpointAddr,
			q.Client.IsValid() && !q.Client.Contains(conn.Client.Addr()):
			return
		case len(answer.Connections) == q.Limit:
			answer.More++
			return
		}
		answer.Connections = append(answer.Connections, connectionOf(&ports[i], conn))
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(answer.Connections, func(a, b wire.Connection) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service),
			strings.Compare(a.Port, b.Port), strings.Compare(a.Endpoint, b.Endpoint), strings.Compare(a.Client, b.Client))
	})
	return answer, nil
}

func connectionOf(p *Port, c *conntrack.Connection) wire.Connection {
	namespace, name, _ := strings.Cut(p.Service, "/")
	w := wire.Connection{
		ID: c.ID, Namespace: namespace, Service: name, Port: p.Name, Protocol: c.Protocol.Name(),
		Client: c.Client.String(), To: c.To.String(), Endpoint: c.Endpoint.String(),
		State: c.State, Answered: c.Answered, Expires: int(c.Expires / time.Second),
	}
	if c.As != c.Client {
		w.As = c.As.String()
	}
	return w
}

// Kill ends a connection through a Service. It returns nil when there is none of that ID.
func (a *Answers) Kill(id uint32) (*wire.Connection, error) {
	of, box := a.served()
	ports := portsOf(of, wire.ConnectionQuery{})
	found := indexOf(ports)
	var killed wire.Connection
	err := conntrack.Kill(0, id, box.LocalAddresses, func(conn *conntrack.Connection) bool {
		i, ok := found.of(conn)
		if ok {
			killed = connectionOf(&ports[i], conn)
		}
		return ok
	})
	if errors.Is(err, conntrack.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &killed, nil
}
