// This file is long because it holds every statement of the ruleset against the kernel, one case each.

package kernel

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

var (
	frontendKey = []nft.Type{nft.TypeAddr, nft.TypeProto, nft.TypeService}
	slotKey     = []nft.Type{nft.TypeAddr, nft.TypeProto, nft.TypeService, nft.TypeSlot}
	endpoint    = []nft.Type{nft.TypeAddr, nft.TypeService}
	verdict     = []nft.Type{nft.TypeVerdict}
	frontend    = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	backends    = nft.Set{Name: "backends", Key: slotKey, Data: endpoint}
)

// address is the nth address of a family.
func address(f nft.Family, n int) netip.Addr {
	if f == nft.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

func slotElement(f nft.Family, n int) nft.Element {
	return nft.Element{
		Key:  string(nft.Key(nil).Addr(address(f, n)).Proto(nft.TCP).Port(80).Slot(uint32(n % 5))),
		Data: nft.AddrPortData(netip.AddrPortFrom(address(f, n+1), 8080)),
	}
}

func commit(t testing.TB, c *Conn, generation uint32, ops ...nft.Op) uint32 {
	t.Helper()
	next, err := c.Commit(&nft.Batch{Ops: ops}, generation)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func read(t testing.TB, c *Conn) (nft.Ruleset, uint32) {
	t.Helper()
	ruleset, generation, err := c.Read()
	if err != nil {
		t.Fatal(err)
	}
	return ruleset, generation
}

// everySet is a set of each kind with elements.
func everySet(f nft.Family) []*nft.SetContent {
	a := func(n int) string { return nft.AddrKey(address(f, n)) }
	first, last := strings.Repeat("\x00", f.AddrLen()), strings.Repeat("\xff", f.AddrLen())
	front := func(n int) nft.Key { return nft.Key(nil).Addr(address(f, n)).Proto(nft.TCP).Port(80) }
	fromTo := func(k nft.Key, a, b netip.Addr) string {
		return string(slices.Clone(k).Addr(a)) + string(slices.Clone(k).Addr(b))
	}
	iface := func(n uint32) nft.Key { return nft.Key(nil).Iface(n) }
	big := nft.Elements{}
	for n := range 1000 {
		e := slotElement(f, n)
		big[e.Key] = e.Data
	}
	return []*nft.SetContent{
		{Set: backends, Elements: big},
		{Set: nft.Set{Name: "nodeport-backends", Key: slotKey[1:], Data: endpoint, Size: 100}, Elements: nft.Elements{
			string(nft.Key(nil).Proto(nft.SCTP).Port(30000).Slot(7)): nft.AddrPortData(netip.AddrPortFrom(address(f, 1), 1))}},
		{Set: nft.Set{Name: "services", Key: frontendKey, Data: verdict}, Elements: nft.Elements{
			string(front(1)): "goto pick-5", string(front(2)): "drop", string(front(3)): "accept",
			string(front(4)): "return", string(front(5)): "jump pick-5"}},
		{Set: nft.Set{Name: "addresses", Key: frontendKey[:1], Data: verdict}, Elements: nft.Elements{a(1): "goto pick-5"}},
		{Set: nft.Set{Name: "empty", Key: frontendKey[:1]}, Elements: nft.Elements{}},
		{Set: nft.Set{Name: "vips", Key: frontendKey[:1], Size: 2}, Elements: nft.Elements{a(1): "", a(2): ""}},
		{Set: nft.Set{Name: "ports", Key: frontendKey[2:]}, Elements: nft.Elements{"\x00\x50": ""}},
		{Set: nft.Set{Name: "protocols", Key: frontendKey[1:2]}, Elements: nft.Elements{"\x06": "", "\x84": ""}},
		{Set: nft.Set{Name: "slots", Key: slotKey[3:], Data: endpoint[:1]}, Elements: nft.Elements{
			string(nft.Key(nil).Slot(3)): a(3)}},
		{Set: nft.Set{Name: "hairpin", Key: []nft.Type{nft.TypeAddr, nft.TypeAddr}}, Elements: nft.Elements{a(1) + a(1): ""}},
		{Set: nft.Set{Name: "same-interface", Key: []nft.Type{nft.TypeIface, nft.TypeIface}}, Elements: nft.Elements{
			string(iface(1).Iface(1)): ""}},
		{Set: nft.Set{Name: "sources", Key: frontendKey[:1], Interval: true}, Elements: nft.Elements{
			first + a(0): "", a(10) + a(20): "", a(21) + a(21): "", a(22) + a(30): "", a(1<<20) + last: ""}},
		{Set: nft.Set{Name: "everything", Key: frontendKey[:1], Interval: true}, Elements: nft.Elements{first + last: ""}},
		{Set: nft.Set{Name: "source-verdicts", Key: frontendKey[:1], Data: verdict, Interval: true}, Elements: nft.Elements{
			a(10) + a(20): "goto pick-5", a(21) + a(21): "accept"}},
		{Set: nft.Set{Name: "on-link", Key: []nft.Type{nft.TypeIface, nft.TypeAddr}, Interval: true}, Elements: nft.Elements{
			fromTo(iface(1), address(f, 0), address(f, 255)): "", fromTo(iface(300), address(f, 0), address(f, 255)): ""}},
		{Set: nft.Set{Name: "interfaces", Key: []nft.Type{nft.TypeIface}, Interval: true}, Elements: nft.Elements{
			string(iface(1)) + string(iface(1)): "", string(iface(250)) + string(iface(300)): ""}},
		{Set: nft.Set{Name: "single-interfaces", Key: []nft.Type{nft.TypeIface}}, Elements: nft.Elements{string(iface(1)): ""}},
		{Set: nft.Set{Name: "allowed", Key: append(slices.Clone(frontendKey), nft.TypeAddr), Interval: true}, Elements: nft.Elements{
			string(front(1)) + first + string(front(1)) + last: "", fromTo(front(2), address(f, 3), address(f, 9)): "",
			fromTo(front(2), address(f, 10), address(f, 10)): ""}},
		{Set: nft.Set{Name: "affinity", Key: frontendKey[:1], Data: endpoint, Dynamic: true, Timeout: 24 * time.Hour, Size: 65535}, Elements: nft.Elements{}},
		{Set: nft.Set{Name: "turns", Key: []nft.Type{nft.TypeSlot}, Data: endpoint}, Elements: nft.Elements{
			nft.JoinKey(nft.Value{Type: nft.TypeSlot, Num: 2}): nft.AddrPortData(netip.AddrPortFrom(address(f, 3), 8080))}},
		{Set: nft.Set{Name: "passing", Key: frontendKey[:1], Timeout: 90 * time.Second}, Elements: nft.Elements{a(1): ""}},
	}
}

// everyRule is each statement at least once; the sets they look into are everySet's.
func everyRule(f nft.Family) []nft.Rule {
	original := []nft.Field{nft.OriginalDaddr, nft.L4Proto, nft.OriginalDport}
	prefix := func(bits int) netip.Prefix { return netip.PrefixFrom(address(f, 1), bits) }
	return []nft.Rule{
		{nft.VerdictMap{Key: frontend, Map: "services"}},
		{nft.MatchSet{Key: frontend[:1], Set: "vips"}, nft.Verdict{Kind: nft.Drop}},
		{nft.MatchSet{Key: []nft.Field{nft.Saddr}, Set: "sources", Negate: true}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchSet{Key: append(slices.Clone(frontend), nft.Saddr), Set: "allowed", Negate: true}, nft.Verdict{Kind: nft.Drop}},
		{nft.DNAT{Key: append(slices.Clone(frontend), nft.Numgen(5)), Map: "backends"}},
		{nft.DNAT{Key: []nft.Field{nft.L4Proto, nft.Dport, nft.Numgen(1000)}, Map: "nodeport-backends"}},
		{nft.DNAT{Key: append(slices.Clone(frontend), nft.Field{Kind: nft.FieldNumgen, Mod: 64, Offset: 64}), Map: "backends"}},
		{nft.DNAT{Key: append(slices.Clone(frontend), nft.Field{Kind: nft.FieldHashSource, Mod: 16384}), Map: "backends"}},
		{nft.DNAT{Key: append(slices.Clone(frontend), nft.Field{Kind: nft.FieldHashFlow, Mod: 256}), Map: "backends"}},
		{nft.DNAT{Key: []nft.Field{nft.L4Proto, nft.Dport, {Kind: nft.FieldHashFlow, Mod: 256}}, Map: "nodeport-backends"}},
		{nft.MatchProto{Proto: nft.UDP}, nft.DNAT{Key: []nft.Field{{Kind: nft.FieldTurn, Mod: 3}}, Map: "turns"}},
		{nft.MatchProto{Proto: nft.TCP}, nft.DNAT{Key: []nft.Field{nft.Saddr}, Map: "affinity"}},
		{nft.MatchProto{Proto: nft.UDP}, nft.VerdictMap{Key: frontend, Map: "services"}},
		{nft.MatchProto{Proto: nft.TCP}, nft.VerdictMap{Key: original, Map: "services"}},
		{nft.MatchProto{Proto: nft.SCTP}, nft.GotoChain("pick-5")},
		{nft.MatchPrefix{Field: nft.Daddr, Prefix: prefix(0)}, nft.GotoChain("pick-5")},
		{nft.MatchPrefix{Field: nft.Daddr, Prefix: prefix(16)}, nft.GotoChain("pick-5")},
		{nft.MatchPrefix{Field: nft.Saddr, Prefix: prefix(15), Negate: true}, nft.Verdict{Kind: nft.Jump, Chain: "pick-5"}},
		{nft.MatchPrefix{Field: nft.Saddr, Prefix: prefix(f.AddrLen() * 8)}, nft.Verdict{Kind: nft.Return}},
		{nft.MatchNotDNAT{}, nft.MatchPrefix{Field: nft.Daddr, Prefix: prefix(16)}, nft.Verdict{Kind: nft.Drop}},
		{nft.MatchLocalSource{}, nft.Masquerade{}},
		{nft.SetTimeout{Timeout: nft.Timeout{Protocol: nft.TCP, Idle: time.Minute}}},
		{nft.MatchPrefix{Field: nft.OriginalDaddr, Prefix: prefix(16)}, nft.Verdict{Kind: nft.Drop}},
		{nft.MatchPrefix{Field: nft.OriginalDaddr, Prefix: prefix(f.AddrLen() * 8), Negate: true}, nft.GotoChain("pick-5")},
		{nft.MatchPrefix{Field: nft.OriginalDaddr, Prefix: prefix(0)}, nft.GotoChain("pick-5")},
		{nft.MatchNotICMP{}, nft.GotoChain("pick-5")},
		{nft.MatchReply{}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchLocalDest{}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchAssured{}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchSYN{}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchRST{}, nft.GotoChain("pick-5")},
		{nft.MatchInitAck{}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchICMP{}, nft.GotoChain("pick-5")},
		{nft.MatchInvalid{}, nft.GotoChain("pick-5")},
		{nft.MatchNoSYN{}, nft.Verdict{Kind: nft.Drop}},
		{nft.MatchEchoRequest{}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchEchoRequest{}, nft.MatchSet{Key: frontend[:1], Set: "vips"}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchSet{Key: []nft.Field{nft.Iif, nft.Oif}, Set: "same-interface"}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchSet{Key: []nft.Field{{Kind: nft.FieldOif, Ranged: true}, nft.Saddr}, Set: "on-link"}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchSet{Key: []nft.Field{{Kind: nft.FieldIif, Ranged: true}}, Set: "interfaces"}, nft.Verdict{Kind: nft.Accept}},
		{nft.MatchSet{Key: []nft.Field{nft.Saddr, nft.Daddr}, Set: "hairpin"}, nft.Verdict{Kind: nft.Accept}},
		{nft.Update{Map: "affinity", Key: []nft.Field{nft.Saddr}, Data: []nft.Field{nft.Daddr, nft.Dport}, Timeout: 3 * time.Hour}},
		{nft.Update{Map: "affinity", Key: []nft.Field{nft.Saddr}, Data: []nft.Field{nft.Daddr, nft.Dport}, Timeout: 5 * time.Second}},
		{nft.Update{Map: "affinity", Key: []nft.Field{nft.Daddr}, Data: []nft.Field{nft.Saddr, nft.Sport}, Timeout: time.Second, Add: true}},
	}
}

// everything is the operations that make every kind of thing in a family.
func everything(f nft.Family) []nft.Op {
	ops := []nft.Op{
		nft.AddTable{Family: f},
		nft.AddChain{Family: f, Chain: nft.Chain{Name: "pick-5"}},
		nft.AddTimeout{Family: f, Timeout: nft.Timeout{Protocol: nft.TCP, Idle: time.Minute}},
		nft.AddTimeout{Family: f, Timeout: nft.Timeout{Protocol: nft.UDP, Idle: 4000 * time.Second}},
	}
	for _, s := range everySet(f) {
		ops = append(ops, nft.AddSet{Family: f, Set: s.Set})
		var elements []nft.Element
		for k, d := range s.Elements {
			elements = append(elements, nft.Element{Key: k, Data: d})
		}
		ops = append(ops, nft.AddElements{Family: f, Set: s.Set, Elements: elements})
	}
	for _, c := range everyChain(f) {
		ops = append(ops, nft.AddChain{Family: f, Chain: c}, nft.SetRules{Family: f, Chain: c.Name, Rules: c.Rules})
	}
	return ops
}

func everyChain(f nft.Family) []nft.Chain {
	return []nft.Chain{
		{Name: "postrouting", Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT, Rules: everyRule(f)[15:16]},
		{Name: "prerouting", Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT, Rules: everyRule(f)[:15]},
		{Name: "output", Hook: nft.HookOutput, Priority: nft.PriorityDstNAT, Rules: []nft.Rule{{nft.Redirect{}}}},
		{Name: "input", Hook: nft.HookInput, Priority: 100},
		{Name: "strays", Hook: nft.HookPrerouting, Priority: nft.PriorityStray, Filter: true, Rules: []nft.Rule{{nft.MatchInvalid{}, nft.Verdict{Kind: nft.Drop}}}},
		{Name: "refuse", Rules: []nft.Rule{
			{nft.MatchProto{Proto: nft.TCP}, nft.Reject{With: nft.RejectTCPReset}},
			{nft.Reject{With: nft.RejectHostUnreachable}},
			{nft.Reject{With: nft.RejectPortUnreachable}},
		}},
		{Name: "rest", Rules: everyRule(f)[16:]},
	}
}

func TestReadGivesWhatWasCommitted(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	var ops []nft.Op
	want := nft.Ruleset{}
	for _, f := range nft.Families {
		ops = append(ops, everything(f)...)
		table := &nft.Table{Sets: map[string]*nft.SetContent{}, Chains: map[string]*nft.Chain{"pick-5": {Name: "pick-5"}}, Flowtables: map[string]nft.Flowtable{},
			Timeouts: map[string]nft.Timeout{
				"idle-tcp-60":   {Protocol: nft.TCP, Idle: time.Minute},
				"idle-udp-4000": {Protocol: nft.UDP, Idle: 4000 * time.Second},
			}}
		for _, s := range everySet(f) {
			table.Sets[s.Name] = s
		}
		for _, chain := range everyChain(f) {
			for _, r := range chain.Rules {
				chain.Marks = append(chain.Marks, r.Mark(f))
			}
			chain.Rules = nil
			table.Chains[chain.Name] = &chain
		}
		want[f] = table
	}
	empty, generation := read(t, c)
	if len(empty) != 0 {
		t.Fatalf("a new namespace has %v", empty)
	}
	generation = commit(t, c, generation, ops...)
	got, now := read(t, c)
	if now != generation {
		t.Errorf("generation is %d, Commit said %d", now, generation)
	}
	for _, f := range nft.Families {
		for name, s := range want[f].Sets {
			if got := got[f].Sets[name]; !reflect.DeepEqual(got, s) {
				if got != nil && len(got.Elements) > 50 {
					got.Elements, s.Elements = nil, nil
				}
				t.Errorf("%s set %s:\n got %+v\nwant %+v", f, name, got, s)
			}
		}
		if !reflect.DeepEqual(got[f].Chains, want[f].Chains) {
			t.Errorf("%s chains differ", f)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("the rulesets differ")
	}

	t.Run("delete", func(t *testing.T) {
		var ops []nft.Op
		for _, f := range nft.Families {
			for _, c := range everyChain(f) {
				ops = append(ops, nft.DeleteChain{Family: f, Name: c.Name})
			}
			for _, s := range everySet(f) {
				var keys []nft.Element
				for k := range s.Elements {
					keys = append(keys, nft.Element{Key: k})
				}
				ops = append(ops, nft.DeleteElements{Family: f, Set: s.Set, Elements: keys}, nft.DeleteSet{Family: f, Name: s.Name})
			}
		}
		commit(t, c, generation, ops...)
		got, _ := read(t, c)
		for _, f := range nft.Families {
			if len(got[f].Sets) != 0 || len(got[f].Chains) != 1 {
				t.Errorf("%s is left with %v", f, got[f])
			}
		}
	})
}

// Every rule prints as package nft says, and everything that is printed loads again.
func TestListingsSayTheSameAndLoad(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	_, generation := read(t, c)
	var ops []nft.Op
	for _, f := range nft.Families {
		ops = append(ops, everything(f)...)
	}
	commit(t, c, generation, ops...)
	listing := n.nft("list", "ruleset")
	for _, f := range nft.Families {
		family := n.nft("list", "table", f.String(), nft.TableName)
		var rules []string
		for _, chain := range everyChain(f) {
			for _, r := range chain.Rules {
				rules = append(rules, r.Text(f))
			}
		}
		for _, text := range rules {
			if !strings.Contains(family, "\t"+text+"\n") {
				t.Errorf("nft does not print `%s`", text)
			}
		}
		address := f.String() + " daddr"
		for _, text := range []string{
			"typeof " + address + " . meta l4proto . th dport . numgen random mod 1 : " + address + " . th dport",
			"typeof numgen random mod 1 : " + address,
		} {
			if !strings.Contains(family, text) {
				t.Errorf("nft does not print `%s`", text)
			}
		}
	}
	if t.Failed() {
		t.Log(listing)
	}
	if !json.Valid([]byte(n.nft("-j", "list", "ruleset"))) {
		t.Error("nft -j list ruleset is not JSON")
	}
	for _, text := range []string{
		"10.0.0.7 . tcp . 80 . 2 : 10.0.0.8 . 8080", `"lo" . 10.0.0.0/24`, "300 . 10.0.0.0/24", `"lo", 250-300`,
	} {
		if !strings.Contains(listing, text) {
			t.Errorf("nft does not print `%s`", text)
		}
	}
	for _, text := range notLoadable() {
		listing = strings.ReplaceAll(listing, "\t\t"+text+"\n", "")
	}
	before, _ := read(t, c)
	n.nft("flush", "ruleset")
	listing = n.acceptable(listing)
	n.nftScript(listing)
	got, want := statements(n.nft("list", "ruleset")), statements(listing)
	for _, line := range slices.Concat(got, want) {
		if slices.Contains(got, line) != slices.Contains(want, line) {
			t.Errorf("`%s` was printed and not loaded, or loaded otherwise", line)
		}
	}
	after, _ := read(t, c)
	for _, f := range nft.Families {
		if !reflect.DeepEqual(before[f].Sets, after[f].Sets) {
			t.Errorf("the sets of %s differ after they were loaded again", f)
		}
		for _, chain := range after[f].Chains {
			for _, mark := range chain.Marks {
				if mark != 0 {
					t.Errorf("a rule that nft made has mark %x", mark)
				}
			}
		}
	}
}

// bytecode is the expressions of rules as nft prints them, without what nft adds to no
// effect: turning a number of one byte around.
func bytecode(n *namespace) (lines []string) {
	noEffect := regexp.MustCompile(`= hton\(reg \d+, 2, 1\)`)
	for line := range strings.Lines(n.nft("--debug=netlink", "-s", "list", "ruleset")) {
		if strings.HasPrefix(line, "  [ ") && !noEffect.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// What is committed here is what nft itself makes of the printed rules, down to each
// expression.
func TestExpressionsAreThoseOfNft(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	var ops []nft.Op
	for _, f := range nft.Families {
		ops = append(ops, everything(f)...)
		loadable := slices.DeleteFunc(everyRule(f)[16:], func(r nft.Rule) bool {
			return f == nft.IPv6 && slices.Contains(notLoadable(), r.Text(f))
		})
		ops = append(ops, nft.SetRules{Family: f, Chain: "rest", Rules: loadable})
	}
	commit(t, c, 0, ops...)
	ours, listing := bytecode(n), n.nft("list", "ruleset")
	n.nft("flush", "ruleset")
	n.nftScript(listing)
	theirs := bytecode(n)
	if len(ours) < 100 || len(ours) != len(theirs) {
		t.Errorf("%d expressions, nft makes %d", len(ours), len(theirs))
	}
	for i := range min(len(ours), len(theirs)) {
		if ours[i] != theirs[i] {
			t.Errorf("expression %d is %s, nft makes %s", i, ours[i], theirs[i])
		}
	}
}

// notLoadable are rules that nft (1.0.6 to 1.1) prints and aborts on when it loads them:
// updates with data of which a field begins behind the first 16 bytes.
func notLoadable() (texts []string) {
	for _, r := range everyRule(nft.IPv6) {
		if _, update := r[0].(nft.Update); update {
			texts = append(texts, r.Text(nft.IPv6))
		}
	}
	return texts
}

// statements are the lines of a listing, sorted: the elements of a set come in any order.
func statements(listing string) []string {
	listing = regexp.MustCompile(` expires \w+|elements = \{| \}|,$`).ReplaceAllString(listing, "")
	lines := strings.FieldsFunc(listing, func(r rune) bool { return r == '\n' || r == ',' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// The userdata of sets with a slot is what nft 1.0.6 writes, byte for byte.
func TestTypeofIsWhatNftWrites(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	sets := []nft.Set{
		backends,
		{Name: "nodeport-backends", Key: slotKey[1:], Data: endpoint},
		{Name: "slots", Key: slotKey[3:], Data: endpoint[:1]},
		{Name: "numbers", Key: slotKey[2:]},
	}
	var script strings.Builder
	for _, f := range nft.Families {
		a := f.String() + " daddr"
		fmt.Fprintf(&script, `table %[1]s svcctl {
			map backends { typeof %[2]s . meta l4proto . th dport . numgen random mod 1 : %[2]s . th dport; }
			map nodeport-backends { typeof meta l4proto . th dport . numgen random mod 1 : %[2]s . th dport; }
			map slots { typeof numgen random mod 1 : %[2]s; }
			set numbers { typeof th dport . numgen random mod 1; }
		}
		`, f, a)
	}
	n.nftScript(script.String())
	for _, f := range nft.Families {
		for _, s := range sets {
			var userdata []byte
			err := c.socket.dump(unix.NFT_MSG_GETSET, protocols[f].family, nil, func(m message) {
				set := decodeSet(&m, f)
				for kind, value := range m.Attributes() {
					if kind == unix.NFTA_SET_USERDATA && set.Name == s.Name {
						userdata = slices.Clone(value)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := typeofData(f, &s); !slices.Equal(got, userdata) {
				t.Errorf("%s %s:\n got %x\nnft  %x", f, s.Name, got, userdata)
			}
		}
	}
}
