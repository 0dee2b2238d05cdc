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

// What is sent to an address that is for Services alone is dropped, and nothing else.
func TestOwnedRanges(t *testing.T) {
	box := testBox()
	box.Owned = nil
	c := NewCompiler()
	if c.Load(State{Box: box}); strings.Contains(text(t, c.Ruleset()), "owned") {
		t.Errorf("without ranges the ruleset is\n%s", text(t, c.Ruleset()))
	}
	addrRange := func(first, last string) Range {
		return Range{netip.MustParseAddr(first), netip.MustParseAddr(last)}
	}
	box.Owned = []Range{addrRange("10.96.6.0", "10.96.255.255"), addrRange("198.51.100.4", "198.51.100.4"), addrRange("10.96.0.0", "10.96.5.255")}
	c.Update(&box, nil)
	for _, name := range []string{"prerouting", "output", "stray"} {
		if rules := chain(t, c.Ruleset(), name); !strings.Contains(rules, "ip daddr @owned drop") {
			t.Errorf("chain %s is\n%s", name, rules)
		}
	}
	got := text(t, c.Ruleset())
	if !strings.Contains(strings.Join(strings.Fields(got), " "), "elements = { 10.96.0.0/16, 198.51.100.4 }") || strings.Contains(got, "table ip6") {
		t.Errorf("the ruleset is\n%s", got)
	}
	box.Owned = append(box.Owned, addrRange("fd00::", "fd00::5"))
	c.Update(&box, nil)
	if got := text(t, c.Ruleset()); !strings.Contains(got, "elements = { fd00::-fd00::5 }") {
		t.Errorf("the ruleset is\n%s", got)
	}
}
