package appliance

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/store/object"
)

// How much TestOracle tries; a run with other seeds is one with another -oracle.seed.
var (
	oracleSeed   = flag.Uint64("oracle.seed", 1, "the first seed of TestOracle")
	oracleWorlds = flag.Int("oracle.worlds", 2500, "how many worlds TestOracle makes")
)

// packetsPerWorld are tried on each; with oracleWorlds, more than 100,000 in all.
const packetsPerWorld = 50

// TestOracle compiles random worlds as the appliance does, and compares what the
// ruleset does with packets to what package oracle says that it should do.
func TestOracle(t *testing.T) {
	failures := 0
	for seed := *oracleSeed; seed < *oracleSeed+uint64(*oracleWorlds); seed++ {
		r := rand.New(rand.NewPCG(seed, 0))
		world := oracle.Generate(r)
		ruleset := planWorld(world)
		for range packetsPerWorld {
			packet := world.Packets(r, 1)[0]
			if problem := disagreement(world, ruleset, packet); problem != "" {
				failures++
				reportDisagreement(t, seed, world, packet)
				break
			}
		}
		if t.Failed() && failures >= 6 {
			return
		}
	}
}

// reportDisagreement shows the smallest world that still disagrees about the packet.
func reportDisagreement(t *testing.T, seed uint64, world *oracle.World, packet oracle.Packet) {
	t.Helper()
	world = world.Shrink(func(w *oracle.World) bool { return disagreement(w, planWorld(w), packet) != "" })
	t.Errorf("seed %d: %v\n%s\n%s", seed, packet, disagreement(world, planWorld(world), packet), world)
}

// planWorld is the ruleset that a fresh appliance programs for a world.
func planWorld(world *oracle.World) nft.Ruleset {
	cfg, facts := configOf(&world.Box), factsOf(&world.Box)
	p := newPlanner()
	p.adopt(nil, cfg.box(&facts), cfg.resolveFacts(&facts), (*worldObjects)(world), servicesOf(world))
	return p.compiler.Ruleset()
}

func servicesOf(world *oracle.World) []string {
	var keys []string
	for _, service := range world.Services {
		keys = append(keys, object.RefOf(service).Key())
	}
	return keys
}

// worldObjects gives the planner the objects of a world, as the store would.
type worldObjects oracle.World

func (w *worldObjects) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
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

// configOf is how an appliance is told to be that box.
func configOf(box *oracle.Box) *Config {
	cfg := DefaultConfig()
	cfg.NodeName, cfg.Zone = box.NodeName, box.Zone
	cfg.ServiceClusterIPRanges, cfg.ClusterCIDRs, cfg.ExternalIPRanges = box.ServiceRanges, box.InternalSources, box.ExternalIPRanges
	cfg.NodePortAddresses = NodePortAddresses{Primary: box.NodePortPrimary, Prefixes: box.NodePortAddresses}
	cfg.MasqueradeAll = box.MasqueradeAll
	cfg.VIPPing = VIPPing(box.Ping)
	if box.NodelessRemote {
		cfg.NodelessEndpoints = NodelessRemote
	}
	if box.SNATNever {
		cfg.SNAT = SNATNever
	}
	if box.SourceRangesApplyAll {
		cfg.SourceRangesApply = SourceRangesAll
	}
	return &cfg
}

// factsOf is what the appliance reads of that box; its interfaces are numbered from 1.
func factsOf(box *oracle.Box) node.Facts {
	facts := node.Facts{Primary: box.Primary, Gateways: box.Gateways}
	for i, each := range box.Interfaces {
		index := uint32(i + 1)
		facts.Interfaces = append(facts.Interfaces, node.Interface{Index: index, Name: each.Name, Loopback: each.Name == "lo"})
		for _, p := range each.Addresses {
			facts.Addresses = append(facts.Addresses, node.Address{Prefix: p, Interface: each.Name, Index: index})
		}
	}
	return facts
}

// disagreement says how the ruleset treats a packet otherwise than the oracle wants.
func disagreement(world *oracle.World, ruleset nft.Ruleset, packet oracle.Packet) string {
	host := hostOf(&world.Box, ruleset, packet.To.Addr().Is4())
	want, got := world.Decide(packet), host.Outcomes(simPacket(&world.Box, packet))
	var missing, surplus []string
	for _, w := range want {
		if !slices.ContainsFunc(got, func(g sim.Result) bool { return allows(w, host, packet, g) }) {
			missing = append(missing, w.String())
		}
	}
	for _, g := range got {
		if !slices.ContainsFunc(want, func(w oracle.Outcome) bool { return allows(w, host, packet, g) }) {
			surplus = append(surplus, g.String()+"\n\t\t"+strings.Join(g.Trace, "\n\t\t"))
		}
	}
	if len(missing)+len(surplus) == 0 {
		return ""
	}
	return fmt.Sprintf("the oracle wants %v\n\tmissing: %v\n\tsurplus: %s", want, missing, strings.Join(surplus, "\n\t"))
}

// allows tells whether a result of the simulator is an outcome of the oracle.
func allows(want oracle.Outcome, host *sim.Host, packet oracle.Packet, got sim.Result) bool {
	switch want.Kind {
	case oracle.Delivered:
		oif, _ := host.Route(want.To.Addr())
		plain, masqueraded := got.Src == packet.From.Addr(), got.Src == host.MasqueradeAddr(oif)
		return got.Kind == sim.Delivered && got.Dst == want.To &&
			(plain && want.Source != oracle.Masqueraded || masqueraded && want.Source != oracle.Plain)
	case oracle.Refused:
		with := nft.RejectPortUnreachable
		if packet.Protocol == oracle.TCP {
			with = nft.RejectTCPReset
		}
		return got.Kind == sim.Rejected && got.RejectWith == with
	case oracle.Unreachable:
		return got.Kind == sim.Rejected && got.RejectWith == nft.RejectHostUnreachable
	case oracle.Dropped:
		return got.Kind == sim.Dropped
	case oracle.Answered:
		_, local := host.Route(got.Dst.Addr())
		return got.Kind == sim.Delivered && local && !got.SNATed
	}
	return got.Kind == sim.Delivered && !got.DNATed && !got.SNATed
}

var simProtocols = map[oracle.Protocol]nft.Protocol{oracle.TCP: nft.TCP, oracle.UDP: nft.UDP, oracle.SCTP: nft.SCTP}

func simPacket(box *oracle.Box, p oracle.Packet) sim.Packet {
	packet := sim.Packet{Saddr: p.From.Addr(), Daddr: p.To.Addr(), Iif: indexOf(box, p.Interface)}
	if p.Protocol == oracle.Ping {
		packet.ICMPEcho = true
		return packet
	}
	packet.Proto, packet.Sport, packet.Dport = simProtocols[p.Protocol], p.From.Port(), p.To.Port()
	return packet
}

// hostOf is the box as the simulator knows it, for one family. What is on no interface
// leaves by the one of the gateway.
func hostOf(box *oracle.Box, ruleset nft.Ruleset, is4 bool) *sim.Host {
	host := &sim.Host{Ruleset: ruleset}
	const loopback = 1
	host.IsLocal = func(addr netip.Addr) bool {
		return slices.ContainsFunc(box.Interfaces, func(i oracle.Interface) bool {
			return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
		})
	}
	host.Route = func(dst netip.Addr) (uint32, bool) {
		if host.IsLocal(dst) {
			return loopback, true
		}
		for _, to := range append([]netip.Addr{dst}, box.Gateways...) {
			for i, each := range box.Interfaces {
				if slices.ContainsFunc(each.Addresses, func(p netip.Prefix) bool { return p.Contains(to) }) {
					return uint32(i + 1), false
				}
			}
		}
		return 0, false
	}
	host.MasqueradeAddr = func(index uint32) netip.Addr {
		for _, p := range box.Interfaces[index-1].Addresses {
			if p.Addr().Is4() == is4 {
				return p.Addr()
			}
		}
		return netip.Addr{}
	}
	return host
}

func indexOf(box *oracle.Box, name string) uint32 {
	return uint32(slices.IndexFunc(box.Interfaces, func(i oracle.Interface) bool { return i.Name == name }) + 1)
}
