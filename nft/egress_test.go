package nft_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// leaving is a Service port whose sources leave with an address.
func leaving(id, vip string, sources ...string) []ServicePort {
	p := webPort()
	p.ID = id
	p.Frontends = append(p.Frontends, Frontend{Addr: netip.MustParseAddr(vip), Port: 80, SNAT: SNATSelf, Kind: LoadBalancerIP})
	p.Frontends = p.Frontends[1:]
	p.Egress.Addr = netip.MustParseAddr(vip)
	for _, s := range sources {
		p.Egress.Sources = append(p.Egress.Sources, netip.MustParseAddr(s))
	}
	return []ServicePort{p}
}

// Sources come and go with their Services; an address with one source has its segments led back, one with several has them
// dropped. Chains, rules and sets are there while there is a source, and what is read back is what is there.
func TestEgress(t *testing.T) {
	const (
		leaves  = "ct status ! dnat ip daddr != 10.0.0.0/8 ip daddr != 172.16.0.0/12 snat ip to ip saddr map @egress"
		stray   = "ip daddr != 10.0.0.0/8 ip daddr != 172.16.0.0/12 ip saddr @egress-sources drop"
		back    = "tcp flags ! syn dnat ip to ip daddr map @egress-back"
		several = "tcp flags ! syn ip daddr @egress-addresses drop"
	)
	a1, a2, b1 := "172.16.0.1", "172.16.0.2", "172.16.1.1"
	c, k := NewCompiler(), fake.New()
	box := testBox()
	box.EgressFrom = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}
	for _, step := range []struct {
		name    string
		changes map[string][]ServicePort
		want    map[string]string // egress
		back    map[string]string
		several []string
	}{
		{"none", map[string][]ServicePort{"default/web": {webPort("10.1.0.1:80")}}, nil, nil, nil},
		{"one", map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", a1)},
			map[string]string{a1: "198.51.100.1"}, map[string]string{"198.51.100.1": a1}, nil},
		{"two", map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", a1, a2)},
			map[string]string{a1: "198.51.100.1", a2: "198.51.100.1"}, nil, []string{"198.51.100.1"}},
		{"another address", map[string][]ServicePort{"default/b": leaving("default/b", "198.51.100.2", b1)},
			map[string]string{a1: "198.51.100.1", a2: "198.51.100.1", b1: "198.51.100.2"}, map[string]string{"198.51.100.2": b1}, []string{"198.51.100.1"}},
		{"the other one of two", map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", a2)},
			map[string]string{a2: "198.51.100.1", b1: "198.51.100.2"}, map[string]string{"198.51.100.1": a2, "198.51.100.2": b1}, nil},
		{"one address of two Services", map[string][]ServicePort{"default/b": leaving("default/b", "198.51.100.1", b1)},
			map[string]string{a2: "198.51.100.1", b1: "198.51.100.1"}, nil, []string{"198.51.100.1"}},
		{"a source moves", map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1"), "default/b": leaving("default/b", "198.51.100.2", a2)},
			map[string]string{a2: "198.51.100.2"}, map[string]string{"198.51.100.2": a2}, nil},
		{"none again", map[string][]ServicePort{"default/a": nil, "default/b": leaving("default/b", "198.51.100.2")}, nil, nil, nil},
	} {
		mustCommit(t, k, c.Update(&box, step.changes))
		have := held(k)
		if got := addrPairs(have, "egress"); !maps.Equal(got, step.want) {
			t.Errorf("%s: egress is %v, want %v", step.name, got, step.want)
		}
		if got := addrPairs(have, "egress-back"); !maps.Equal(got, step.back) {
			t.Errorf("%s: the way back is %v, want %v", step.name, got, step.back)
		}
		if got := slices.Sorted(maps.Keys(addrPairs(have, "egress-addresses"))); !slices.Equal(got, step.several) {
			t.Errorf("%s: addresses with several sources are %v, want %v", step.name, got, step.several)
		}
		if got, want := slices.Sorted(maps.Keys(addrPairs(have, "egress-sources"))), slices.Sorted(maps.Keys(step.want)); !slices.Equal(got, want) {
			t.Errorf("%s: sources are %v, want %v", step.name, got, want)
		}
		want := ""
		if step.want != nil {
			want = "type nat hook postrouting priority srcnat - 1; policy accept;\n" + leaves
		}
		if got := chain(t, have, "egress"); got != want {
			t.Errorf("%s: the chain egress is\n%s\nwant\n%s", step.name, got, want)
		}
		for rule, is := range map[string]bool{stray: step.want != nil, back: step.back != nil, several: step.several != nil} {
			name := "vip"
			if rule == stray {
				name = "stray"
			}
			if got := slices.ContainsFunc(have[IPv4].Chains[name].Rules, func(r Rule) bool { return r.Text(IPv4) == rule }); got != is {
				t.Errorf("%s: %q in chain %s: %v, want %v", step.name, rule, name, got, is)
			}
		}
		if tr := NewCompiler().Adopt(have, recovered(have, box)); !tr.Empty() {
			t.Errorf("%s: adopting what was read back is a change: %+v", step.name, tr)
		}
		if tr := c.From(have); !tr.Empty() {
			t.Errorf("%s: the compiler is not where the kernel is: %+v", step.name, tr)
		}
	}
}

// addrPairs are the elements of a set of addresses, or of a map of them to addresses; nil: there is no such set.
func addrPairs(rs Ruleset, name string) map[string]string {
	set := rs[IPv4].Sets[name]
	if set == nil {
		return nil
	}
	text := func(bytes string) string {
		a, is := netip.AddrFromSlice([]byte(bytes))
		if !is {
			return ""
		}
		return a.String()
	}
	pairs := map[string]string{}
	for key, data := range set.Elements {
		pairs[text(key)] = text(data)
	}
	return pairs
}

// What is to be adopted for a client of the Service is so before it could leave as a connection of the source.
func TestEgressOfAnAdoptedEndpoint(t *testing.T) {
	p := webPort("172.16.0.1:8080")
	p.Balance = Maglev
	p.Frontends = []Frontend{{Addr: netip.MustParseAddr("198.51.100.1"), Port: 80, SNAT: SNATSelf, Adopt: true}}
	p.Egress = Egress{Addr: p.Frontends[0].Addr, Sources: []netip.Addr{netip.MustParseAddr("172.16.0.1")}}
	rs := Compile(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {p}}})
	const want = "type nat hook postrouting priority srcnat - 1; policy accept;\nct status ! dnat jump adopt\n" +
		"ct status ! dnat ip daddr != 10.0.0.0/8 snat ip to ip saddr map @egress"
	if got := chain(t, rs, "egress"); got != want {
		t.Errorf("the chain is\n%s\nwant\n%s", got, want)
	}
}

// Sources with destinations have a chain that Services with the same source sets share; the sets are there while it is.
func TestEgressTo(t *testing.T) {
	set := func(name string, version uint64, prefix string) *SourceSet {
		return NewSourceSet(name, version, []netip.Prefix{netip.MustParsePrefix(prefix)})
	}
	partner, lab := set("partner", 1, "203.0.113.0/24"), set("lab", 1, "203.0.113.64/28")
	to := func(sets *SourceSets, ports []ServicePort) []ServicePort { ports[0].Egress.To = sets; return ports }
	at81 := func(ports []ServicePort) []ServicePort { ports[0].Frontends[0].Port = 81; return ports }
	c, k, box := NewCompiler(), fake.New(), testBox()
	for _, step := range []struct {
		name    string
		changes map[string][]ServicePort
		egress  string            // rules behind the destination
		chains  map[string]string // of destinations
		sets    []string
	}{
		{"no destinations", map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", "172.16.0.1")}, "", nil, nil},
		{"both kinds", map[string][]ServicePort{"default/b": to(&SourceSets{[]*SourceSet{partner}, []*SourceSet{lab}}, leaving("default/b", "198.51.100.2", "172.16.0.2"))},
			"ip saddr vmap @egress-to", map[string]string{"egress-to/partner//lab": "ip daddr @source-set/lab return\nip daddr @source-set/partner snat ip to ip saddr map @egress"}, []string{"source-set/lab", "source-set/partner"}},
		{"the same of another Service", map[string][]ServicePort{"default/a": to(&SourceSets{[]*SourceSet{partner, partner}, []*SourceSet{lab}}, leaving("default/a", "198.51.100.1", "172.16.0.1"))},
			"ip saddr vmap @egress-to", map[string]string{"egress-to/partner//lab": "ip daddr @source-set/lab return\nip daddr @source-set/partner snat ip to ip saddr map @egress"}, []string{"source-set/lab", "source-set/partner"}},
		{"all but", map[string][]ServicePort{"default/a": nil, "default/b": to(&SourceSets{Deny: []*SourceSet{set("lab", 2, "203.0.113.128/28")}}, leaving("default/b", "198.51.100.2", "172.16.0.2"))},
			"ip saddr vmap @egress-to", map[string]string{"egress-to///lab": "ip daddr @source-set/lab return\nsnat ip to ip saddr map @egress"}, []string{"source-set/lab"}},
		{"two kinds at one address", map[string][]ServicePort{"default/a": at81(leaving("default/a", "198.51.100.2", "172.16.0.3")), "default/b": to(&SourceSets{Deny: []*SourceSet{set("lab", 3, "203.0.113.128/28")}}, leaving("default/b", "198.51.100.2", "172.16.0.2"))},
			"ip saddr vmap @egress-to", map[string]string{"egress-to///lab": "ip daddr @source-set/lab return\nsnat ip to ip saddr map @egress"}, []string{"source-set/lab"}},
		{"everywhere", map[string][]ServicePort{"default/a": nil, "default/b": leaving("default/b", "198.51.100.2", "172.16.0.2")}, "", nil, nil},
	} {
		mustCommit(t, k, c.Update(&box, step.changes))
		have := held(k)
		const outside, leaves = "ct status ! dnat ip daddr != 10.0.0.0/8 ", "snat ip to ip saddr map @egress"
		want := "type nat hook postrouting priority srcnat - 1; policy accept;\n"
		if step.egress != "" {
			want += outside + step.egress + "\n"
		}
		if got := chain(t, have, "egress"); got != want+outside+leaves {
			t.Errorf("%s: the chain egress is\n%s\nwant\n%s", step.name, got, want+outside+leaves)
		}
		found, sets := map[string]string{}, []string(nil)
		for name := range have[IPv4].Chains {
			if strings.HasPrefix(name, "egress-to") {
				found[name] = chain(t, have, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(have[IPv4].Sets)) {
			if strings.HasPrefix(name, "source-set/") {
				sets = append(sets, name)
			}
		}
		if len(found)+len(step.chains) > 0 && !maps.Equal(found, step.chains) || !slices.Equal(sets, step.sets) {
			t.Errorf("%s: chains are %q and sets %q, want %q and %q", step.name, found, sets, step.chains, step.sets)
		}
		if tr := NewCompiler().Adopt(have, recovered(have, box)); !tr.Empty() {
			t.Errorf("%s: adopting what was read back is a change: %+v", step.name, tr)
		}
		if tr := c.From(have); !tr.Empty() {
			t.Errorf("%s: the compiler is not where the kernel is: %+v", step.name, tr)
		}
	}
}

// Many prefixes inside are a set.
func TestEgressInsideOfManyPrefixes(t *testing.T) {
	box := testBox()
	for i := range 5 {
		box.EgressFrom = append(box.EgressFrom, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(2 * i), 0}), 24))
	}
	rs := Compile(State{Box: box, Services: map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", "172.16.0.1")}})
	const want = "type nat hook postrouting priority srcnat - 1; policy accept;\nct status ! dnat ip daddr != @egress-inside snat ip to ip saddr map @egress"
	if got := chain(t, rs, "egress"); got != want {
		t.Errorf("the chain is\n%s\nwant\n%s", got, want)
	}
	if set := rs[IPv4].Sets["egress-inside"]; len(set.Elements) != 6 {
		t.Errorf("%d ranges are inside", len(set.Elements))
	}
}

// A source more or less is a few operations, whatever the number of others.
func TestEgressOfManySources(t *testing.T) {
	var sources []string
	for i := range 10_000 {
		sources = append(sources, fmt.Sprintf("172.16.%d.%d", i/250, 1+i%250))
	}
	c, box := NewCompiler(), testBox()
	c.Update(&box, map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", sources...)})
	tr := c.Update(nil, map[string][]ServicePort{"default/a": leaving("default/a", "198.51.100.1", append(sources[1:], "172.17.0.1")...)})
	for _, op := range tr.Apply.Ops {
		switch op := op.(type) {
		case AddElements:
			if len(op.Elements) != 1 {
				t.Errorf("%d elements of %s come", len(op.Elements), op.Set.Name)
			}
		case DeleteElements:
			if len(op.Elements) != 1 {
				t.Errorf("%d elements of %s go", len(op.Elements), op.Set.Name)
			}
		default:
			t.Errorf("there is %T %+v", op, op)
		}
	}
	if n := len(tr.Apply.Ops); n != 4 || !tr.Cleanup.Empty() {
		t.Errorf("there are %d operations", n)
	}
}
