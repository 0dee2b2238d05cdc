package nft_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
	"svcctl.io/svcctl/nft/sim"
)

// plainState has Services with endpoints of one server each, on a box on which frontends wait from the first one on.
func plainState(endpoints ...int) State {
	s := State{Box: testBox(), Services: map[string][]ServicePort{}}
	s.Box.SettleFrom = 1
	for i, n := range endpoints {
		s.Services[plainName(i)] = plainPorts(i, n)
	}
	return s
}

func plainName(i int) string { return fmt.Sprintf("default/s%d", i) }

func plainPorts(i, endpoints int) []ServicePort {
	p := ServicePort{ID: plainName(i) + "/p", Family: IPv4, Protocol: TCP, Frontends: []Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)}), Port: 80, SNAT: SNATOutside}}}
	for n := range endpoints {
		p.Pools[PoolCluster] = append(p.Pools[PoolCluster], netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), byte(1 + n)}), 8080))
	}
	return []ServicePort{p}
}

// verdictsOf has the verdicts that a transaction adds, by the map.
func verdictsOf(b Batch) (all []string) {
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddElements:
			for _, e := range op.Elements {
				if slices.Equal(op.Set.Data, []Type{TypeVerdict}) {
					all = append(all, op.Set.Name+": "+e.Data)
				}
			}
		case SetRules:
			all = append(all, "rules of "+op.Chain)
		}
	}
	return all
}

// reaches has the endpoints that packets to the i-th Service get to, and "refused" if there are such that are, sorted.
func reaches(t *testing.T, rs Ruleset, i int) (all []string) {
	t.Helper()
	host := sim.Host{Ruleset: rs, Network: network{local: netip.MustParseAddr("192.0.2.1"), oif: 3, masquerade: netip.MustParseAddr("192.0.2.1")}}
	for _, r := range host.Outcomes(sim.Packet{
		Saddr: netip.MustParseAddr("203.0.113.2"), Daddr: netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)}), Proto: TCP, Sport: 40000, Dport: 80, Iif: 2,
	}) {
		if r.Kind == sim.Rejected {
			all = append(all, "refused")
			continue
		}
		if r.Kind != sim.Delivered || !netip.MustParsePrefix("10.1.0.0/16").Contains(r.Dst.Addr()) {
			t.Errorf("a packet to Service %d is %v", i, r)
		}
		all = append(all, r.Dst.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A new Service, and one that gets or loses an endpoint, change no element with goto and no rule, so that the kernel does not
// walk the table; packets are delivered as by a table that was made at once, and after two settlements it is the same one.
func Test1139_changed_frontends_settle_later(t *testing.T) {
	state := plainState(3, 5)
	c, k := NewCompiler(), fake.New()
	mustCommit(t, k, c.Load(state))
	if c.Unsettled() {
		t.Error("the first State is not settled")
	}
	for step, change := range []struct{ service, endpoints int }{{2, 1}, {0, 4}, {0, 8}, {1, 1}, {3, 0}, {3, 2}, {4, 0}, {2, 0}} {
		ports := plainPorts(change.service, change.endpoints)
		state.Services[plainName(change.service)] = ports
		tr := c.Update(nil, map[string][]ServicePort{plainName(change.service): ports})
		for _, v := range verdictsOf(tr.Apply) {
			if v != "services: continue" {
				t.Errorf("step %d adds %s", step, v)
			}
		}
		mustCommit(t, k, tr)
		if !c.Unsettled() {
			t.Errorf("step %d leaves nothing to settle", step)
		}
	}
	fresh := Compile(state)
	for _, phase := range []string{"unsettled", "with goto", "settled"} {
		if phase != "unsettled" {
			c.Settle()
			tr := c.Update(nil, nil)
			mustCommit(t, k, tr)
			if added := verdictsOf(tr.Apply); phase == "settled" && len(added) > 0 {
				t.Errorf("the second settlement adds %v", added)
			}
		}
		for i := range 5 {
			if got, want := reaches(t, c.Ruleset(), i), reaches(t, fresh, i); !slices.Equal(got, want) {
				t.Errorf("%s: packets to Service %d reach %v, want %v", phase, i, got, want)
			}
		}
		// A process that finds this goes on where the last one was, and one without objects reads all of them.
		next := NewCompiler()
		if tr := next.Adopt(held(k), state); !tr.Empty() || next.Unsettled() != c.Unsettled() {
			t.Errorf("%s: the next process does %+v", phase, tr)
		}
		if got, want := ports(Recover(held(k), &state.Box)), ports(Recover(fresh, &state.Box)); got != want {
			t.Errorf("%s: recovered is\n%s\nwant\n%s", phase, got, want)
		}
	}
	if c.Unsettled() {
		t.Error("two settlements leave something")
	}
	if got, want := text(t, held(k)), text(t, fresh); got != want {
		t.Errorf("settled is\n%s\nwant\n%s", got, want)
	}
	// Nine endpoints have no place in the set, and neither have a frontend with affinity and many changes at once.
	sticky := plainPorts(2, 2)
	sticky[0].Affinity = 3 * time.Hour
	for name, ports := range map[string][]ServicePort{plainName(1): plainPorts(1, 9), plainName(2): sticky} {
		if tr := c.Update(nil, map[string][]ServicePort{name: ports}); c.Unsettled() {
			t.Errorf("%s waits: %+v", name, tr)
		}
	}
	many := map[string][]ServicePort{}
	for i := range 65 {
		many[plainName(100+i)] = plainPorts(100+i, 2)
	}
	if c.Update(nil, many); c.Unsettled() {
		t.Error("65 Services at once wait")
	}
}

func ports(all []ServicePort) string {
	var b strings.Builder
	for i := range all {
		fmt.Fprintf(&b, "%v %v %v\n", all[i].Frontends, all[i].Pools, all[i].Serving)
	}
	return b.String()
}

// A packet whose frontend lookup comes before a transaction and its other lookups after it finds an endpoint, whatever the transaction
// does; so does one that is between the lookups in the set.
func Test1140_packets_between_lookups_of_settling_frontends(t *testing.T) {
	state := plainState(3, 1, 1)
	heavy := plainPorts(1, 3) // so that there are tables
	heavy[0].Weights[PoolCluster] = map[netip.AddrPort]uint16{heavy[0].Pools[PoolCluster][0]: 3}
	state.Services[plainName(1)] = heavy
	c := NewCompiler()
	c.Load(state)
	before := c.Ruleset()
	weighted := plainPorts(0, 3)
	weighted[0].Weights[PoolCluster] = map[netip.AddrPort]uint16{weighted[0].Pools[PoolCluster][0]: 3}
	limited := plainPorts(0, 2)
	limited[0].Frontends[0].Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for step, ports := range [][]ServicePort{
		plainPorts(0, 4), plainPorts(0, 1), plainPorts(0, 8), nil, plainPorts(0, 2), limited, nil, nil, plainPorts(0, 3), weighted, nil, nil, plainPorts(0, 5), plainPorts(0, 12), plainPorts(0, 5),
		plainPorts(0, 0), plainPorts(0, 2), plainPorts(0, 0), nil, nil, plainPorts(0, 0), plainPorts(0, 3), nil, nil, plainPorts(0, 0),
	} {
		none := len(reaches(t, before, 0)) == 1 && reaches(t, before, 0)[0] == "refused"
		if ports != nil {
			c.Update(nil, map[string][]ServicePort{plainName(0): ports})
		} else {
			c.Settle()
			c.Update(nil, nil)
		}
		after := c.Ruleset()
		// The packet passes the rules and met the verdict from before; then it finds no number in the set, or all is new.
		for _, numbers := range []bool{false, true} {
			mixed := Table{Sets: maps.Clone(before[IPv4].Sets), Chains: before[IPv4].Chains}
			for _, name := range []string{"backends", "tables", "unsettled"} {
				mixed.Sets[name] = &SetContent{Set: before[IPv4].Sets[name].Set, Elements: Elements{}}
				for key, data := range after[IPv4].Sets[name].Elements {
					if numbers || name != "unsettled" || strings.HasSuffix(key, "\x00\x00\x00\x00") {
						mixed.Sets[name].Elements[key] = data
					}
				}
			}
			none = none || len(ports) > 0 && len(ports[0].Pools[PoolCluster]) == 0
			if got := reaches(t, Ruleset{IPv4: &mixed}, 0); len(got) == 0 || slices.Contains(got, "refused") && !none {
				t.Errorf("step %d: packets reach %v", step, got)
			}
		}
		before = after
	}
}

// After any updates, settlements and restarts the compiler, the kernel and a new compiler agree, and packets go where the ruleset of a new
// one sends them.
func Test1141_any_changes_settle(t *testing.T) {
	waited := 0
	for seed := range seeds(30) {
		r := rand.New(rand.NewPCG(seed, 11))
		c, k, state := NewCompiler(), fake.New(), randomState(r)
		state.Box.SettleFrom = 1 + r.IntN(6)
		mustCommit(t, k, c.Load(state))
		for step := range 16 {
			changes := map[string][]ServicePort{}
			for range r.IntN(3) {
				i := r.IntN(6)
				name := plainName(i)
				switch r.IntN(4) {
				case 0:
					changes[name] = nil
				case 1:
					changes[name] = []ServicePort{randomPort(r, name, i, IPv4), randomPort(r, name, i, IPv6)}
				default:
					changes[name] = plainPorts(i, r.IntN(10))
				}
				delete(state.Services, name)
				if changes[name] != nil {
					state.Services[name] = changes[name]
				}
			}
			settle := r.IntN(3) == 0
			if r.IntN(4) == 0 { // a restart, with the changes that were missed
				c = NewCompiler()
				mustCommit(t, k, c.Adopt(held(k), state))
			} else {
				was := text(t, c.Ruleset())
				foreseen, _ := c.Foresee(nil, maps.Clone(changes))
				if now := text(t, c.Ruleset()); now != was {
					t.Fatalf("seed %d, step %d: to foresee a change changes\n%s\nto\n%s", seed, step, was, now)
				}
				if settle {
					c.Settle()
				}
				tr := c.Update(nil, maps.Clone(changes))
				if got, want := commands(t, foreseen), commands(t, tr); !settle && got != want {
					t.Fatalf("seed %d, step %d: foreseen is\n%s\nand done is\n%s", seed, step, got, want)
				}
				mustCommit(t, k, tr)
			}
			if c.Unsettled() {
				waited++
			}
			if got, want, are := unlike(t, view(k), c.Ruleset()); are {
				t.Fatalf("seed %d, step %d: the operations lead to\n%s\nwant\n%s", seed, step, got, want)
			}
			if tr := c.From(held(k)); !tr.Empty() {
				t.Fatalf("seed %d, step %d: there is nothing to do, and From does %+v", seed, step, tr)
			}
		}
		for range 2 {
			c.Settle()
			mustCommit(t, k, c.Update(nil, nil))
		}
		if got, want := withoutSlots(text(t, held(k))), withoutSlots(text(t, Compile(state))); got != want || c.Unsettled() {
			t.Fatalf("seed %d: settled is\n%s\nand of a new compiler\n%s", seed, got, want)
		}
	}
	if waited < int(seeds(100)) {
		t.Errorf("frontends wait after %d steps", waited)
	}
}
