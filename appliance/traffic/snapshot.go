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

// A Port is a port of a Service in one IP family, with the data for attributing connections to it.
type Port struct {
	Service   string // "namespace/name"
	Name      string // "" for an unnamed port
	Family    nft.Family
	Protocol  nft.Protocol
	Frontends []conntrack.Frontend
	Ranged    bool             // a frontend is a port range; counts then have port 0 in endpoints
	Adopts    bool             // connections to a frontend may be taken over from another box
	Endpoints []netip.AddrPort // sorted endpoints for new connections; if nil, those of served
	Relay     []netip.AddrPort // the relay's listeners for the port; nil if it is not relayed

	row    *row        // the row of the index that contains this port
	counts *PortCounts // counts of the current scan, nil if there are none
	egress *nft.Egress // source address for connections of its endpoints; nil: not set
	// of returns the current ports of a Service, among which this port has the ID id. It is nil if they are not available.
	of func(service string) []nft.ServicePort
	id string
}

// served returns the port as the kernel serves it now. It returns nil if that is not available or the port no longer exists.
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
	// Open is the number of connections that the endpoint has replied to and that neither side has closed.
	Open int
	// Unanswered is the number of connections that the endpoint has not replied to yet.
	Unanswered int
	// New is the number of connections that were not in the previous scan.
	New int
	// In is the number of bytes from clients since the previous scan, Out that from endpoints.
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

// PortCounts holds the counts of a Service port and of its endpoints. Endpoints includes those that get no new connections but still have some.
type PortCounts struct {
	Port *Port
	Counts
	// Connections and Refused are the kernel's counters since the start. Refusing is the increase of Refused since the previous scan. New is the
	// increase of Connections if the kernel counts.
	Connections, Refused, Refusing uint64
	Endpoints                      map[netip.AddrPort]*EndpointCounts
	// Flows counts all connections of the port, including ended ones. It is nil if there are none, or if connection events are not read.
	Flows *flows.Record

	getting []netip.AddrPort // cached result of endpoints; nil if not computed yet
}

// EndpointCounts has the counts of an endpoint. Leaving is set if it gets no new connections.
type EndpointCounts struct {
	Counts
	Leaving bool
	// Flows counts its connections, including ended ones; nil as in PortCounts.
	Flows *flows.Record
	// Tracked counts those connections in Flows that are still in the connection tracking table.
	Tracked flows.Record
}

// endpoints returns the endpoints that get new connections, sorted. They are computed on demand: most ports have no connections.
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

// Snapshot holds the results of one scan of the connection tracking table. It has more than 15 fields: the exported ones are the results; the others
// cache data computed from them on the first request, each group under its own lock.
type Snapshot struct {
	At time.Time
	// Since is the time since the previous scan, which New is relative to. It is 0 for the first scan; New is then 0 too.
	Since time.Duration
	// Entries is the number of entries in the table, including those that belong to no Service.
	Entries int
	// Ports holds only the ports with counts, in the order of the index. If there are many Services, most have no counts and cost nothing.
	Ports []*PortCounts
	// Counted is set if the kernel counts connections. Refusals counts refused packets since the start, by reason.
	Counted  bool
	Refusals map[string]uint64
	// Flows is set if connection events are read, Bytes if the kernel counts the bytes of connections.
	Flows, Bytes bool
	// Failures counts failed connections so far, by Port.Key and endpoint; failing has the counts at the previous scan.
	Failures, failing failures
	// States holds the states of Services that do not answer or have a warning, by "namespace/name".
	States map[string]wire.Judged
	// Counts holds the number of Services in each state. Verdict is the text of the overall verdict (wire.Verdict.Text).
	Counts  map[string]int
	Verdict string
	egressLook
	// RefusalRates has refused packets a second since the previous scan, by reason, without zeros.
	RefusalRates map[string]float64

	unordered bool               // the table's order changed since the previous scan, so the bytes since then are unknown
	clients   map[string]clients // by Service, for those whose clients are counted

	rows    []*row
	merging sync.Once
	merged  []*aggregate // result of busy
	sorting sync.Mutex
	orders  map[string][]*aggregate // results of topN, by wire.TrafficSorts
	summing sync.Once
	sums    map[string]*wire.ServiceTraffic // result of services

	answering sync.Mutex
	answers   map[wire.TrafficQuery]*wire.Traffic // cached responses of answer
}

// The limits of cached responses of a scan: their number, and the rows of one. Viewers query more often than scans are made.
const (
	maxAnswers    = 8
	maxAnswerRows = 1000
)

// answer returns the cached response to a query, or else the result of make.
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

// total adds the kernel's counters since the start to the counts of the Service ports.
func (l *Snapshot) total(found *index, counted nft.Totals) {
	l.Counted, l.Refusals = true, counted.Refusals
	for i := range counted.Frontends {
		f := &counted.Frontends[i]
		if port := found.at.Of[conntrack.Frontend{Addr: f.At.Addr(), Family: f.Family, Protocol: f.Protocol, Port: f.At.Port(), Last: f.Last}]; port != nil {
			p := found.countsOf(port)
			p.Connections += f.Connections
			p.Refused += f.Refused
		}
	}
}

// compare sets the increases of the kernel's counters since the scan before, and the refusal rates. It does nothing if before is nil.
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

// of returns the number of failed connections of a port, by Port.Key.
func (f failures) of(key string) (sum uint64) {
	for _, n := range f[key] {
		sum += n
	}
	return sum
}

// tracked holds the connections of a scan, for comparison with the next scan.
type tracked struct {
	ids []uint32 // conntrack IDs of all connections, sorted
	// order holds the connections for which the kernel counts bytes, in the order of the table. Connections in two scans have the same order in both,
	// unless the kernel resized the table in between.
	order []volume
}

// volume holds the byte counts of a connection since its start.
type volume struct {
	id      uint32
	in, out uint64
}

// growth computes the bytes that connections have transferred since the previous scan. before holds the byte counts of the previous scan, in the
// order of the conntrack table.
type growth struct {
	before []volume
	next   int // where the next search starts: after the last match
	left   int // the remaining search steps
}

// since returns the bytes that a connection has transferred since the previous scan. It returns all its bytes if it was not counted in that scan, or
// its ID belonged to another connection. found is false once no search steps are left (g.left). This happens if the order of the conntrack table has
// changed.
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

// count attributes the connections of a scan to the Service ports in the index found. read calls its argument for each connection. now holds these
// connections, and known those of the previous scan; known.ids is nil if there was none. counts reports whether a connection is included in the
// totals based on events; it is nil if connection events are not read.
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
