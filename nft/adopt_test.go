package nft_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// Endpoints are adopted for the one frontend that asks for it, in any order, and for none where two ask.
func TestAdopt(t *testing.T) {
	adopting := func(id, vip string, endpoints ...string) []ServicePort {
		p := webPort(endpoints...)
		p.ID, p.Balance = id, Maglev
		p.Frontends = []Frontend{{Addr: netip.MustParseAddr(vip), Port: 80, SNAT: SNATSelf, Adopt: true}}
		return []ServicePort{p}
	}
	a := adopting("default/a", "198.51.100.1", "10.1.0.1:8080", "10.1.0.2:8080")
	b := adopting("default/b", "198.51.100.2", "10.1.0.2:8080", "10.1.0.3:8080")
	c, k := NewCompiler(), fake.New()
	box := testBox()
	for _, step := range []struct {
		name    string
		changes map[string][]ServicePort
		want    map[string]string
	}{
		{"one", map[string][]ServicePort{"default/a": a}, map[string]string{"10.1.0.1:8080": "198.51.100.1:80", "10.1.0.2:8080": "198.51.100.1:80"}},
		{"two that share one", map[string][]ServicePort{"default/b": b}, map[string]string{"10.1.0.1:8080": "198.51.100.1:80", "10.1.0.3:8080": "198.51.100.2:80"}},
		{"the first one goes", map[string][]ServicePort{"default/a": nil}, map[string]string{"10.1.0.2:8080": "198.51.100.2:80", "10.1.0.3:8080": "198.51.100.2:80"}},
		{"the other one asks no more", map[string][]ServicePort{"default/b": {webPort("10.1.0.2:8080")}}, nil},
	} {
		mustCommit(t, k, c.Update(&box, step.changes))
		got := map[string]string{}
		have := held(k)
		if set := have[IPv4].Sets["adopted"]; set != nil {
			for key, data := range set.Elements {
				got[endpointOf(key)] = endpointOf(data)
			}
		}
		if !maps.Equal(got, step.want) {
			t.Errorf("%s: adopted are %v, want %v", step.name, got, step.want)
		}
		first := "ct status ! dnat return"
		if step.want != nil {
			first = "ct status ! dnat goto adopt"
			if got := chain(t, have, "adopt"); got != "tcp flags ! syn snat ip to ip saddr . th sport map @adopted" {
				t.Errorf("%s: the chain adopt is %q", step.name, got)
			}
		} else if have[IPv4].Chains["adopt"] != nil {
			t.Errorf("%s: the chain adopt is still there", step.name)
		}
		if rules := have[IPv4].Chains["postrouting"].Rules; rules[0].Text(IPv4) != first {
			t.Errorf("%s: postrouting begins with %q, want %q", step.name, rules[0].Text(IPv4), first)
		}
		if step.name == "one" {
			box := testBox()
			got := Recover(have, &box)
			if len(got) != 1 || !slices.ContainsFunc(got[0].Frontends, func(fe Frontend) bool { return fe.Adopt }) {
				t.Errorf("read back is %+v", got)
			}
		}
	}
}

func endpointOf(key string) string {
	values := SplitKey([]Type{TypeAddr, TypeService}, IPv4, key)
	return netip.AddrPortFrom(values[0].Addr, uint16(values[1].Num)).String()
}
