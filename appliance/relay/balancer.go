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

	mu        sync.Mutex
	endpoints []netip.AddrPort // never empty
	reach     []uint32         // up to which number each is drawn, nil: all are alike
	choose    func(netip.AddrPort) (netip.AddrPort, bool)
	affinity  time.Duration
	clients   map[netip.Addr]affinityEntry
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

// set replaces the endpoints and the affinity, and reports whether they changed.
func (c *balancer) set(p Port) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.affinity != p.Affinity || !slices.Equal(c.endpoints, p.Endpoints)
	c.endpoints, c.affinity, c.choose, c.reach = p.Endpoints, p.Affinity, p.Choose, nil
	sum := uint32(0)
	for _, w := range p.Weights {
		sum += uint32(w)
		c.reach = append(c.reach, sum)
	}
	if p.Affinity <= 0 {
		c.clients = nil
	}
	return changed
}

// pick returns the endpoint for a new connection of a client: its last one, if its
// affinity has not expired and the endpoint still exists, else as fresh says.
func (c *balancer) pick(from netip.AddrPort) netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := from.Addr()
	if c.affinity <= 0 {
		return c.fresh(from)
	}
	now := time.Now()
	v, known := c.clients[client]
	if !known || !now.Before(v.until) || !slices.Contains(c.endpoints, v.endpoint) {
		v.endpoint = c.fresh(from)
	}
	if !known {
		c.evict(now)
	}
	v.until = now.Add(c.affinity)
	c.clients[client] = v
	return v.endpoint
}

// fresh is the endpoint that a client gets which is not remembered: the chosen one, or one
// drawn by weight.
func (c *balancer) fresh(client netip.AddrPort) netip.AddrPort {
	if c.choose != nil {
		if endpoint, ok := c.choose(client); ok {
			return endpoint
		}
	}
	if c.reach == nil {
		return c.endpoints[rand.IntN(len(c.endpoints))]
	}
	drawn := rand.Uint32N(c.reach[len(c.reach)-1])
	at, _ := slices.BinarySearch(c.reach, drawn+1)
	return c.endpoints[at]
}

// evict makes room for one more affinity entry: it deletes expired ones and, if that is
// not enough, arbitrary ones.
func (c *balancer) evict(now time.Time) {
	if c.clients == nil {
		c.clients = map[netip.Addr]affinityEntry{}
	}
	if len(c.clients) < c.maxClients {
		return
	}
	for client, v := range c.clients {
		if !now.Before(v.until) {
			delete(c.clients, client)
		}
	}
	for client := range c.clients {
		if len(c.clients) < c.maxClients {
			return
		}
		delete(c.clients, client)
	}
}
