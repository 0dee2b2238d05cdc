package nft

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// sample is a ruleset with something of everything that has a text.
func sample() Ruleset {
	addr := netip.MustParseAddr
	frontend := func(a string, p Protocol, n uint16) Key { return Key(nil).Addr(addr(a)).Proto(p).Port(n) }
	build := func(f Family, vip, ten, two, high string) *Table {
		slot := func(n uint32) string { return string(frontend(vip, TCP, 80).Slot(n)) }
		endpoint := AddrPortData(netip.AddrPortFrom(addr(ten), 8080))
		t := &Table{Sets: map[string]*SetContent{}, Chains: map[string]*Chain{}}
		for _, s := range []SetContent{
			{Set{Name: "services", Key: []Type{TypeAddr, TypeProto, TypeService}, Data: []Type{TypeVerdict}}, Elements{
				string(frontend(vip, UDP, 53)):  "goto pick-2",
				string(frontend(vip, TCP, 443)): "goto recall-web",
				string(frontend(ten, TCP, 443)): "drop",
			}},
			{Set{Name: "backends", Key: []Type{TypeAddr, TypeProto, TypeService, TypeSlot}, Data: []Type{TypeAddr, TypeService}, Size: 100000}, Elements{
				slot(0): endpoint, slot(256): endpoint, slot(2): endpoint, slot(10): endpoint,
			}},
			{Set{Name: "affinity-web", Key: []Type{TypeAddr}, Data: []Type{TypeAddr, TypeService}, Timeout: 24 * time.Hour, Dynamic: true, Size: 65535}, nil},
			{Set{Name: "inside", Key: []Type{TypeAddr}, Interval: true}, Elements{
				AddrKey(addr(ten)) + AddrKey(addr(ten)): "", AddrKey(addr(vip)) + AddrKey(addr(high)): "",
			}},
			{Set{Name: "remember", Key: []Type{TypeAddr, TypeProto, TypeService}, Data: []Type{TypeVerdict}}, Elements{
				string(frontend(vip, TCP, 443)): "goto remember-web",
			}},
			{Set{Name: "same", Key: []Type{TypeIface, TypeIface}}, Elements{
				string(Key(nil).Iface(1).Iface(1)): "", string(Key(nil).Iface(300).Iface(300)): "",
			}},
			{Set{Name: "on-link", Key: []Type{TypeIface, TypeAddr}, Interval: true}, Elements{
				string(Key(nil).Iface(1).Addr(addr(ten))) + string(Key(nil).Iface(1).Addr(addr(two))): "",
			}},
		} {
			t.Sets[s.Name] = &s
		}
		for _, c := range []Chain{
			{Name: "postrouting", Hook: HookPostrouting, Priority: PrioritySrcNAT, Rules: []Rule{
				{MatchNotDNAT{}, Verdict{Kind: Return}},
				{MatchProto{TCP}, VerdictMap{Key: originalFields, Map: "remember"}},
				{MatchSet{Key: []Field{Iif, Oif}, Set: "same"}, MatchSet{Key: []Field{Iif, Saddr}, Set: "on-link"}, Masquerade{}},
			}},
			{Name: "prerouting", Hook: HookPrerouting, Priority: PriorityDstNAT + 1, Rules: []Rule{
				{VerdictMap{Key: frontendFields, Map: "services"}},
				{MatchEchoRequest{}, Redirect{}},
				{MatchSet{Key: []Field{Saddr}, Set: "inside", Negate: true}, GotoChain("refuse")},
			}},
			{Name: "output", Hook: HookOutput, Priority: PriorityDstNAT, Rules: []Rule{{MatchLocalSource{}, GotoChain("empty")}}},
			{Name: "input", Hook: HookInput, Priority: PrioritySrcNAT},
			{Name: "pick-10", Rules: []Rule{{DNAT{Key: append(frontendFields[:3:3], Numgen(10)), Map: "backends"}}}},
			{Name: "pick-2", Rules: []Rule{{DNAT{Key: append(frontendFields[:3:3], Numgen(2)), Map: "backends"}}}},
			{Name: "recall-web", Rules: []Rule{{MatchProto{TCP}, DNAT{Key: []Field{Saddr}, Map: "affinity-web"}}, {GotoChain("pick-2")}}},
			{Name: "remember-web", Rules: []Rule{{Update{Map: "affinity-web", Key: []Field{Saddr}, Data: []Field{Daddr, Dport}, Timeout: 3 * time.Hour}}}},
			{Name: "refuse", Rules: []Rule{{MatchProto{TCP}, Reject{RejectTCPReset}}, {Reject{RejectPortUnreachable}}}},
			{Name: "empty"},
		} {
			t.Chains[c.Name] = &c
		}
		return t
	}
	return Ruleset{
		IPv4: build(IPv4, "10.96.0.10", "10.1.2.0", "10.1.3.255", "10.96.0.20"),
		IPv6: build(IPv6, "fd00:96::10", "fd00:1::", "fd00:1::ffff", "fd00:96::20"),
	}
}

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with a file of testdata.
func golden(t *testing.T, file, text string) {
	t.Helper()
	file = "testdata/" + file
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("differs from %s (go test -update rewrites it); got:\n%s", file, text)
	}
}

func TestWriteText(t *testing.T) {
	var index, name strings.Builder
	rs := sample()
	if err := rs.WriteText(&index); err != nil {
		t.Fatal(err)
	}
	golden(t, "sample.nft", index.String())
	if err := (Printer{Interfaces: map[uint32]string{1: "lo"}}).Ruleset(&name, rs); err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer(" 1 . 1,", ` "lo" . "lo",`, " 1 . ", ` "lo" . `).Replace(index.String())
	if name.String() != want {
		t.Errorf("with names of interfaces:\n%s", name.String())
	}
}

// sampleBatch makes the sample out of nothing.
func sampleBatch(rs Ruleset) Batch {
	var b Batch
	for _, f := range Families {
		b.Ops = append(b.Ops, AddTable{f})
		for _, s := range rs[f].Sets {
			b.Ops = append(b.Ops, AddSet{f, s.Set})
		}
		for _, c := range rs[f].Chains {
			b.Ops = append(b.Ops, AddChain{f, *c})
		}
		for _, c := range rs[f].Chains {
			b.Ops = append(b.Ops, SetRules{f, c.Name, c.Rules})
		}
		for _, s := range rs[f].Sets {
			b.Ops = append(b.Ops, AddElements{f, s.Set, sortedElements(s, f)})
		}
	}
	return b
}

func TestBatchText(t *testing.T) {
	s := sample()[IPv4].Sets
	backends, inside, affinity := s["backends"], s["inside"], s["affinity-web"]
	chain := Chain{Name: "prerouting", Hook: HookPrerouting, Priority: PriorityDstNAT}
	endpoints := []string{AddrPortData(netip.MustParseAddrPort("10.1.2.3:8080")), AddrPortData(netip.MustParseAddrPort("10.1.2.4:8080"))}
	b := Batch{Ops: []Op{
		AddTable{IPv4}, AddSet{IPv4, backends.Set}, AddSet{IPv4, inside.Set}, AddSet{IPv6, affinity.Set},
		AddChain{IPv4, chain}, AddChain{IPv6, Chain{Name: "refuse"}},
		SetRules{IPv4, "refuse", []Rule{{MatchProto{TCP}, Reject{RejectTCPReset}}, {Reject{RejectPortUnreachable}}}},
		SetRules{IPv4, "empty", nil},
		AddElements{IPv4, backends.Set, sortedElements(backends, IPv4)},
		AddElements{IPv4, backends.Set, nil},
		DeleteElements{IPv4, backends.Set, sortedElements(backends, IPv4)[:1]},
		DeleteElements{IPv4, inside.Set, sortedElements(inside, IPv4)},
		ForgetData{IPv4, affinity.Set, endpoints},
		DeleteChain{IPv4, "empty"}, DeleteSet{IPv4, "inside"}, DeleteTable{IPv6},
	}}
	var text strings.Builder
	if err := b.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "batch.nft", text.String())
}

// TestElementText: single elements as package sim and svcctl trace show them.
func TestElementText(t *testing.T) {
	port := Set{Key: []Type{TypeService}, Interval: true}
	proto := Set{Key: []Type{TypeProto, TypeSlot}, Data: []Type{TypeIface}}
	value := func(t Type, n uint32) Value { return Value{Type: t, Num: n} }
	for _, tt := range []struct {
		set  Set
		e    Element
		want string
	}{
		{port, Element{Key: JoinKey(value(TypeService, 80)) + JoinKey(value(TypeService, 80))}, "80"},
		{port, Element{Key: JoinKey(value(TypeService, 80)) + JoinKey(value(TypeService, 95))}, "80-95"},
		{proto, Element{string(Key(nil).Proto(1).Slot(7)), JoinKey(value(TypeIface, 9))}, "1 . 7 : 9"},
		{proto, Element{Key: string(Key(nil).Proto(SCTP).Slot(7))}, "sctp . 7"},
		{proto, Element{Key: "abc"}, "0x616263"},
	} {
		if got := (Printer{}).Element(tt.set, IPv4, tt.e); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriteTextReportsTheWritersError(t *testing.T) {
	rs := sample()
	if err := rs.WriteText(brokenWriter{}); err != os.ErrClosed {
		t.Errorf("ruleset: %v", err)
	}
	if err := sampleBatch(rs).WriteText(brokenWriter{}); err != os.ErrClosed {
		t.Errorf("batch: %v", err)
	}
}

func BenchmarkWriteText(b *testing.B) {
	rs := sample()
	elements := rs[IPv4].Sets["backends"].Elements
	data := AddrPortData(netip.MustParseAddrPort("10.1.2.3:8080"))
	for i := range uint32(50_000) {
		vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		elements[string(Key(nil).Addr(vip).Proto(TCP).Port(80).Slot(i%5))] = data
	}
	b.ReportAllocs()
	for b.Loop() {
		var out bytes.Buffer
		if err := rs.WriteText(&out); err != nil {
			b.Fatal(err)
		}
	}
}
