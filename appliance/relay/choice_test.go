package relay

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func endpointsOf(n int) (list []netip.AddrPort) {
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80))
	}
	return list
}

// one is pick where there is an endpoint.
func (c *balancer) one(client netip.Addr) netip.AddrPort {
	endpoint, _ := c.pick(from(client))
	return endpoint
}

func TestChoiceIsEven(t *testing.T) {
	const endpoints, picks = 4, 4000
	c := newBalancer(Port{Endpoints: endpointsOf(endpoints)}, 10)
	seen := map[netip.AddrPort]int{}
	for range picks {
		seen[c.one(local)]++
	}
	for _, e := range endpointsOf(endpoints) {
		// 1000 are expected; 200 away from it is 7 standard deviations.
		if n := seen[e]; n < picks/endpoints-200 || n > picks/endpoints+200 {
			t.Errorf("%v was picked %d times of %d", e, n, picks)
		}
	}
}

func TestChoiceWithAffinity(t *testing.T) {
	many := endpointsOf(200) // so that any one is not picked twice by chance
	other := netip.MustParseAddr("127.0.0.2")
	for _, test := range []struct {
		name string
		do   func(c *balancer)
		same bool // the endpoint of the client afterwards
	}{
		{"at once", func(*balancer) {}, true},
		{"just in time", func(*balancer) { time.Sleep(10*time.Second - 1) }, true},
		{"too late", func(*balancer) { time.Sleep(10 * time.Second) }, false},
		{"each connection counts anew", func(c *balancer) {
			for range 5 {
				time.Sleep(9 * time.Second)
				c.one(local)
			}
			time.Sleep(9 * time.Second)
		}, true},
		{"endpoints in another order", func(c *balancer) {
			list := slices.Clone(many)
			slices.Reverse(list)
			c.set(Port{Endpoints: list, Pick: Pick{Affinity: 10 * time.Second}})
		}, true},
		{"shorter affinity holds from the next connection", func(c *balancer) {
			c.set(Port{Endpoints: many, Pick: Pick{Affinity: time.Second}})
			c.one(local)
			time.Sleep(2 * time.Second)
		}, false},
		{"no affinity in between", func(c *balancer) {
			c.set(Port{Endpoints: many})
			c.set(Port{Endpoints: many, Pick: Pick{Affinity: 10 * time.Second}})
		}, false},
		{"another client", func(c *balancer) { c.one(other) }, true},
		{"too many clients", func(c *balancer) {
			time.Sleep(5 * time.Second)
			for i := range 50 {
				c.one(netip.AddrFrom4([4]byte{127, 1, 0, byte(i)}))
			}
			if len(c.clients) > c.maxClients {
				t.Errorf("%d clients are remembered, want at most %d", len(c.clients), c.maxClients)
			}
			time.Sleep(5 * time.Second)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				same := 0
				const rounds = 5 // 1 of 200 chances to be the same anyway, each
				for range rounds {
					c := newBalancer(Port{Endpoints: many, Pick: Pick{Affinity: 10 * time.Second}}, 20)
					first := c.one(local)
					test.do(c)
					if c.one(local) == first {
						same++
					}
				}
				if test.same && same != rounds || !test.same && same > 2 {
					t.Errorf("the same endpoint in %d of %d rounds", same, rounds)
				}
			})
		})
	}
}

// Those whose time is over make place before the others.
func TestChoiceForgetsTheRightClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := endpointsOf(200)
		c := newBalancer(Port{Endpoints: many, Pick: Pick{Affinity: 10 * time.Second}}, 20)
		for i := range 19 {
			c.one(netip.AddrFrom4([4]byte{127, 1, 0, byte(i)}))
		}
		time.Sleep(9 * time.Second)
		first := c.one(local)
		time.Sleep(time.Second)
		c.one(netip.MustParseAddr("127.0.0.2"))
		if len(c.clients) != 2 {
			t.Errorf("%d clients are remembered, want 2", len(c.clients))
		}
		if got := c.one(local); got != first {
			t.Errorf("the client of %v goes to %v", first, got)
		}
	})
}

func TestChoiceWithoutTheEndpoint(t *testing.T) {
	many := endpointsOf(2)
	c := newBalancer(Port{Endpoints: many, Pick: Pick{Affinity: time.Hour}}, 20)
	c.one(local)
	for _, e := range many {
		c.set(Port{Endpoints: []netip.AddrPort{e}, Pick: Pick{Affinity: time.Hour}})
		if got := c.one(local); got != e {
			t.Errorf("the client goes to %v, want %v", got, e)
		}
	}
}

// from is a client's connection.
func from(client netip.Addr) netip.AddrPort { return netip.AddrPortFrom(client, 4711) }

func TestChoiceByWeight(t *testing.T) {
	const picks = 8000
	weights := []uint16{5, 1, 2}
	c := newBalancer(Port{Endpoints: endpointsOf(3), Pick: Pick{Weights: weights}}, 10)
	seen := map[netip.AddrPort]int{}
	for range picks {
		seen[c.one(local)]++
	}
	for i, e := range endpointsOf(3) {
		// 300 away from what is expected is 7 standard deviations.
		if n, want := seen[e], picks*int(weights[i])/8; n < want-300 || n > want+300 {
			t.Errorf("%v of weight %d was picked %d times of %d", e, weights[i], n, picks)
		}
	}
}

func TestChoiceIsMadeForTheClient(t *testing.T) {
	all := endpointsOf(3)
	c := newBalancer(Port{Endpoints: all, Pick: Pick{Choose: func(client netip.AddrPort) (netip.AddrPort, bool) {
		return all[client.Port()%3], true
	}}}, 10)
	for port := range uint16(30) {
		if got, _ := c.pick(netip.AddrPortFrom(local, port)); got != all[port%3] {
			t.Errorf("port %d got %v, want %v", port, got, all[port%3])
		}
	}
}
