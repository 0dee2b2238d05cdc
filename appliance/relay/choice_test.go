package relay

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
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
	endpoint, _ := c.pick(from(client), netip.AddrPort{})
	return endpoint
}

func TestChoiceIsEven(t *testing.T) {
	const endpoints, picks = 4, 4000
	c := newBalancer(Port{Endpoints: endpointsOf(endpoints)}, 10, newOpenCounts())
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
					c := newBalancer(Port{Endpoints: many, Pick: Pick{Affinity: 10 * time.Second}}, 20, newOpenCounts())
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
		c := newBalancer(Port{Endpoints: many, Pick: Pick{Affinity: 10 * time.Second}}, 20, newOpenCounts())
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
	c := newBalancer(Port{Endpoints: many, Pick: Pick{Affinity: time.Hour}}, 20, newOpenCounts())
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
	c := newBalancer(Port{Endpoints: endpointsOf(3), Pick: Pick{Weights: weights}}, 10, newOpenCounts())
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
	c := newBalancer(Port{Endpoints: all, Pick: Pick{By: RoundRobin, Choose: func(client, asked netip.AddrPort) (netip.AddrPort, bool) {
		return all[(client.Port()+asked.Port())%3], true
	}}}, 10, newOpenCounts())
	for port := range uint16(30) {
		client, asked := netip.AddrPortFrom(local, port), netip.AddrPortFrom(local, 1)
		if got, _ := c.pick(client, asked); got != all[(port+1)%3] {
			t.Errorf("port %d got %v, want %v", port, got, all[(port+1)%3])
		}
		if got, _ := c.pick(client, asked, all[(port+1)%3]); got == all[(port+1)%3] {
			t.Errorf("port %d got %v, which did not accept it", port, got)
		}
	}
}

// A part of new connections is refused, by chance or for the clients that Choose refuses; not that of a client with an endpoint,
// nor an attempt after one that an endpoint did not accept.
func TestChoiceRefuses(t *testing.T) {
	const picks = 8000
	for _, by := range []Algorithm{Random, RoundRobin, LeastConnection} {
		c := newBalancer(Port{Endpoints: endpointsOf(2), Pick: Pick{By: by, Weights: []uint16{7, 7}, Refused: 0.3}}, 10, newOpenCounts())
		refused := 0
		for range picks {
			if e, ok := c.pick(from(local), netip.AddrPort{}); ok {
				c.done(e)
			} else {
				refused++
			}
			if _, ok := c.pick(from(local), netip.AddrPort{}, endpointsOf(2)[0]); !ok {
				t.Fatal("the second attempt of a connection is refused")
			}
		}
		// 290 away from what is expected is 7 standard deviations.
		if want := picks * 3 / 10; refused < want-290 || refused > want+290 {
			t.Errorf("%d: %d of %d are refused, want %d", by, refused, picks, want)
		}
	}
	all := endpointsOf(2)
	c := newBalancer(Port{Endpoints: all, Pick: Pick{Refused: 0.5, Affinity: time.Hour, Choose: func(client, _ netip.AddrPort) (netip.AddrPort, bool) {
		return []netip.AddrPort{all[0], {}}[client.Port()%2], true
	}}}, 10, newOpenCounts())
	if _, ok := c.pick(netip.AddrPortFrom(local, 1), netip.AddrPort{}); ok {
		t.Error("a client that Choose refuses has an endpoint")
	}
	for port := range uint16(20) {
		if e, ok := c.pick(netip.AddrPortFrom(local, port), netip.AddrPort{}); e != all[0] || !ok {
			t.Errorf("port %d of a client with affinity: %v, %v", port, e, ok)
		}
	}
}

// picks are the last bytes of the addresses of so many picks.
func (c *balancer) picks(n int, tried ...netip.AddrPort) (got string) {
	for range n {
		e, ok := c.pick(from(local), netip.AddrPort{}, tried...)
		if !ok {
			return got + "-"
		}
		got += strconv.Itoa(int(e.Addr().As4()[3]))
	}
	return got
}

// Turns by weight are in the smooth order of nginx, whatever the order that endpoints are named in, and go on where they
// were: with the same endpoints, in the next program, and in proportion with other weights.
func TestTurnsByWeight(t *testing.T) {
	all := endpointsOf(3)
	port := func(weights ...uint16) Port {
		return Port{Endpoints: []netip.AddrPort{all[2], all[0], all[1]}, Pick: Pick{By: RoundRobin, Weights: []uint16{weights[2], weights[0], weights[1]}}}
	}
	c := newBalancer(port(5, 1, 1), 10, newOpenCounts())
	if got := c.picks(14); got != "00102000010200" {
		t.Errorf("turns %s, want 0010200 twice", got)
	}
	if got := c.picks(3); got != "001" {
		t.Errorf("turns %s, want 001", got)
	}
	c.set(port(5, 1, 1))
	next := newBalancer(Port{}, 10, newOpenCounts())
	next.restore(&HeldPort{Turn: c.last, Owed: c.owed()})
	next.set(port(500, 100, 100))
	for name, b := range map[string]*balancer{"set again": c, "the next program": next} {
		if got := b.picks(4); got != "0200" {
			t.Errorf("%s: turns %s, want 0200", name, got)
		}
	}
	if got := c.picks(2, all[0]); got != "12" && got != "21" {
		t.Errorf("without the first: %s, want the two others", got)
	}
	c.set(port(1, 1, 1))
	c.picks(1)
	if first := c.picks(3); c.picks(3) != first {
		t.Errorf("endpoints that are alike do not take turns: %s", first)
	}
	// What is owed in the large is not paid in the small.
	c.set(port(1000, 1000, 10))
	c.picks(50)
	c.set(port(2, 1, 1))
	if got := c.picks(8); strings.Count(got, "0") < 3 || strings.Count(got, "0") > 5 || !strings.Contains(got, "2") {
		t.Errorf("after other weights: %s", got)
	}
}

// Who has the fewest connections for its weight gets the next one, whatever port of the Service they came by.
func TestLeastConnections(t *testing.T) {
	all := endpointsOf(3)
	open := newOpenCounts()
	port := Port{ID: "default/web", Protocol: TCP, Endpoints: all, Pick: Pick{By: LeastConnection}}
	a, b := newBalancer(port, 10, open), newBalancer(port, 10, open)
	other := port
	other.Protocol = UDP
	udp := newBalancer(other, 10, open)
	if got := a.picks(2) + b.picks(1) + a.picks(3); got != "012201" { // each port goes on after its own last one
		t.Errorf("%s, want 012201", got)
	}
	if got := udp.picks(1); got != "0" {
		t.Errorf("a client of UDP goes to %s: connections of TCP do not count", got)
	}
	a.done(all[1])
	b.done(all[1])
	if got := b.picks(3); got != "112" {
		t.Errorf("%s, want those that have fewer", got)
	}
	for _, e := range all { // however many they had
		for range 10 {
			a.done(e)
		}
	}
	if len(open.of) != 1 { // that of UDP
		t.Errorf("counts are left of connections that have ended: %v", open.of)
	}
	weighted := port
	weighted.Pick.Weights = []uint16{3, 1, 2}
	a.set(weighted)
	got := a.picks(12)
	for e, want := range map[string]int{"0": 6, "1": 2, "2": 4} {
		if n := strings.Count(got, e); n != want {
			t.Errorf("weights 3, 1, 2: endpoint %s has %d of 12 connections, want %d (%s)", e, n, want, got)
		}
	}
	if got := a.picks(1, all...); got != "-" {
		t.Errorf("%s, and all were tried", got)
	}
}
