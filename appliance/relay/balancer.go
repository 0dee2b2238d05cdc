package relay

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// balancer picks an endpoint for each new connection of a Port.
type balancer struct {
	maxClients int // maximum number of entries in clients
	counted    countKey
	open       *openCounts

	mu        sync.Mutex
	how       Pick             // without its Weights: weights replaces them
	endpoints []netip.AddrPort // sorted by address, except for the algorithm Random
	weights   []uint16         // in the order of endpoints; nil if all are equal
	last      netip.AddrPort   // endpoint picked last
	// credits holds the credit of each endpoint in smooth weighted round robin, where a turn is worth the sum of the weights. arrived holds, while
	// there are no endpoints, the credits that the previous process handed over, as fractions of a turn.
	credits  []int64
	arrived  map[netip.AddrPort]float64
	clients  map[netip.Addr]affinityEntry
	swept    time.Time // when expired entries of clients were last deleted
	suspects map[netip.AddrPort]suspicion
}

// suspicion is the state of an endpoint that did not accept a connection. Before the time until, the endpoint is picked only if there is no other.
// After that it is tried with one connection first.
type suspicion struct {
	until time.Time
	lasts time.Duration
}

// affinityEntry is the endpoint that a client keeps before the time until.
type affinityEntry struct {
	endpoint netip.AddrPort
	until    time.Time
}

// newBalancer returns the balancer of a Port. It keeps affinity entries for at most maxClients clients, and counts the connections to its endpoints
// in open.
func newBalancer(p Port, maxClients int, open *openCounts) *balancer {
	c := &balancer{maxClients: maxClients, counted: countKey{p.ID, p.Protocol}, open: open}
	c.set(p)
	return c
}

// set replaces the endpoints and the Pick settings by those of p.
func (c *balancer) set(p Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	how := p.Pick
	endpoints, weights := p.Endpoints, how.Weights
	if len(weights) > 0 && !slices.ContainsFunc(weights, func(w uint16) bool { return w != weights[0] }) {
		weights = nil
	}
	if how.By != Random && !slices.IsSortedFunc(endpoints, netip.AddrPort.Compare) {
		endpoints, weights = inOrder(endpoints, weights)
	}
	owed := c.owed()
	c.how, c.endpoints, c.weights = how, endpoints, weights
	c.credit(owed)
	if how.Affinity <= 0 {
		c.clients = nil
	}
	maps.DeleteFunc(c.suspects, func(e netip.AddrPort, _ suspicion) bool { return !slices.Contains(endpoints, e) })
}

// suspect records that an endpoint did not accept a connection. Until the duration lasts has passed, the endpoint is picked only if there is no
// other.
func (c *balancer) suspect(endpoint netip.AddrPort, lasts time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.endpoints, endpoint) {
		return
	}
	if c.suspects == nil {
		c.suspects = map[netip.AddrPort]suspicion{}
	}
	c.suspects[endpoint] = suspicion{time.Now().Add(lasts), lasts}
}

// trust removes the suspicion of an endpoint, because it accepted a connection.
func (c *balancer) trust(endpoint netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.suspects, endpoint)
}

// accepted records that an endpoint has accepted a connection of the client from. With affinity the client keeps this endpoint.
func (c *balancer) accepted(from, endpoint netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.suspects, endpoint)
	if v, known := c.clients[from.Addr()]; known && v.endpoint != endpoint {
		v.endpoint = endpoint
		c.clients[from.Addr()] = v
	}
}

// unsuspected picks, by the algorithm, an endpoint that is neither in tried nor suspected now. It returns false if there is none. The caller must
// hold c.mu.
func (c *balancer) unsuspected(tried []netip.AddrPort) (netip.AddrPort, bool) {
	now := time.Now()
	avoid := slices.Clone(tried)
	for e, s := range c.suspects {
		if now.Before(s.until) {
			avoid = append(avoid, e)
		}
	}
	e, ok := c.byAlgorithm(avoid)
	if s, was := c.suspects[e]; ok && was { // others wait for what becomes of this one
		s.until = now.Add(s.lasts)
		c.suspects[e] = s
	}
	return e, ok
}

// inOrder returns endpoints sorted by address, and weights in the same order. weights may be nil.
func inOrder(endpoints []netip.AddrPort, weights []uint16) ([]netip.AddrPort, []uint16) {
	sorted := slices.SortedFunc(slices.Values(endpoints), netip.AddrPort.Compare)
	if weights == nil {
		return sorted, nil
	}
	of := make(map[netip.AddrPort]uint16, len(endpoints))
	for i, e := range endpoints {
		of[e] = weights[i]
	}
	moved := make([]uint16, len(sorted))
	for i, e := range sorted {
		moved[i] = of[e]
	}
	return sorted, moved
}

// owed returns the credits of the endpoints in weighted round robin, as fractions of a turn, or nil if there are none. The caller must hold c.mu.
func (c *balancer) owed() map[netip.AddrPort]float64 {
	if c.credits == nil {
		return c.arrived
	}
	total, owed := float64(c.total()), make(map[netip.AddrPort]float64, len(c.credits))
	for i, credit := range c.credits {
		owed[c.endpoints[i]] = float64(credit) / total
	}
	return owed
}

// credit sets the credits of the endpoints from owed, given as fractions of a turn. Endpoints that are not in owed start at zero. The caller must
// hold c.mu.
func (c *balancer) credit(owed map[netip.AddrPort]float64) {
	c.credits, c.arrived = nil, nil
	switch {
	case len(c.endpoints) == 0:
		c.arrived = owed // they come later
		return
	case c.how.By != RoundRobin || c.weights == nil:
		return
	}
	c.credits = make([]int64, len(c.endpoints))
	total := float64(c.total())
	for i, e := range c.endpoints {
		c.credits[i] = int64(math.Round(owed[e] * total))
	}
}

// total returns the sum of the weights, 0 if all are equal. The caller must hold c.mu.
func (c *balancer) total() (sum int64) {
	for _, w := range c.weights {
		sum += int64(w)
	}
	return sum
}

// pick returns an endpoint for a new connection. from is the address of the client, asked the address that it connected to. With affinity, pick
// returns the client's last endpoint, if its entry has not expired and the endpoint still exists and is not in tried. Otherwise it picks an endpoint
// that is not in tried. ok is false if there is none, or the connection is to be refused. The connection counts as open until done is called.
func (c *balancer) pick(from, asked netip.AddrPort, tried ...netip.AddrPort) (endpoint netip.AddrPort, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.how.Affinity > 0 {
		endpoint, ok = c.known(from, asked, tried)
	} else {
		endpoint, ok = c.fresh(from, asked, tried)
	}
	if ok {
		c.open.add(c.counted, endpoint)
	}
	return endpoint, ok
}

// goesOn counts a connection that the previous process handed over. The connection counts as open until done is called.
func (c *balancer) goesOn(endpoint netip.AddrPort) { c.open.add(c.counted, endpoint) }

// done records that a connection to a picked endpoint has ended, or was never made.
func (c *balancer) done(endpoint netip.AddrPort) { c.open.done(c.counted, endpoint) }

// none reports whether the balancer has no endpoints.
func (c *balancer) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.endpoints) == 0
}

// known returns the endpoint for a client with affinity: the recorded one or, if that cannot be used, a new one. It records the endpoint.
func (c *balancer) known(from, asked netip.AddrPort, tried []netip.AddrPort) (netip.AddrPort, bool) {
	client := from.Addr()
	now := time.Now()
	v, known := c.clients[client]
	if !known || !now.Before(v.until) || !slices.Contains(c.endpoints, v.endpoint) || slices.Contains(tried, v.endpoint) {
		var is bool
		if v.endpoint, is = c.fresh(from, asked, tried); !is {
			return v.endpoint, false
		}
	}
	if !known {
		c.evict(now)
	}
	v.until = now.Add(c.how.Affinity)
	c.clients[client] = v
	return v.endpoint, true
}

// fresh picks an endpoint that is not in tried, without regard to affinity. It returns false if there is none, or if the connection is to be refused.
func (c *balancer) fresh(client, asked netip.AddrPort, tried []netip.AddrPort) (netip.AddrPort, bool) {
	if c.how.Choose != nil {
		if e, ok := c.how.Choose(client, asked); ok && !slices.Contains(tried, e) {
			return e, e.IsValid()
		}
	} else if len(tried) == 0 && rand.Float64() < c.how.Refused {
		return netip.AddrPort{}, false
	}
	if len(c.suspects) > 0 {
		if e, ok := c.unsuspected(tried); ok {
			return e, true
		}
	}
	return c.byAlgorithm(tried)
}

// byAlgorithm picks an endpoint that is not in tried, by the algorithm c.how.By and without regard to suspicions. It returns false if there is none.
func (c *balancer) byAlgorithm(tried []netip.AddrPort) (netip.AddrPort, bool) {
	switch {
	case c.how.By == LeastConnection:
		return c.least(tried)
	case c.how.By == RoundRobin && c.weights != nil:
		return c.nextByWeight(tried)
	case c.how.By == RoundRobin:
		for i := range c.inTurn {
			if e := c.endpoints[i]; !slices.Contains(tried, e) {
				c.last = e
				return e, true
			}
		}
		return netip.AddrPort{}, false
	}
	return c.drawn(tried)
}

// weight returns the weight of the endpoint at the index place, 1 if all are equal.
func (c *balancer) weight(place int) int {
	if c.weights == nil {
		return 1
	}
	return int(c.weights[place])
}

// inTurn yields the indexes of all endpoints, starting after the endpoint that was picked last.
func (c *balancer) inTurn(yield func(int) bool) {
	first, had := slices.BinarySearchFunc(c.endpoints, c.last, netip.AddrPort.Compare)
	if had {
		first++
	}
	for i := range c.endpoints {
		if !yield((first + i) % len(c.endpoints)) {
			return
		}
	}
}

// nextByWeight picks an endpoint by smooth weighted round robin: it adds the weight of each eligible endpoint to its credit, picks the one with the
// largest credit, and subtracts the sum of these weights from that credit.
func (c *balancer) nextByWeight(tried []netip.AddrPort) (netip.AddrPort, bool) {
	best, sum := -1, int64(0)
	for i, e := range c.endpoints {
		if c.weights[i] == 0 || slices.Contains(tried, e) {
			continue
		}
		sum += int64(c.weights[i])
		if c.credits[i] += int64(c.weights[i]); best < 0 || c.credits[i] > c.credits[best] {
			best = i
		}
	}
	if best < 0 {
		return netip.AddrPort{}, false
	}
	c.credits[best] -= sum
	c.last = c.endpoints[best]
	return c.last, true
}

// least picks, among the endpoints that are not in tried, the one with the fewest open connections in proportion to its weight. The new connection is
// included in these numbers. least returns false if there is no endpoint to pick.
func (c *balancer) least(tried []netip.AddrPort) (netip.AddrPort, bool) {
	open := c.open.counts(c.counted, c.endpoints)
	best := -1
	for i := range c.inTurn {
		if c.weight(i) == 0 || slices.Contains(tried, c.endpoints[i]) {
			continue
		}
		if best < 0 || (open[i]+1)*c.weight(best) < (open[best]+1)*c.weight(i) {
			best = i
		}
	}
	if best < 0 {
		return netip.AddrPort{}, false
	}
	c.last = c.endpoints[best]
	return c.last, true
}

// drawn picks a random endpoint that is not in tried, with a probability proportional to its weight. It needs only one pass: each endpoint replaces
// the one picked so far with the probability weight / (sum of the weights so far).
func (c *balancer) drawn(tried []netip.AddrPort) (drawn netip.AddrPort, ok bool) {
	sum := uint32(0)
	for i, e := range c.endpoints {
		weight := uint32(c.weight(i))
		if weight == 0 || slices.Contains(tried, e) {
			continue
		}
		if sum += weight; rand.Uint32N(sum) < weight {
			drawn = e
		}
	}
	return drawn, sum > 0
}

// sweepInterval is the minimum interval between two searches for expired affinity entries.
const sweepInterval = time.Second

// evict makes room for one more affinity entry. It deletes expired entries and, if that is not enough, arbitrary others.
func (c *balancer) evict(now time.Time) {
	if c.clients == nil {
		c.clients = map[netip.Addr]affinityEntry{}
	}
	if len(c.clients) < c.maxClients {
		return
	}
	if now.Sub(c.swept) >= sweepInterval {
		c.swept = now
		maps.DeleteFunc(c.clients, func(_ netip.Addr, v affinityEntry) bool { return !now.Before(v.until) })
	}
	for client := range c.clients {
		if len(c.clients) < c.maxClients {
			return
		}
		delete(c.clients, client)
	}
}

// PortLoad counts the connections of a Port to which the kernel redirects clients.
type PortLoad struct {
	ID, Protocol string
	Listen       netip.AddrPort
	// Taken counts the TCP connections, or UDP clients, accepted since the port was added. FailedConnects counts the attempts in which an endpoint
	// did not accept a connection.
	Taken, FailedConnects int64
	// Open counts the open connections by endpoint, including those to endpoints in Port.Names. Client connections that have no endpoint yet are not
	// counted.
	Open map[netip.AddrPort]int
}

// Load returns the load of a Service's Ports, sorted by ID, protocol and listener. It includes only Ports to which the kernel redirects clients. If
// service is "", it returns the load of the Ports of all Services.
func (r *Relay) Load(service string) (loads []PortLoad) {
	for _, p := range r.fronts.of(service) {
		loads = append(loads, p.load())
	}
	slices.SortFunc(loads, func(a, b PortLoad) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Protocol, b.Protocol), a.Listen.Compare(b.Listen))
	})
	return loads
}

// of returns the ports of a Service, or of all Services if service is "". It returns only ports to which the kernel redirects clients.
func (f *fronts) of(service string) (ports []served) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.ports
	if service != "" {
		all = map[string]map[key]*redirected{service: f.ports[service]}
	}
	for _, of := range all {
		for _, p := range of {
			ports = append(ports, p.port)
		}
	}
	return ports
}

// Passage is a client's TCP connection, or a UDP client, together with the endpoint that it is relayed to. An HTTP client connection has a Passage
// for each connection to an endpoint.
type Passage struct {
	Protocol                   string
	Client, Listener, Endpoint netip.AddrPort // Client is the client's address as the listener sees it
}

// Passages returns the Passages of all TCP connections and UDP clients that are relayed now, in no particular order.
func (r *Relay) Passages() (list []Passage) {
	for _, p := range r.fronts.of("") {
		list = p.passages(list)
	}
	return list
}

// EndpointsOf returns the endpoints to which a client is or recently was connected through a listener, given by its port number. The Port must have
// Logged set. Over HTTP there may be several endpoints; the first 16 are kept. The result is nil if nothing is recorded.
func (r *Relay) EndpointsOf(protocol string, client netip.AddrPort, listener uint16) []netip.AddrPort {
	return r.lately.endpoints(recentKey{protocol, unmapped(client), listener})
}

// passages appends the Passages of a port to list. The listener is taken from the client's connection, since a client that used a server name may
// have connected to the listener of another port.
func (t *tcpPort) passages(list []Passage) []Passage {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		client, is := c.client.RemoteAddr().(*net.TCPAddr)
		if listener, bound := c.client.LocalAddr().(*net.TCPAddr); is && bound { // else it has gone
			list = append(list, Passage{TCP, unmapped(client.AddrPort()), unmapped(listener.AddrPort()), c.to})
		}
	}
	return list
}

func (u *udpPort) passages(list []Passage) []Passage {
	u.listener.mu.Lock()
	defer u.listener.mu.Unlock()
	for f := range u.flows {
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

func (u *udpPort) load() PortLoad {
	u.listener.mu.Lock()
	defer u.listener.mu.Unlock()
	load := loadOf(&u.port, u.quota)
	for f := range u.flows {
		load.Open[f.endpoint]++
	}
	return load
}

func loadOf(p *Port, q *quota) PortLoad {
	return PortLoad{ID: p.ID, Protocol: p.Protocol, Listen: p.Listen, Taken: q.taken.Load(), Open: map[netip.AddrPort]int{}}
}

// openCounts counts the open TCP connections and UDP clients of each endpoint. Ports with the same ID and protocol are counted together, such as the
// Ports for both pools and for the server names of one Service port.
type openCounts struct {
	mu sync.Mutex
	of map[countKey]map[netip.AddrPort]int // only counts above zero
}

type countKey struct{ id, protocol string }

func newOpenCounts() *openCounts {
	return &openCounts{of: map[countKey]map[netip.AddrPort]int{}}
}

// add counts a new connection to an endpoint.
func (o *openCounts) add(k countKey, endpoint netip.AddrPort) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[k] == nil {
		o.of[k] = map[netip.AddrPort]int{}
	}
	o.of[k][endpoint]++
}

// done removes a connection that add has counted.
func (o *openCounts) done(k countKey, endpoint netip.AddrPort) {
	o.mu.Lock()
	defer o.mu.Unlock()
	of := o.of[k]
	if n := of[endpoint]; n > 1 {
		of[endpoint] = n - 1
	} else {
		delete(of, endpoint)
	}
	if len(of) == 0 {
		delete(o.of, k)
	}
}

// counts returns the number of open connections of each of endpoints.
func (o *openCounts) counts(k countKey, endpoints []netip.AddrPort) []int {
	list := make([]int, len(endpoints))
	o.mu.Lock()
	defer o.mu.Unlock()
	of := o.of[k]
	for i := range endpoints {
		list[i] = of[endpoints[i]]
	}
	return list
}
