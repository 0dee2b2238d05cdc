package nft_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// After any number of updates, of Services that take frontends from each other and of the
// box, the compiler says what a new one says of the same State, its operations have led
// there, and they lead there from what somebody else made of the tables too.
func TestUpdatesComeToWhatCompileSays(t *testing.T) {
	const services, steps = 6, 12
	for seed := range seeds(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		c, k, state := NewCompiler(), fake.New(), randomState(r)
		mustCommit(t, k, c.Load(state))
		addresses := []int{0, 1, 2, 3, 4, 5} // which ones a Service has
		for step := range steps {
			changes, last := map[string][]ServicePort{}, maps.Clone(state.Services)
			change := func(i int) {
				name := fmt.Sprintf("default/s%d", i)
				delete(state.Services, name)
				changes[name] = nil
				for _, f := range Families {
					if r.IntN(3) != 0 {
						changes[name] = append(changes[name], randomPort(r, name, addresses[i], f))
						state.Services[name] = changes[name]
					}
				}
			}
			for i := range services {
				switch r.IntN(4) {
				case 0:
					change(i)
				case 1:
					other := r.IntN(services)
					addresses[i], addresses[other] = addresses[other], addresses[i]
					change(i)
					change(other)
				}
			}
			var box *Box
			other := randomState(r)
			if r.IntN(4) == 0 {
				state.Box = other.Box
				for i := range byte(8) { // more sources that are internal: sets that grow and shrink
					state.Box.InternalSources = append(state.Box.InternalSources, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2*i + 1}), 16))
				}
				box = &state.Box
			} else if r.IntN(3) == 0 { // one with other addresses and interfaces
				state.Box.NodePortAddresses, state.Box.Interfaces, state.Box.Owned = other.Box.NodePortAddresses, other.Box.Interfaces, other.Box.Owned
				state.Box.LocalAddresses = slices.Clone(other.Box.LocalAddresses)
				for _, name := range slices.Sorted(maps.Keys(state.Services)) {
					for _, p := range state.Services[name] {
						if endpoints := p.Pools[PoolCluster]; len(endpoints) > 0 && r.IntN(3) == 0 {
							state.Box.LocalAddresses = append(state.Box.LocalAddresses, endpoints[r.IntN(len(endpoints))].Addr())
						}
					}
				}
				box = &state.Box
			}
			was := text(t, c.Ruleset())
			foreseen, before := c.Foresee(box, maps.Clone(changes))
			if now := text(t, c.Ruleset()); now != was {
				t.Fatalf("seed %d, step %d: to foresee a change changes\n%s\nto\n%s", seed, step, was, now)
			}
			for name := range changes {
				if !reflect.DeepEqual(before[name], last[name]) {
					t.Fatalf("seed %d, step %d: before, %s has\n%+v\nwant\n%+v", seed, step, name, before[name], last[name])
				}
			}
			tr := c.Update(box, maps.Clone(changes))
			if got, want := commands(t, foreseen), commands(t, tr); got != want {
				t.Fatalf("seed %d, step %d: foreseen is\n%s\nand done is\n%s", seed, step, got, want)
			}
			mustCommit(t, k, tr)

			if got, want, are := unlikeButSlots(t, c.Ruleset(), Compile(state)); are {
				t.Fatalf("seed %d, step %d: the compiler says\n%s\nand a new one\n%s", seed, step, got, want)
			}
			if got, want, are := unlike(t, view(k), c.Ruleset()); are {
				t.Fatalf("seed %d, step %d: the operations lead to\n%s\nwant\n%s", seed, step, got, want)
			}
			if tr := c.From(held(k)); !tr.Empty() {
				t.Fatalf("seed %d, step %d: there is nothing to do, and From does %+v", seed, step, tr)
			}
			strange := fake.New()
			mustCommit(t, strange, NewCompiler().Load(other))
			mustCommit(t, strange, c.From(held(strange)))
			if got, want, are := unlike(t, view(strange), c.Ruleset()); are {
				t.Fatalf("seed %d, step %d: from somebody else's tables From leads to\n%s\nwant\n%s", seed, step, got, want)
			}
		}
	}
}

// commands are the operations of a transition, as text.
func commands(t *testing.T, tr Transition) string {
	t.Helper()
	var b strings.Builder
	for _, batch := range []Batch{tr.Apply, tr.Cleanup} {
		if err := batch.WriteText(&b); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%sforget %d\n", &b, len(tr.Forget))
}

// The last Service port of a protocol takes the rules of that protocol with it, although every set keeps elements.
func Test1111_chains_follow_the_kinds_of_service_ports(t *testing.T) {
	port := func(name string, last byte, proto Protocol) []ServicePort {
		p := ServicePort{ID: "default/" + name + "/p", Family: IPv4, Protocol: proto,
			Frontends: []Frontend{{Addr: netip.AddrFrom4([4]byte{192, 0, 2, last}), Port: 80, SNAT: SNATAlways}}}
		p.Pools[PoolCluster] = []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:8080")}
		return []ServicePort{p}
	}
	state := State{Services: map[string][]ServicePort{"default/a": port("a", 1, TCP), "default/b": port("b", 2, UDP)}}
	c, k := NewCompiler(), fake.New()
	mustCommit(t, k, c.Load(state))
	for _, proto := range []Protocol{UDP, SCTP, TCP} {
		state.Services["default/a"] = port("a", 1, proto)
		mustCommit(t, k, c.Update(nil, map[string][]ServicePort{"default/a": state.Services["default/a"]}))
		if got, want := text(t, held(k)), text(t, Compile(state)); got != want {
			t.Errorf("with %s the operations lead to\n%s\nwant\n%s", proto.Name(), got, want)
		}
	}
}
