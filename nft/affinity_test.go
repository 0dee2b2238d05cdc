package nft_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	"svcctl.io/svcctl/nft/sim"
)

// stickyPort is a sticky Service port with a cluster IP for all endpoints and a load
// balancer IP and a node port whose clients from outside get the box's own.
func stickyPort(cluster, local []netip.AddrPort) ServicePort {
	outside := Frontend{
		Addr: netip.MustParseAddr("198.51.100.4"), Port: 80, SNAT: SNATSelf,
		External: Route{Pool: PoolLocal, Fallback: Blackhole},
	}
	nodePort := outside
	nodePort.Addr, nodePort.Port = netip.Addr{}, 30080
	return ServicePort{
		ID: "default/web", Family: IPv4, Protocol: TCP, Affinity: time.Hour,
		Frontends: []Frontend{clusterIP("10.96.0.10", 80), outside, nodePort},
		Pools:     [NumPools][]netip.AddrPort{PoolCluster: cluster, PoolLocal: local},
	}
}

// sticky is a box with that port, and connects a client from outside.
type sticky struct {
	*testing.T
	host stateful.Host
	now  time.Time
}

func newSticky(t *testing.T, p ServicePort) *sticky {
	s := &sticky{T: t}
	s.now = time.Unix(0, 0)
	s.host.Ruleset = Compile(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {p}}})
	s.host.Network = network{local: netip.MustParseAddr("192.0.2.1"), oif: 2, masquerade: netip.MustParseAddr("10.180.255.254")}
	return s
}

// network has one local address and one way to all others.
type network struct {
	local, masquerade netip.Addr
	oif               uint32
}

func (n network) Route(dst netip.Addr) (uint32, bool)    { return n.oif, n.IsLocal(dst) }
func (n network) IsLocal(a netip.Addr) bool              { return a == n.local }
func (n network) MasqueradeAddr(iface uint32) netip.Addr { return n.masquerade }

// slot is a sim.Random that draws one slot, as far as there are so many.
type slot uint32

func (s slot) Uint32N(n uint32) uint32 { return min(uint32(s), n-1) }

// connect has a client make a connection that is answered, some time after the last one.
func (s *sticky) connect(client, to string) netip.AddrPort {
	s.Helper()
	s.now = s.now.Add(time.Minute)
	p, r := s.try(client, to, 0)
	s.host.Answer(p, r)
	return r.Dst
}

// try has a client send the first packet of a connection. Of several endpoints a new client
// gets the one in the slot.
func (s *sticky) try(client, to string, draw slot) (sim.Packet, sim.Result) {
	s.Helper()
	dst := netip.MustParseAddrPort(to)
	p := sim.Packet{Saddr: netip.MustParseAddr(client), Daddr: dst.Addr(), Proto: TCP, Sport: 40000, Dport: dst.Port(), Iif: 7}
	r := s.host.Send(p, s.now, draw)
	if r.Kind != sim.Delivered {
		s.Fatalf("%v: %v", p, stateful.Text(r))
	}
	return p, r
}

// TestAffinityNeedsAnAnswer: an endpoint that does not answer is come back to for a moment
// only, however often its client tries; the one that answers is remembered.
func TestAffinityNeedsAnAnswer(t *testing.T) {
	const client, vip, dead, alive = "203.0.113.2", "198.51.100.4:80", "10.180.0.1:80", "10.181.0.2:80"
	p := stickyPort(addrPorts(dead, alive), nil)
	p.Frontends[1].External.Pool, p.Frontends[2].External.Pool = PoolCluster, PoolCluster
	s := newSticky(t, p)
	goes := func(after time.Duration, to string, draw slot, want string) (sim.Packet, sim.Result) {
		t.Helper()
		s.now = s.now.Add(after)
		packet, r := s.try(client, to, draw)
		if r.Dst.String() != want {
			t.Errorf("at %s to %s: went to %s, want %s", s.now, to, r.Dst, want)
		}
		return packet, r
	}
	goes(0, vip, 0, dead)
	for range 9 {
		goes(100*time.Millisecond, vip, 1, dead) // connections at the same time go together
	}
	late, lateResult := goes(100*time.Millisecond, vip, 1, alive) // and nothing prolongs that
	goes(2*time.Second, vip, 0, dead)
	s.host.Answer(late, lateResult) // late, while another one waits
	for range 3 {
		goes(100*time.Millisecond, vip, 0, alive)
		goes(15*time.Minute, "192.0.2.1:30080", 0, alive)
	}
	// It was remembered by an answer, and tries without an answer do not prolong that.
	goes(2*time.Hour, vip, 0, dead)
}

func TestAffinityKeepsToThePool(t *testing.T) {
	const a, b, c = "10.180.0.1:80", "10.181.0.2:80", "10.181.0.3:80"
	tests := map[string]struct {
		cluster, local []string
		first, then    string // destinations
		want           []string
	}{
		"an endpoint of both pools, first from outside": {[]string{b, a}, []string{a}, "198.51.100.4:80", "10.96.0.10:80", []string{a, a}},
		"an endpoint of both pools, first by the cluster IP": {
			[]string{a, b}, []string{c, a}, "10.96.0.10:80", "198.51.100.4:80", []string{a, a}},
		"an endpoint of the box that all the others are preferred to": {
			[]string{b, c}, []string{a}, "198.51.100.4:80", "10.96.0.10:80", []string{a, b}},
		"an endpoint of another box":      {[]string{b, a}, []string{a}, "10.96.0.10:80", "198.51.100.4:80", []string{b, a}},
		"the node port and the VIP alike": {[]string{b, a}, []string{a}, "192.0.2.1:30080", "10.96.0.10:80", []string{a, a}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSticky(t, stickyPort(addrPorts(test.cluster...), addrPorts(test.local...)))
			const client = "203.0.113.2"
			got := []netip.AddrPort{s.connect(client, test.first), s.connect(client, test.then)}
			if !slices.Equal(got, addrPorts(test.want...)) {
				t.Errorf("went to %v, want %v", got, test.want)
			}
		})
	}
}

// TestAffinityOfAnEndpointThatLeft: its answer to what was begun before must not bind the
// client to it.
func TestAffinityOfAnEndpointThatLeft(t *testing.T) {
	const client, left, stays = "203.0.113.2", "10.180.0.1:80", "10.181.0.2:80"
	for name, to := range map[string]string{"the same pool for all": "10.96.0.10:80", "another pool for clients from outside": "198.51.100.4:80"} {
		t.Run(name, func(t *testing.T) {
			s := newSticky(t, stickyPort(addrPorts(left, stays), addrPorts(left, stays)))
			p, r := s.try(client, to, 0)
			if r.Dst.String() != left {
				t.Fatalf("went to %s", r.Dst)
			}
			s.host.Ruleset = newSticky(t, stickyPort(addrPorts(stays), addrPorts(stays))).host.Ruleset
			s.host.Answer(p, r)
			for _, set := range []string{"affinity/default/web", "affinity-local/default/web"} {
				if known := s.host.Learnt(IPv4, set); len(known) != 0 {
					t.Errorf("%s has %q", set, known)
				}
			}
		})
	}
}

// TestAffinityOnTheHostsAddress: an address of the host, on which node ports answer, may
// have a frontend too.
func TestAffinityOnTheHostsAddress(t *testing.T) {
	p := stickyPort(addrPorts("10.180.0.1:80"), nil)
	p.Frontends = append(p.Frontends, Frontend{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, SNAT: SNATAlways, HostOwned: true})
	s := newSticky(t, p)
	if got := s.connect("203.0.113.2", "192.0.2.1:80"); got != p.Pools[PoolCluster][0] {
		t.Errorf("went to %v", got)
	}
}

// TestAffinityForgetsAnEmptiedPool: clients must not be recalled to an endpoint that
// has left when the pool has endpoints again.
func TestAffinityForgetsAnEmptiedPool(t *testing.T) {
	local, remote := addrPorts("10.180.0.1:80"), addrPorts("10.181.0.2:80")
	c := NewCompiler()
	load := func(local []netip.AddrPort) Transition {
		p := stickyPort(append(slices.Clone(remote), local...), local)
		return c.Load(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {p}}})
	}
	load(local)
	var forgotten []string
	for _, f := range load(nil).Forget {
		if slices.Contains(f.Data, AddrPortData(local[0])) {
			forgotten = append(forgotten, f.Set.Name)
		}
	}
	slices.Sort(forgotten)
	if want := []string{
		"affinity-local/default/web", "affinity/default/web", "unanswered-local/default/web", "unanswered/default/web",
	}; !slices.Equal(forgotten, want) {
		t.Errorf("the endpoint is forgotten in %q, want %q", forgotten, want)
	}
}

// TestSourceRangesHoldForTheBox: a client outside of the ranges gets no answer, and the
// box is a client like others there.
func TestSourceRangesHoldForTheBox(t *testing.T) {
	p := webPort("10.180.0.1:80")
	p.Frontends[0].Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	s := newSticky(t, p)
	packet := sim.Packet{
		Saddr: netip.MustParseAddr("192.0.2.1"), Daddr: p.Frontends[0].Addr, Proto: TCP, Sport: 40000, Dport: p.Frontends[0].Port,
	}
	for _, r := range s.host.Outcomes(packet) {
		if r.Kind != sim.Dropped {
			t.Errorf("%v: %v", packet, stateful.Text(r))
		}
	}
}
