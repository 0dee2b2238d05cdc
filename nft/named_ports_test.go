package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	. "svcctl.io/svcctl/nft"
)

// An address of which Services have only the ports they name: no other port is refused, strays
// to the named ones are dropped, and node ports do not answer there.
func TestNamedPortsOnly(t *testing.T) {
	const vip = "192.0.2.1" // a node-port address, too
	named := webPort("10.1.0.1:80")
	named.Frontends = []Frontend{
		{Addr: netip.MustParseAddr(vip), Port: 80, SNAT: SNATAlways, NamedPortsOnly: true},
		{Port: 30080, SNAT: SNATAlways},
	}
	c := NewCompiler()
	c.Load(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {named}}})
	got := text(t, c.Ruleset())
	for _, want := range []string{
		vip + " . tcp . 80 : goto pick-1",
		"ip daddr . meta l4proto . th dport @open-ports drop",
		vip + " : goto source-nat",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the ruleset lacks %q:\n%s", want, got)
		}
	}
	for _, not := range []string{"set vips", "chain vip ", "@vips", "elements = { " + vip + " }"} {
		if strings.Contains(got, not) {
			t.Errorf("the ruleset has %q:\n%s", not, got)
		}
	}
	// The whole address, as soon as one Service has it, and node ports there again without any.
	whole := webPort("10.1.0.2:80")
	whole.ID, whole.Frontends = "default/whole", []Frontend{{Addr: netip.MustParseAddr(vip), Port: 81, SNAT: SNATAlways}}
	c.Update(nil, map[string][]ServicePort{"default/whole": {whole}})
	if got := text(t, c.Ruleset()); !strings.Contains(got, "ip daddr @vips goto vip") {
		t.Errorf("nothing is refused on the address:\n%s", got)
	}
	named.Frontends = named.Frontends[1:]
	c.Update(nil, map[string][]ServicePort{"default/whole": nil, "default/web": {named}})
	if got := text(t, c.Ruleset()); !strings.Contains(got, "elements = { "+vip+" }") || strings.Contains(got, "open-ports drop") {
		t.Errorf("the address is not the box's again:\n%s", got)
	}
}

// A network of the box in the service range is never dropped.
func TestConnectedNetworkInTheServiceRange(t *testing.T) {
	box := testBox()
	c := NewCompiler()
	c.Load(State{Box: box})
	if got := chain(t, c.Ruleset(), "prerouting"); !strings.Contains(got, "ip daddr 10.96.0.0/16 drop") {
		t.Errorf("chain prerouting is\n%s", got)
	}
	for _, test := range []struct{ connected, elements string }{
		{"10.96.5.0/24", "10.96.5.0/24"},
		{"10.96.5.1/32", "10.96.5.1"},
		{"10.0.0.0/8", "10.96.0.0/16"},
	} {
		box.Connected = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix(test.connected)}
		c.Update(&box, nil)
		got := text(t, c.Ruleset())
		for _, name := range []string{"prerouting", "output"} {
			if rules := chain(t, c.Ruleset(), name); !strings.Contains(rules, "ip daddr 10.96.0.0/16 ip daddr != @connected drop") {
				t.Errorf("%s: chain %s is\n%s", test.connected, name, rules)
			}
		}
		if !strings.Contains(got, "elements = { "+test.elements+" }") {
			t.Errorf("%s: the ruleset is\n%s", test.connected, got)
		}
	}
	box.Connected = nil
	c.Update(&box, nil)
	if got := text(t, c.Ruleset()); strings.Contains(got, "connected") {
		t.Errorf("the ruleset is\n%s", got)
	}
}
