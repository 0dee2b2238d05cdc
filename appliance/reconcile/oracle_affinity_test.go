package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/store/object"
)

// connectionsPerWorld are made one after the other on each world of a history with
// affinity, by a few clients, so that most of them are known.
const connectionsPerWorld = 50

// TestOracleAffinity sends connections through worlds in which every Service is sticky,
// and holds each to what the client was given before. Between the worlds of a history
// what the ruleset has learnt stays.
func TestOracleAffinity(t *testing.T) {
	t.Parallel()
	var narrowed, others int
	for seed := *oracleSeed; seed < *oracleSeed+histories()/5; seed++ {
		h := newStickyHistory(seed)
		if h.run() != "" {
			h.shrink()
			t.Fatalf("seed %d: %s", seed, h.run())
		}
		narrowed, others = narrowed+h.narrowed, others+h.others
	}
	if narrowed < others/20 {
		t.Errorf("%d connections of clients whose choice was narrowed, %d others: the clients are too many", narrowed, others)
	}
	t.Logf("%d connections of clients whose choice was narrowed, %d others", narrowed, others)
}

// stickyHistory is worlds, one after the other, with the connections to each.
type stickyHistory struct {
	seed    uint64
	worlds  []*oracle.World
	packets [][]oracle.Packet
	// narrowed counts the connections of clients that might go to fewer endpoints than
	// others might, others those of the others.
	narrowed, others int
}

func newStickyHistory(seed uint64) *stickyHistory {
	r := rand.New(rand.NewPCG(seed, 1))
	h := &stickyHistory{seed: seed}
	world := stickyWorld(oracle.Generate(r))
	for range 6 {
		world.Hold()
		h.worlds = append(h.worlds, world)
		h.packets = append(h.packets, world.Packets(r, connectionsPerWorld))
		world = stickyWorld(world.Next(r))
	}
	return h
}

// run makes the connections of all worlds. It says which one went where it must not.
func (h *stickyHistory) run() (failure string) {
	r := rand.New(rand.NewPCG(h.seed, 2))
	p := newPlanner()
	clock := time.Unix(0, 0)
	hosts := map[bool]*stateful.Host{true: {}, false: {}}
	var memory oracle.Memory
	for i, world := range h.worlds {
		world.Hold()
		transition := planStep(p, h.worlds[:i+1])
		ruleset := p.compiler.Ruleset()
		for is4, host := range hosts {
			forgetAll(host, transition)
			now := judge.Host(&world.Box, ruleset, is4)
			host.Ruleset, host.Network = now.Ruleset, now.Network
		}
		if i > 0 {
			for _, key := range changedServices(h.worlds[i-1], world) {
				memory.Excuse(key)
			}
		}
		for _, packet := range h.packets[i] {
			host := hosts[packet.To.Addr().Is4()]
			want := memory.Decide(world, packet)
			sent := judge.Packet(&world.Box, packet)
			clock = clock.Add(2 * time.Second) // a newcomer is none any more
			got := host.Send(sent, clock, r)
			if !slices.ContainsFunc(want, func(w oracle.Outcome) bool { return judge.Allows(w, &host.Host, packet, got) }) {
				return fmt.Sprintf("world %d: %v\nthe oracle wants one of %v\ngot %v\n\t%s\n%v",
					i, packet, want, stateful.Text(got), strings.Join(got.Trace(), "\n\t"), h)
			}
			if got.Kind == sim.Delivered {
				host.Answer(sent, got)
			}
			if want[0].Kind == oracle.Delivered {
				memory.Note(world, packet, got.Dst)
				if len(want) < len(world.Decide(packet)) {
					h.narrowed++
				} else {
					h.others++
				}
			}
		}
	}
	return ""
}

// shrink drops worlds, connections and parts of worlds while the run still fails.
func (h *stickyHistory) shrink() {
	fails := func(trial stickyHistory) bool { return trial.run() != "" }
	for i := len(h.worlds) - 1; i >= 0; i-- {
		trial := stickyHistory{seed: h.seed, worlds: slices.Delete(slices.Clone(h.worlds), i, i+1), packets: slices.Delete(slices.Clone(h.packets), i, i+1)}
		if fails(trial) {
			*h = trial
		}
	}
	for i := range h.packets {
		for j := len(h.packets[i]) - 1; j >= 0; j-- {
			trial := stickyHistory{seed: h.seed, worlds: h.worlds, packets: slices.Clone(h.packets)}
			trial.packets[i] = slices.Delete(slices.Clone(trial.packets[i]), j, j+1)
			if fails(trial) {
				h.packets = trial.packets
			}
		}
	}
	for i := range h.worlds {
		h.worlds[i] = h.worlds[i].Shrink(func(w *oracle.World) bool {
			trial := stickyHistory{seed: h.seed, worlds: slices.Clone(h.worlds), packets: h.packets}
			trial.worlds[i] = w
			return fails(trial)
		})
	}
}

// String is the worlds, each with its connections.
func (h *stickyHistory) String() string {
	var b strings.Builder
	for i, world := range h.worlds {
		fmt.Fprintf(&b, "world %d: %v%v\n", i, world, h.packets[i])
	}
	return b.String()
}

func stickyWorld(world *oracle.World) *oracle.World {
	for _, service := range world.Services {
		service.Spec.SessionAffinity = object.AffinityClientIP
		object.Default(service)
	}
	return world
}

// forgetAll does to what packets have added what a transition does to it in a kernel.
func forgetAll(host *stateful.Host, transition nft.Transition) {
	for _, op := range slices.Concat(transition.Apply.Ops, transition.Cleanup.Ops) {
		switch op := op.(type) {
		case nft.ForgetData:
			host.Forget(op)
		case nft.DeleteSet:
			data := slices.Collect(maps.Values(host.Learnt(op.Family, op.Name)))
			host.Forget(nft.ForgetData{Family: op.Family, Set: nft.Set{Name: op.Name}, Data: data})
		case nft.DeleteTable:
			*host = stateful.Host{}
		}
	}
}
