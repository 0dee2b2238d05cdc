package nft

import (
	"net/netip"
	"testing"
	"time"
)

var (
	frontendFields = []Field{Daddr, L4Proto, Dport}
	originalFields = []Field{OriginalDaddr, L4Proto, OriginalDport}
)

func TestRuleText(t *testing.T) {
	prefix := netip.MustParsePrefix
	tests := []struct {
		rule     Rule
		ip4, ip6 string // "": as for the other family
	}{
		{nil, "", ""},
		{Rule{Verdict{Kind: Accept}}, "accept", ""},
		{Rule{Verdict{Kind: Drop}}, "drop", ""},
		{Rule{Verdict{Kind: Return}}, "return", ""},
		{Rule{GotoChain("refuse")}, "goto refuse", ""},
		{Rule{Verdict{Kind: Jump, Chain: "pick-2"}}, "jump pick-2", ""},
		{Rule{Masquerade{}}, "masquerade", ""},
		{Rule{MatchEchoRequest{}, Redirect{}}, "icmp type echo-request redirect", "icmpv6 type echo-request redirect"},
		{Rule{MatchNotDNAT{}, Verdict{Kind: Return}}, "ct status ! dnat return", ""},
		{Rule{MatchInvalid{}, GotoChain("stray")}, "ct state invalid goto stray", ""},
		{Rule{MatchNoSYN{}, MatchSet{Key: []Field{Saddr, Saddr}, Set: "hairpin"}, Verdict{Kind: Drop}},
			"tcp flags ! syn ip saddr . ip saddr @hairpin drop", "tcp flags ! syn ip6 saddr . ip6 saddr @hairpin drop"},
		{Rule{MatchNoSYN{}, SourceMap{Key: []Field{Saddr, Sport}, Map: "adopted"}},
			"tcp flags ! syn snat ip to ip saddr . th sport map @adopted", "tcp flags ! syn snat ip6 to ip6 saddr . th sport map @adopted"},
		{Rule{MatchLocalSource{}, Masquerade{}}, "fib saddr type local masquerade", ""},
		{Rule{MatchLocalDest{}, Verdict{Kind: Accept}}, "fib daddr type local accept", ""},
		{Rule{MatchAssured{}, Verdict{Kind: Accept}}, "ct status assured accept", ""},
		{Rule{MatchReply{}, GotoChain("answer")}, "ct direction reply goto answer", ""},
		{Rule{MatchSYN{}, GotoChain("answer")}, "tcp flags syn goto answer", ""},
		{Rule{MatchRST{}, GotoChain("refused")}, "tcp flags rst goto refused", ""},
		{Rule{MatchInitAck{}, GotoChain("answer")}, "meta l4proto sctp @th,96,8 0x2 goto answer", ""},
		{Rule{MatchICMP{}, GotoChain("refused")}, "meta l4proto icmp goto refused", "meta l4proto ipv6-icmp goto refused"},
		{Rule{Delete{Set: "newcomers", Key: []Field{Daddr}}}, "delete @newcomers { ip daddr }", "delete @newcomers { ip6 daddr }"},
		{Rule{Update{Map: "newcomers", Key: []Field{Saddr}, Timeout: time.Second, Add: true}},
			"add @newcomers { ip saddr timeout 1s }", "add @newcomers { ip6 saddr timeout 1s }"},
		{Rule{Update{Map: "affinity", Key: []Field{Daddr}, Data: []Field{Saddr, Sport}, Timeout: time.Second}},
			"update @affinity { ip daddr timeout 1s : ip saddr . th sport }", "update @affinity { ip6 daddr timeout 1s : ip6 saddr . th sport }"},
		{Rule{MatchProto{SCTP}, Verdict{Kind: Drop}}, "meta l4proto sctp drop", ""},

		// Refusals.
		{Rule{Reject{RejectPortUnreachable}}, "reject", ""},
		{Rule{Reject{RejectHostUnreachable}}, "reject with icmp host-unreachable", "reject with icmpv6 addr-unreachable"},
		{Rule{MatchProto{TCP}, Reject{RejectTCPReset}}, "reject with tcp reset", ""},
		{Rule{MatchProto{UDP}, Reject{RejectPortUnreachable}}, "meta l4proto udp reject", ""},

		// Prefixes.
		{Rule{MatchPrefix{Field: Daddr, Prefix: prefix("10.96.0.1/16")}}, "ip daddr 10.96.0.0/16", "ip6 daddr 10.96.0.0/16"},
		{Rule{MatchPrefix{Field: Saddr, Prefix: prefix("10.96.0.1/32"), Negate: true}}, "ip saddr != 10.96.0.1", "ip6 saddr != 10.96.0.1"},
		{Rule{MatchNotICMP{}, Masquerade{}}, "meta l4proto != icmp masquerade", "meta l4proto != ipv6-icmp masquerade"},
		{Rule{MatchPrefix{Field: OriginalDaddr, Prefix: prefix("10.96.0.1/16")}}, "ct original ip daddr 10.96.0.0/16", "ct original ip6 daddr 10.96.0.0/16"},
		{Rule{MatchPrefix{Field: Saddr, Prefix: prefix("::/0")}}, "ip saddr ::/0", "ip6 saddr ::/0"},

		// Sets and maps.
		{Rule{MatchSet{Key: []Field{Saddr, Daddr}, Set: "hairpin"}, Masquerade{}}, "ip saddr . ip daddr @hairpin masquerade", "ip6 saddr . ip6 daddr @hairpin masquerade"},
		{Rule{MatchSet{Key: []Field{Saddr}, Set: "inside", Negate: true}, Verdict{Kind: Drop}}, "ip saddr != @inside drop", "ip6 saddr != @inside drop"},
		{Rule{MatchSet{Key: []Field{Iif, Oif}, Set: "same"}}, "iif . oif @same", ""},
		{Rule{VerdictMap{Key: frontendFields, Map: "services"}}, "ip daddr . meta l4proto . th dport vmap @services", "ip6 daddr . meta l4proto . th dport vmap @services"},
		{Rule{MatchProto{TCP}, VerdictMap{Key: originalFields, Map: "remember"}},
			"meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst vmap @remember",
			"meta l4proto tcp ct original ip6 daddr . meta l4proto . ct original proto-dst vmap @remember"},
		{Rule{DNAT{Key: append(frontendFields[:3:3], Numgen(5)), Map: "backends"}},
			"dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 5 map @backends",
			"dnat ip6 to ip6 daddr . meta l4proto . th dport . numgen random mod 5 map @backends"},
		{Rule{MatchProto{TCP}, DNAT{Key: []Field{Saddr}, Map: "affinity"}}, "meta l4proto tcp dnat ip to ip saddr map @affinity", "meta l4proto tcp dnat ip6 to ip6 saddr map @affinity"},

		// A protocol that the port's name already says.
		{Rule{MatchProto{UDP}, MatchSet{Key: []Field{Dport}, Set: "ports"}}, "udp dport @ports", ""},
		{Rule{MatchProto{SCTP}, MatchNotDNAT{}, VerdictMap{Key: frontendFields, Map: "services"}},
			"ct status ! dnat ip daddr . meta l4proto . sctp dport vmap @services",
			"ct status ! dnat ip6 daddr . meta l4proto . sctp dport vmap @services"},
		{Rule{MatchProto{TCP}, MatchProto{UDP}, DNAT{Key: []Field{Dport}, Map: "m"}}, "meta l4proto tcp dnat ip to udp dport map @m", "meta l4proto tcp dnat ip6 to udp dport map @m"},

		// Updates.
		{Rule{Update{Map: "affinity", Key: []Field{Saddr}, Data: []Field{Daddr, Dport}, Timeout: 3 * time.Hour}},
			"update @affinity { ip saddr timeout 3h : ip daddr . th dport }",
			"update @affinity { ip6 saddr timeout 3h : ip6 daddr . th dport }"},
		{Rule{MatchProto{TCP}, Update{Map: "affinity", Key: []Field{Saddr}, Data: []Field{Daddr, Dport}}},
			"update @affinity { ip saddr : ip daddr . tcp dport }",
			"update @affinity { ip6 saddr : ip6 daddr . tcp dport }"},
		{Rule{MatchProto{TCP}, Update{Map: "seen", Key: []Field{Saddr}}, MatchSet{Key: []Field{Dport}, Set: "ports"}},
			"meta l4proto tcp update @seen { ip saddr } tcp dport @ports",
			"meta l4proto tcp update @seen { ip6 saddr } tcp dport @ports"},
		{Rule{Update{Map: "seen", Key: []Field{Saddr}, Timeout: time.Second}},
			"update @seen { ip saddr timeout 1s }", "update @seen { ip6 saddr timeout 1s }"},
	}
	for _, tt := range tests {
		if got := tt.rule.Text(IPv4); got != tt.ip4 {
			t.Errorf("table ip:\n got %s\nwant %s", got, tt.ip4)
		}
		want := tt.ip6
		if want == "" {
			want = tt.ip4
		}
		if got := tt.rule.Text(IPv6); got != want {
			t.Errorf("table ip6:\n got %s\nwant %s", got, want)
		}
	}
}

func TestMark(t *testing.T) {
	r := Rule{MatchSet{Key: []Field{Saddr, Daddr}, Set: "hairpin"}, Masquerade{}}
	// FNV-1a of "ip saddr . ip daddr @hairpin masquerade": marks live in the kernel
	// longer than a program does, so they must not change from one to the next.
	const want uint64 = 0xdad495553694aeed
	if got := r.Mark(IPv4); got != want {
		t.Errorf("mark %#x, want %#x", got, want)
	}
	if r.Mark(IPv4) == r.Mark(IPv6) {
		t.Error("the mark does not tell the families apart")
	}
	if Rule(nil).Mark(IPv4) == 0 {
		t.Error("mark 0 means: not ours")
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                       "0s",
		time.Second:             "1s",
		90 * time.Second:        "1m30s",
		3 * time.Hour:           "3h",
		24 * time.Hour:          "1d",
		1500 * time.Millisecond: "1s500ms",
		25*time.Hour + 61*time.Second + time.Millisecond + time.Nanosecond: "1d1h1m1s1ms",
	} {
		if got := string(appendDuration(nil, d)); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

func TestCompareNames(t *testing.T) {
	names := []string{"", "2", "10", "a", "pick", "pick-2", "pick-02", "pick-10", "pick-10-a", "pick-10-b", "pick-100", "pick-a", "recall"}
	for i, a := range names {
		for j, b := range names {
			want := 0
			if i != j {
				want = map[bool]int{true: -1, false: 1}[i < j]
			}
			if got := compareNames(a, b); got != want {
				t.Errorf("compareNames(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}
