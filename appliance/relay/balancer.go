package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// balancer picks an endpoint for each new connection of a Port.
type balancer struct {
	maxClients int // bounds clients

	mu         sync.Mutex
	endpoints  []netip.AddrPort // in order, if they take turns
	weights    []uint16         // of the endpoints, in their order; nil: all are alike
	choose     func(client netip.AddrPort) (endpoint netip.AddrPort, ok bool)
	roundRobin bool
	last       netip.AddrPort // the one that had the last turn
	affinity   time.Duration
	clients    map[netip.Addr]affinityEntry
	swept      time.Time // when expired entries were deleted
}

// affinityEntry is the endpoint of a client until a point in time.
type affinityEntry struct {
	endpoint netip.AddrPort
	until    time.Time
}

func newBalancer(p Port, maxClients int) *balancer {
	c := &balancer{maxClients: maxClients}
	c.set(p)
	return c
}

// set replaces the endpoints and how they are picked.
func (c *balancer) set(p Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	endpoints := p.Endpoints
	how := p.Pick
	if how.RoundRobin && !slices.IsSortedFunc(endpoints, netip.AddrPort.Compare) {
		endpoints = slices.SortedFunc(slices.Values(endpoints), netip.AddrPort.Compare)
	}
	c.endpoints, c.affinity, c.roundRobin, c.choose, c.weights = endpoints, how.Affinity, how.RoundRobin, how.Choose, how.Weights
	if how.Affinity <= 0 {
		c.clients = nil
	}
}

// pick returns the endpoint for a new connection of a client: its last one, if its affinity has not
// expired, the endpoint still exists and was not tried, else another one that was not tried. It
// returns false if there is none.
func (c *balancer) pick(from netip.AddrPort, tried ...netip.AddrPort) (netip.AddrPort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.affinity <= 0 {
		return c.fresh(from, tried)
	}
	client := from.Addr()
	now := time.Now()
	v, known := c.clients[client]
	if !known || !now.Before(v.until) || !slices.Contains(c.endpoints, v.endpoint) || slices.Contains(tried, v.endpoint) {
		var is bool
		if v.endpoint, is = c.fresh(from, tried); !is {
			return v.endpoint, false
		}
	}
	if !known {
		c.evict(now)
	}
	v.until = now.Add(c.affinity)
	c.clients[client] = v
	return v.endpoint, true
}

// fresh returns an endpoint that was not tried, for a client that is not remembered: the chosen
// one, the next one in turn, or one drawn by weight.
func (c *balancer) fresh(client netip.AddrPort, tried []netip.AddrPort) (netip.AddrPort, bool) {
	if c.choose != nil {
		if e, ok := c.choose(client); ok && !slices.Contains(tried, e) {
			return e, true
		}
	}
	if c.roundRobin {
		return c.next(tried)
	}
	return c.drawn(tried)
}

// next gives the turn to the endpoint after the last one that was not tried.
func (c *balancer) next(tried []netip.AddrPort) (netip.AddrPort, bool) {
	first, had := slices.BinarySearchFunc(c.endpoints, c.last, netip.AddrPort.Compare)
	if had {
		first++
	}
	for i := range c.endpoints {
		if e := c.endpoints[(first+i)%len(c.endpoints)]; !slices.Contains(tried, e) {
			c.last = e
			return e, true
		}
	}
	return netip.AddrPort{}, false
}

// drawn draws an endpoint that was not tried by weight. Each one takes the place of those before it
// with the chance of its share in the weight so far, so one pass is enough.
func (c *balancer) drawn(tried []netip.AddrPort) (drawn netip.AddrPort, ok bool) {
	sum := uint32(0)
	for i, e := range c.endpoints {
		weight := uint32(1)
		if c.weights != nil {
			weight = uint32(c.weights[i])
		}
		if weight == 0 || slices.Contains(tried, e) {
			continue
		}
		if sum += weight; rand.Uint32N(sum) < weight {
			drawn = e
		}
	}
	return drawn, sum > 0
}

// sweepInterval bounds how often all affinity entries are looked at.
const sweepInterval = time.Second

// evict makes room for one more affinity entry: it deletes expired ones and, if that is
// not enough, an arbitrary one.
func (c *balancer) evict(now time.Time) {
	if c.clients == nil {
		c.clients = map[netip.Addr]affinityEntry{}
	}
	if len(c.clients) < c.maxClients {
		return
	}
	if now.Sub(c.swept) >= sweepInterval {
		c.swept = now
		for client, v := range c.clients {
			if !now.Before(v.until) {
				delete(c.clients, client)
			}
		}
	}
	for client := range c.clients {
		if len(c.clients) < c.maxClients {
			return
		}
		delete(c.clients, client)
	}
}
