package reconcile

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// In random worlds each packet that hosts send past Services leaves with the address that docs/egress.md gives it: that of the
// first Service by name with the host among its endpoints that has its address, if the host may leave with it and the destination
// is outside; else its own.
func TestEgressInRandomWorlds(t *testing.T) {
	t.Parallel()
	from := []netip.Prefix{netip.MustParsePrefix("10.180.0.0/16"), netip.MustParsePrefix("fd00:10:180::/64")}
	hosts, left, stayed := []string{"10.180.0.1", "10.180.0.2", "10.180.0.77", "10.181.1.1", "fd00:10:180::1", "fd00:10:180::2", "fd00:10:180::77", "fd00:10:181::1"}, 0, 0
	targets := []string{"203.0.113.2", "192.0.2.254", "10.181.1.2", "10.180.0.2", "10.0.0.2", "2001:db8:203::2", "2001:db8::fe", "fd00:10:181::2", "fd00:10:180::2"}
	within := func(list []netip.Prefix, a netip.Addr) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 77))
		world := oracle.Generate(r)
		for _, svc := range world.Services {
			if svc.Metadata.Annotations == nil {
				svc.Metadata.Annotations = map[string]string{}
			}
			if r.IntN(3) > 0 {
				svc.Metadata.Annotations[object.AnnotationEgress] = "vip"
			}
		}
		cfg, facts, objs := judge.Config(&world.Box), judge.Facts(&world.Box), (*worldObjects)(world)
		cfg.Addresses.EgressFrom = from
		p := newPlanner()
		setWorld(p, world, 1)
		p.adopt(nil, Host{Facts: &facts, Box: cfg.Box(&facts), Resolve: cfg.ResolveFacts(&facts, nil)}, objs, objs.keys())
		keys := objs.keys()
		slices.Sort(keys)
		leavesWith := func(source netip.Addr) netip.Addr {
			own := slices.ContainsFunc(facts.Addresses, func(a node.Address) bool { return a.Prefix.Addr() == source })
			if own || !within(from, source) {
				return source
			}
			for _, key := range keys {
				svc, parts, _ := objs.Service(key)
				isEndpoint := false
				for _, s := range parts {
					for _, e := range s.Endpoints {
						isEndpoint = isEndpoint || len(e.Addresses) > 0 && e.Addresses[0] == source.String()
					}
				}
				if svc == nil || svc.Metadata.Annotations[object.AnnotationEgress] == "" || !isEndpoint {
					continue
				}
				has := func(ports []nft.ServicePort, a netip.Addr) bool {
					return slices.ContainsFunc(ports, func(p nft.ServicePort) bool {
						return slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.Addr == a && fe.Kind != nft.ClusterIP })
					})
				}
				texts := slices.Clone(svc.Spec.ExternalIPs)
				if svc.Spec.Type == "LoadBalancer" {
					for i, in := range svc.Status.LoadBalancer.Ingress {
						texts = slices.Insert(texts, i, in.IP)
					}
				}
				asked := resolve.Service(resolve.Input{Service: svc, Slices: parts, Pods: objs}, &p.host.Resolve).Ports
				for _, text := range texts {
					if a, err := netip.ParseAddr(text); err == nil && a.BitLen() == source.BitLen() && has(asked, a) {
						if has(p.unsent.services[key].Ports, a) {
							return a
						}
						break // it is another Service's
					}
				}
			}
			return source
		}
		for _, host := range hosts {
			for _, target := range targets {
				source, to := netip.MustParseAddr(host), netip.MustParseAddr(target)
				if source.BitLen() != to.BitLen() || source == to {
					continue
				}
				packet := oracle.Packet{Interface: "int0", Protocol: []oracle.Protocol{oracle.TCP, oracle.UDP, oracle.SCTP, oracle.Ping}[r.IntN(4)],
					From: netip.AddrPortFrom(source, 40000), To: netip.AddrPortFrom(to, 9)}
				if outcomes := world.Decide(packet); outcomes[0].Kind != oracle.Untouched {
					continue
				}
				want := source
				if !within(from, to) && !within(cfg.Addresses.ClusterCIDRs, to) {
					want = leavesWith(source)
				}
				if want != source {
					left++
				} else {
					stayed++
				}
				on := judge.Host(&world.Box, p.compiler.Ruleset(), source.Is4())
				for _, got := range on.Outcomes(judge.Packet(&world.Box, packet)) {
					if got.Src != want || got.DNATed {
						t.Fatalf("seed %d: %s leaves as %s, want %s\n%s", seed, packet, got.Src, want, world)
					}
				}
			}
		}
	}
	if left < 300 || stayed < 300 {
		t.Errorf("%d packets left with an address of a Service and %d with their own: the worlds are too tame", left, stayed)
	}
	t.Logf("%d packets left with an address of a Service, %d with their own", left, stayed)
}
