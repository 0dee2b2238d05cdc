package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

// Queries answers the queries of the API about connections through Services. It implements api.Traffic.
type Queries struct {
	served   func() (map[string][]nft.ServicePort, nft.Box)
	relayed  func(service string, p *nft.ServicePort) *wire.RelayLoad // nil if relayed connections are not counted
	clients  func() map[RelayedClient][]netip.AddrPort                // nil if relayed connections are not counted
	health   func(namespace, name string) []wire.EndpointHealth       // nil if not available
	observer *Observer
}

// A RelayedClient identifies a client that has a connection to a listener of the relay, or sends datagrams to it.
type RelayedClient struct {
	Protocol         nft.Protocol
	Client, Listener netip.AddrPort // Client is its address as the listener sees it
}

// NewQueries returns Queries. The function of returns the current ports of one Service. served returns the ports of all Services, and the box.
// changed returns the Services whose ports have changed since a state, and the number of the present state, like sources.ports
// (reconcile.Grants.Since). totals returns the kernel's counters since the start; it is nil if the kernel does not count.
func NewQueries(of func(service string) []nft.ServicePort, changed func(since int) (of map[string][]nft.ServicePort, all bool, now int), served func() (map[string][]nft.ServicePort, nft.Box), totals func() (nft.Totals, error)) *Queries {
	a := &Queries{served: served}
	a.observer = New(look, func(since int) (map[string][]Port, bool, int) {
		services, all, now := changed(since)
		ports := make(map[string][]Port, len(services))
		for key, list := range services {
			ports[key] = portsOf(key, list, of)
		}
		return ports, all, now
	}, totals)
	a.observer.settings = conntrack.ReadSettings
	return a
}

// Find returns the Service port and the endpoint of a connection; ok is false if it does not belong to a Service. The endpoint of a port with a range
// has port 0. The caller must not modify p.
func (a *Queries) Find(c *conntrack.Connection) (p *Port, endpoint netip.AddrPort, ok bool) {
	o := a.observer
	o.looking.Lock()
	defer o.looking.Unlock()
	if p = o.served().find(c); p == nil {
		return nil, netip.AddrPort{}, false
	}
	return p, p.endpoint(c), true
}

// Judge adds data to the responses. failures returns the numbers of failed connections by port (Port.Key) and endpoint. health returns the health of
// a Service's endpoints. judged returns the states of Services with problems, as in sources.judged. Judge must be called before the first query.
func (a *Queries) Judge(failures func() map[string]map[netip.AddrPort]uint64, health func(namespace, name string) []wire.EndpointHealth,
	judged func() (states map[string]wire.Judged, counts map[string]int, verdict string)) {
	a.health, a.observer.failures, a.observer.judged = health, failures, judged
}

// Follow adds the totals of ended connections to the responses. receive updates ended with the events that the kernel has sent so far. Follow must be
// called before the first query.
func (a *Queries) Follow(ended *flows.Totals, receive func()) {
	a.observer.ended, a.observer.receive = ended, receive
}

// CountRelayed adds the endpoints of relayed ports to the responses. load returns the numbers of the relay's connections to a port's endpoints.
// clients returns the endpoints to which each client of the relay is connected. CountRelayed must be called before the first query.
func (a *Queries) CountRelayed(load func(service string, p *nft.ServicePort) *wire.RelayLoad, clients func() map[RelayedClient][]netip.AddrPort) {
	a.relayed, a.clients = load, clients
}

// look calls each for every entry of the connection tracking table in this network namespace. It returns the number of entries.
func look(each func(*conntrack.Connection)) (int, error) { return conntrack.Scan(0, each) }

// portsOf converts the ports of a Service to Ports. now returns the present ports of a Service.
func portsOf(service string, list []nft.ServicePort, now func(service string) []nft.ServicePort) []Port {
	ports := make([]Port, len(list))
	for i := range list {
		p := &list[i]
		_, name := nft.SplitID(p.ID)
		ports[i] = Port{
			Service: service, Name: name, Family: p.Family, Protocol: p.Protocol, Frontends: conntrack.FrontendsOf(p), of: now, id: p.ID,
			Ranged: slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.IsRange() }),
			Adopts: slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.Adopt }),
		}
		if p.Relayed() {
			ports[i].Relay = endpointsOf(p)
		}
		if len(p.Egress.Sources) > 0 {
			ports[i].egress = &p.Egress
		}
	}
	return ports
}

// endpointsOf returns the endpoints to which the kernel sends new connections, from any pool. For a relayed port these are the listeners of
// the relay.
func endpointsOf(p *nft.ServicePort) []netip.AddrPort {
	switch {
	case p == nil:
		return nil
	case p.Relayed():
		return sortedOnce(p.Relay[:]) // clients' connections end there
	}
	return sortedOnce(p.Pools[:]...)
}

// sortedOnce returns the endpoints in all lists, sorted, each once.
func sortedOnce(lists ...[]netip.AddrPort) []netip.AddrPort {
	all := slices.Concat(lists...)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// Traffic returns the traffic of the Service ports that q selects. The caller must not modify the result, which is cached.
func (a *Queries) Traffic(q wire.TrafficQuery) (*wire.Traffic, error) {
	if q.Clients && !a.observer.watch(q.Namespace+"/"+q.Service) {
		return nil, fmt.Errorf("the clients of %d other Services are counted, and that is the most: ask again %s after others did last, or ask for connections", maxWatched, watchFor)
	}
	l, err := a.observer.Snapshot()
	if err != nil {
		return nil, err
	}
	return l.answer(q, func() *wire.Traffic { return a.traffic(l, q) }), nil
}

// traffic computes the response to a query from a scan.
func (a *Queries) traffic(l *Snapshot, q wire.TrafficQuery) *wire.Traffic {
	answer := &wire.Traffic{At: l.At, Seconds: l.Since.Seconds(), Tracked: l.Entries, Counted: l.Counted, Refusals: l.Refusals, RefusalRates: l.RefusalRates}
	answer.Flows, answer.Verdict, answer.States, answer.Egress = l.Flows, l.Verdict, l.Counts, l.egress(&q)
	if !l.Bytes {
		answer.NoBytes = "net.netfilter.nf_conntrack_acct is 0; set it to 1, and the bytes of connections that begin then are counted"
	}
	wanted := wantedBy(&q)
	answer.Totals = l.sum(wanted)
	var rows []*aggregate
	rows, answer.More = l.first(q.Sort, q.Limit, wanted)
	answer.Ports = make([]wire.PortTraffic, len(rows))
	down := make([]map[string]wire.EndpointHealth, len(rows))
	for i, m := range rows {
		row := &answer.Ports[i]
		if *row = m.PortTraffic; len(rows) <= maxJudged {
			if row.Frontends = m.frontends(); a.health != nil {
				row.States, row.Check, down[i] = m.states(a.health(row.Namespace, row.Service))
			}
		}
	}
	failed := failures(a.observer.failures()) // after the states: an endpoint that is down as connections failed has some
	for i, m := range rows {
		row := &answer.Ports[i]
		row.Failed = failed.of(m.key)
		if q.Endpoints {
			row.Endpoints = m.endpoints(l, a.relayed, failed[m.key], down[i])
		}
		if l.Flows {
			var all flows.Record
			for _, p := range m.parts {
				if p.Flows != nil {
					all.Add(*p.Flows)
				}
			}
			row.FlowTotals = totals(&all, l.Bytes)
		}
		if q.History {
			row.History = a.observer.History(m.key)
		}
	}
	if q.Clients {
		answer.Clients = new(l.clientsOf(q.Namespace+"/"+q.Service, q.Limit))
	}
	return answer
}

// maxJudged is the maximum number of rows in a response for which the states of endpoints are determined. Prometheus pages have thousands of rows.
const maxJudged = 1000

// wantedBy returns a function that reports whether a query selects a row; nil if it selects all.
func wantedBy(q *wire.TrafficQuery) func(*row) bool {
	if q.Namespace+q.Service+q.Filter == "" {
		return nil
	}
	return func(r *row) bool {
		namespace, name, _ := strings.Cut(r.service, "/")
		return (q.Namespace == "" || q.Namespace == namespace) && (q.Service == "" || q.Service == name) && (q.Filter == "" || wire.TrafficFilter(q.Filter, r.shown()))
	}
}

// Services returns the traffic in the last scan by Service, "namespace/name". quiet is the traffic of each Service that is not in busy. The caller
// must not modify them.
func (a *Queries) Services() (busy map[string]*wire.ServiceTraffic, quiet *wire.ServiceTraffic, err error) {
	l, err := a.observer.Snapshot()
	if err != nil {
		return nil, nil, err
	}
	busy, quiet = l.services()
	return busy, quiet, nil
}

// Connections returns the tracked connections of Services that a query selects.
func (a *Queries) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	o := a.observer
	o.looking.Lock()
	defer o.looking.Unlock()
	found := o.served()
	answer := &wire.Connections{At: time.Now(), Connections: []wire.Connection{}}
	relayed, wanted := sync.OnceValue(a.clients), wantedBy(&wire.TrafficQuery{Namespace: q.Namespace, Service: q.Service})
	_, err := o.read(func(conn *conntrack.Connection) {
		p, out := found.either(conn)
		var behind []netip.AddrPort
		if p != nil && p.Relay != nil && a.clients != nil {
			behind = relayed()[RelayedClient{conn.Protocol, conn.As, conn.Endpoint}]
		}
		switch {
		case p == nil, wanted != nil && !wanted(p.row),
			!isAnsweredBy(q, conn.Endpoint) && !slices.ContainsFunc(behind, func(at netip.AddrPort) bool { return isAnsweredBy(q, at) }),
			q.Client.IsValid() && !q.Client.Contains(conn.Client.Addr()):
			return
		case len(answer.Connections) == q.Limit:
			answer.More++
			return
		}
		c := connectionOf(p, conn)
		mark(&c, out)
		for _, at := range sortedOnce(behind) {
			c.RelayedTo = append(c.RelayedTo, at.String())
		}
		answer.Connections = append(answer.Connections, c)
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

// isAnsweredBy reports whether the endpoint address at satisfies the endpoint conditions of a query.
func isAnsweredBy(q wire.ConnectionQuery, at netip.AddrPort) bool {
	return (!q.Endpoint.IsValid() || q.Endpoint == at) && (!q.EndpointAddr.IsValid() || q.EndpointAddr == at.Addr())
}

func connectionOf(p *Port, c *conntrack.Connection) wire.Connection {
	namespace, name, _ := strings.Cut(p.Service, "/")
	w := wire.Connection{
		ID: c.ID, Namespace: namespace, Service: name, Port: p.Name, Protocol: c.Protocol.Name(),
		Client: c.Client.String(), To: c.To.String(), Endpoint: c.Endpoint.String(),
		State: c.State, Answered: c.Answered, Fast: c.Fast, Expires: int(c.Expires / time.Second),
	}
	if c.As != c.Client {
		w.As = c.As.String()
	}
	return w
}

// Kill deletes the conntrack entry with this ID if it belongs to a Service, and returns it. It returns nil if there is none.
func (a *Queries) Kill(id uint32) (*wire.Connection, error) {
	o := a.observer
	o.looking.Lock()
	defer o.looking.Unlock()
	found := o.served()
	var killed wire.Connection
	_, box := a.served()
	err := conntrack.Kill(0, id, box.LocalAddresses, func(conn *conntrack.Connection) bool {
		p, out := found.either(conn)
		if p != nil {
			killed = connectionOf(p, conn)
			mark(&killed, out)
		}
		return p != nil
	})
	if errors.Is(err, conntrack.ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &killed, nil
}

const (
	// watchFor is how long the clients of a Service are counted after a request for them. It exceeds the interval of a viewer's requests.
	watchFor = 2 * time.Minute
	// maxWatched is the maximum number of Services whose clients are counted. maxClients is the maximum number of clients that are counted for one
	// Service.
	maxWatched = 16
	maxClients = 1 << 16
)

// clients holds the counts of a Service's connections in one scan, by client address.
type clients map[netip.Addr]Counts

// add counts a connection. It ignores new clients once there are maxClients.
func (s clients) add(c *conntrack.Connection) {
	addr := c.Client.Addr()
	n, known := s[addr]
	if !known && len(s) == maxClients {
		return
	}
	n.add(c, false, 0, 0)
	s[addr] = n
}

// watch records a request for the clients of a Service. It reports whether they will be counted, which is done for at most maxWatched Services.
func (o *Observer) watch(service string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	o.unwatch(now)
	if _, known := o.watched[service]; !known && len(o.watched) == maxWatched {
		return false
	}
	if o.watched == nil {
		o.watched = map[string]time.Time{}
	}
	o.watched[service] = now
	return true
}

// unwatch removes the Services whose clients were last requested more than watchFor before the time at. The caller must hold o.mu.
func (o *Observer) unwatch(at time.Time) {
	maps.DeleteFunc(o.watched, func(_ string, asked time.Time) bool { return at.Sub(asked) > watchFor })
}

// watching returns an empty entry for each Service whose clients a scan at this time must count; nil if there are none.
func (o *Observer) watching(at time.Time) (of map[string]clients) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unwatch(at)
	if len(o.watched) == 0 {
		return nil
	}
	of = make(map[string]clients, len(o.watched))
	for service := range o.watched {
		of[service] = clients{}
	}
	return of
}

// Clients returns the clients of a Service ("namespace/name") with the most connections in the last scan. most is the maximum number of clients.
// Counting begins with the first scan after the first request.
func (a *Queries) Clients(service string, most int) (told wire.ServiceClients, err error) {
	a.observer.watch(service)
	l, err := a.observer.Snapshot()
	if err != nil {
		return told, err
	}
	return l.clientsOf(service, most), nil
}

// clientsOf returns the clients of a Service with the most connections in the scan. most is the maximum number of clients. Counted is false if the
// scan did not count clients.
func (l *Snapshot) clientsOf(service string, most int) (told wire.ServiceClients) {
	told.Clients = []wire.ClientTraffic{}
	found := l.clients[service]
	if found == nil {
		return told
	}
	told.Counted = true
	type client struct {
		addr netip.Addr
		Counts
	}
	all := make([]client, 0, len(found))
	for addr, n := range found {
		all = append(all, client{addr, n})
	}
	slices.SortFunc(all, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.Open+b.Unanswered, a.Open+a.Unanswered), a.addr.Compare(b.addr))
	})
	told.More = max(0, len(all)-most)
	for _, c := range all[:len(all)-told.More] { // the first of many clients are enough
		told.Clients = append(told.Clients, wire.ClientTraffic{Client: c.addr.String(), Open: c.Open, Unanswered: c.Unanswered})
	}
	return told
}
