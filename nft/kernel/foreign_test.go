package kernel

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
)

// Whatever others put into our table is read without harm, and so that it can be told
// from what we want.
func TestForeignThingsInOurTable(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	before, _ := read(t, c)
	n.nftScript(`
		table ip svcctl {
			counter hits { }
			set marks { type mark; elements = { 1, 2 }; }
			set names { type ifname . ipv4_addr; flags interval; auto-merge; elements = { "eth0" . 10.0.0.0/8 }; }
			set vague { type ipv4_addr; flags timeout; }
			set unchanging { type ipv4_addr; flags constant; elements = { 1.1.1.1 }; }
			set limited { type ipv4_addr; limit rate 1/second; elements = { 1.1.1.1 }; }
			map objects { type ipv4_addr : counter; elements = { 1.1.1.1 : "hits" }; }
			set wide { type ipv6_addr . ipv6_addr . ipv6_addr; }
			chain forward { type filter hook forward priority 0; policy drop; }
			chain early { type nat hook prerouting priority dstnat - 5; policy drop; }
			chain mine { type nat hook input priority 100; policy accept; ip daddr { 1.1.1.1, 2.2.2.2 } jump { accept; }; counter name hits; }
		}
		add element ip svcctl empty { 10.99.0.1 }
		add element ip svcctl services { 10.99.0.1 . tcp . 1 : drop }
		add element ip svcctl sources { 10.9.9.0/24 }
		add rule ip svcctl pick-5 counter accept comment "foreign"
	`)
	ruleset, generation := read(t, c)
	table := ruleset[nft.IPv4]
	for _, name := range []string{"marks", "names", "vague", "unchanging", "limited", "objects", "wide"} {
		if s := table.Sets[name]; s == nil || s.Key != nil || s.Elements == nil {
			t.Errorf("foreign set %s is %+v", name, s)
		}
	}
	if !reflect.DeepEqual(table.Counters, []string{"hits"}) {
		t.Errorf("counters are %v", table.Counters)
	}
	for _, name := range []string{"forward", "early"} {
		if chain := table.Chains[name]; chain == nil || chain.Hook != foreignHook {
			t.Errorf("foreign chain %s is %+v", name, chain)
		}
	}
	if chain := table.Chains["mine"]; chain == nil || chain.Hook != nft.HookInput || !reflect.DeepEqual(chain.Marks, []uint64{0, 0}) {
		t.Errorf("foreign chain mine is %+v", chain)
	}
	if marks := table.Chains["pick-5"].Marks; !reflect.DeepEqual(marks, []uint64{0}) {
		t.Errorf("a foreign rule has marks %v", marks)
	}
	for name, key := range map[string]string{
		"empty": "\x0a\x63\x00\x01", "services": "\x0a\x63\x00\x01\x06\x00\x00\x00\x00\x01\x00\x00",
		"sources": "\x0a\x09\x09\x00\x0a\x09\x09\xff",
	} {
		if _, ok := table.Sets[name].Elements[key]; !ok || len(table.Sets[name].Elements) != len(before[nft.IPv4].Sets[name].Elements)+1 {
			t.Errorf("the foreign element of %s is not read", name)
		}
	}
	for name := range table.Sets {
		if strings.HasPrefix(name, "__") {
			t.Errorf("anonymous set %s is read", name)
		}
	}
	for name := range table.Chains {
		if strings.HasPrefix(name, "__") {
			t.Errorf("anonymous chain %s is read", name)
		}
	}

	// What is not wanted can be deleted.
	var ops []nft.Op
	for _, name := range []string{"mine", "forward", "early"} {
		ops = append(ops, nft.DeleteChain{Family: nft.IPv4, Name: name})
	}
	for _, name := range []string{"marks", "names", "vague", "unchanging", "limited", "objects", "wide"} {
		ops = append(ops, nft.DeleteSet{Family: nft.IPv4, Name: name})
	}
	ops = append(ops, nft.DeleteCounter{Family: nft.IPv4, Name: "hits"})
	for name, key := range map[string]string{"empty": "\x0a\x63\x00\x01", "services": "\x0a\x63\x00\x01\x06\x00\x00\x00\x00\x01\x00\x00", "sources": "\x0a\x09\x09\x00\x0a\x09\x09\xff"} {
		ops = append(ops, nft.DeleteElements{Family: nft.IPv4, Set: table.Sets[name].Set, Elements: []nft.Element{{Key: key}}})
	}
	ops = append(ops, nft.SetRules{Family: nft.IPv4, Chain: "pick-5"})
	commit(t, c, generation, ops...)
	if after, _ := read(t, c); !reflect.DeepEqual(before, after) {
		t.Error("what was there before the foreign things came is not restored")
	}
}

// A catch-all element has no key that could be deleted by itself, so its set is foreign.
func TestForeignCatchAll(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	if !c.Probe().Owner {
		t.Skip("this kernel has no catch-all elements (5.13), as it has no table flag owner (5.12)")
	}
	commit(t, c, 0, everything(nft.IPv4)...)
	n.nft("add", "element", "ip", "svcctl", "vips", "{ * }")
	ruleset, _ := read(t, c)
	if s := ruleset[nft.IPv4].Sets["vips"]; s.Key != nil {
		t.Errorf("a set with a catch-all is %+v", s)
	}
}

// A dormant table does nothing, so it must not look like the wanted one.
func TestDormantTableIsReplaced(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	n.nft("add", "table", "ip", "svcctl", "{ flags dormant; }")
	ruleset, generation := read(t, c)
	if chain := ruleset[nft.IPv4].Chains["prerouting"]; chain == nil || chain.Hook != foreignHook {
		t.Errorf("a dormant table's chain is %+v", chain)
	}
	commit(t, c, generation, append([]nft.Op{nft.DeleteTable{Family: nft.IPv4}}, everything(nft.IPv4)...)...)
	if ruleset, _ = read(t, c); ruleset[nft.IPv4].Chains["prerouting"].Hook != nft.HookPrerouting {
		t.Error("the table is still dormant")
	}
}

func TestBaseChains(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	n.nftScript(`
		table inet filter {
			chain forward { type filter hook forward priority filter; policy drop; }
			chain none { }
		}
		table ip6 nat { chain PREROUTING { type nat hook prerouting priority dstnat; }; }
		table bridge b { chain x { type filter hook input priority 0; }; }
	`)
	chains, err := c.BaseChains()
	if err != nil {
		t.Fatal(err)
	}
	ours := 0
	var others []string
	for _, chain := range chains {
		if chain.Ours() {
			ours++
			continue
		}
		others = append(others, fmt.Sprint(chain, chain.Drops))
	}
	want := []string{
		"table ip6 nat, chain PREROUTING (nat hook prerouting priority -100) false",
		"table inet filter, chain forward (filter hook forward priority 0) true",
	}
	if !reflect.DeepEqual(others, want) || ours < 3 {
		t.Errorf("the chains of others are %q, want %q, beside %d of ours", others, want, ours)
	}
	if held, err := c.SentinelHeld(); held || err != nil {
		t.Errorf("the sentinel is held: %v, %v", held, err)
	}
	if err := c.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	if held, err := n.open().SentinelHeld(); held != c.features.Owner || err != nil {
		t.Errorf("the sentinel is held: %v, %v", held, err)
	}
}
