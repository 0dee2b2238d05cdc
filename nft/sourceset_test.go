package nft_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
)

// contents counts those of source sets: a later one takes the place of an earlier one.
var contents uint64

// randomSet is one of three sets, with prefixes that overlap and touch.
func randomSet(r *rand.Rand) *SourceSet {
	contents++
	return NewSourceSet([]string{"office", "vpn", "sg-1.x"}[r.IntN(3)], contents, randomPrefixes(r, r.IntN(12)))
}

func randomPrefixes(r *rand.Rand, n int) (list []netip.Prefix) {
	for range n {
		bits := 24 + r.IntN(9)
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))})
		if r.IntN(2) == 0 {
			a, bits = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(r.IntN(256))}), bits+96
		}
		list = append(list, netip.PrefixFrom(a, bits).Masked())
	}
	if r.IntN(20) == 0 {
		list = append(list, netip.MustParsePrefix("128.0.0.0/1"), netip.MustParsePrefix("::/0"))
	}
	return list
}

func randomSets(r *rand.Rand) *SourceSets {
	if r.IntN(2) == 0 {
		return nil
	}
	s := &SourceSets{}
	for range r.IntN(3) {
		s.Allow = append(s.Allow, randomSet(r))
	}
	for range r.IntN(3) {
		s.Deny = append(s.Deny, randomSet(r))
	}
	if len(s.Allow)+len(s.Deny) == 0 {
		return nil
	}
	return s
}

// restricted is a Service port of which the load balancer IP looks into source sets.
func restricted(sets *SourceSets, ranges ...string) ServicePort {
	p := webPort("10.1.0.1:80")
	fe := Frontend{Addr: netip.MustParseAddr("198.51.100.4"), Port: 80, SNAT: SNATAlways, Sets: sets}
	for _, cidr := range ranges {
		fe.Sources = append(fe.Sources, netip.MustParsePrefix(cidr))
	}
	p.Frontends = append(p.Frontends, fe)
	return p
}

func set(name string, version uint64, cidrs ...string) *SourceSet {
	var list []netip.Prefix
	for _, cidr := range cidrs {
		list = append(list, netip.MustParsePrefix(cidr))
	}
	return NewSourceSet(name, version, list)
}

// The clients that Admits lets in at a frontend are those whose packets the ruleset delivers there, and packets of all others are dropped.
func TestAdmitsIsTheRuleset(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	at := netip.MustParseAddr("198.51.100.4")
	admitted := map[bool]int{}
	for range 400 {
		sets := randomSets(r)
		if sets != nil { // one version of each set: of several the highest is used
			versions := map[string]*SourceSet{}
			for _, list := range [][]*SourceSet{sets.Allow, sets.Deny} {
				for i, s := range list {
					if versions[s.Name] == nil {
						versions[s.Name] = s
					}
					list[i] = versions[s.Name]
				}
			}
		}
		p := restricted(sets)
		fe := &p.Frontends[len(p.Frontends)-1]
		if r.IntN(2) == 0 {
			fe.Sources = append([]netip.Prefix{}, randomPrefixes(r, r.IntN(8))...)
		}
		fe.InsideOnly = r.IntN(4) == 0
		box := testBox()
		box.InsideSources = randomPrefixes(r, r.IntN(4))
		host := sim.Host{
			Ruleset: Compile(State{Box: box, Services: map[string][]ServicePort{"default/web": {p}}}),
			Network: network{local: netip.MustParseAddr("192.0.2.1"), oif: 3, masquerade: netip.MustParseAddr("192.0.2.1")},
		}
		for range 20 {
			client := netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + r.IntN(254))})
			admits := box.Admits(fe, client)
			admitted[admits]++
			want := sim.Dropped
			if admits {
				want = sim.Delivered
			}
			for _, result := range host.Outcomes(sim.Packet{Saddr: client, Daddr: at, Proto: TCP, Sport: 40000, Dport: 80, Iif: 2}) {
				if result.Kind != want {
					t.Fatalf("a packet of %s is %v, Admits reports %t: sources %v, sets %+v, inside only %t, inside %v", client, result, admits, fe.Sources, sets, fe.InsideOnly, box.InsideSources)
				}
			}
		}
	}
	if admitted[true] < 1000 || admitted[false] < 1000 {
		t.Errorf("clients admitted and not: %v", admitted)
	}
}

// A set contains what its prefixes do, neighbors and overlaps among them.
func TestSourceSetContains(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		list := randomPrefixes(r, r.IntN(20))
		s := NewSourceSet("a", 1, list)
		for range 100 {
			a := netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))})
			if r.IntN(2) == 0 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(r.IntN(256))})
			}
			if want := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) }); s.Contains(a) != want {
				t.Fatalf("%v contains %s: %v, want %v", list, a, !want, want)
			}
		}
	}
}

// A new content is the difference alone, in one transaction, for all Services that name the set.
func TestSourceSetChangesByItsDifference(t *testing.T) {
	c := NewCompiler()
	services := func(s *SourceSet) map[string][]ServicePort {
		other := restricted(&SourceSets{Deny: []*SourceSet{s}})
		other.ID, other.Frontends = "default/other", []Frontend{{Port: 30080, Sets: &SourceSets{Deny: []*SourceSet{s}}}}
		return map[string][]ServicePort{
			"default/web":   {restricted(&SourceSets{Allow: []*SourceSet{s}}, "203.0.113.0/24")},
			"default/other": {other},
		}
	}
	// 192.0.2.0/25 and its neighbor are one range, and so are the two behind 198.51.100.0.
	c.Load(State{Box: testBox(), Services: services(set("office", 1, "192.0.2.0/25", "192.0.2.128/25", "10.0.0.0/8", "10.1.0.0/16"))})
	if rules := text(t, c.Ruleset()); !strings.Contains(rules, "elements = { 10.0.0.0/8,\n\t\t\t     192.0.2.0/24 }") || strings.Count(rules, "set source-set/office {") != 1 {
		t.Errorf("the set is not there once, merged:\n%s", rules)
	}
	tr := c.Update(nil, services(set("office", 2, "192.0.2.0/25", "10.0.0.0/8", "198.51.100.0/24")))
	var got strings.Builder
	if err := tr.Apply.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	const want = `delete element ip svcctl source-set/office { 192.0.2.0/24 }
add element ip svcctl source-set/office {
	192.0.2.0/25,
	198.51.100.0/24
}
`
	if got.String() != want || !tr.Cleanup.Empty() {
		t.Errorf("the change is\n%s%+v\nwant\n%s", got.String(), tr.Cleanup, want)
	}
	// One Service that still has the older content does not bring it back.
	old := services(set("office", 1, "10.0.0.0/8"))
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": old["default/web"]}); !tr.Empty() {
		t.Errorf("an older content of the set is a change: %+v", tr)
	}
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": nil, "default/other": nil}); c.Ruleset()[IPv4].Sets["source-set/office"] != nil {
		t.Errorf("the set outlives who named it: %+v", tr)
	}
}

// Services without sets have the rules that they had.
func TestSourceSetsCostOthersNothing(t *testing.T) {
	plain := webPort("10.1.0.1:80")
	plain.ID, plain.Frontends = "default/plain", []Frontend{{Addr: netip.MustParseAddr("198.51.100.9"), Port: 80, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	alone := Compile(State{Box: testBox(), Services: map[string][]ServicePort{"a": {plain}}})
	beside := Compile(State{Box: testBox(), Services: map[string][]ServicePort{"a": {plain}, "b": {restricted(&SourceSets{Deny: []*SourceSet{set("x", 1, "192.0.2.0/25")}}, "203.0.113.0/24")}}})
	for _, name := range []string{"prerouting", "output", "by-client"} {
		if got, want := ruleTexts(beside, name), ruleTexts(alone, name); got != want {
			t.Errorf("chain %s is\n%s\nand was\n%s", name, got, want)
		}
	}
	key := Key(nil).Addr(netip.MustParseAddr("198.51.100.9")).Proto(TCP).Port(80)
	if got := beside[IPv4].Sets["services"].Elements[string(key)]; got != "goto by-client" {
		t.Errorf("a frontend without sets leads to %s", got)
	}
	if got, want := ruleTexts(beside, "admit-ranges///x"), "ip saddr @source-set/x drop\nip daddr . meta l4proto . th dport . ip saddr @allowed-sources goto by-client\ndrop\n"; got != want {
		t.Errorf("the chain of the sets is\n%s\nwant\n%s", got, want)
	}
}

func ruleTexts(rs Ruleset, chain string) string {
	var b strings.Builder
	if c := rs[IPv4].Chains[chain]; c != nil {
		for _, r := range c.Rules {
			b.WriteString(r.Text(IPv4) + "\n")
		}
	}
	return b.String()
}
