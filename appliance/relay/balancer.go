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
	c.endpoints, c.affinity = p.Endpoints, p.Affinity
	if p.Affinity <= 0 {
		c.clients = nil
	}
	return changed
}

// pick returns the endpoint for a new connection of a client: its last one, if its
// affinity has not expired and the endpoint still exists, else a random one.
func (c *balancer) pick(client netip.Addr) netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.affinity <= 0 {
		return c.any()
	}
	now := time.Now()
	v, known := c.clients[client]
	if !known || !now.Before(v.until) || !slices.Contains(c.endpoints, v.endpoint) {
		v.endpoint = c.any()
	}
	if !known {
		c.evict(now)
	}
	v.until = now.Add(c.affinity)
	c.clients[client] = v
	return v.endpoint
}

func (c *balancer) any() netip.AddrPort { return c.endpoints[rand.IntN(len(c.endpoints))] }

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
