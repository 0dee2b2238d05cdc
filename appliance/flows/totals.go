package flows

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

const (
	// maxLeft is the largest number of endpoints of a port that are remembered after they were removed from it.
	maxLeft = 256
	// maxBegun is the largest number of connections whose start time is remembered, some 64 bytes each.
	maxBegun = 1 << 18
	// maxLate is the largest number of ended connections that are queued during a Snapshot.
	maxLate = 1 << 16
)

// Record has numbers of connections and their bytes.
type Record struct {
	Connections uint64
	In, Out     uint64 // bytes from clients and from endpoints, as far as the kernel counts them
}

// Add adds the numbers of o.
func (r *Record) Add(o Record) {
	r.Connections += o.Connections
	r.In += o.In
	r.Out += o.Out
}

// raise sets each number of r to at least that of o. It returns the amounts by which the old numbers of r exceeded those of o.
func (r *Record) raise(o Record) (missing Record) {
	missing = Record{r.Connections - min(r.Connections, o.Connections), r.In - min(r.In, o.In), r.Out - min(r.Out, o.Out)}
	*r = Record{max(r.Connections, o.Connections), max(r.In, o.In), max(r.Out, o.Out)}
	return missing
}

// RecordOf returns the Record of one connection.
func RecordOf(c *conntrack.Connection) Record { return Record{1, c.In, c.Out} }

// Ended describes a connection that ended, for the connection log.
type Ended struct {
	Service, Port string // "namespace/name", and the name of its port
	*conntrack.Connection
	// Relayed is set when Endpoint is a listener of the appliance, which makes its own connections to endpoints.
	Relayed bool
	// Began is zero where it is not known.
	Began, Ended time.Time
}

// Totals counts the ended connections of Service ports by endpoint. Its methods may be called concurrently. It has more than 15 fields: some
// belong to a running Snapshot and some to the state of the previous process.
type Totals struct {
	// log is called for each ended connection of a Service that requests a connection log; it must not block.
	log func(*Ended)

	one       sync.Mutex // held during a Snapshot
	mu        sync.Mutex
	nodePorts map[netip.Addr]bool
	services  map[string][]*port
	frontends conntrack.Index[*port]
	logged    int                 // number of Services that request a connection log
	old       map[uint32]struct{} // IDs of connections that began before events were read: not counted
	begun     map[uint32]begun
	listening bool // old is complete; open connections are counted only then
	looking   bool
	late      []end                  // connections that ended during the running Snapshot
	saved     map[string][]SavedPort // totals of the previous process, by Service, until Plan sets its ports
	resumed   bool                   // old was restored from the previous process
	unsure    bool                   // events were lost since the last Snapshot
	lost      uint64
}

type portID struct {
	id       string
	family   nft.Family
	protocol nft.Protocol
}

// port has the totals of a Service port in one family.
type port struct {
	portID
	service   string
	frontends []conntrack.Frontend
	logged    bool
	pools     [nft.NumPools][]netip.AddrPort
	relay     [nft.NumPools]netip.AddrPort    // the listener that relays connections, if valid
	listeners []netip.AddrPort                // all addresses that relay ever had: connections outlive a change
	endpoints map[netip.AddrPort]*SavedRecord // the endpoints that had connections
	gone      Record                          // sum of the endpoints that were dropped
	reported  Record                          // the total of all endpoints at the last Snapshot
}

type begun struct {
	at   time.Time
	port *port
}

type end struct {
	port *port
	at   netip.AddrPort
	Record
}

// NewTotals returns Totals without Services. log, if not nil, is called with the ended connections of Services that request a connection log. It must
// not block or keep its argument.
func NewTotals(log func(*Ended)) *Totals {
	return &Totals{
		log: log, services: map[string][]*port{}, frontends: conntrack.NewIndex[*port](0),
		old: map[uint32]struct{}{}, begun: map[uint32]begun{},
	}
}

// Host sets the addresses on which node ports answer.
func (b *Totals) Host(nodePorts []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodePorts = make(map[netip.Addr]bool, len(nodePorts))
	for _, a := range nodePorts {
		b.nodePorts[a] = true
	}
}

// Plan sets the ports of a Service, "namespace/name"; without ports the Service is removed. logged is set if the Service requests a connection log.
func (b *Totals) Plan(service string, ports []nft.ServicePort, logged bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := make(map[portID]*port, len(b.services[service]))
	for _, p := range b.services[service] {
		before[p.portID] = p
		for _, fe := range p.frontends {
			if b.frontends.Of[fe] == p {
				b.frontends.Delete(fe)
			}
		}
	}
	if len(b.services[service]) > 0 && b.services[service][0].logged {
		b.logged--
	}
	delete(b.services, service)
	if logged && b.log != nil && len(ports) > 0 {
		b.logged++
	}
	for i := range ports {
		id := portID{ports[i].ID, ports[i].Family, ports[i].Protocol}
		p := before[id]
		if p == nil {
			p = b.resume(service, id)
		}
		p.logged = logged && b.log != nil
		p.frontends = conntrack.FrontendsOf(&ports[i])
		for _, fe := range p.frontends {
			b.frontends.Set(fe, p)
		}
		p.pools, p.relay = ports[i].Pools, ports[i].Relay
		for _, at := range p.relay {
			if at.IsValid() && !slices.Contains(p.listeners, at) {
				p.listeners = append(p.listeners, at)
			}
		}
		p.judge(now)
		b.services[service] = append(b.services[service], p)
	}
}

// Saved is the state of Totals that is stored for the next process.
type Saved struct {
	Old      []uint32
	Services map[string][]SavedPort
}

// SavedPort has the totals of a Service port.
type SavedPort struct {
	ID             string
	Family         nft.Family
	Protocol       nft.Protocol
	Endpoints      map[netip.AddrPort]SavedRecord
	Gone, Reported Record
}

// SavedRecord has the totals of one endpoint of a port.
type SavedRecord struct {
	Ended    Record
	Reported Record    // the total at the last Snapshot, with open connections
	Left     time.Time // when the endpoint was removed from the port; zero if it was not
}

// Save returns the state for the next process.
func (b *Totals) Save() *Saved {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &Saved{Old: slices.Collect(maps.Keys(b.old)), Services: map[string][]SavedPort{}}
	for service, ports := range b.services {
		for _, p := range ports {
			if len(p.endpoints) == 0 && p.reported == (Record{}) {
				continue
			}
			one := SavedPort{p.id, p.family, p.protocol, make(map[netip.AddrPort]SavedRecord, len(p.endpoints)), p.gone, p.reported}
			for at, r := range p.endpoints {
				one.Endpoints[at] = *r
			}
			s.Services[service] = append(s.Services[service], one)
		}
	}
	return s
}

// Restore sets the state that an earlier process saved; it must be called first. Connections that are open now are counted, except for
// those that the earlier process did not count.
func (b *Totals) Restore(s *Saved) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved, b.resumed, b.listening = s.Services, true, true
	for _, id := range s.Old {
		b.old[id] = struct{}{}
	}
}

// Resumed reports whether Restore was called. In that case Totals already has the connections that are not counted, so calls of Before are not
// needed. Later calls of Resumed return false.
func (b *Totals) Resumed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.resumed
	b.resumed = false
	return was
}

// resume returns a new port, with the totals that an earlier process saved for it. The caller holds mu.
func (b *Totals) resume(service string, id portID) *port {
	p := &port{portID: id, service: service, endpoints: map[netip.AddrPort]*SavedRecord{}}
	i := slices.IndexFunc(b.saved[service], func(s SavedPort) bool { return portID{s.ID, s.Family, s.Protocol} == id })
	if i < 0 {
		return p
	}
	s := b.saved[service][i]
	p.gone, p.reported = s.Gone, s.Reported
	for at, r := range s.Endpoints {
		p.endpoints[at] = &r
	}
	b.saved[service] = slices.Delete(b.saved[service], i, i+1)
	return p
}

// endpoint returns the key of an endpoint in p.endpoints. For a port range it has the address alone.
func (p *port) endpoint(at netip.AddrPort) netip.AddrPort {
	if len(p.frontends) > 0 && p.frontends[0].Last != 0 {
		return netip.AddrPortFrom(at.Addr(), 0)
	}
	return at
}

// has reports whether an endpoint is in a pool or the relay of the port, and so gets new connections.
func (p *port) has(at netip.AddrPort) bool {
	return slices.Contains(p.relay[:], at) || slices.ContainsFunc(p.pools[:], func(pool []netip.AddrPort) bool { return slices.Contains(pool, at) })
}

// judge updates the time at which each endpoint was removed from the port. It clears that time for endpoints that are back.
func (p *port) judge(now time.Time) {
	if len(p.endpoints) == 0 {
		return
	}
	getting := map[netip.AddrPort]bool{} // new connections
	for _, pool := range p.pools {
		for _, at := range pool {
			getting[at] = true
		}
	}
	for _, at := range p.relay {
		getting[at] = true
	}
	for at, r := range p.endpoints {
		switch {
		case getting[at]:
			r.Left = time.Time{}
		case r.Left.IsZero():
			r.Left = now
		}
	}
	p.forget()
}

// forget drops the endpoints that were removed longest ago and keeps maxLeft/2 of them, if more than maxLeft are remembered.
func (p *port) forget() {
	if len(p.endpoints) <= maxLeft {
		return
	}
	var left []netip.AddrPort
	for at, r := range p.endpoints {
		if !r.Left.IsZero() {
			left = append(left, at)
		}
	}
	if len(left) <= maxLeft {
		return
	}
	slices.SortFunc(left, func(a, b netip.AddrPort) int { return p.endpoints[a].Left.Compare(p.endpoints[b].Left) })
	for _, at := range left[:len(left)-maxLeft/2] {
		p.gone.Add(p.endpoints[at].Ended)
		delete(p.endpoints, at)
	}
}

// Logs reports whether any Service asks for a connection log, which needs events of connections that begin.
func (b *Totals) Logs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logged > 0
}

// Before records a connection that began before events were read. Such connections are not counted.
func (b *Totals) Before(c *conntrack.Connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.old[c.ID] = struct{}{}
}

// Listening records that Before was called for all connections that began before events were read. Open connections are counted from then on.
func (b *Totals) Listening() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listening = true
}

// Lose adds messages to the number of kernel events that were lost. Lose(0) records that an unspecified number may be lost.
func (b *Totals) Lose(messages uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsure = true
	b.lost += messages
}

// Lost returns the number of events of the kernel that were lost.
func (b *Totals) Lost() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// RecordEnd processes a connection event of the kernel.
func (b *Totals) RecordEnd(e *conntrack.Event, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, _ := b.frontends.At(conntrack.Frontend{Addr: e.Connection.To.Addr(), Family: e.Connection.Family, Protocol: e.Connection.Protocol, Port: e.Connection.To.Port()}, b.nodePorts)
	if !e.Over {
		if p != nil && p.logged && len(b.begun) < maxBegun {
			b.begun[e.ID] = begun{now, p}
		}
		return
	}
	since, known := b.begun[e.ID]
	if known {
		delete(b.begun, e.ID)
		p = since.port // the frontend may be another Service's by now
	}
	_, old := b.old[e.ID]
	delete(b.old, e.ID)
	if p == nil {
		return
	}
	if !old {
		b.end(end{p, p.endpoint(e.Endpoint), RecordOf(e.Connection)}, now)
	}
	if p.logged {
		if !e.Began.IsZero() {
			since.at = e.Began
		}
		_, name := nft.SplitID(p.id)
		b.log(&Ended{Service: p.service, Port: name, Connection: e.Connection, Relayed: slices.Contains(p.listeners, e.Endpoint), Began: since.at, Ended: e.Ended})
	}
}

// end adds an ended connection to the totals. During a Snapshot it queues the connection until the Snapshot ends, since the scan may have counted the
// connection as open.
func (b *Totals) end(e end, now time.Time) {
	if b.looking && len(b.late) < maxLate {
		b.late = append(b.late, e)
		return
	}
	e.port.record(e.at, now).Ended.Add(e.Record)
}

// record returns the record of an endpoint, and adds one if there is none.
func (p *port) record(at netip.AddrPort, now time.Time) *SavedRecord {
	r := p.endpoints[at]
	if r == nil {
		r = &SavedRecord{}
		if !p.has(at) {
			p.forget()
			r.Left = now
		}
		p.endpoints[at] = r
	}
	return r
}

// Snapshot is a scan of the connection tracking table that adds open connections to the totals. Only one runs at a time. Connections that end during
// a Snapshot are added after it, since the scan may have found them open. Until the next Snapshot a total may therefore lack connections that ended
// before the scan reached them, but no connection is counted twice.
type Snapshot struct {
	b     *Totals
	began time.Time
}

// Snapshot begins a Snapshot at now. It first waits for the end of a running one. The caller must call End.
func (b *Totals) Snapshot(now time.Time) *Snapshot {
	b.one.Lock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looking = true
	return &Snapshot{b, now}
}

// Counts reports whether a connection found by the scan is counted. Connections that began before events were read are not counted.
func (l *Snapshot) Counts(c *conntrack.Connection) bool {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	_, old := l.b.old[c.ID]
	return l.b.listening && !old
}

// Total returns the totals of a port by endpoint: its ended connections plus open, the open connections found by the scan. all is the sum over all
// endpoints that the port has ever had. No total is less than at the previous Snapshot.
func (l *Snapshot) Total(id string, family nft.Family, protocol nft.Protocol, open map[netip.AddrPort]Record) (endpoints map[netip.AddrPort]Record, all Record) {
	b := l.b
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.find(portID{id, family, protocol})
	if p == nil || len(p.endpoints) == 0 && len(open) == 0 {
		if p != nil {
			all = p.reported
		}
		return nil, all
	}
	for at := range open {
		p.record(at, l.began)
	}
	endpoints = make(map[netip.AddrPort]Record, len(p.endpoints))
	all = p.gone
	for at, r := range p.endpoints {
		total := r.Ended
		total.Add(open[at])
		if missing := r.Reported.raise(total); b.unsure {
			r.Ended.Add(missing) // their ends were lost
		}
		endpoints[at] = r.Reported
		all.Add(r.Reported)
	}
	p.reported.raise(all)
	return endpoints, p.reported
}

func (b *Totals) find(id portID) *port {
	service, _ := nft.SplitID(id.id)
	if i := slices.IndexFunc(b.services[service], func(p *port) bool { return p.portID == id }); i >= 0 {
		return b.services[service][i]
	}
	return nil
}

// End ends the Snapshot. ids are the sorted IDs of all connections to Services that the scan found, nil if the scan failed.
func (l *Snapshot) End(ids []uint32) {
	b := l.b
	defer b.one.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looking = false
	for _, e := range b.late {
		e.port.record(e.at, l.began).Ended.Add(e.Record)
	}
	b.late = b.late[:0]
	if cap(b.late) > 1024 {
		b.late = nil
	}
	if ids == nil {
		return
	}
	for id := range b.old {
		if _, found := slices.BinarySearch(ids, id); !found {
			delete(b.old, id)
		}
	}
	if b.unsure {
		b.unsure = false
		b.prune(ids, l.began)
	}
}

// Prune drops the remembered start times of connections that are not in ids, since their end events were lost. ids are the sorted IDs of all
// connections through Services at the time at.
func (b *Totals) Prune(ids []uint32, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(ids, at)
}

func (b *Totals) prune(ids []uint32, at time.Time) {
	for id, begun := range b.begun {
		if _, found := slices.BinarySearch(ids, id); !found && begun.at.Before(at) {
			delete(b.begun, id)
		}
	}
}
