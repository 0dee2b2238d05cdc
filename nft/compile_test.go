package nft_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

func addrPorts(s ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, x := range s {
		out = append(out, netip.MustParseAddrPort(x))
	}
	return out
}

func clusterIP(addr string, port uint16) Frontend {
	return Frontend{Addr: netip.MustParseAddr(addr), Port: port, SNAT: SNATOutside}
}

func testBox() Box {
	return Box{
		NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ServiceRanges:     []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Owned:             []Range{{netip.MustParseAddr("10.96.0.0"), netip.MustParseAddr("10.96.255.255")}},
		InternalSources:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Interfaces:        []Interface{{Index: 2, Name: "int0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.180.0.0/16")}}},
		MasqueradeOnLink:  true,
	}
}

func webPort(backends ...string) ServicePort {
	return ServicePort{
		ID: "default/web", Family: IPv4, Protocol: TCP,
		Frontends: []Frontend{clusterIP("10.96.0.10", 80)},
		Pools:     [NumPools][]netip.AddrPort{PoolCluster: addrPorts(backends...)},
	}
}

func text(t testing.TB, rs Ruleset) string {
	t.Helper()
	var b strings.Builder
	if err := rs.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The elements of a set come to the kernel in one order each time: nft lists sets of ranges as they came.
func TestElementsComeInOneOrder(t *testing.T) {
	box := testBox()
	box.Interfaces = nil
	for i := range 16 {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 180, byte(i), 0}), 24)
		box.Interfaces = append(box.Interfaces, Interface{Index: uint32(i + 2), Name: fmt.Sprintf("int%d", i), Prefixes: []netip.Prefix{prefix}})
	}
	var first []Op
	for range 20 {
		tr := NewCompiler().Update(&box, map[string][]ServicePort{"default/web": {webPort("10.180.0.1:8080", "10.180.1.1:8080")}})
		if first == nil {
			first = tr.Apply.Ops
		}
		if !reflect.DeepEqual(tr.Apply.Ops, first) {
			t.Fatalf("the operations are\n%+v\nand were\n%+v", tr.Apply.Ops, first)
		}
	}
}

func elementOps(b Batch) int {
	n := 0
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddElements:
			n += len(op.Elements)
		case DeleteElements:
			n += len(op.Elements)
		default:
			n += 1000 // anything else is no element operation
		}
	}
	return n
}

func TestReplacingAnEndpointTouchesItsSlotOnly(t *testing.T) {
	c := NewCompiler()
	c.Load(State{Box: testBox(), Services: map[string][]ServicePort{
		"default/web": {webPort("10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80")},
	}})
	tr := c.Update(nil, map[string][]ServicePort{"default/web": {webPort("10.1.0.1:80", "10.1.0.9:80", "10.1.0.3:80")}})
	// The slot and the hairpin pair, each deleted and added.
	if n := elementOps(tr.Apply); n != 4 || !tr.Cleanup.Empty() {
		t.Errorf("replacing one endpoint: %d element operations, cleanup %v; want 4 and none\n%+v", n, tr.Cleanup, tr.Apply)
	}
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": {webPort("10.1.0.3:80", "10.1.0.9:80", "10.1.0.1:80")}}); !tr.Empty() {
		t.Errorf("the same endpoints in another order are a change: %+v", tr)
	}
}

// TestAnEndpointMoreFindsItsChain: a chain that looks into a map is dear where the map is
// large, so those for few endpoints are made with the map, and stay.
func TestAnEndpointMoreFindsItsChain(t *testing.T) {
	endpoints := []string{"10.1.0.1:80"}
	c := NewCompiler()
	c.Load(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {webPort(endpoints...)}}})
	for len(endpoints) < 8 {
		endpoints = append(endpoints, fmt.Sprintf("10.1.0.%d:80", len(endpoints)+1))
		if tr := c.Update(nil, map[string][]ServicePort{"default/web": {webPort(endpoints...)}}); elementOps(tr.Apply) >= 1000 || !tr.Cleanup.Empty() {
			t.Errorf("%d endpoints take more than elements: %+v", len(endpoints), tr)
		}
	}
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": {webPort()}}); tr.Cleanup.Empty() {
		t.Errorf("pick chains are left without endpoints: %+v", tr)
	}
}

// randomState is a small world in which things collide often.
func randomState(r *rand.Rand) State {
	s := State{Box: testBox(), Services: map[string][]ServicePort{}}
	s.Box.ServiceRanges = append(s.Box.ServiceRanges, netip.MustParsePrefix("fd00::/112"))
	if r.IntN(3) == 0 {
		s.Box.InternalSources = nil
	}
	if r.IntN(3) == 0 {
		s.Box.NodePortAddresses = append(s.Box.NodePortAddresses, netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1"))
	}
	s.Box.LocalAddresses = s.Box.NodePortAddresses
	if r.IntN(2) == 0 {
		s.Box.InsideSources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("fd00:5::/64")}
	}
	s.Box.Interfaces[0].Inside = r.IntN(2) == 0
	s.Box.EgressFrom = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("fd00:7::/64")}
	if r.IntN(3) == 0 {
		s.Box.EgressFrom = append(s.Box.EgressFrom, netip.MustParsePrefix("192.168.1.0/24"), netip.MustParsePrefix("192.168.3.0/24"), netip.MustParsePrefix("192.168.5.0/24"))
	}
	s.Box.Fast = &Flowtable{Devices: []Device{{"eth0", uint32(1 + r.IntN(2))}, {"eth1", 7}}[:1+r.IntN(2)]}
	for i := range 1 + r.IntN(6) {
		name := fmt.Sprintf("default/s%d", i)
		for _, f := range Families {
			if r.IntN(3) == 0 {
				continue
			}
			s.Services[name] = append(s.Services[name], randomPort(r, name, i, f))
			if p := &s.Services[name][len(s.Services[name])-1]; r.IntN(3) == 0 {
				p.Egress = randomEgress(r, p.Frontends[1].Addr, i)
				p.Egress.To = randomSets(r)
			}
			if r.IntN(4) == 0 {
				exact := &s.Services[name][len(s.Services[name])-1]
				s.Services[name] = append(s.Services[name], randomRanges(r, name, i, f, exact.Frontends[1].InsideOnly))
			}
		}
	}
	return s
}

func randomPort(r *rand.Rand, name string, i int, f Family) ServicePort {
	addr := func(v4, v6 string, n int) netip.Addr {
		if f == IPv4 {
			return netip.MustParseAddr(fmt.Sprintf(v4, n))
		}
		return netip.MustParseAddr(fmt.Sprintf(v6, n))
	}
	p := ServicePort{ID: name + "/http", Family: f, Protocol: []Protocol{TCP, UDP, SCTP}[r.IntN(3)]}
	if r.IntN(2) == 0 {
		p.Affinity = 60e9 // Recover tries each second
		p.AffinityOptions = AffinityOptions{PrefixLen: []uint8{0, 24, 0}[(i+int(p.Protocol))%3], Refresh: (i+int(p.Protocol))%2 == 0}
	}
	if r.IntN(2) == 0 {
		p.Idle = time.Duration(1+r.IntN(2)) * time.Minute
	}
	if r.IntN(3) == 0 {
		rates := []Rate{{}, {100, time.Second}, {30, time.Minute}}
		p.Limits = Limits{Rate: rates[r.IntN(3)], ClientRate: rates[r.IntN(3)], ClientConnections: uint32(r.IntN(3))}
		if p.Limits.ClientRate.Count > 0 {
			p.Limits.ClientRatePrefix = []uint8{0, 24, 31}[r.IntN(3)]
		}
		if p.Limits.ClientConnections > 0 {
			p.Limits.ClientConnectionsPrefix = []uint8{0, 24, 31}[r.IntN(3)]
		}
	}
	for n := range r.IntN(5) {
		ep := netip.AddrPortFrom(addr("10.1.0.%d", "fd00:1::%d", 1+n+r.IntN(3)), 8080)
		if !slices.Contains(p.Pools[PoolCluster], ep) {
			p.Pools[PoolCluster] = append(p.Pools[PoolCluster], ep)
			if r.IntN(2) == 0 {
				p.Pools[PoolLocal] = append(p.Pools[PoolLocal], ep)
			}
		}
	}
	p.Balance = []Balance{Maglev, SourceHash, DestinationHash, RoundRobin, RoundRobin, 15: Random}[r.IntN(16)]
	if r.IntN(6) == 0 {
		w := map[netip.AddrPort]uint16{}
		for _, ep := range p.Pools[PoolCluster] {
			w[ep] = uint16(1 + r.IntN(3))
		}
		p.Weights = [NumPools]map[netip.AddrPort]uint16{w, w}
	}
	if r.IntN(6) == 0 {
		p.Refused = [NumPools]uint16{uint16(r.IntN(9)), uint16(r.IntN(3))}
	}
	if r.IntN(8) == 0 && f == IPv4 {
		p.Pools[PoolCluster] = append(p.Pools[PoolCluster], netip.MustParseAddrPort("192.0.2.1:8080"))
	}
	p.Fast = p.Protocol != SCTP && r.IntN(3) == 0
	p.Frontends = []Frontend{{Addr: addr("10.96.0.%d", "fd00::%d", i+1), Port: 80, SNAT: SNATOutside}}
	outside := Frontend{Addr: addr("198.51.100.%d", "2001:db8::%d", i+1), Port: 80, SNAT: SNATAlways}
	if r.IntN(2) == 0 {
		outside.External = Route{Pool: PoolLocal, Fallback: Blackhole}
		outside.SNAT = SNATSelf
	}
	if r.IntN(3) == 0 {
		outside.Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25"), netip.MustParsePrefix("203.0.113.0/24")}
	}
	outside.InsideOnly = r.IntN(4) == 0
	outside.Sets = randomSets(r)
	outside.Adopt = p.Protocol == TCP && r.IntN(2) == 0
	p.Frontends = append(p.Frontends, outside)
	outside.InsideOnly, outside.Adopt = r.IntN(4) == 0, false
	outside.Addr, outside.Port = netip.Addr{}, uint16(30000+i)
	p.Frontends = append(p.Frontends, outside)
	return p
}

// randomEgress has sources that no other Service has.
func randomEgress(r *rand.Rand, addr netip.Addr, i int) Egress {
	e := Egress{Addr: addr}
	first := netip.AddrFrom4([4]byte{172, 16, byte(i), 1})
	if addr.Is6() {
		first = netip.MustParseAddr(fmt.Sprintf("fd00:7::%d:1", i))
	}
	for range 1 + r.IntN(3) {
		e.Sources = append(e.Sources, first)
		first = first.Next()
	}
	return e
}

// randomRanges is a port with a range at each of its addresses, of which one is at times not wholly
// the Service's.
func randomRanges(r *rand.Rand, name string, i int, f Family, insideOnly bool) ServicePort {
	p := randomPort(r, name, i, f)
	p.ID, p.Affinity, p.Idle = name+"/http/"+p.Protocol.String()+"-1000", 0, 0
	p.Frontends = p.Frontends[:2]
	p.Frontends[1].Adopt = false
	p.Frontends[1].InsideOnly = insideOnly // one for all ports of an address
	if r.IntN(3) == 0 {
		another := p.Frontends[1]
		another.Addr, another.NamedPortsOnly = another.Addr.Next().Next().Next().Next().Next().Next().Next(), true
		p.Frontends = append(p.Frontends, another)
	}
	for i := range p.Frontends {
		p.Frontends[i].Port, p.Frontends[i].Last = 1000, 1000+uint16(r.IntN(3))
	}
	for pool := range p.Pools {
		for i, ep := range p.Pools[pool] {
			p.Pools[pool][i] = netip.AddrPortFrom(ep.Addr(), 0)
		}
	}
	if p.Weights[PoolCluster] != nil {
		w := map[netip.AddrPort]uint16{}
		for i, ep := range p.Pools[PoolCluster] {
			w[ep] = uint16(1 + i%2)
		}
		p.Weights = [NumPools]map[netip.AddrPort]uint16{w, w}
	}
	return p
}

// The kernel compares the keys of interval sets byte by byte: rules look up the numbers of interfaces there in network byte order, and in no other set.
func TestInterfacesAreRangedInIntervalSets(t *testing.T) {
	r, looked := rand.New(rand.NewPCG(1, 2)), map[bool]int{}
	for range 30 {
		state := randomState(r)
		state.Box.MasqueradeOnLink, state.Box.Interfaces = true, testBox().Interfaces
		for _, table := range Compile(state) {
			for _, c := range table.Chains {
				for _, rule := range c.Rules {
					for _, s := range rule {
						match, _ := s.(MatchSet)
						for _, field := range match.Key {
							if field.Type() == TypeIface {
								looked[field.Ranged]++
								if interval := table.Sets[match.Set].Interval; field.Ranged != interval {
									t.Errorf("`%s`: Ranged is %v, Interval of the set is %v", rule.Text(IPv4), field.Ranged, interval)
								}
							}
						}
					}
				}
			}
		}
	}
	if looked[false] == 0 || looked[true] == 0 {
		t.Errorf("fields by Ranged: %v; want both", looked)
	}
}

// TestUpdatesArriveAtTheRuleset walks through random states and holds every update
// against compiling anew, and its operations against what they claim to change.
func TestUpdatesArriveAtTheRuleset(t *testing.T) {
	for seed := range seeds(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := NewCompiler()
		k, restarted := fake.New(), fake.New()
		mustCommit(t, k, c.Load(randomState(r)))
		for step := range 6 {
			s := randomState(r)
			tr := c.Load(s)
			mustCommit(t, k, tr)
			fresh := Compile(s)
			mustCommit(t, restarted, NewCompiler().Adopt(held(restarted), s))
			if got, want, are := unlikeButSlots(t, view(restarted), fresh); are {
				t.Fatalf("seed %d step %d: a start over what was there leads elsewhere\n got:\n%s\nwant:\n%s", seed, step, got, want)
			}
			// Slots depend on history, so compare with the slots sorted away.
			if got, want, are := unlikeButSlots(t, c.Ruleset(), fresh); are {
				t.Fatalf("seed %d step %d: updated ruleset differs from a fresh one\n got:\n%s\nwant:\n%s", seed, step, got, want)
			}
			if got, want, are := unlike(t, view(k), c.Ruleset()); are {
				t.Fatalf("seed %d step %d: the operations lead elsewhere\n got:\n%s\nwant:\n%s", seed, step, got, want)
			}
			if tr := c.Load(s); !tr.Empty() {
				t.Fatalf("seed %d step %d: loading the same state again is a change: %+v", seed, step, tr)
			}
			if tr := NewCompiler().Adopt(held(k), s); !tr.Empty() {
				t.Fatalf("seed %d step %d: adopting what is there is a change: %+v", seed, step, tr)
			}
		}
	}
}

// withoutSlots sorts the endpoints of each frontend, so that two rulesets compare
// equal when only slots differ.
func withoutSlots(s string) string {
	lines := strings.Split(s, "\n")
	out := lines[:0]
	for _, l := range lines {
		l = strings.Trim(strings.TrimPrefix(strings.TrimSpace(l), "elements = { "), " ,}")
		if key, ep, ok := strings.Cut(l, " : "); ok && !strings.Contains(ep, "goto") && !strings.Contains(ep, "drop") {
			fields := strings.Split(strings.TrimSpace(key), " . ")
			l = strings.Join(fields[:len(fields)-1], ".") + " -> " + strings.Trim(ep, " ,")
		}
		out = append(out, l)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func mustCommit(t *testing.T, k *fake.Kernel, tr Transition) {
	t.Helper()
	for _, b := range []Batch{tr.Apply, tr.Cleanup} {
		if _, err := k.Commit(&b, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func held(k *fake.Kernel) Ruleset {
	rs, _, _ := k.Read() // a fake reads without fail
	return rs
}

func TestShorterAffinityCapsWhatIsRemembered(t *testing.T) {
	caps := func(tr Transition) []time.Duration {
		var out []time.Duration
		for _, op := range tr.Apply.Ops {
			if op, ok := op.(CapTimeouts); ok && op.Set.Name == "affinity/default/web" {
				out = append(out, op.Timeout)
			}
		}
		return out
	}
	sticky := func(seconds time.Duration) map[string][]ServicePort {
		p := webPort("10.1.0.1:80")
		p.Affinity = seconds * time.Second
		return map[string][]ServicePort{"default/web": {p}}
	}
	state := func(seconds time.Duration) State { return State{Box: testBox(), Services: sticky(seconds)} }
	c, k := NewCompiler(), fake.New()
	mustCommit(t, k, c.Load(state(100)))
	if tr := NewCompiler().Adopt(held(k), state(100)); len(caps(tr)) != 0 {
		t.Errorf("adopting the same timeout caps to %v", caps(tr))
	}
	if tr := NewCompiler().Adopt(held(k), state(10)); !slices.Equal(caps(tr), []time.Duration{10 * time.Second}) {
		t.Errorf("adopting another timeout caps to %v", caps(tr))
	}
	if tr := c.Update(nil, sticky(200)); len(caps(tr)) != 0 {
		t.Errorf("a longer timeout caps to %v", caps(tr))
	}
	if tr := c.Update(nil, sticky(60)); !slices.Equal(caps(tr), []time.Duration{60 * time.Second}) {
		t.Errorf("a shorter timeout caps to %v", caps(tr))
	}
}
