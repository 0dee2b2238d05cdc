package nft

import (
	"net/netip"
	"slices"
	"testing"
)

func TestSmoothOrder(t *testing.T) {
	for _, c := range []struct {
		shares []int
		want   []uint16
	}{
		{[]int{1, 1, 1}, []uint16{0, 1, 2}},
		{[]int{5, 1, 1}, []uint16{0, 0, 1, 0, 2, 0, 0}}, // the example of nginx
		{[]int{3, 1, 2}, []uint16{0, 2, 0, 1, 2, 0}},
	} {
		if got := smooth(c.shares); !slices.Equal(got, c.want) {
			t.Errorf("shares %v have the order %v, want %v", c.shares, got, c.want)
		}
	}
}

func TestRounds(t *testing.T) {
	for _, c := range []struct {
		weights []uint16
		turns   int
		first   int // turns of the first endpoint
	}{
		{[]uint16{1, 1}, 2, 1}, {[]uint16{10, 10, 10}, 3, 1}, {[]uint16{6, 3}, 3, 2}, {[]uint16{65535, 1}, 128, 127}, {[]uint16{100, 1, 1}, 102, 100},
	} {
		sp := &ServicePort{Balance: RoundRobin, Weights: [NumPools]map[netip.AddrPort]uint16{{}, {}}}
		sp.Pools[PoolCluster] = endpointsFor(len(c.weights), 1)
		for i, w := range c.weights {
			sp.Weights[PoolCluster][sp.Pools[PoolCluster][i]] = w
		}
		slots, n := sp.tableOf(PoolCluster).slots, 0
		for _, s := range slots {
			if s == 0 {
				n++
			}
		}
		if len(slots) != c.turns || n != c.first {
			t.Errorf("weights %v: %d turns, %d of the first; want %d and %d", c.weights, len(slots), n, c.turns, c.first)
		}
	}
}

// Another endpoint in the place of one changes its turn and no other, and no rule.
func TestReplacingAnEndpointKeepsTheTurnsOfOthers(t *testing.T) {
	port := func(endpoints ...string) map[string][]ServicePort {
		sp := ServicePort{ID: "default/web", Family: IPv4, Protocol: TCP, Balance: RoundRobin,
			Frontends: []Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}, {Port: 30080}}}
		for _, e := range endpoints {
			sp.Pools[PoolCluster] = append(sp.Pools[PoolCluster], netip.MustParseAddrPort(e))
		}
		return map[string][]ServicePort{"default/web": {sp}}
	}
	c := NewCompiler()
	c.Load(State{Services: port("10.1.0.5:80", "10.1.0.6:80", "10.1.0.7:80")})
	before := c.Ruleset()
	tr := c.Update(nil, port("10.1.0.1:80", "10.1.0.5:80", "10.1.0.7:80"))
	turns := 0
	for _, op := range tr.Apply.Ops {
		switch op := op.(type) {
		case DeleteElements:
			if op.Set.Name == "round-robin/default/web" {
				turns += len(op.Elements)
			}
		case AddElements:
		default:
			t.Errorf("replacing an endpoint is %T", op)
		}
	}
	if turns != 1 {
		t.Errorf("%d turns change, want 1", turns)
	}
	restarted := NewCompiler()
	if tr := restarted.Adopt(before, State{Services: port("10.1.0.7:80", "10.1.0.6:80", "10.1.0.5:80")}); !tr.Empty() {
		t.Errorf("a restart changes the turns: %+v", tr)
	}
}
