package reconcile

import (
	"math/rand/v2"
	"testing"

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
	left, stayed := 0, 0
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
		cfg.Addresses.EgressFrom = oracle.EgressFrom
		p := newPlanner()
		setWorld(p, world, 1)
		p.adopt(nil, Host{Facts: &facts, Box: cfg.Box(&facts), Resolve: cfg.ResolveFacts(&facts, nil)}, objs, objs.keys())
		services := judge.Leaving{
			From: oracle.EgressFrom, Inside: cfg.Addresses.ClusterCIDRs, Facts: &facts, Keys: objs.keys(),
			Service: func(key string) (*object.Service, []*object.EndpointSlice) {
				svc, parts, _ := objs.Service(key)
				return svc, parts
			},
			Asked: func(svc *object.Service, parts []*object.EndpointSlice) []nft.ServicePort {
				return resolve.Service(resolve.Input{Service: svc, Slices: parts, Pods: objs}, &p.host.Resolve).Ports
			},
			Granted: func(key string) []nft.ServicePort { return p.unsent.services[key].Ports },
		}
		for range 72 {
			packet := world.OutgoingPacket(r)
			if outcomes := world.Decide(packet); outcomes[0].Kind != oracle.Untouched {
				continue
			}
			want := services.With(packet)
			if want != packet.From.Addr() {
				left++
			} else {
				stayed++
			}
			on := judge.Host(&world.Box, p.compiler.Ruleset(), want.Is4())
			for _, got := range on.Outcomes(judge.Packet(&world.Box, packet)) {
				if got.Src != want || got.DNATed {
					t.Fatalf("seed %d: %s leaves as %s, want %s\n%s", seed, packet, got.Src, want, world)
				}
			}
		}
	}
	if left < 300 || stayed < 300 {
		t.Errorf("%d packets left with an address of a Service and %d with their own: the worlds are too tame", left, stayed)
	}
	t.Logf("%d packets left with an address of a Service, %d with their own", left, stayed)
}
