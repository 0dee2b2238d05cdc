package reconcile

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Another seed tries other worlds; one that failed is tried alone with
// -oracle.seed N -oracle.histories 1.
var (
	oracleSeed      = flag.Uint64("oracle.seed", 1, "the first seed of the tests against package oracle")
	oracleHistories = flag.Int("oracle.histories", 0, "how many histories of three worlds TestOracle makes; 0: as many as seeds has of 2000")
)

// packetsPerWorld are tried on each of the three worlds of a history, which makes
// 120,000 of all seeds.
const packetsPerWorld = 20

// TestMain has garbage collected less often: random worlds are a third of it.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// TestOracle plans random worlds as the appliance does: one from nothing, then one with
// changed objects, then one on a changed box. It runs packets through the rulesets and
// compares what becomes of them to what package oracle says that should.
func TestOracle(t *testing.T) {
	t.Parallel()
	met, histories := map[string]int{}, histories()
	for seed := *oracleSeed; seed < *oracleSeed+histories; seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		first := oracle.Generate(r)
		history := []*oracle.World{first, first.Next(r), oracle.Generate(r)}
		p := settlingPlanner()
		for i, world := range history {
			planStep(p, history[:i+1])
			ruleset := p.compiler.Ruleset()
			world.Hold()
			for _, packet := range world.Packets(r, packetsPerWorld) {
				if judge.Disagreement(world, ruleset, packet) != "" {
					reportDisagreement(t, seed, history[:i+1], packet)
					return
				}
				for _, outcome := range world.Decide(packet) {
					met[string(outcome.Kind)+string(outcome.Source)]++
					if outcome.Range {
						met["by a range"]++
					}
				}
			}
		}
	}
	// The worlds are of use only while everything happens in them.
	for _, outcome := range []string{
		"deliveredplain", "deliveredmasqueraded", "deliveredeither source", "refused", "unreachable", "dropped", "answered", "untouched", "by a range",
	} {
		if met[outcome] < int(histories)/10 {
			t.Errorf("%q only %d times: the generated worlds have become too tame", outcome, met[outcome])
		}
	}
	t.Logf("%d outcomes of packets: %v", sum(met), met)
}

// seeds is how many seeds of a random test run: all of them in the lane SEEDED of the Makefile, a sixteenth of them with -short, a quarter otherwise.
func seeds(all uint64) uint64 {
	if os.Getenv("SVCCTL_SEEDS") == "all" {
		return all
	}
	if testing.Short() {
		return (all + 15) / 16
	}
	return (all + 3) / 4
}

func histories() uint64 {
	if *oracleHistories > 0 {
		return uint64(*oracleHistories)
	}
	return seeds(2000)
}

func sum(counts map[string]int) (n int) {
	for _, count := range counts {
		n += count
	}
	return n
}

// settlingPlanner makes a planner by which all frontends that change in the second step wait, and settle in the third.
func settlingPlanner() *planner {
	p := newPlanner()
	p.host.Box.SettleFrom = 1
	return p
}

// planStep brings a planner from the worlds before to the last one, by the way that the
// appliance takes for such a change.
func planStep(p *planner, history []*oracle.World) nft.Transition {
	world := history[len(history)-1]
	cfg, facts := judge.Config(&world.Box), judge.Facts(&world.Box)
	host := Host{Facts: &facts, Box: cfg.Box(&facts), Resolve: cfg.ResolveFacts(&facts, nil)}
	if host.Box.SettleFrom = p.host.Box.SettleFrom; host.Box.SettleFrom > 0 && len(history) > 2 {
		p.compiler.Settle()
	}
	objs := (*worldObjects)(world)
	setWorld(p, world, uint64(len(history)))
	if len(history) == 1 {
		return p.adopt(nil, host, objs, objs.keys())
	}
	before := history[len(history)-2]
	if !reflect.DeepEqual(before.Box, objs.Box) {
		return p.relocate(host, objs, append((*worldObjects)(before).keys(), objs.keys()...))
	}
	return p.update(objs, changedServices(before, world))
}

// changedServices are the Services that anything changed about.
func changedServices(before, after *oracle.World) []string {
	a, b := (*worldObjects)(before), (*worldObjects)(after)
	return slices.DeleteFunc(append(a.keys(), b.keys()...), func(key string) bool {
		service, parts, endpoints := a.Service(key)
		otherService, otherParts, otherEndpoints := b.Service(key)
		return service == otherService && slices.Equal(parts, otherParts) && endpoints == otherEndpoints && maps.Equal(before.Down, after.Down)
	})
}

// planWorlds plans a history from its beginning.
func planWorlds(history ...*oracle.World) nft.Ruleset {
	p := settlingPlanner()
	for i := range history {
		planStep(p, history[:i+1])
	}
	return p.compiler.Ruleset()
}

// reportDisagreement shows the smallest history that still disagrees about the packet:
// one world if that is enough, else the last change.
func reportDisagreement(t *testing.T, seed uint64, history []*oracle.World, packet oracle.Packet) {
	t.Helper()
	fails := func(history ...*oracle.World) bool {
		return judge.Disagreement(history[len(history)-1], planWorlds(history...), packet) != ""
	}
	for length := 1; length <= len(history); length++ {
		shortest := slices.Clone(history[len(history)-length:])
		if !fails(shortest...) {
			continue
		}
		var text strings.Builder
		for i := range shortest {
			shortest[i] = shortest[i].Shrink(func(w *oracle.World) bool {
				trial := slices.Clone(shortest)
				trial[i] = w
				return fails(trial...)
			})
			fmt.Fprintf(&text, "world %d of %d:\n%s", i+1, length, shortest[i])
		}
		t.Fatalf("seed %d: %v\n%s\n%s", seed, packet,
			judge.Disagreement(shortest[length-1], planWorlds(shortest...), packet), &text)
	}
	t.Fatalf("seed %d: %v: the disagreement cannot be repeated", seed, packet)
}

// worldAnswers answers with the verdicts and source sets of a world.
type worldAnswers struct {
	world *oracle.World
	sets  map[string]*nft.SourceSet
}

// setWorld has a planner depend on a world from now on; version counts the contents that source sets had.
func setWorld(p *planner, world *oracle.World, version uint64) {
	sets := map[string]*nft.SourceSet{}
	for name, prefixes := range world.Box.SourceSets {
		sets[name] = nft.NewSourceSet(name, version, prefixes)
	}
	p.answerers = []Answerer{worldAnswers{world, sets}}
}

func (w worldAnswers) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	for _, t := range d.Targets {
		state := health.Up
		if w.world.Down[t.Addr] {
			state = health.Down
		}
		o.Judge(resolve.Verdict{Target: t, Verdict: health.Verdict{State: state}, Known: true})
	}
	for _, n := range d.Needs {
		if n.Kind == resolve.NeedSourceSet {
			o.Answer(n, resolve.State{Set: w.sets[n.Name]})
		}
	}
}

// worldObjects gives the planner the objects of a world, as the store would.
type worldObjects oracle.World

func (w *worldObjects) keys() []string {
	var keys []string
	for _, service := range w.Services {
		keys = append(keys, object.RefOf(service).Key())
	}
	return keys
}

// Service gives the mirrors of Endpoints too, which the endpoints controllers make.
func (w *worldObjects) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	service, parts, legacy := w.stored(key)
	return service, append(parts, w.generated(key)...), legacy
}

// Pod and Selecting implement Objects: its slices name no Pods.
func (w *worldObjects) Pod(string) *object.Pod                       { return nil }
func (w *worldObjects) Selecting(string, map[string]string) []string { return nil }

func (w *worldObjects) Secret(string) *object.Secret { return nil }

// Mentions is true for more Services than it has to be.
func (w *worldObjects) Mentions(string, map[netip.Addr]bool) bool { return true }

// Since is by the second, so that Services of one second are in the order of their names.
func (w *worldObjects) Since(key string) store.Since {
	for _, o := range w.Services {
		if object.RefOf(o).Key() == key {
			return store.Since{Created: uint64(o.Metadata.CreationTimestamp.Unix())}
		}
	}
	return store.Since{}
}

func (w *worldObjects) stored(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	var service *object.Service
	var parts []*object.EndpointSlice
	var endpoints *object.Endpoints
	for _, o := range w.Services {
		if object.RefOf(o).Key() == key {
			service = o
		}
	}
	for _, o := range w.Slices {
		if o.Metadata.Namespace+"/"+o.Metadata.Labels[object.LabelServiceName] == key {
			parts = append(parts, o)
		}
	}
	for _, o := range w.Endpoints {
		if object.RefOf(o).Key() == key {
			endpoints = o
		}
	}
	return service, parts, endpoints
}
