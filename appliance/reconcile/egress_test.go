package reconcile

import (
	"math/rand/v2"
	"testing"

	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
)

// In random worlds each packet that hosts send past Services leaves with the address that docs/egress.md gives it: that of the
// first Service by name with the host among its endpoints that has its address, if the host may leave with it and the destination
// is outside and among those of the Service; else its own.
func TestEgressInRandomWorlds(t *testing.T) {
	t.Parallel()
	met := map[string]int{}
	for seed := range seeds(400) {
		r := rand.New(rand.NewPCG(seed, 77))
		world := oracle.Generate(r)
		world.Egress(r)
		world.Hold()
		cfg, facts, objs := judge.Config(&world.Box), judge.Facts(&world.Box), (*worldObjects)(world)
		p := newPlanner()
		setWorld(p, world, 1)
		p.adopt(nil, Host{Facts: &facts, Box: cfg.Box(&facts), Resolve: cfg.ResolveFacts(&facts, nil)}, objs, objs.keys())
		ruleset := p.compiler.Ruleset()
		for range 72 {
			packet := world.OutgoingPacket(r)
			if outcomes := world.Decide(packet); outcomes[0].Kind != oracle.Untouched {
				continue
			}
			met[leaves(world, packet)]++
			if text := judge.Disagreement(world, ruleset, packet); text != "" {
				t.Fatalf("seed %d: %v: %s\n%s", seed, packet, text, world)
			}
		}
	}
	t.Log(met)
	if met["own"] < int(seeds(300)) || met["of a Service"] < int(seeds(300)) || met["own, for its destination"] < int(seeds(100)) {
		t.Errorf("packets left with these addresses: %v: the worlds are too tame", met)
	}
}

// leaves describes the source of a packet past all Services.
func leaves(world *oracle.World, p oracle.Packet) string {
	if world.Leaves(p) != p.From.Addr() {
		return "of a Service"
	}
	anywhere := *world
	anywhere.Services = nil
	for _, s := range world.Services {
		anywhere.Services = append(anywhere.Services, oracle.WithoutDestinations(s))
	}
	if anywhere.Leaves(p) != p.From.Addr() {
		return "own, for its destination"
	}
	return "own"
}
