package reconcile

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft/nfttest/stateful"
)

// TestOracleLimits sends connections to worlds whose Services have limits, many in one moment and again minutes later, and holds
// each to what the limits have left.
func TestOracleLimits(t *testing.T) {
	t.Parallel()
	met := map[oracle.Kind]int{} // of those that only limits keep out, and Delivered
	for seed := *oracleSeed; seed < *oracleSeed+histories()/10; seed++ {
		r := rand.New(rand.NewPCG(seed, 4))
		world := oracle.Generate(r)
		world.Limit(r)
		packets := world.Packets(r, 100)
		if failure := limitsDisagree(seed, world, packets, met); failure != "" {
			smallest := world.Shrink(func(w *oracle.World) bool { return limitsDisagree(seed, w, packets, nil) != "" })
			t.Fatalf("seed %d: %s\n%s", seed, limitsDisagree(seed, smallest, packets, nil), smallest)
		}
	}
	for _, kind := range []oracle.Kind{oracle.Delivered, oracle.Refused, oracle.Dropped} {
		if met[kind] < int(histories())/4 {
			t.Errorf("%q only %d times: the limits have become too tame", kind, met[kind])
		}
	}
	t.Logf("connections to Services with limits: %v", met)
}

// limitsDisagree sends all packets thrice, minutes apart, and says which one went where it must not.
func limitsDisagree(seed uint64, world *oracle.World, packets []oracle.Packet, met map[oracle.Kind]int) (failure string) {
	world.Hold()
	r := rand.New(rand.NewPCG(seed, 5))
	ruleset := planWorlds(world)
	hosts := map[bool]*stateful.Host{}
	for _, is4 := range []bool{true, false} {
		hosts[is4] = &stateful.Host{Host: *judge.Host(&world.Box, ruleset, is4)}
	}
	var limits oracle.Limits
	clock := time.Unix(0, 0)
	for range 3 {
		limits.Pass()
		clock = clock.Add(2 * time.Minute)
		for _, packet := range packets {
			free := world.Decide(packet)
			if slices.ContainsFunc(free, func(o oracle.Outcome) bool { return o.Kind != free[0].Kind }) {
				continue // of a share that is refused: chance decides what counts
			}
			want := limits.Decide(world, packet)
			host := hosts[packet.To.Addr().Is4()]
			got := host.Send(judge.Packet(&world.Box, packet), clock, r)
			if free[0].Kind != oracle.Delivered {
				continue // TestOracle is about them; here they count for nothing
			}
			if !slices.ContainsFunc(want, func(w oracle.Outcome) bool { return judge.Allows(w, &host.Host, packet, got) }) {
				return packet.String() + fmt.Sprintf("\nthe oracle wants one of %v\ngot %v", want, stateful.Text(got)) + "\n\t" + strings.Join(got.Trace(), "\n\t")
			}
			if met != nil {
				met[want[0].Kind]++
			}
		}
	}
	return ""
}
