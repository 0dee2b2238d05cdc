package traffic

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

// A Port is a port of a Service in one family, with the data by which connections are attributed to it.
type Port struct {
	Service   string // "namespace/name"
	Name      string // "" for the only, unnamed port
	Family    nft.Family
	Protocol  nft.Protocol
	Frontends []conntrack.Frontend
	Ranged    bool             // a frontend is a range of ports; the counts then name endpoints with port 0
	Adopts    bool             // connections to a frontend may be adopted from another box
	Endpoints []netip.AddrPort // endpoints of new connections, sorted; nil: those of served (see endpoints)
	Relay     []netip.AddrPort // the appliance's own listeners, if it relays the port

	row    *row        // of the index
	counts *PortCounts // of the scan that is under way, nil if there are none
	egress *nft.Egress // source address of connections that its endpoints open; nil: unchanged
	// of returns the ports of a Service as they are now; nil if that is unknown. This port is the one with the ID id among them.
	of func(service string) []nft.ServicePort
	id string
}

// served returns the port as the kernel serves it now; nil if that is unknown, or the port does not exist any more.
func (p *Port) served() *nft.ServicePort {
	if p.of != nil {
		list := p.of(p.Service)
		for i := range list {
			if list[i].ID == p.id && list[i].Family == p.Family {
				return &list[i]
			}
		}
	}
	return nil
}

// Counts has the counts of a Service port or an endpoint at one scan.
type Counts struct {
	// Open are connections that were answered and that neither side has closed.
	Open int
	// Unanswered counts the connections that the endpoint has sent nothing to yet.
	Unanswered int
	// New counts the connections that the previous scan did not find.
	New int
	// In and Out are the bytes that clients and endpoints sent since the previous scan.
	In, Out uint64
}

func (c *Counts) add(conn *conntrack.Connection, isNew bool, in, out uint64) {
	c.In += in
	c.Out += out
	switch {
	case !conn.Answered:
		c.Unanswered++
	case conn.Open:
		c.Open++
	}
	if isNew {
		c.New++
	}
}

// PortCounts has the counts of a Service port and of its endpoints. These include endpoints with connections that get no new ones.
type PortCounts struct {
	Port *Port
	Counts
	// Connections and Refused are the counts of the kernel since the start. Refusing is the increase of Refused
	// since the previous scan; New is that of Connections, unless the kernel counts none.
	Connections, Refused, Refusing uint64
	Endpoints                      map[netip.AddrPort]*EndpointCounts
	// Flows counts all connections of the port, those that ended included, nil if there are none, or connection events are not read.
	Flows *flows.Record

	getting []netip.AddrPort // cached result of endpoints; nil: not computed yet
}

// EndpointCounts has the counts of an endpoint. Leaving is set if it gets no new connections.
type EndpointCounts struct {
	Counts
	Leaving bool
	// Flows counts its connections, those that ended included; nil as in PortCounts.
	Flows *flows.Record
	// Tracked counts its connections in the table that Flows includes.
	Tracked flows.Record
}

// endpoints returns the endpoints to which new connections go, sorted. They are computed on demand, since most ports have no connections.
func (p *PortCounts) endpoints() []netip.AddrPort {
	switch {
	case p.getting != nil:
		return p.getting
	case p.Port.Endpoints != nil:
		return p.Port.Endpoints
	}
	return endpointsOf(p.Port.served())
}

// newEndpoint adds an endpoint without connections, and returns its counts.
func (p *PortCounts) newEndpoint(at netip.AddrPort) *EndpointCounts {
	if p.Endpoints == nil {
		p.Endpoints = map[netip.AddrPort]*EndpointCounts{}
	}
	p.getting = p.endpoints() // for the next one
	_, has := slices.BinarySearchFunc(p.getting, at, netip.AddrPort.Compare)
	e := &EndpointCounts{Leaving: !has}
	p.Endpoints[at] = e
	return e
}

// Snapshot has the results of one scan of the connection tracking table. It has more than 15 fields: the exported ones are the results, the
// others cache data computed from them on the first request, each under its own lock.
type Snapshot struct {
	At time.Time
	// Since is the time since the previous scan, to which New refers; 0: there was none, and New is 0.
	Since time.Duration
	// Entries counts all entries of the table, those of no Service included.
	Entries int
	// Ports has only the ports with counts, in the order of the index: most of many Services have none, and cost nothing.
	Ports []*PortCounts
	// Counted reports that the kernel counts; Refusals counts refused packets by reason since the
	// start.
	Counted  bool
	Refusals map[string]uint64
	// Flows reports that connection events are read, and Bytes that the kernel counts the bytes of connections.
	Flows, Bytes bool
	// Failures are the failed connections so far, by Port.Key and endpoint, and failing those at the previous scan.
	Failures, failing failures
	// States has the states of Services that do not answer, or answer with a warning.
	States map[string]wire.Judged
	// Counts has the numbers of all Services by state; Verdict is wire.Verdict.Text.
	Counts  map[string]int
	Verdict string
	egressLook
	// RefusalRates has refused packets a second since the previous scan, by reason, without zeros.
	RefusalRates map[string]float64

	unordered bool               // the table has another order than at the previous scan: the bytes since then are unknown
	clients   map[string]clients // by Service, of those that are watched

	rows    []*row
	merging sync.Once
	merged  []*aggregate // see busy
	sorting sync.Mutex
	orders  map[string][]*aggregate // see topN; by wire.TrafficSorts
	summing sync.Once
	sums    map[string]*wire.ServiceTraffic // see services

	answering sync.Mutex
	answers   map[wire.TrafficQuery]*wire.Traffic // see answer
}

// The limits of cached responses of a scan: their number, and the rows of one. Viewers query more often than scans are made.
const (
	maxAnswers    = 8
	maxAnswerRows = 1000
)

// answer returns the cached response to a query, or that which make returns.
func (l *Snapshot) answer(q wire.TrafficQuery, make func() *wire.Traffic) *wire.Traffic {
	l.answering.Lock()
	defer l.answering.Unlock()
	if known := l.answers[q]; known != nil {
		return known
	}
	answer := make()
	if len(l.answers) < maxAnswers && len(answer.Ports) <= maxAnswerRows {
		if l.answers == nil {
			l.answers = map[wire.TrafficQuery]*wire.Traffic{}
		}
		l.answers[q] = answer
	}
	return answer
}

// endpoint returns the key of a connection's endpoint in PortCounts.Endpoints: for a port with ranges it has port 0.
func (p *Port) endpoint(c *conntrack.Connection) netip.AddrPort {
	if p.Ranged {
		return netip.AddrPortFrom(c.Endpoint.Addr(), 0)
	}
	return c.Endpoint
}

// total adds the kernel's counters since the start to the counts of their ports.
func (l *Snapshot) total(found *index, counted nft.Totals) {
	l.Counted, l.Refusals = true, counted.Refusals
	for i := range counted.Frontends {
		f := &counted.Frontends[i]
		if port := found.at[conntrack.Frontend{Addr: f.At.Addr(), Family: f.Family, Protocol: f.Protocol, Port: f.At.Port(), Last: f.Last}]; port != nil {
			p := found.countsOf(port)
			p.Connections += f.Connections
			p.Refused += f.Refused
		}
	}
}

// compare sets the differences of the kernel's counters to those of the previous scan, and rates; with nil it does nothing.
func (l *Snapshot) compare(before *Snapshot) {
	if before == nil {
		return
	}
	for reason, n := range l.Refusals {
		if was := before.Refusals[reason]; n > was && l.Since > 0 {
			if l.RefusalRates == nil {
				l.RefusalRates = map[string]float64{}
			}
			l.RefusalRates[reason] = float64(n-was) / l.Since.Seconds()
		}
	}
	type id struct {
		key    string
		family nft.Family
	}
	old := make(map[id]*PortCounts, len(before.Ports))
	for _, p := range before.Ports {
		if p.Connections+p.Refused > 0 {
			old[id{p.Port.Key(), p.Port.Family}] = p
		}
	}
	for _, p := range l.Ports {
		was := old[id{p.Port.Key(), p.Port.Family}]
		if was == nil {
			was = &PortCounts{}
		}
		p.New = int(p.Connections - min(was.Connections, p.Connections))
		p.Refusing = p.Refused - min(was.Refused, p.Refused)
	}
}

// addEnded adds the totals of ended connections to the counts of their ports and endpoints.
func (l *Snapshot) addEnded(found *index, ended *flows.Snapshot) {
	l.Flows = true
	for _, r := range found.rows {
		for i := range r.ports {
			port := &r.ports[i]
			var open map[netip.AddrPort]flows.Record
			if p := port.counts; p != nil {
				open = make(map[netip.AddrPort]flows.Record, len(p.Endpoints))
				for at, e := range p.Endpoints {
					open[at] = e.Tracked
				}
			}
			endpoints, all := ended.Total(r.key, port.Family, port.Protocol, open)
			if all == (flows.Record{}) && len(endpoints) == 0 {
				continue
			}
			p := found.countsOf(port)
			p.Flows = &all
			for at, total := range endpoints {
				e := p.Endpoints[at]
				if e == nil {
					e = p.newEndpoint(at)
				}
				e.Flows = &total
			}
		}
	}
}

// failures has the numbers of failed connections by Port.Key and endpoint.
type failures map[string]map[netip.AddrPort]uint64

// of returns the number of failed connections of a port.
func (f failures) of(key string) (sum uint64) {
	for _, n := range f[key] {
		sum += n
	}
	return sum
}

// tracked has the connections of a scan, to compare with the next one.
type tracked struct {
	ids []uint32 // of all, sorted
	// order has the connections whose bytes the kernel counts, in the order of the table. That order is the same in two scans for the
	// connections in both, unless the kernel changed the size of the table.
	order []volume
}

// volume has the bytes of a connection so far.
type volume struct {
	id      uint32
	in, out uint64
}

// growth finds the bytes that connections have transferred since the previous scan.
type growth struct {
	before []volume
	next   int // the position behind the one that was found last
	left   int // the steps that a search may still take
}

// since returns the bytes that a connection has transferred since the previous scan. All bytes count for
// one that the scan did not count, or whose ID another connection had. found is false once the searches have used up left, as when the kernel lists its
// table in another order.
func (g *growth) since(v volume) (in, out uint64, found bool) {
	for range g.before {
		if g.left--; g.left < 0 {
			return 0, 0, false
		}
		if g.next == len(g.before) {
			g.next = 0
		}
		was := &g.before[g.next]
		g.next++
		switch {
		case was.id != v.id:
		case was.in > v.in || was.out > v.out: // another one with the ID
			return v.in, v.out, true
		default:
			return v.in - was.in, v.out - was.out, true
		}
	}
	return v.in, v.out, true // the kernel did not count its bytes then
}

// count attributes the connections that read returns to the ports of an index, and returns them. known are those of the previous scan;
// without IDs there was none. counts reports whether a connection is included in the totals of connections by event; nil if connection
// events are not read.
func (l *Snapshot) count(found *index, known tracked, counts func(*conntrack.Connection) bool, read func(each func(*conntrack.Connection)) (entries int, err error)) (now tracked, err error) {
	ids := make([]uint32, 0, len(known.ids)+len(known.ids)/8)
	order := make([]volume, 0, len(known.order)+len(known.order)/8)
	grown := growth{before: known.order, left: 4*len(known.order) + 100_000}
	l.Entries, err = read(func(c *conntrack.Connection) {
		port := found.find(c)
		if port == nil && l.depart(&found.egress, c) {
			return // of no client
		}
		ids = append(ids, c.ID)
		v := volume{c.ID, c.In, c.Out}
		if c.Counted {
			order = append(order, v)
		}
		if port == nil {
			return
		}
		isNew := false
		if known.ids != nil {
			_, old := slices.BinarySearch(known.ids, c.ID)
			isNew = !old
		}
		var in, out uint64
		switch {
		case isNew:
			in, out = v.in, v.out
		case c.Counted && known.ids != nil:
			var ok bool
			if in, out, ok = grown.since(v); !ok {
				l.unordered = true
			}
		}
		p := found.countsOf(port)
		p.add(c, isNew, in, out)
		if watched := l.clients[p.Port.Service]; watched != nil && (c.Open || !c.Answered) {
			watched.add(c)
		}
		at := p.Port.endpoint(c)
		e := p.Endpoints[at]
		if e == nil {
			e = p.newEndpoint(at)
		}
		e.add(c, isNew, in, out)
		if counts != nil && !c.Adopted && counts(c) { // adopted ones have no events
			e.Tracked.Add(flows.RecordOf(c))
		}
	})
	slices.Sort(ids)
	return tracked{ids, order}, err
}
