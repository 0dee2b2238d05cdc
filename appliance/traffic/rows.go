package traffic

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

// merged is a Service port of a look with both families together.
type merged struct {
	wire.PortTraffic // without endpoints and history
	key              string
	fresh            int // new connections
	// made and refused are since the start, refusing of refused since the look before.
	made, refused, refusing uint64
	parts                   []*PortCounts
}

// rows are the Service ports of a look, by key. They are made once for all who ask for the look.
func (l *Look) rows() []*merged {
	l.merging.Do(func() {
		all := make([]merged, 0, len(l.Ports))
		for i := range l.Ports { // by key, so that families follow each other
			p := &l.Ports[i]
			key := p.Port.Key()
			if n := len(all); n == 0 || all[n-1].key != key {
				namespace, name, _ := strings.Cut(p.Port.Service, "/")
				all = append(all, merged{key: key, PortTraffic: wire.PortTraffic{
					Namespace: namespace, Service: name, Port: p.Port.Name, Protocol: p.Port.Protocol.Name(),
				}})
			}
			m := &all[len(all)-1]
			m.Open += p.Open
			m.Unanswered += p.Unanswered
			m.fresh += p.New
			m.made += p.Connections
			m.refused += p.Refused
			m.refusing += p.Refusing
			m.parts = append(m.parts, p)
		}
		l.merged = make([]*merged, len(all))
		for i := range all {
			l.merged[i] = &all[i]
		}
		for _, m := range l.merged {
			m.Rate = rate(m.fresh, l.Since)
			if l.Counted {
				m.Connections, m.Refused, m.RefusedRate = &m.made, &m.refused, rate(int(m.refusing), l.Since)
			}
		}
	})
	return l.merged
}

// sorted are the rows in an order, which is made once for all who ask for the look.
func (l *Look) sorted(by string) []*merged {
	rows := l.rows()
	if by == "name" {
		return rows
	}
	l.sorting.Lock()
	defer l.sorting.Unlock()
	if l.orders[by] == nil {
		if l.orders == nil {
			l.orders = map[string][]*merged{}
		}
		l.orders[by] = slices.SortedStableFunc(slices.Values(rows), func(m, o *merged) int { return m.order(o, by) })
	}
	return l.orders[by]
}

// order compares by one of wire.TrafficSorts, the largest first.
func (m *merged) order(o *merged, by string) int {
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

// endpoints lists the endpoints of all families by address, those without connections included. Those of
// a relayed port follow its listeners; relayed tells of them.
func (m *merged) endpoints(l *Look, relayed func(string, *nft.ServicePort) *wire.RelayLoad) (list []wire.EndpointTraffic) {
	for _, p := range m.parts {
		all := slices.Clone(p.Port.Endpoints)
		for at, e := range p.Endpoints {
			if e.Leaving && e.Open+e.Unanswered+e.New > 0 { // else its total is in that of the port
				all = append(all, at)
			}
		}
		slices.SortFunc(all, netip.AddrPort.Compare)
		for _, at := range all {
			list = append(list, p.endpointRow(at, l))
		}
		if p.Port.Relay != nil && relayed != nil {
			list = append(list, p.Port.behindRelay(relayed)...)
		}
	}
	return list
}

// behindRelay are the endpoints of a relayed port, by address. The relay does not count bytes, nor what is new.
func (p *Port) behindRelay(relayed func(string, *nft.ServicePort) *wire.RelayLoad) (list []wire.EndpointTraffic) {
	load := relayed(p.Service, p.served)
	all := slices.Concat(p.served.Pools[:]...)
	for text := range load.Open { // also of those that it has left
		if at, err := netip.ParseAddrPort(text); err == nil {
			all = append(all, at)
		}
	}
	for _, at := range sortedOnce(all) {
		list = append(list, wire.EndpointTraffic{
			Endpoint: at.String(), Relayed: true, ConnectionCounts: wire.ConnectionCounts{Open: load.Open[at.String()]},
		})
	}
	return list
}

// endpointRow is an endpoint of a port, with or without connections.
func (p *PortCounts) endpointRow(at netip.AddrPort, l *Look) wire.EndpointTraffic {
	e := p.Endpoints[at]
	if e == nil {
		e = &EndpointCounts{}
		if l.Flows {
			e.Flows = &flows.Record{}
		}
	}
	row := wire.EndpointTraffic{
		Endpoint: endpointText(at), Leaving: e.Leaving, Relay: slices.Contains(p.Port.Relay, at),
		ConnectionCounts: wire.ConnectionCounts{Open: e.Open, Unanswered: e.Unanswered, Rate: rate(e.New, l.Since)},
	}
	if e.Flows != nil {
		row.FlowTotals = totals(e.Flows, l.Bytes)
	}
	return row
}

// flows are the totals of all that the port ever had.
func (m *merged) flows(bytes bool) wire.FlowTotals {
	var all flows.Record
	for _, p := range m.parts {
		if p.Flows != nil {
			all.Add(*p.Flows)
		}
	}
	return totals(&all, bytes)
}

// totals shows a Record, with bytes where the kernel counts them.
func totals(r *flows.Record, bytes bool) (t wire.FlowTotals) {
	t.Flows = &r.Connections
	if bytes {
		t.BytesIn, t.BytesOut = &r.In, &r.Out
	}
	return t
}

// services returns the findings by Service, all its ports together: "namespace/name".
// Like rows they are made once.
func (l *Look) services() map[string]*wire.ServiceTraffic {
	l.summing.Do(func() {
		l.sums = make(map[string]*wire.ServiceTraffic, len(l.Ports))
		for _, m := range l.rows() {
			service := m.parts[0].Port.Service
			sum := l.sums[service]
			if sum == nil {
				l.sums[service] = &wire.ServiceTraffic{ConnectionCounts: m.ConnectionCounts, TrafficTotals: m.TrafficTotals}
				continue
			}
			sum.Open += m.Open
			sum.Unanswered += m.Unanswered
			sum.Rate = plus(sum.Rate, m.Rate)
			sum.Connections, sum.Refused, sum.RefusedRate = plus(sum.Connections, m.Connections), plus(sum.Refused, m.Refused), plus(sum.RefusedRate, m.RefusedRate)
		}
	})
	return l.sums
}

// plus adds numbers of one look, of which either all are known or none.
func plus[T uint64 | float64](a, b *T) *T {
	if a == nil || b == nil {
		return nil
	}
	sum := *a + *b
	return &sum
}

// noRate is the rate where nothing is new.
var noRate float64

// rate is connections a second; nil where there is nothing to compare with.
func rate(fresh int, since time.Duration) *float64 {
	if since <= 0 {
		return nil
	}
	if fresh == 0 {
		return &noRate
	}
	r := float64(fresh) / since.Seconds()
	return &r
}

// endpointText is an endpoint; of a range of ports, the address alone.
func endpointText(at netip.AddrPort) string {
	if at.Port() == 0 {
		return at.Addr().String()
	}
	return at.String()
}
