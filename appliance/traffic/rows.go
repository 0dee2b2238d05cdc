package traffic

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

// aggregate has the counts of a Service port in one scan, summed over its families.
type aggregate struct {
	wire.PortTraffic // without endpoints and history
	*row
	fresh int // new connections since the previous scan
	// made, refused and Failed are counts since the start. refusing, failing, in and out are counts since the previous scan: in and out in bytes.
	made, refused, refusing, failing, in, out uint64
	parts                                     []*PortCounts // the counts for each IP family
}

// aggregate returns the counts of a Service port, summed over its IP families. counts holds them for each family that has any.
func (l *Snapshot) aggregate(r *row, counts []*PortCounts) *aggregate {
	namespace, name, _ := strings.Cut(r.service, "/")
	m := &aggregate{row: r, parts: make([]*PortCounts, 0, len(r.ports)), PortTraffic: wire.PortTraffic{
		Namespace: namespace, Service: name, Port: r.name, Protocol: r.ports[0].Protocol.Name(),
	}}
	for i := range r.ports {
		if len(counts) == 0 || counts[0].Port != &r.ports[i] {
			m.parts = append(m.parts, &PortCounts{Port: &r.ports[i]})
			continue
		}
		p := counts[0]
		counts = counts[1:]
		m.Open += p.Open
		m.Unanswered += p.Unanswered
		m.fresh += p.New
		m.made += p.Connections
		m.refused += p.Refused
		m.refusing += p.Refusing
		m.in += p.In
		m.out += p.Out
		m.parts = append(m.parts, p)
	}
	m.Failed, m.Judged = l.Failures.of(m.key), l.States[r.service]
	m.failing = m.Failed - min(m.Failed, l.failing.of(m.key))
	m.ConnectionCounts = l.rates(m.ConnectionCounts, m.fresh, m.in, m.out, m.failing)
	if l.Counted {
		m.Connections, m.Refused, m.RefusedRate = &m.made, &m.refused, rate(int(m.refusing), l.Since)
	}
	return m
}

// rates returns c with its rates set. The other arguments are the numbers of new connections, bytes and failed connections since the previous scan.
func (l *Snapshot) rates(c wire.ConnectionCounts, fresh int, in, out, failing uint64) wire.ConnectionCounts {
	c.Rate = rate(fresh, l.Since)
	if l.Bytes && !l.unordered {
		c.InRate, c.OutRate = rate(int(in), l.Since), rate(int(out), l.Since)
	}
	if l.Failures != nil {
		c.FailedRate = rate(int(failing), l.Since)
	}
	return c
}

// busy returns the Service ports that have counts, sorted by key. The list is computed once for each scan.
func (l *Snapshot) busy() []*aggregate {
	l.merging.Do(func() {
		for first := 0; first < len(l.Ports); {
			r, last := l.Ports[first].Port.row, first+1
			for last < len(l.Ports) && l.Ports[last].Port.row == r {
				last++
			}
			l.merged = append(l.merged, l.aggregate(r, l.Ports[first:last]))
			first = last
		}
	})
	return l.merged
}

// topN returns the Service ports in the order of a column (by). It omits ports that rank no higher than a port without counts. The list is computed
// once for each scan and column.
func (l *Snapshot) topN(by string) []*aggregate {
	l.sorting.Lock()
	defer l.sorting.Unlock()
	list, known := l.orders[by]
	if known {
		return list
	}
	busy := l.busy()
	for _, r := range l.rows {
		var m *aggregate
		if len(busy) > 0 && busy[0].row == r {
			m, busy = busy[0], busy[1:]
		}
		if !l.leads(r, m, by) {
			continue
		}
		if m == nil {
			m = l.aggregate(r, nil)
		}
		list = append(list, m)
	}
	slices.SortStableFunc(list, func(m, o *aggregate) int { return m.order(o, by) })
	if l.orders == nil {
		l.orders = map[string][]*aggregate{}
	}
	l.orders[by] = list
	return list
}

// leads reports whether topN includes a Service port when sorted by the column with the name by. m holds the port's counts, nil if there are none.
func (l *Snapshot) leads(r *row, m *aggregate, by string) bool {
	var none aggregate
	return m != nil && none.order(m, by) > 0 || by == "state" && urgency(l.States[r.service].State) > 0
}

// urgency ranks the state of a Service: higher is worse, 0 is any state without a problem.
func urgency(state string) int {
	return slices.Index([]string{wire.ServiceSettling, wire.ServiceWarning, wire.ServiceStale, wire.ServiceFails}, state) + 1
}

// first returns the Service ports for which wanted returns true, in the order of a column (by). most is the maximum number of ports in list; more is
// the number of ports left out. A nil wanted selects all.
func (l *Snapshot) first(by string, most int, wanted func(*row) bool) (list []*aggregate, more int) {
	for _, m := range l.topN(by) {
		switch {
		case wanted != nil && !wanted(m.row):
		case len(list) == most:
			more++
		default:
			list = append(list, m)
		}
	}
	busy := l.busy()
	for _, r := range l.rows {
		if wanted == nil && len(list) == most {
			return list, len(l.rows) - most
		}
		var m *aggregate
		if len(busy) > 0 && busy[0].row == r {
			m, busy = busy[0], busy[1:]
		}
		switch {
		case l.leads(r, m, by): // it is there already
		case wanted != nil && !wanted(r):
		case len(list) == most:
			more++
		case m != nil:
			list = append(list, m)
		default:
			list = append(list, l.aggregate(r, nil))
		}
	}
	return list, more
}

// order compares two Service ports by one of wire.TrafficSorts, the largest first.
func (m *aggregate) order(o *aggregate, by string) int {
	switch by {
	case "open":
		return cmp.Or(cmp.Compare(o.Open, m.Open), cmp.Compare(o.fresh, m.fresh))
	case "rate":
		return cmp.Or(cmp.Compare(o.fresh, m.fresh), cmp.Compare(o.Open, m.Open))
	case "refused":
		return cmp.Or(cmp.Compare(o.refusing, m.refusing), cmp.Compare(o.refused, m.refused))
	case "unanswered":
		return cmp.Compare(o.Unanswered, m.Unanswered)
	case "bytes":
		return cmp.Compare(o.in+o.out, m.in+m.out)
	case "state":
		return cmp.Or(cmp.Compare(urgency(o.State), urgency(m.State)), m.order(o, "open"))
	}
	return 0
}

// states returns the numbers of endpoints by state over all IP families, their health check, and the endpoints that are down or excluded, by address.
func (m *aggregate) states(health []wire.EndpointHealth) (states *wire.EndpointStates, check string, down map[string]wire.EndpointHealth) {
	down = map[string]wire.EndpointHealth{}
	for _, e := range health {
		if e.Port != m.name || e.Protocol != m.Protocol {
			continue
		}
		if e.Check != wire.CheckOfFailures {
			check = cmp.Or(check, e.Check)
		}
		if e.State == wire.HealthDown || e.State == wire.HealthOut {
			down[e.Endpoint] = e
		}
	}
	states = &wire.EndpointStates{All: len(down)}
	for _, p := range m.parts {
		used := p.endpoints()
		if served := p.Port.served(); p.Port.Relay != nil && served != nil {
			used = sortedOnce(served.Pools[:]...)
		}
		for _, at := range used {
			if _, is := down[nft.EndpointText(at)]; !is {
				states.Up++
				states.All++
			}
		}
	}
	return states, check, down
}

// frontends returns the addresses and ports of the port's frontends as text, load balancer IPs first.
func (m *aggregate) frontends() (list []string) {
	for _, kind := range []nft.FrontendKind{nft.LoadBalancerIP, nft.ExternalIP, nft.ClusterIP, nft.NodePort} {
		for _, p := range m.parts {
			served := p.Port.served()
			if served == nil {
				continue
			}
			for i := range served.Frontends {
				if fe := &served.Frontends[i]; fe.Kind == kind {
					list = append(list, fe.Text())
				}
			}
		}
	}
	return slices.Compact(list) // a node port is there for both families
}

// endpoints returns the endpoints of all IP families, sorted by address, including those without connections. For a relayed port the listeners of the
// relay come first, then its endpoints with the load from relayed. failed has the numbers of failed connections, down the endpoints that are down or
// excluded.
func (m *aggregate) endpoints(l *Snapshot, relayed func(string, *nft.ServicePort) *wire.RelayLoad, failed map[netip.AddrPort]uint64, down map[string]wire.EndpointHealth) (list []wire.EndpointTraffic) {
	shown := map[string]bool{}
	for _, p := range m.parts {
		all := slices.Clone(p.endpoints())
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
	for i := range list {
		shown[list[i].Endpoint] = true
	}
	for _, text := range slices.Sorted(maps.Keys(down)) {
		if !shown[text] { // it gets no connections
			row := wire.EndpointTraffic{Endpoint: text, ConnectionCounts: l.rates(wire.ConnectionCounts{}, 0, 0, 0, 0)}
			if l.Flows {
				row.FlowTotals = totals(&flows.Record{}, l.Bytes)
			}
			list = append(list, row)
		}
	}
	for i := range list {
		row := &list[i]
		at, err := netip.ParseAddrPort(row.Endpoint)
		if addr, ranged := netip.ParseAddr(row.Endpoint); err != nil && ranged == nil {
			at = netip.AddrPortFrom(addr, 0)
		}
		if row.Failed = failed[at]; row.FailedRate != nil {
			now := l.Failures[m.key][at]
			row.FailedRate = rate(int(now-min(now, l.failing[m.key][at])), l.Since)
		}
		row.State, row.Why = down[row.Endpoint].State, down[row.Endpoint].Why
	}
	return list
}

// behindRelay returns the endpoints of a relayed port, sorted by address. They have neither bytes nor new connections, which the relay does not
// count.
func (p *Port) behindRelay(relayed func(string, *nft.ServicePort) *wire.RelayLoad) (list []wire.EndpointTraffic) {
	served := p.served()
	if served == nil {
		return nil
	}
	load := relayed(p.Service, served)
	all := slices.Concat(served.Pools[:]...)
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

// endpointRow returns the row of an endpoint of a port, with or without connections.
func (p *PortCounts) endpointRow(at netip.AddrPort, l *Snapshot) wire.EndpointTraffic {
	e := p.Endpoints[at]
	if e == nil {
		e = &EndpointCounts{}
		if l.Flows {
			e.Flows = &flows.Record{}
		}
	}
	row := wire.EndpointTraffic{
		Endpoint: nft.EndpointText(at), Leaving: e.Leaving, Relay: slices.Contains(p.Port.Relay, at),
		ConnectionCounts: l.rates(wire.ConnectionCounts{Open: e.Open, Unanswered: e.Unanswered}, e.New, e.In, e.Out, 0),
	}
	if e.Flows != nil {
		row.FlowTotals = totals(e.Flows, l.Bytes)
	}
	return row
}

// totals converts a Record to the type of the API, with bytes only if bytes is set.
func totals(r *flows.Record, bytes bool) (t wire.FlowTotals) {
	t.Flows = &r.Connections
	if bytes {
		t.BytesIn, t.BytesOut = &r.In, &r.Out
	}
	return t
}

// services returns the traffic by Service ("namespace/name"), summed over its ports. quiet is the traffic of each Service that is not in busy. They
// are computed once for each scan.
func (l *Snapshot) services() (busy map[string]*wire.ServiceTraffic, quiet *wire.ServiceTraffic) {
	l.summing.Do(func() {
		l.sums = map[string]*wire.ServiceTraffic{}
		for _, m := range l.busy() {
			if sum := l.sums[m.service]; sum != nil {
				add(sum, m)
				continue
			}
			l.sums[m.service] = &wire.ServiceTraffic{ConnectionCounts: m.ConnectionCounts, TrafficTotals: m.TrafficTotals}
		}
	})
	return l.sums, l.none()
}

// none returns the traffic of a Service without connections.
func (l *Snapshot) none() *wire.ServiceTraffic {
	s := &wire.ServiceTraffic{ConnectionCounts: l.rates(wire.ConnectionCounts{}, 0, 0, 0, 0)}
	if l.Counted {
		s.TrafficTotals = wire.TrafficTotals{Connections: new(uint64), Refused: new(uint64), RefusedRate: rate(0, l.Since)}
	}
	return s
}

// sum returns the total traffic of the Service ports for which wanted returns true. A nil wanted selects all.
func (l *Snapshot) sum(wanted func(*row) bool) wire.ServiceTraffic {
	sum := l.none()
	for _, m := range l.busy() {
		if wanted == nil || wanted(m.row) {
			add(sum, m)
		}
	}
	return *sum
}

// add adds the traffic of a port to a sum of the same scan.
func add(sum *wire.ServiceTraffic, m *aggregate) {
	sum.Open += m.Open
	sum.Unanswered += m.Unanswered
	sum.Rate, sum.FailedRate = plus(sum.Rate, m.Rate), plus(sum.FailedRate, m.FailedRate)
	sum.InRate, sum.OutRate = plus(sum.InRate, m.InRate), plus(sum.OutRate, m.OutRate)
	sum.Connections, sum.Refused, sum.RefusedRate = plus(sum.Connections, m.Connections), plus(sum.Refused, m.Refused), plus(sum.RefusedRate, m.RefusedRate)
}

// plus returns the sum of two numbers, nil if one of them is unknown.
func plus[T uint64 | float64](a, b *T) *T {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

// noRate is the result of rate for 0, shared to save memory.
var noRate float64

// rate returns the number fresh divided by since, per second. It returns nil if there was no previous scan (since is 0).
func rate(fresh int, since time.Duration) *float64 {
	if since <= 0 {
		return nil
	}
	if fresh == 0 {
		return &noRate
	}
	return new(float64(fresh) / since.Seconds())
}
