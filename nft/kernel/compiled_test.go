package kernel

import (
	"fmt"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// state asks for everything that the compiler knows, in both families.
func state(affinity time.Duration) nft.State {
	s := nft.State{
		Box:      nft.Box{MasqueradeOnLink: true, Ping: nft.PingWhenReady, Counters: affinity == 0},
		Services: map[string][]nft.ServicePort{},
	}
	iface := nft.Interface{Index: 1, Name: "lo"}
	for _, f := range nft.Families {
		bits := f.AddrLen() * 8
		s.Box.NodePortAddresses = append(s.Box.NodePortAddresses, address(f, 1<<20))
		s.Box.LocalAddresses = append(s.Box.LocalAddresses, address(f, 1<<20), address(f, 7))
		s.Box.ServiceRanges = append(s.Box.ServiceRanges, netip.PrefixFrom(address(f, 1<<16), bits-16).Masked())
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
			local := nft.Route{Pool: nft.PoolLocal, Otherwise: nft.Blackhole}
			name := fmt.Sprintf("default/%s-%s", proto, f)
			s.Services[name] = []nft.ServicePort{{
				ID: name + "/p", Family: f, Protocol: proto, Affinity: affinity,
				Frontends: []nft.Frontend{
					{Addr: vip, Port: 80, SNAT: nft.SNATOutside},
					{Addr: address(f, 1<<17+n), Port: 80, Outside: local, SNAT: nft.SNATAlways,
						Sources: []netip.Prefix{netip.PrefixFrom(address(f, 0), bits-8).Masked()}},
					{Port: uint16(30000 + n), Outside: local, SNAT: nft.SNATSelf, InsideOnly: n == 0},
					{Addr: address(f, 1<<18+n), Port: 80, SNAT: nft.SNATAlways, InsideOnly: true},
				},
				Pools: [nft.NumPools][]netip.AddrPort{endpoints(8), endpoints(2)},
			}}
		}
	}
	iface.Inside = true
	s.Box.Interfaces = []nft.Interface{iface}
	return s
}

// What the compiler makes is committed, reads back as it was wanted, and prints and
// loads with the nft program.
func TestCompiledRuleset(t *testing.T) {
	for _, affinity := range []time.Duration{0, 3 * time.Hour} {
		t.Run(fmt.Sprintf("affinity %v", affinity), func(t *testing.T) {
			n := newNamespace(t)
			c := n.open()
			want := nft.Compile(state(affinity))
			have, generation := read(t, c)
			tr := nft.Diff(have, want)
			generation = commit(t, c, generation, tr.Apply.Ops...)
			have, now := read(t, c)
			if tr := nft.Diff(have, want); !tr.Empty() || now != generation {
				t.Errorf("what was committed is not what was wanted: %+v", tr)
			}
			// What nft prints and cannot load: see notLoadable.
			listing := regexp.MustCompile(`(?m)^.*(update|add) @.* \{ ip6 [sd]addr .* : .*$`).ReplaceAllString(n.nft("list", "ruleset"), "")
			n.nft("flush", "ruleset")
			n.nftScript(listing)
			// Its rules have lost their marks, which is all.
			have, _ = read(t, c)
			for _, op := range nft.Diff(have, want).Apply.Ops {
				if _, ok := op.(nft.SetRules); !ok {
					t.Errorf("after its listing was loaded the ruleset lacks %+v", op)
				}
			}
		})
	}
}
