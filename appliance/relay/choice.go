package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// choice chooses an endpoint for each new connection of a Port.
type choice struct {
	most int // clients to remember

	mu        sync.Mutex
	endpoints []netip.AddrPort // never empty
	affinity  time.Duration
	clients   map[netip.Addr]visit
}

// visit is where a client is to be served again.
type visit struct {
	endpoint netip.AddrPort
	until    time.Time
}

func newChoice(p Port, most int) *choice {
	c := &choice{most: most}
	c.set(p)
	return c
}

// set takes the endpoints and the affinity of p, and reports whether they are others.
func (c *choice) set(p Port) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed = c.affinity != p.Affinity || !slices.Equal(c.endpoints, p.Endpoints)
	c.endpoints, c.affinity = p.Endpoints, p.Affinity
	if p.Affinity <= 0 {
		c.clients = nil
	}
	return changed
}

// pick is the endpoint for a new connection of a client: the one it had last, while it
// is remembered and there, or any.
func (c *choice) pick(client netip.Addr) netip.AddrPort {
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
		c.makePlace(now)
	}
	v.until = now.Add(c.affinity)
	c.clients[client] = v
	return v.endpoint
}

func (c *choice) any() netip.AddrPort { return c.endpoints[rand.IntN(len(c.endpoints))] }

// makePlace forgets clients until there is place for one more: those whose time is
// over, or else any one.
func (c *choice) makePlace(now time.Time) {
	if c.clients == nil {
		c.clients = map[netip.Addr]visit{}
	}
	if len(c.clients) < c.most {
		return
	}
	for client, v := range c.clients {
		if !now.Before(v.until) {
			delete(c.clients, client)
		}
	}
	for client := range c.clients {
		if len(c.clients) < c.most {
			return
		}
		delete(c.clients, client)
	}
}
