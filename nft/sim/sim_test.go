package sim_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	. "svcctl.io/svcctl/nft/sim"
)

// These tests say in tables what the kernel does; TestKernelAgrees holds that against
// the kernel where it can.

var (
	client   = netip.MustParseAddr("192.0.2.10")
	vip      = netip.MustParseAddr("10.96.0.1")
	endpoint = netip.MustParseAddrPort("10.1.0.1:8080")
	second   = netip.MustParseAddrPort("10.1.0.2:8080")
	boxIn    = netip.MustParseAddr("192.0.2.1")
	boxOut   = netip.MustParseAddr("198.51.100.1")
	now      = time.Unix(1000, 0)
	syn      = Packet{Saddr: client, Daddr: vip, Proto: nft.TCP, Sport: 1234, Dport: 80, Iif: in0}
	own      = Packet{Saddr: boxIn, Daddr: vip, Proto: nft.TCP, Sport: 1234, Dport: 80}
	ping     = Packet{Saddr: client, Daddr: vip, ICMPEcho: true, Iif: in0}
	first    = slot(0)

	accept   = nft.Verdict{Kind: nft.Accept}
	drop     = nft.Verdict{Kind: nft.Drop}
	back2    = nft.Verdict{Kind: nft.Return}
	toVIP    = nft.MatchPrefix{Field: nft.Daddr, Prefix: netip.MustParsePrefix("10.96.0.0/16")}
	balance  = nft.DNAT{Key: append(frontend[:3:3], nft.Numgen(2)), Map: "backends"}
	recall   = nft.DNAT{Key: []nft.Field{nft.Saddr}, Map: "affinity"}
	remember = nft.Update{Map: "affinity", Key: []nft.Field{nft.Saddr}, Data: []nft.Field{nft.Daddr, nft.Dport}, Timeout: time.Minute}
)

func jump(chain string) nft.Verdict { return nft.Verdict{Kind: nft.Jump, Chain: chain} }

// host is a box with sets of every kind and the given chains.
func host(chains ...nft.Chain) *stateful.Host {
	key := nft.Key(nil).Addr(vip).Proto(nft.TCP).Port(80)
	itself := nft.Key(nil).Addr(vip).Proto(nft.TCP).Port(81)
	table := &nft.Table{Sets: map[string]*nft.SetContent{}, Chains: map[string]*nft.Chain{}}
	addr, proto, port := nft.TypeAddr, nft.TypeProto, nft.TypeService
	for _, s := range []nft.SetContent{
		{Set: nft.Set{Name: "backends", Key: []nft.Type{addr, proto, port, nft.TypeSlot}, Data: []nft.Type{addr, port}},
			Elements: nft.Elements{string(key.Slot(0)): nft.AddrPortData(endpoint), string(key.Slot(1)): nft.AddrPortData(second),
				string(itself.Slot(0)): nft.AddrPortData(netip.AddrPortFrom(vip, 81)), string(itself.Slot(1)): nft.AddrPortData(netip.AddrPortFrom(vip, 81))}},
		{Set: nft.Set{Name: "services", Key: []nft.Type{addr, proto, port}, Data: []nft.Type{nft.TypeVerdict}},
			Elements: nft.Elements{string(key): "goto pick"}},
		{Set: nft.Set{Name: "affinity", Key: []nft.Type{addr}, Data: []nft.Type{addr, port}, Dynamic: true, Timeout: time.Hour, Size: 2}},
		{Set: nft.Set{Name: "echoes", Key: []nft.Type{addr, proto, port}},
			Elements: nft.Elements{string(nft.Key(nil).Addr(vip).Proto(1).Port(0x0800)): ""}},
		{Set: nft.Set{Name: "on-link", Key: []nft.Type{nft.TypeIface, addr}, Interval: true}, Elements: nft.Elements{
			string(nft.Key(nil).Iface(in0).Addr(boxIn)) + string(nft.Key(nil).Iface(in0).Addr(client)): ""}},
		{Set: nft.Set{Name: "same", Key: []nft.Type{nft.TypeIface, nft.TypeIface}}, Elements: nft.Elements{
			string(nft.Key(nil).Iface(0).Iface(out0)): "", string(nft.Key(nil).Iface(in0).Iface(0)): ""}},
	} {
		table.Sets[s.Name] = &s
	}
	chains = append(chains, nft.Chain{Name: "pick", Rules: []nft.Rule{{balance}}})
	for _, c := range chains {
		table.Chains[c.Name] = &c
	}
	u := &universes[0]
	return &stateful.Host{Host: Host{Ruleset: nft.Ruleset{nft.IPv4: table}, Network: u}}
}

func prerouting(rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: "prerouting", Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT, Rules: rules}
}

func postrouting(rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: "postrouting", Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT, Rules: rules}
}

func output(rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: "output", Hook: nft.HookOutput, Priority: nft.PriorityDstNAT, Rules: rules}
}

func input(rules ...nft.Rule) nft.Chain {
	return nft.Chain{Name: "input", Hook: nft.HookInput, Priority: nft.PrioritySrcNAT, Rules: rules}
}

func chain(name string, rules ...nft.Rule) nft.Chain { return nft.Chain{Name: name, Rules: rules} }

// sendCase is a packet that meets rules.
type sendCase struct {
	name   string
	packet Packet
	host   *stateful.Host
	want   string
}

func sendCases() []sendCase {
	reject := func(with nft.RejectWith) nft.Rule { return nft.Rule{nft.Reject{With: with}} }
	set := func(name string, key ...nft.Field) nft.MatchSet { return nft.MatchSet{Key: key, Set: name} }
	not := func(m nft.MatchSet) nft.MatchSet { m.Negate = true; return m }
	udp := syn
	udp.Proto = nft.UDP
	self := own
	self.Daddr = boxIn
	const plain = "delivered 192.0.2.10 -> 10.96.0.1:80"
	const translated = "delivered 192.0.2.10 -> 10.1.0.1:8080"
	return []sendCase{
		{"no rules", syn, host(), plain},
		{"no table", syn, &stateful.Host{Host: Host{Network: &universes[0]}}, plain},
		{"end of a base chain", syn, host(prerouting(nft.Rule{toVIP})), plain},

		// Verdicts.
		{"drop", syn, host(prerouting(nft.Rule{drop})), "dropped"},
		{"accept ends the chain", syn, host(prerouting(nft.Rule{accept}, nft.Rule{drop})), plain},
		{"accept does not end the hook", syn, host(prerouting(nft.Rule{accept}),
			nft.Chain{Name: "later", Hook: nft.HookPrerouting, Priority: 0, Rules: []nft.Rule{{drop}}}), "dropped"},
		{"base chains go by priority", syn, host(nft.Chain{Name: "a", Hook: nft.HookPrerouting, Priority: 0, Rules: []nft.Rule{{drop}}},
			nft.Chain{Name: "z", Hook: nft.HookPrerouting, Priority: -1, Rules: []nft.Rule{{nft.VerdictMap{Key: frontend, Map: "services"}}}}), translated},
		{"return from a base chain", syn, host(prerouting(nft.Rule{back2}, nft.Rule{drop})), plain},
		{"jump comes back", syn, host(prerouting(nft.Rule{jump("sub")}, nft.Rule{drop}), chain("sub")), "dropped"},
		{"return from a jump", syn, host(prerouting(nft.Rule{jump("sub")}, nft.Rule{drop}), chain("sub", nft.Rule{back2}, nft.Rule{accept})), "dropped"},
		{"accept in a jump", syn, host(prerouting(nft.Rule{jump("sub")}, nft.Rule{drop}), chain("sub", nft.Rule{accept})), plain},
		{"goto does not come back", syn, host(prerouting(nft.Rule{nft.GotoChain("sub")}, nft.Rule{drop}), chain("sub")), plain},
		{"goto within a jump comes back to the jump", syn, host(prerouting(nft.Rule{jump("sub")}, nft.Rule{drop}),
			chain("sub", nft.Rule{nft.GotoChain("end")}, nft.Rule{accept}), chain("end", nft.Rule{back2})), "dropped"},

		// Matches.
		{"protocol", syn, host(prerouting(nft.Rule{nft.MatchProto{Proto: nft.TCP}, drop})), "dropped"},
		{"other protocol", syn, host(prerouting(nft.Rule{nft.MatchProto{Proto: nft.UDP}, drop})), plain},
		{"prefix", syn, host(prerouting(nft.Rule{toVIP, drop})), "dropped"},
		{"not the prefix", syn, host(prerouting(nft.Rule{nft.MatchPrefix{Field: nft.Saddr, Prefix: toVIP.Prefix, Negate: true}, drop})), "dropped"},
		{"range", syn, host(prerouting(nft.Rule{set("on-link", nft.Iif, nft.Saddr), drop})), "dropped"},
		{"out of range", Packet{Saddr: client.Next(), Daddr: vip, Proto: nft.TCP, Dport: 80, Iif: in0},
			host(prerouting(nft.Rule{not(set("on-link", nft.Iif, nft.Saddr)), drop})), "dropped"},
		{"no outgoing interface before routing", syn, host(prerouting(nft.Rule{set("same", nft.Iif, nft.Oif), drop})), "dropped"},
		{"no incoming interface of the box's own", own, host(output(nft.Rule{balance}), postrouting(nft.Rule{set("same", nft.Iif, nft.Oif), drop})), "dropped"},
		{"not an echo request", syn, host(prerouting(nft.Rule{nft.MatchEchoRequest{}, drop})), plain},
		{"source is not local", syn, host(prerouting(nft.Rule{nft.MatchLocalSource{}, drop})), plain},
		{"destination is not local", syn, host(prerouting(nft.Rule{nft.MatchLocalDest{}, drop})), plain},
		{"a first packet is not assured", syn, host(prerouting(nft.Rule{nft.MatchAssured{}, drop})), plain},
		{"a SYN", syn, host(prerouting(nft.Rule{nft.MatchSYN{}, drop})), "dropped"},
		{"a SYN is no reset", syn, host(prerouting(nft.Rule{nft.MatchRST{}, drop})), plain},
		{"a datagram is no SYN", udp, host(prerouting(nft.Rule{nft.MatchSYN{}, drop})), plain},
		{"a SYN is no ICMP", syn, host(prerouting(nft.Rule{nft.MatchICMP{}, drop})), plain},
		{"source is local", own, host(output(nft.Rule{nft.MatchLocalSource{}, drop})), "dropped"},

		// Maps and DNAT.
		{"verdict map", syn, host(prerouting(nft.Rule{nft.VerdictMap{Key: frontend, Map: "services"}}, nft.Rule{drop})), translated},
		{"verdict map without the key", udp, host(prerouting(nft.Rule{nft.VerdictMap{Key: frontend, Map: "services"}}, nft.Rule{drop})), "dropped"},
		{"dnat without the key", udp, host(prerouting(nft.Rule{balance}, nft.Rule{drop})), "dropped"},
		{"dnat ends the hook", syn, host(prerouting(nft.Rule{balance}, nft.Rule{drop}),
			nft.Chain{Name: "later", Hook: nft.HookPrerouting, Priority: 0, Rules: []nft.Rule{{drop}}}), translated},
		{"dnat is seen in postrouting", syn, host(prerouting(nft.Rule{balance}), postrouting(nft.Rule{toVIP, drop}, nft.Rule{nft.MatchNotDNAT{}, drop})), translated},
		{"dnat to itself is none", Packet{Saddr: client, Daddr: vip, Proto: nft.TCP, Dport: 81, Iif: in0},
			host(prerouting(nft.Rule{balance}), postrouting(nft.Rule{nft.MatchNotDNAT{}, drop})), "dropped"},
		{"no dnat is seen in postrouting", syn, host(postrouting(nft.Rule{nft.MatchNotDNAT{}, drop})), "dropped"},
		{"dnat of the box's own", own, host(output(nft.Rule{balance})), "delivered 192.0.2.1 -> 10.1.0.1:8080"},
		{"the box's own do not pass prerouting", own, host(prerouting(nft.Rule{drop})), "delivered 192.0.2.1 -> 10.96.0.1:80"},

		// To and from the box.
		{"redirect", syn, host(prerouting(nft.Rule{nft.Redirect{}}), postrouting(nft.Rule{drop})), "delivered 192.0.2.10 -> 192.0.2.1:80"},
		{"redirect passes input", syn, host(prerouting(nft.Rule{nft.Redirect{}}), input(nft.Rule{drop})), "dropped"},
		{"no outgoing interface in input", syn, host(prerouting(nft.Rule{nft.Redirect{}}), input(nft.Rule{set("same", nft.Iif, nft.Oif), drop})), "dropped"},
		{"redirect of a ping", ping, host(prerouting(nft.Rule{nft.MatchEchoRequest{}, nft.Redirect{}})), "delivered 192.0.2.10 -> 192.0.2.1:0"},
		{"redirect of the box's own", own, host(output(nft.Rule{nft.Redirect{}})), "delivered 192.0.2.1 -> 127.0.0.1:80"},
		{"the box to itself passes postrouting, not input", self, host(input(nft.Rule{drop}), prerouting(nft.Rule{drop})), "delivered 192.0.2.1 -> 192.0.2.1:80"},
		{"the box to itself, dropped in postrouting", self, host(postrouting(nft.Rule{drop})), "dropped"},

		// Masquerade.
		{"masquerade", syn, host(prerouting(nft.Rule{balance}), postrouting(nft.Rule{nft.Masquerade{}}, nft.Rule{drop})), "delivered 198.51.100.1 -> 10.1.0.1:8080"},

		// Refusals.
		{"port unreachable", udp, host(prerouting(reject(nft.RejectPortUnreachable))), "rejected with port unreachable"},
		{"host unreachable", ping, host(prerouting(reject(nft.RejectHostUnreachable))), "rejected with host unreachable"},
		{"reset", syn, host(prerouting(reject(nft.RejectTCPReset))), "rejected with TCP reset"},
		{"reset of what is not TCP", udp, host(prerouting(reject(nft.RejectTCPReset))), plain},
		{"reset that postrouting drops", syn, host(prerouting(reject(nft.RejectTCPReset)),
			postrouting(nft.Rule{nft.MatchPrefix{Field: nft.Saddr, Prefix: toVIP.Prefix}, drop})), "dropped"},
		{"reset that output refuses", own, host(output(reject(nft.RejectTCPReset))), "dropped"},
		{"reset with which the connection is translated", own, host(output(nft.Rule{toVIP, nft.Reject{With: nft.RejectTCPReset}}, nft.Rule{nft.Redirect{}}),
			postrouting(nft.Rule{nft.MatchNotDNAT{}, drop})), "rejected with TCP reset"},
		{"reset is not translated", own, host(output(nft.Rule{toVIP, nft.Reject{With: nft.RejectTCPReset}}, nft.Rule{nft.Redirect{}}), postrouting(nft.Rule{nft.Masquerade{}})), "rejected with TCP reset"},
	}
}

func TestSend(t *testing.T) {
	for _, tt := range sendCases() {
		r := tt.host.Send(tt.packet, now, first)
		if stateful.Text(r) != tt.want {
			t.Errorf("%s: %s: %s, want %s\n%s", tt.name, tt.packet, stateful.Text(r), tt.want, strings.Join(r.Trace(), "\n"))
		}
	}
}

// TestOriginalPortOfPing is not among the cases that the kernel gets: nft can only load
// `ct original proto-dst` behind a protocol that has ports.
func TestOriginalPortOfPing(t *testing.T) {
	h := host(postrouting(nft.Rule{nft.MatchSet{Key: originalFrontend, Set: "echoes"}, drop}))
	if r := h.Send(ping, now, first); r.Kind != Dropped {
		t.Errorf("type and code of a ping are no port: %s", stateful.Text(r))
	}
}

func TestNATBits(t *testing.T) {
	h := host(prerouting(nft.Rule{balance}), postrouting(nft.Rule{nft.Masquerade{}}))
	if r := h.Send(syn, now, first); !r.DNATed || !r.SNATed {
		t.Errorf("both were translated: %+v", r)
	}
	same := syn
	same.Saddr = boxOut
	h.Ruleset[nft.IPv4].Sets["backends"].Elements[string(nft.Key(nil).Addr(vip).Proto(nft.TCP).Port(80).Slot(0))] = nft.AddrPortData(netip.MustParseAddrPort("10.1.0.9:80"))
	if r := h.Send(same, now, first); !r.DNATed || r.SNATed {
		t.Errorf("the source was translated to itself: %+v", r)
	}
	h = host(prerouting(nft.Rule{recall}), postrouting(nft.Rule{nft.MatchNotDNAT{}, remember}))
	h.Send(syn, now, first)
	if r := h.Send(syn, now, first); r.DNATed || len(r.Trace()) != 2 {
		t.Errorf("the destination was translated to itself: %+v", r)
	}
}

// isolated is a network without a route to the endpoint, unless routed, and without addresses on its interfaces.
type isolated struct {
	*universe
	routed bool
}

func (i *isolated) Route(dst netip.Addr) (uint32, bool) {
	switch {
	case i.routed:
		return i.universe.Route(dst)
	case dst == endpoint.Addr():
		return 0, false
	}
	return in0, false
}

func (i *isolated) MasqueradeAddr(uint32) netip.Addr { return netip.Addr{} }

// slot is a Random that draws one number.
type slot uint32

func (s slot) Uint32N(uint32) uint32 { return uint32(s) }

func TestNowhereToGo(t *testing.T) {
	h := host(prerouting(nft.Rule{balance}), output(nft.Rule{balance}))
	h.Network = &isolated{universe: &universes[0]}
	for _, p := range []Packet{syn, own} {
		if r := h.Send(p, now, first); r.Kind != Dropped {
			t.Errorf("%s, without a route: %s", p, stateful.Text(r))
		}
	}
	h = host(prerouting(nft.Rule{nft.MatchEchoRequest{}, nft.Redirect{}}), postrouting(nft.Rule{nft.Masquerade{}}))
	h.Network = &isolated{universe: &universes[0], routed: true}
	for _, p := range []Packet{syn, ping} {
		if r := h.Send(p, now, first); r.Kind != Dropped {
			t.Errorf("%s, without an address on the interface: %s", p, stateful.Text(r))
		}
	}
}

func TestTrace(t *testing.T) {
	h := host(prerouting(nft.Rule{nft.MatchProto{Proto: nft.UDP}, drop}, nft.Rule{toVIP}, nft.Rule{nft.VerdictMap{Key: frontend, Map: "services"}}),
		postrouting(nft.Rule{nft.MatchSet{Key: []nft.Field{nft.Iif, nft.Saddr}, Set: "on-link"}, nft.Masquerade{}}))
	want := []string{
		"prerouting: ip daddr 10.96.0.0/16",
		"prerouting: ip daddr . meta l4proto . th dport vmap @services { 10.96.0.1 . tcp . 80 : goto pick }",
		"pick: dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @backends { 10.96.0.1 . tcp . 80 . 0 : 10.1.0.1 . 8080 }",
		"postrouting: iif . ip saddr @on-link masquerade { 10 . 192.0.2.1-192.0.2.10 }",
	}
	if got := h.Send(syn, now, first).Trace(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestOutcomes(t *testing.T) {
	pair := nft.DNAT{Key: append(frontend[:3:3], nft.Numgen(3)), Map: "backends"}
	h := host(prerouting(nft.Rule{pair}, nft.Rule{balance}), postrouting(nft.Rule{remember}))
	var got []string
	for _, r := range h.Outcomes(syn) {
		got = append(got, stateful.Text(r))
	}
	// Slot 2 of the first rule is empty, so the second rule draws again.
	want := []string{"delivered 192.0.2.10 -> 10.1.0.1:8080", "delivered 192.0.2.10 -> 10.1.0.2:8080"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := len(h.Learnt(nft.IPv4, "affinity")); n != 0 {
		t.Errorf("asking for outcomes has made the box learn %d elements", n)
	}
	draws := 0
	for range h.Runs(syn) {
		draws++
	}
	if draws != 4 { // slots 0 and 1 of three, then 0 and 1 of two
		t.Errorf("%d runs, want 4", draws)
	}
}

func TestLearning(t *testing.T) {
	h := host(prerouting(nft.Rule{recall}, nft.Rule{balance}), postrouting(nft.Rule{nft.MatchNotDNAT{}, drop}, nft.Rule{remember}))
	at := now
	send := func(client string, draw slot) netip.AddrPort {
		t.Helper()
		p := syn
		p.Saddr = netip.MustParseAddr(client)
		return h.Send(p, at, draw).Dst
	}
	expect := func(what string, got, want netip.AddrPort) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	expect("a new client", send("192.0.2.10", 0), endpoint)
	at = at.Add(59 * time.Second)
	expect("a known client", send("192.0.2.10", 1), endpoint)
	at = at.Add(59 * time.Second)
	expect("a client that came again in between", send("192.0.2.10", 1), endpoint)
	at = at.Add(60 * time.Second)
	expect("a client forgotten", send("192.0.2.10", 1), second)

	expect("a second client", send("192.0.2.11", 0), endpoint)
	expect("a third one, when two are known", send("192.0.2.12", 0), endpoint)
	expect("the third one again", send("192.0.2.12", 1), second)
	expect("the second one again", send("192.0.2.11", 1), endpoint)
	if n := len(h.Learnt(nft.IPv4, "affinity")); n != 2 {
		t.Errorf("%d clients are known, want 2", n)
	}

	h.Forget(nft.ForgetData{Family: nft.IPv4, Set: h.Ruleset[nft.IPv4].Sets["affinity"].Set, Data: []string{nft.AddrPortData(endpoint)}})
	expect("after its endpoint was forgotten", send("192.0.2.11", 1), second)
	expect("whose endpoint was not", send("192.0.2.10", 0), second)
	at = at.Add(time.Hour)
	h.Send(ping, at, first)
	if n := len(h.Learnt(nft.IPv4, "affinity")); n != 0 {
		t.Errorf("%d clients are known after an hour", n)
	}
}

// TestUpdateKeepsData: as in nft_rhash_update, an update of an existing element keeps its data.
func TestUpdateKeepsData(t *testing.T) {
	h := host(prerouting(nft.Rule{balance}), postrouting(nft.Rule{remember}))
	h.Send(syn, now, first)
	h.Send(syn, now, slot(1))
	if got := h.Learnt(nft.IPv4, "affinity")[nft.AddrKey(client)]; got != nft.AddrPortData(endpoint) {
		t.Errorf("the data is now %x", got)
	}
	// An element that the ruleset has is as good as one that was learnt.
	h = host(prerouting(nft.Rule{recall}), postrouting(nft.Rule{remember}))
	h.Ruleset[nft.IPv4].Sets["affinity"].Elements = nft.Elements{nft.AddrKey(client): nft.AddrPortData(second)}
	if r := h.Send(syn, now, first); r.Dst != second {
		t.Errorf("an element of the ruleset: %s", stateful.Text(r))
	}
	if n := len(h.Learnt(nft.IPv4, "affinity")); n != 0 {
		t.Errorf("%d elements were learnt that were there", n)
	}
}

func TestImpossibleRulesetsPanic(t *testing.T) {
	loop := host(prerouting(nft.Rule{nft.GotoChain("a")}), chain("a", nft.Rule{jump("b")}), chain("b", nft.Rule{nft.GotoChain("a")}))
	for name, h := range map[string]*stateful.Host{
		"loop":       loop,
		"no chain":   host(prerouting(nft.Rule{nft.GotoChain("nowhere")})),
		"no set":     host(prerouting(nft.Rule{nft.MatchSet{Key: []nft.Field{nft.Saddr}, Set: "nothing"}})),
		"no verdict": host(prerouting(nft.Rule{nft.VerdictMap{Key: []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport, nft.Numgen(2)}, Map: "backends"}})),
		"no address": host(prerouting(nft.Rule{nft.DNAT{Key: frontend, Map: "services"}})),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: did not panic", name)
				}
			}()
			h.Send(syn, now, first)
		}()
	}
}

func TestIPv6(t *testing.T) {
	u := &universes[1]
	p := Packet{Saddr: u.clients[0], Daddr: u.vips[0], ICMPEcho: true, Iif: in0}
	echo := string(nft.Key(nil).Addr(u.vips[0]).Proto(58).Port(0x8000))
	table := &nft.Table{
		Sets: map[string]*nft.SetContent{"echoes": {
			Set:      nft.Set{Name: "echoes", Key: []nft.Type{nft.TypeAddr, nft.TypeProto, nft.TypeService}},
			Elements: nft.Elements{echo: ""},
		}},
		Chains: map[string]*nft.Chain{},
	}
	for _, c := range []nft.Chain{
		output(nft.Rule{nft.MatchEchoRequest{}, nft.Redirect{}}),
		postrouting(nft.Rule{nft.MatchSet{Key: originalFrontend, Set: "echoes"}, nft.Masquerade{}}),
	} {
		table.Chains[c.Name] = &c
	}
	h := &stateful.Host{Host: Host{Ruleset: nft.Ruleset{nft.IPv6: table}, Network: u}}
	if got, want := stateful.Text(h.Send(p, now, first)), "delivered 2001:db8:1::1 -> [fd00:96::1]:0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	p.Iif, p.Saddr = 0, u.box[0]
	if got, want := stateful.Text(h.Send(p, now, first)), "delivered 2001:db8:1::1 -> [::1]:0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func BenchmarkSend(b *testing.B) {
	h := host(prerouting(nft.Rule{nft.VerdictMap{Key: frontend, Map: "services"}}), postrouting(nft.Rule{nft.Masquerade{}}))
	b.ReportAllocs()
	for b.Loop() {
		h.Send(syn, now, first)
	}
}
