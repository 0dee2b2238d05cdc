package kernel

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// setsOf are source sets of every kind.
func setsOf(f nft.Family) *nft.SourceSets {
	set := func(name string, n int) *nft.SourceSet {
		return nft.NewSourceSet(name, 1, []netip.Prefix{netip.PrefixFrom(address(f, n), f.AddrLen()*8-4)})
	}
	return &nft.SourceSets{Allow: []*nft.SourceSet{set("office", 0), set("sg-42.x_y", 64)}, Deny: []*nft.SourceSet{set("scanners", 8)}}
}

// state asks for everything that the compiler knows, in both families.
func state(affinity time.Duration, balances ...nft.Balance) nft.State {
	s := nft.State{
		Box:      nft.Box{MasqueradeOnLink: true, Ping: nft.PingWhenReady, Counters: affinity == 0, SettleFrom: 1},
		Services: map[string][]nft.ServicePort{},
	}
	iface := nft.Interface{Index: 1, Name: "lo"}
	for _, f := range nft.Families {
		bits := f.AddrLen() * 8
		s.Box.NodePortAddresses = append(s.Box.NodePortAddresses, address(f, 1<<20))
		s.Box.LocalAddresses = append(s.Box.LocalAddresses, address(f, 1<<20), address(f, 7))
		s.Box.ServiceRanges = append(s.Box.ServiceRanges, netip.PrefixFrom(address(f, 1<<16), bits-16).Masked())
		s.Box.Owned = append(s.Box.Owned, nft.Range{First: address(f, 1<<16), Last: address(f, 1<<17-1)})
		s.Box.InternalSources = append(s.Box.InternalSources, netip.PrefixFrom(address(f, 0), bits-24).Masked())
		iface.Prefixes = append(iface.Prefixes, netip.PrefixFrom(address(f, 0), bits-8).Masked())
		for n, proto := range []nft.Protocol{nft.TCP, nft.UDP, nft.SCTP} {
			endpoints := func(count int) (list []netip.AddrPort) {
				for i := range count {
					list = append(list, netip.AddrPortFrom(address(f, 1+i), 8080))
				}
				return list
			}
			vip := address(f, 1<<16+n)
			local := nft.Route{Pool: nft.PoolLocal, Fallback: nft.Blackhole}
			name := fmt.Sprintf("default/%s-%s", proto, f)
			s.Services[name] = []nft.ServicePort{{
				ID: name + "/p", Family: f, Protocol: proto, Affinity: affinity, Idle: time.Duration(n) * time.Hour,
				Frontends: []nft.Frontend{
					{Addr: vip, Port: 80, SNAT: nft.SNATOutside},
					{Addr: address(f, 1<<17+n), Port: 80, External: local, SNAT: nft.SNATAlways,
						Sources: []netip.Prefix{netip.PrefixFrom(address(f, 0), bits-8).Masked()}},
					{Port: uint16(30000 + n), External: local, SNAT: nft.SNATSelf, InsideOnly: n == 0},
					{Addr: address(f, 1<<18+n), Port: 80, SNAT: nft.SNATAlways, InsideOnly: true, Sets: setsOf(f), Sources: []netip.Prefix{netip.PrefixFrom(address(f, 0), bits-8).Masked()}},
					{Port: uint16(30100 + n), SNAT: nft.SNATAlways, Sets: &nft.SourceSets{Deny: setsOf(f).Deny}},
				},
				Pools: [nft.NumPools][]netip.AddrPort{endpoints(8), endpoints(2)},
			}}
			if affinity > 0 {
				first := &s.Services[name][0]
				first.AffinityOptions = nft.AffinityOptions{PrefixLen: uint8(bits - 8*n), WholeService: true, Refresh: n == 0}
				if n == 0 {
					first.AffinityOptions.PrefixLen = 0
				}
				second := *first
				second.ID, second.Frontends = name+"/q", []nft.Frontend{{Addr: vip, Port: 81}}
				second.Pools = [nft.NumPools][]netip.AddrPort{append(endpoints(2), netip.AddrPortFrom(address(f, 3), 9090))}
				s.Services[name] = append(s.Services[name], second)
			}
			ranged := nft.ServicePort{ID: name + "/p/range", Family: f, Protocol: proto, Frontends: []nft.Frontend{
				{Addr: vip, Port: 10_000, Last: 19_999, SNAT: nft.SNATOutside},
				{Addr: address(f, 1<<17+n), Port: 1, Last: 65_535, External: local, SNAT: nft.SNATAlways, Sources: []netip.Prefix{netip.PrefixFrom(address(f, 0), bits-8).Masked()}},
			}}
			for _, ap := range endpoints(8) {
				ranged.Pools[nft.PoolCluster] = append(ranged.Pools[nft.PoolCluster], netip.AddrPortFrom(ap.Addr(), 0))
			}
			ranged.Pools[nft.PoolLocal] = ranged.Pools[nft.PoolCluster][:2]
			if len(balances) > 0 {
				p := &s.Services[name][0]
				p.Balance, ranged.Balance = balances[n%len(balances)], balances[n%len(balances)]
				w := map[netip.AddrPort]uint16{endpoints(1)[0]: 70, endpoints(2)[1]: 20}
				p.Weights = [nft.NumPools]map[netip.AddrPort]uint16{w, w}
				p.Limits = []nft.Limits{
					{Rate: nft.Rate{Count: 100, Per: time.Second}, ClientRate: nft.Rate{Count: 600, Per: time.Minute}, ClientConnections: 20},
					{ClientConnections: 3},
					{Rate: nft.Rate{Count: 7, Per: time.Minute}},
				}[n]
				ranged.Limits = p.Limits
			}
			if ranged.Balance == nft.LeastConnection {
				ranged.Balance = nft.Random // whose feedback is that of the exact port
			}
			s.Services[name] = append(s.Services[name], ranged)
		}
	}
	iface.Inside = true
	s.Box.Interfaces = []nft.Interface{iface}
	return s
}

var everyBalance = []nft.Balance{nft.Random, nft.Maglev, nft.SourceHash}

// Large maps of slots are asked for by key, and that is all of them; where it is not, a dump
// has them.
func TestSlotsAreReadByKey(t *testing.T) {
	was := byKeyFrom
	byKeyFrom = 1
	defer func() { byKeyFrom = was }()
	for _, affinity := range []time.Duration{0, time.Hour} {
		n := newNamespace(t)
		c := n.open()
		want := compiled(state(affinity, everyBalance...))
		_, generation := read(t, c)
		commit(t, c, generation, want.From(nil).Apply.Ops...)
		have, generation := read(t, c)
		if tr := want.From(have); !tr.Empty() {
			t.Fatalf("what is read by key is not what was committed: %+v", tr)
		}
		if !c.features.Hash || !countsElements(t, c) {
			t.Skip("SKIPPED: this kernel has no counts of elements (6.16)")
		}
		asked := 0
		for _, f := range nft.Families {
			for name, set := range have[f].Sets {
				if nft.IsSlotMap(name) {
					asked++
					if !byKey(t, c, f, have[f], name) {
						t.Errorf("%s of %s is not read by key", name, f)
					}
					// One element less, or one that nobody expects: only a dump tells.
					for key := range set.Elements {
						one := []nft.Element{{Key: key, Data: set.Elements[key]}}
						generation = commit(t, c, generation, nft.DeleteElements{Family: f, Set: set.Set, Elements: one})
						if now, _ := read(t, c); len(now[f].Sets[name].Elements) != len(set.Elements)-1 {
							t.Errorf("%s of %s without an element is read with %d", name, f, len(now[f].Sets[name].Elements))
						}
						generation = commit(t, c, generation, nft.AddElements{Family: f, Set: set.Set, Elements: one})
						break
					}
					stray := []nft.Element{{Key: strings.Repeat("\x01", nft.KeyLen(set.Key, f)), Data: strings.Repeat("\x02", nft.KeyLen(set.Data, f))}}
					generation = commit(t, c, generation, nft.AddElements{Family: f, Set: set.Set, Elements: stray})
					if now, _ := read(t, c); len(now[f].Sets[name].Elements) != len(set.Elements)+1 {
						t.Errorf("%s of %s with a stray element is read with %d", name, f, len(now[f].Sets[name].Elements))
					}
					generation = commit(t, c, generation, nft.DeleteElements{Family: f, Set: set.Set, Elements: stray})
				}
			}
		}
		if asked < 8 {
			t.Errorf("only %d maps of slots were tried", asked)
		}
	}
}

// Counting the frontends, for doctor and status, leaves out the maps of endpoints, which have most of the elements.
func Test1082_frontends_are_counted_without_their_endpoints(t *testing.T) {
	c := newNamespace(t).open()
	_, generation := read(t, c)
	commit(t, c, generation, compiled(state(time.Hour)).From(nil).Apply.Ops...)
	have, _ := read(t, c)
	few, err := c.ReadFrontends()
	if err != nil || nft.CountFrontends(few) != nft.CountFrontends(have) || nft.CountFrontends(few) == 0 || nft.Adopts(few) != nft.Adopts(have) {
		t.Fatalf("%d frontends, %d in the whole ruleset, %v", nft.CountFrontends(few), nft.CountFrontends(have), err)
	}
	for _, f := range nft.Families {
		for name := range few[f].Sets {
			if !slices.Contains(nft.FrontendSets(), name) {
				t.Errorf("%s of %s is read too", name, f)
			}
		}
	}
}

// byKey reports whether the slots of a map are all found by their keys.
func byKey(t *testing.T, c *Conn, f nft.Family, table *nft.Table, name string) bool {
	t.Helper()
	set := &nft.SetContent{Set: table.Sets[name].Set, Elements: nft.Elements{}}
	s, err := c.ensureSocket()
	if err != nil {
		t.Fatal(err)
	}
	complete, err := readSlots(s, f, table, set, len(table.Sets[name].Elements))
	if err != nil {
		t.Fatal(err)
	}
	return complete
}

// countsElements reports whether the kernel tells how many elements a set has.
func countsElements(t *testing.T, c *Conn) (counts bool) {
	t.Helper()
	s, err := c.ensureSocket()
	if err != nil {
		t.Fatal(err)
	}
	err = s.dump(unix.NFT_MSG_GETSET, protocols[nft.IPv4].family,
		func(w *writer) { w.Text(unix.NFTA_SET_TABLE, nft.TableName) },
		func(m message) { counts = counts || decodeSet(&m, nft.IPv4).count >= 0 })
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// acceptable is a listing without the rules that look for a protocol in ranges of concatenations, where the kernel refuses
// them of nft: 1.0.6 turns the one byte around by a statement for two, which 6.12.117 and 7.2 do not take any
// more. 1.1.3 does not. The Conn writes none.
func (n *namespace) acceptable(listing string) string {
	if n.loads("table ip acceptable {\n map m {\n type inet_proto . inet_service : verdict\n flags interval\n }\n chain c {\n meta l4proto . th dport vmap @m\n }\n}\n") {
		n.nft("delete", "table", "ip", "acceptable")
		return listing
	}
	n.Log("without rules that look for a protocol in ranges, which the kernel does not take of this nft")
	return regexp.MustCompile(`(?m)^.*meta l4proto .*@(allowed|port-ranges|open-port-ranges|range-source-nat|fast-ranges)\b.*\n`).ReplaceAllString(listing, "")
}

// What the compiler makes is committed, reads back as it was wanted, and prints and
// loads with the nft program.
func TestCompiledRuleset(t *testing.T) {
	for i, affinity := range []time.Duration{0, 3 * time.Hour, 0, 3 * time.Hour, 0, 3 * time.Hour} {
		t.Run(fmt.Sprintf("%d, affinity %v", i, affinity), func(t *testing.T) {
			n := newNamespace(t)
			c := n.open()
			want := compiled(state(affinity, [][]nft.Balance{nil, everyBalance, {nft.RoundRobin, nft.LeastConnection, nft.LeastConnection}}[i/2]...))
			have, generation := read(t, c)
			tr := want.From(have)
			generation = commit(t, c, generation, tr.Apply.Ops...)
			have, now := read(t, c)
			if tr := want.From(have); !tr.Empty() || now != generation {
				t.Errorf("what was committed is not what was wanted: %+v", tr)
			}
			// What nft prints and cannot load: see notLoadable.
			listing := regexp.MustCompile(`(?m)^.*(update|add) @.* \{ ip6 [sd]addr .* : .*$`).ReplaceAllString(n.nft("list", "ruleset"), "")
			n.nft("flush", "ruleset")
			n.nftScript(n.acceptable(listing))
			// Its rules have lost their marks, which is all.
			have, _ = read(t, c)
			for _, op := range want.From(have).Apply.Ops {
				if _, ok := op.(nft.SetRules); !ok {
					t.Errorf("after its listing was loaded the ruleset lacks %+v", op)
				}
			}
		})
	}
}

// compiled is a compiler that stands at a state.
func compiled(s nft.State) *nft.Compiler {
	c := nft.NewCompiler()
	c.Load(s)
	return c
}
