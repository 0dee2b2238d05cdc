package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	. "svcctl.io/svcctl/nft"
)

// chain is the rules of a chain in a ruleset's text, "" when it is not there.
func chain(t *testing.T, rs Ruleset, name string) string {
	t.Helper()
	_, rest, found := strings.Cut(text(t, rs), "\tchain "+name+" {\n")
	if !found {
		return ""
	}
	rules, _, _ := strings.Cut(rest, "\t}\n")
	return strings.Join(strings.FieldsFunc(strings.ReplaceAll(rules, "\t", ""), func(r rune) bool { return r == '\n' }), "\n")
}

func TestStrays(t *testing.T) {
	const (
		invalid  = "type filter hook prerouting priority dstnat + 10; policy accept;\nct state invalid goto stray"
		vips     = "ip daddr @vips drop"
		owned    = "ip daddr @owned drop"
		nodePort = "ip daddr @nodeport-addresses meta l4proto . th dport @open-nodeports drop"
		backends = "tcp flags ! syn ip saddr . ip saddr @hairpin drop"
	)
	c := NewCompiler()
	web := webPort("10.1.0.1:80")
	both := web
	both.Frontends = append(both.Frontends, Frontend{Port: 30080, SNAT: SNATAlways})
	idle := webPort()
	for _, step := range []struct {
		name  string
		ports []ServicePort
		want  []string
	}{
		{"a VIP and an endpoint", []ServicePort{web}, []string{vips, owned, backends}},
		{"a node port", []ServicePort{both}, []string{vips, owned, nodePort, backends}},
		{"no endpoint", []ServicePort{idle}, []string{vips, owned}},
		{"no Service", nil, []string{owned}},
		{"nothing", nil, nil},
	} {
		box := testBox()
		if step.want == nil {
			box.Owned = nil
		}
		c.Load(State{Box: box, Services: map[string][]ServicePort{"default/web": step.ports}})
		if got, want := chain(t, c.Ruleset(), "stray"), strings.Join(step.want, "\n"); got != want {
			t.Errorf("%s: chain stray is\n%s\nwant\n%s", step.name, got, want)
		}
		if got := chain(t, c.Ruleset(), "invalid"); (got == invalid) != (step.want != nil) {
			t.Errorf("%s: chain invalid is\n%s", step.name, got)
		}
	}
}

func TestServes(t *testing.T) {
	p := webPort("10.1.0.1:80")
	p.Frontends = append(p.Frontends,
		Frontend{Port: 30080, SNAT: SNATAlways},
		// One that asks who the client is.
		Frontend{Addr: netip.MustParseAddr("198.51.100.4"), Port: 80, HostOwned: true, External: Route{Pool: PoolLocal}, SNAT: SNATSelf})
	c := NewCompiler()
	c.Load(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {p}}})
	rs := c.Ruleset()
	nodePort := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }
	for _, test := range []struct {
		family Family
		proto  Protocol
		at     netip.AddrPort
		want   bool
	}{
		{IPv4, TCP, netip.MustParseAddrPort("10.96.0.10:80"), true},
		{IPv4, TCP, netip.MustParseAddrPort("198.51.100.4:80"), true},
		{IPv4, TCP, netip.MustParseAddrPort("10.96.0.10:81"), false},
		{IPv4, UDP, netip.MustParseAddrPort("10.96.0.10:80"), false},
		{IPv4, TCP, nodePort(30080), true},
		{IPv4, UDP, nodePort(30080), false},
		{IPv4, TCP, nodePort(30081), false},
		{IPv6, TCP, nodePort(30080), false},
	} {
		if got := rs.Serves(test.family, test.proto, test.at); got != test.want {
			t.Errorf("%s %s %s: %t, want %t", test.family, test.proto, test.at, got, test.want)
		}
		// The compiler is asked about what is taken from the host, which the VIP is not.
		isVIP := test.at.Addr() == p.Frontends[0].Addr
		if got := c.Serves(test.family, test.proto, test.at); got != (test.want && !isVIP) {
			t.Errorf("%s %s %s: the compiler says %t", test.family, test.proto, test.at, got)
		}
	}
	c.Update(nil, map[string][]ServicePort{"default/web": nil})
	if c.Serves(IPv4, TCP, nodePort(30080)) {
		t.Error("a node port is served that is gone")
	}
	if (Ruleset)(nil).Serves(IPv4, TCP, nodePort(30080)) {
		t.Error("no ruleset serves a node port")
	}
}
