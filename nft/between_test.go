package nft_test

import (
	"net/netip"
	"slices"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
)

// TestChangeBetweenTwoLookups is about a packet that finds its frontend before a change
// and its slot after it, as happens when the kernel commits between the two lookups.
func TestChangeBetweenTwoLookups(t *testing.T) {
	nodePort := func(p ServicePort) ServicePort {
		p.Frontends = append(p.Frontends, Frontend{Port: 30080, SNAT: SNATAlways})
		return p
	}
	compile := func(p ServicePort) Ruleset {
		return Compile(State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {nodePort(p)}}})
	}
	before := compile(webPort("10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"))
	for _, c := range []struct {
		name  string
		after ServicePort
		kind  sim.Kind
	}{
		{"an endpoint is gone", webPort("10.1.0.1:80", "10.1.0.3:80"), sim.Delivered},
		{"all but one are gone", webPort("10.1.0.2:80"), sim.Delivered},
		{"all are gone", webPort(), sim.Rejected},
	} {
		after := compile(c.after)[IPv4]
		// Rules and verdicts are those that the packet met already, the slots are new.
		mixed := Table{Sets: map[string]*SetContent{}, Chains: before[IPv4].Chains}
		for name, set := range before[IPv4].Sets {
			mixed.Sets[name] = set
			if name == "backends" || name == "nodeport-backends" {
				mixed.Sets[name] = &SetContent{Set: set.Set, Elements: Elements{}}
				if now := after.Sets[name]; now != nil {
					mixed.Sets[name] = now
				}
			}
		}
		host := sim.Host{
			Ruleset: Ruleset{IPv4: &mixed},
			Network: network{local: netip.MustParseAddr("192.0.2.1"), oif: 3, masquerade: netip.MustParseAddr("192.0.2.1")},
		}
		for _, to := range []string{"10.96.0.10:80", "192.0.2.1:30080"} {
			dst := netip.MustParseAddrPort(to)
			for _, r := range host.Outcomes(sim.Packet{
				Saddr: netip.MustParseAddr("203.0.113.2"), Daddr: dst.Addr(), Proto: TCP, Sport: 40000, Dport: dst.Port(), Iif: 2,
			}) {
				if r.Kind != c.kind || r.Kind == sim.Delivered && !slices.Contains(c.after.Pools[PoolCluster], r.Dst) {
					t.Errorf("%s: a packet to %s is %v", c.name, to, r)
				}
			}
		}
	}
}
