package reconcile

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft/nfttest/fake"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// verdictWorlds are judged by TestVerdictAgreesWithPackets; the environment variables SEED and COUNT have it judge others.
const verdictWorlds = 200

// Test835_verdict_agrees_with_packets has the appliance serve random worlds from files. A Service is Ready if and only if
// each client that is entitled to an answer gets one, by the oracle and by a packet through the ruleset, at each address and
// port that the Service asks for; the Reason of a Service that is not Ready is true.
func Test835_verdict_agrees_with_packets(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("computes for half a minute")
	}
	first, count := fromEnv("SEED", 1), fromEnv("COUNT", seeds(verdictWorlds))
	met, found := map[string]int{}, map[string]int{}
	for seed := first; seed < first+count; seed++ {
		r := rand.New(rand.NewPCG(seed, 5))
		world := oracle.Generate(r)
		world.Complicate(r)
		if seed%3 > 0 {
			world.Egress(r)
		}
		if seed%2 == 0 {
			world.AddGateways(r)
		}
		world.Box.Interfaces = slices.DeleteFunc(world.Box.Interfaces, func(i oracle.Interface) bool { return i.Name == "vip0" }) // of addresses that the store gives anew
		kind, _ := judgeWorld(t, world, met)
		if kind == "" {
			continue
		}
		if found[kind]++; found[kind] > 1 {
			continue // one of each kind is enough to read
		}
		smallest := world.Shrink(func(w *oracle.World) bool { of, _ := judgeWorld(t, w, map[string]int{}); return of == kind })
		_, text := judgeWorld(t, smallest, met)
		t.Errorf("seed %d: %s: %s\n%s", seed, kind, text, smallest)
	}
	if len(found) > 0 {
		t.Fatal(found)
	}
	t.Log(met)
	for _, what := range []string{"Ready", "NoEndpoints", "NoReadyEndpoint", "PortMismatch", "NoLocalEndpoint", "OtherFamily", "FailingOpen", "Pending",
		"HostAddress", "TLSNotTerminated", "PortInUse", "UnknownSourceSet", "PortConflict", "relayed",
		"left with an address: of a Service", "left with an address: own, for its destination",
		"a Gateway's packet delivered", "a Gateway's packet refused", "Gateway Programmed=True", "Gateway Programmed=False", "TCPRoute Accepted=False", "UDPRoute Accepted=True", "TCPRoute ResolvedRefs=False", "UDPRoute ResolvedRefs=True"} {
		if count >= verdictWorlds && met[what] == 0 {
			t.Errorf("%q is in no world: the generated worlds have become too tame", what)
		}
	}
}

func fromEnv(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// judgeWorld describes a Service of a world whose condition is not what becomes of its clients, with the kind of the
// disagreement; "": there is none.
func judgeWorld(t *testing.T, world *oracle.World, met map[string]int) (kind, text string) {
	r := &rig{t: t, kernel: fake.New(), engine: faulty.NewMemory(), files: map[string]*manifest.File{}, clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	r.configure = func(cfg *config.Config) { *cfg = *judge.Config(&world.Box); cfg.Manifests = []string{"manifests"} }
	r.start()
	programs := &programs{}
	for _, p := range world.Programs {
		programs.listen(strings.ToLower(string(p.Protocol)), p.At.String())
		programs.list[len(programs.list)-1].BothFamilies = p.At.Addr() == netip.IPv6Unspecified()
	}
	r.occupy(programs)
	setWorld(r.planner, world, 1)
	facts := judge.Facts(&world.Box)
	for i := range facts.Addresses {
		facts.Addresses[i].First = true
	}
	r.observed.facts, r.observed.moved = &facts, true
	r.write("world.yaml", world.Manifest())
	r.step()
	r.clock = r.clock.Add(newFor)
	r.step()
	served := r.inForce(world)
	served.Hold()
	hosts := map[bool]*sim.Host{}
	for _, is4 := range []bool{true, false} {
		hosts[is4] = judge.Host(&served.Box, r.planner.compiler.Ruleset(), is4)
	}
	for _, service := range served.Services {
		conditions, settled := r.board.Conditions().Of(service)
		ready := conditions[0]
		lacks, lacking, wrong := r.attempt(served, hosts, service)
		key := object.RefOf(service).Key()
		said := fmt.Sprintf("%s is Ready=%s %s: %s\nbut %s\nproblems: %s", key, ready.Status, ready.Reason, ready.Message, cmp.Or(lacking, "each client gets an answer"), r.problemsOf(key))
		switch {
		case wrong != "":
			return "the oracle and the ruleset", key + ": " + wrong
		case !settled:
			return "not settled", said
		case (ready.Status == object.ConditionTrue) != (lacks == ""):
			return fmt.Sprintf("Ready=%s %s and %q", ready.Status, ready.Reason, lacks), said
		case lacks != "" && !served.Explains(service, ready.Reason):
			return fmt.Sprintf("untrue %s, but %q", ready.Reason, lacks), said
		}
		if met[ready.Reason]++; lacks == "" {
			met["Ready"]++
		}
		if lacks == "" && service.Metadata.Annotations["svcctl.io/proxy-mode"] == "userspace" {
			met["relayed"]++
		}
	}
	from := rand.New(rand.NewPCG(uint64(len(served.Services)), 8))
	for range 24 {
		packet := served.OutgoingPacket(from)
		if served.Decide(packet)[0].Kind != oracle.Untouched {
			continue
		}
		if text := judge.Disagreement(served, r.planner.compiler.Ruleset(), packet); text != "" {
			return "what hosts begin", fmt.Sprintf("%v: %s", packet, text)
		}
		met["left with an address: "+leaves(served, packet)]++
	}
	return r.judgeGateways(served, met)
}

// judgeGateways compares the conditions of Gateways, listeners and routes to what becomes of their clients.
func (r *rig) judgeGateways(served *oracle.World, met map[string]int) (kind, text string) {
	for _, o := range served.Gateways {
		for _, a := range served.Attempts(served.Serving(o)) {
			if !a.Packet.To.IsValid() {
				continue
			}
			if text := judge.Disagreement(served, r.planner.compiler.Ruleset(), a.Packet); text != "" {
				return "a packet", fmt.Sprintf("Gateway %s, %v: %s", o.Metadata.Name, a.Packet, text)
			}
			for _, outcome := range served.Decide(a.Packet) {
				met["a Gateway's packet "+string(outcome.Kind)]++
			}
		}
	}
	get := func(ref object.Ref) object.Object {
		o, _ := r.store.Get(ref)
		return o
	}
	return judge.Conditions(served, func(*object.Gateway) bool { return true }, get, func(condition string) { met[condition]++ })
}

func (r *rig) problemsOf(key string) string {
	var all []string
	for _, p := range r.board.Status().Problems {
		if p.Object == "Service "+key {
			all = append(all, p.Severity+" "+p.Reason+" "+p.Message)
		}
	}
	return strings.Join(all, "\n\t")
}

// attempt makes the connections of all clients to a Service. lacking is one without an answer, wrong one that the ruleset
// treats differently from the oracle.
func (r *rig) attempt(world *oracle.World, hosts map[bool]*sim.Host, service *object.Service) (lacks oracle.Lack, lacking, wrong string) {
	for _, a := range world.Attempts(service) {
		if len(a.Lacks) > 0 && lacks == "" {
			lacks, lacking = a.Lacks[0], fmt.Sprintf("%v: %s", a.Packet, a.Lacks)
		}
		if !a.Packet.To.IsValid() {
			continue
		}
		answered := false
		results := hosts[a.Packet.To.Addr().Is4()].Outcomes(judge.Packet(&world.Box, a.Packet))
		for _, got := range results {
			answered = answered || got.Kind == sim.Delivered && (slices.Contains(a.To, got.Dst) || len(a.To) > 0 && r.isRelay(got.Dst))
		}
		// Of endpoints that are all down the ruleset does not know.
		if answered != (len(a.Lacks) == 0 || a.Lacks[0] == oracle.LacksAnyUp) {
			return "", "", fmt.Sprintf("%v: the oracle: %q, the ruleset: %v", a.Packet, a.Lacks, results)
		}
	}
	return lacks, lacking, ""
}

// isRelay reports whether an address is the relay's.
func (r *rig) isRelay(at netip.AddrPort) bool {
	for _, listeners := range r.planner.host.Resolve.Relays {
		if slices.Contains(listeners[:], at) {
			return true
		}
	}
	return false
}

// inForce is a world with the Services as they are stored.
func (r *rig) inForce(world *oracle.World) *oracle.World {
	served := *world
	served.Services = nil
	for _, o := range world.Services {
		if stored, _ := r.store.Get(object.RefOf(o)); stored != nil {
			served.Services = append(served.Services, stored.(*object.Service))
		}
	}
	served.Slices = slices.Clone(world.Slices)
	for _, gw := range world.Gateways {
		stored, _ := r.store.Get(object.ServiceRef(oracle.ServiceOf(gw)))
		if stored == nil {
			r.t.Fatalf("Gateway %s has no Service", gw.Metadata.Name)
		}
		served.Services = append(served.Services, stored.(*object.Service))
		served.Slices = append(served.Slices, served.GatewaySlices(gw)...)
	}
	return &served
}
