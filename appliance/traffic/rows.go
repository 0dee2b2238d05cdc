package traffic

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
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
		found := make(map[string]*merged, len(l.Ports))
		for i := range l.Ports {
			p := &l.Ports[i]
			key := p.Port.Key()
			m := found[key]
			if m == nil {
				namespace, name, _ := strings.Cut(p.Port.Service, "/")
				m = &merged{key: key, PortTraffic: wire.PortTraffic{
					Namespace: namespace, Service: name, Port: p.Port.Name, Protocol: p.Port.Protocol.Name(),
				}}
				found[key], l.merged = m, append(l.merged, m)
			}
			m.Open += p.Open
			m.Unanswered += p.Unanswered
			m.fresh += p.New
			m.made += p.Connections
			m.refused += p.Refused
			m.refusing += p.Refusing
			m.parts = append(m.parts, p)
		}
		for _, m := range l.merged {
			m.Rate = rate(m.fresh, l.Since)
			if l.Counted {
				m.Connections, m.Refused, m.RefusedRate = &m.made, &m.refused, rate(int(m.refusing), l.Since)
			}
		}
		slices.SortFunc(l.merged, func(m, o *merged) int { return strings.Compare(m.key, o.key) })
	})
	return l.merged
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

// endpoints lists the endpoints of all families, those without connections included.
func (m *merged) endpoints(since time.Duration) (list []wire.EndpointTraffic) {
	for _, p := range m.parts {
		for _, at := range p.Port.Endpoints {
			if p.Endpoints[at] == nil {
				list = append(list, wire.EndpointTraffic{Endpoint: endpointText(at), ConnectionCounts: wire.ConnectionCounts{Rate: rate(0, since)}})
			}
		}
		for at, e := range p.Endpoints {
			list = append(list, wire.EndpointTraffic{
				Endpoint: endpointText(at), Leaving: e.Leaving,
				ConnectionCounts: wire.ConnectionCounts{Open: e.Open, Unanswered: e.Unanswered, Rate: rate(e.New, since)},
			})
		}
	}
	slices.SortFunc(list, func(a, b wire.EndpointTraffic) int {
		return netip.MustParseAddrPort(a.Endpoint).Compare(netip.MustParseAddrPort(b.Endpoint))
	})
	return list
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
