package nft_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// recovered is a State without names, from what a kernel holds.
func recovered(have Ruleset, box Box) State {
	s := State{Box: box, Services: map[string][]ServicePort{}}
	for i, p := range Recover(have, &box) {
		s.Services[string(rune('a'+i/26))+string(rune('a'+i%26))] = []ServicePort{p}
	}
	return s
}

// What is read back from the kernel is what is in it: nothing has to be done to get there,
// and nothing is missing when it has to be made anew.
func TestRecoverIsTheInverseOfCompile(t *testing.T) {
	frontends := 0
	for seed := range seeds(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		c, k, s := NewCompiler(), fake.New(), randomState(r)
		mustCommit(t, k, c.Load(s))
		s = randomState(r)
		withoutRangesOfSets(s)
		mustCommit(t, k, c.Load(s)) // slots have a history now
		have := held(k)
		frontends += CountFrontends(have)
		read := recovered(have, s.Box)
		if tr := NewCompiler().Adopt(have, read); !tr.Empty() {
			t.Fatalf("seed %d: adopting what was read back is a change: %+v\n%s", seed, tr, text(t, have))
		}
		if got, want, are := unlike(t, Compile(read), view(k)); are {
			t.Fatalf("seed %d: compiled anew it is\n%s\nwant\n%s", seed, got, want)
		}
	}
	if frontends == 0 {
		t.Error("nothing was there to be read back")
	}
}

// withoutRangesOfSets leaves out what cannot be read back.
func withoutRangesOfSets(s State) {
	for name, ports := range s.Services {
		s.Services[name] = slices.DeleteFunc(ports, func(p ServicePort) bool {
			return slices.ContainsFunc(p.Frontends, func(fe Frontend) bool { return fe.IsRange() && fe.Sets != nil })
		})
	}
}

func TestRecoverFindsTheTimeOfAffinity(t *testing.T) {
	for _, want := range []time.Duration{time.Second, 3 * time.Hour, 12345 * time.Second, 24 * time.Hour} {
		p := webPort("10.1.0.1:80", "10.1.0.2:80")
		p.Affinity = want
		have := Compile(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {p}}})
		box := testBox()
		got := Recover(have, &box)
		if len(got) != 1 || got[0].Affinity != want || got[0].ID != "default/web" {
			t.Errorf("affinity of %v is read back as %+v", want, got)
		}
	}
}

// Endpoints that no client is sent to have no element of their own: what is read back has no trace of them.
func TestRecoverOfEndpointsThatAPolicyPassesOver(t *testing.T) {
	for name, local := range map[string][]netip.AddrPort{"one is local": addrPorts("10.1.0.1:80"), "none is local": nil} {
		p := webPort("10.1.0.1:80", "10.1.0.2:80")
		p.Pools[PoolLocal] = local
		for i := range p.Frontends {
			p.Frontends[i].Internal.Pool, p.Frontends[i].External.Pool = PoolLocal, PoolLocal
			p.Frontends[i].Internal.Fallback, p.Frontends[i].External.Fallback = Blackhole, Blackhole
		}
		box := testBox()
		have := Compile(State{Box: box, Services: map[string][]ServicePort{"default/web": {p}}})
		if got, want := text(t, Compile(recovered(have, box))), text(t, have); got != want || strings.Contains(want, "10.1.0.2") {
			t.Errorf("%s: compiled anew it is\n%s\nof\n%s", name, got, want)
		}
	}
}

// Tables of another layout, or of nobody, are no reason to fail.
func TestRecoverOfStrangeTables(t *testing.T) {
	box := testBox()
	if got := Recover(nil, &box); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
	strange := Ruleset{IPv4: &Table{Sets: map[string]*SetContent{"services": {Elements: Elements{"x": "goto nowhere", "": ""}}}}}
	if got := Recover(strange, &box); got != nil {
		t.Errorf("of keys that are none: %+v", got)
	}
	key := Key(nil).Addr(netip.MustParseAddr("10.96.0.1")).Proto(TCP).Port(80)
	strange[IPv4].Sets["services"].Elements = Elements{string(key): "goto by-client"}
	if got := Recover(strange, &box); len(got) != 1 || len(got[0].Pools[PoolCluster]) != 0 {
		t.Errorf("of a frontend that leads nowhere: %+v", got)
	}
}
