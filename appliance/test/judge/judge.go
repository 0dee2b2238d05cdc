package judge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/store/object"
)

// Config returns the settings of an appliance on a box of the oracle.
func Config(box *oracle.Box) *config.Config {
	cfg := config.Default()
	cfg.NodeName, cfg.Zone = box.NodeName, box.Zone
	cfg.Addresses.ClusterIPRanges, cfg.Addresses.ClusterCIDRs, cfg.Addresses.ExternalIPRanges.Prefixes = box.ServiceRanges, box.InternalSources, box.ExternalIPRanges
	for _, p := range box.Pools {
		cfg.Addresses.LoadBalancerPools = append(cfg.Addresses.LoadBalancerPools, nft.PrefixRange(p))
	}
	for _, p := range box.InternalPools {
		cfg.Addresses.InternalPools = append(cfg.Addresses.InternalPools, nft.PrefixRange(p))
	}
	cfg.Addresses.EgressFrom = box.EgressFrom
	cfg.Addresses.InternalFrom = config.InternalFrom{Prefixes: box.InsideSources, Interfaces: box.InsideInterfaces}
	if box.ClusterIPsInside {
		cfg.Addresses.ClusterIPClients = config.ClusterIPInternal
	}
	cfg.Addresses.NodePortAddresses = config.NodePortAddresses{Primary: box.NodePortPrimary, Prefixes: box.NodePortAddresses}
	cfg.Services.MasqueradeAll = box.MasqueradeAll
	cfg.Services.VIPPing = config.VIPPing(box.Ping)
	if box.NodelessRemote {
		cfg.Services.NodelessEndpoints = config.NodelessRemote
	}
	if box.SNATNever {
		cfg.Services.SNAT = config.SNATNever
	}
	if box.SourceRangesApplyAll {
		cfg.Services.SourceRangesApply = config.SourceRangesAll
	}
	return &cfg
}

// Facts returns the facts that the appliance reads on that box; its interfaces are numbered
// from 1.
func Facts(box *oracle.Box) node.Facts {
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

// Host returns a box of the oracle with a ruleset, for the simulator and one family.
func Host(box *oracle.Box, ruleset nft.Ruleset, is4 bool) *sim.Host {
	return &sim.Host{Ruleset: ruleset, Network: network{box, is4}}
}

// network is the network of a box in one family.
type network struct {
	*oracle.Box
	is4 bool
}

func (n network) IsLocal(addr netip.Addr) bool {
	return slices.ContainsFunc(n.Interfaces, func(i oracle.Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
	})
}

// Route sends a destination on no interface to the interface of the gateway.
func (n network) Route(dst netip.Addr) (uint32, bool) {
	const loopback = 1
	if n.IsLocal(dst) {
		return loopback, true
	}
	for _, to := range append([]netip.Addr{dst}, n.Gateways...) {
		for i, each := range n.Interfaces {
			if slices.ContainsFunc(each.Addresses, func(p netip.Prefix) bool { return p.Contains(to) }) {
				return uint32(i + 1), false
			}
		}
	}
	return 0, false
}

func (n network) MasqueradeAddr(index uint32) netip.Addr {
	for _, p := range n.Interfaces[index-1].Addresses {
		if p.Addr().Is4() == n.is4 {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

var simProtocols = map[oracle.Protocol]nft.Protocol{oracle.TCP: nft.TCP, oracle.UDP: nft.UDP, oracle.SCTP: nft.SCTP}

// Packet returns a packet of the oracle for the simulator.
func Packet(box *oracle.Box, p oracle.Packet) sim.Packet {
	packet := sim.Packet{Saddr: p.From.Addr(), Daddr: p.To.Addr()}
	packet.Iif = uint32(slices.IndexFunc(box.Interfaces, func(i oracle.Interface) bool { return i.Name == p.Interface }) + 1)
	if p.Protocol == oracle.Ping {
		packet.ICMPEcho = true
		return packet
	}
	packet.Proto, packet.Sport, packet.Dport = simProtocols[p.Protocol], p.From.Port(), p.To.Port()
	return packet
}

// Disagreement describes how a ruleset treats a packet differently from the oracle; "": it does
// not.
func Disagreement(world *oracle.World, ruleset nft.Ruleset, packet oracle.Packet) string {
	host := Host(&world.Box, ruleset, packet.To.Addr().Is4())
	want, got := world.Decide(packet), host.Outcomes(Packet(&world.Box, packet))
	if want[0].Kind == oracle.Untouched {
		return leaving(world.Leaves(packet), got)
	}
	return Compare(host, packet, want, got)
}

// Compare describes the expected outcomes that do not happen, and the ones that happen
// unexpectedly; "": none.
func Compare(host *sim.Host, packet oracle.Packet, want []oracle.Outcome, got []sim.Result) string {
	var missing, surplus []string
	hashed := len(want) > 0 && want[0].Hashed // then one of them happens
	if hashed && len(got) != 1 {
		return fmt.Sprintf("%d things may happen to a client that is hashed: %v", len(got), got)
	}
	for _, w := range want {
		if !hashed && !slices.ContainsFunc(got, func(g sim.Result) bool { return Allows(w, host, packet, g) }) {
			missing = append(missing, w.String())
		}
	}
	for _, g := range got {
		if !slices.ContainsFunc(want, func(w oracle.Outcome) bool { return Allows(w, host, packet, g) }) {
			surplus = append(surplus, stateful.Text(g)+"\n\t\t"+strings.Join(g.Trace(), "\n\t\t"))
		}
	}
	if len(missing)+len(surplus) == 0 {
		return ""
	}
	return fmt.Sprintf("the oracle wants %v\n\tmissing: %v\n\tsurplus: %s", want, missing, strings.Join(surplus, "\n\t"))
}

// Allows reports whether a result of the simulator is an outcome of the oracle.
func Allows(want oracle.Outcome, host *sim.Host, packet oracle.Packet, got sim.Result) bool {
	switch want.Kind {
	case oracle.Delivered:
		oif, _ := host.Route(want.To.Addr())
		plain, masqueraded := got.Src == packet.From.Addr(), got.Src == host.MasqueradeAddr(oif)
		return got.Kind == sim.Delivered && got.Dst == want.To && got.Timeout.Idle == want.Idle &&
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

// leaving describes the results of a packet past all Services that have another source than the one that is wanted; "": none has.
func leaving(want netip.Addr, results []sim.Result) string {
	for _, got := range results {
		if got.Kind != sim.Delivered || got.Src != want || got.DNATed {
			return fmt.Sprintf("the oracle wants it to pass with the source %v\n\tsurplus: %s\n\t\t%s", want, stateful.Text(got), strings.Join(got.Trace(), "\n\t\t"))
		}
	}
	return ""
}

// Conditions compares the conditions of the Gateways for which alone is true, of their listeners, and of routes to what becomes of clients, and describes one that differs, with its kind; "": none does. met is called for each condition.
func Conditions(world *oracle.World, alone func(*object.Gateway) bool, get func(object.Ref) object.Object, met func(condition string)) (kind, text string) {
	differs := func(o object.Object, of []object.Condition, name string, is bool) bool {
		i := slices.IndexFunc(of, func(c object.Condition) bool { return c.Type == name })
		if i < 0 {
			kind, text = name, object.RefOf(o).String()+" has no condition "+name
			return true
		}
		met(fmt.Sprintf("%s %s=%s", o.GetTypeMeta().Kind, name, of[i].Status))
		if (of[i].Status == object.ConditionTrue) != is {
			kind, text = fmt.Sprintf("%s=%s", name, of[i].Status), fmt.Sprintf("%s is %s=%s %s: %s", object.RefOf(o), name, of[i].Status, of[i].Reason, of[i].Message)
			return true
		}
		return false
	}
	for _, o := range world.Gateways {
		if !alone(o) {
			continue
		}
		gw := get(object.RefOf(o)).(*object.Gateway)
		if differs(gw, gw.Status.Conditions, "Programmed", world.Programmed(gw)) {
			return kind, text
		}
		for i := range gw.Status.Listeners {
			if l := &gw.Status.Listeners[i]; differs(gw, l.Conditions, "Accepted", !world.IsTaken(gw, &gw.Spec.Listeners[i])) {
				return "listener " + kind, text
			}
		}
	}
	for _, o := range world.Routes {
		accepted, resolved := world.Judge(o)
		var status object.RouteStatus
		switch o := get(object.RefOf(o)).(type) {
		case *object.TCPRoute:
			status = o.Status
		case *object.UDPRoute:
			status = o.Status
		}
		if want := len(world.Parents(o)); len(status.Parents) != want {
			return "parents", fmt.Sprintf("%s has %d parents and not %d: %v", object.RefOf(o), len(status.Parents), want, status)
		} else if want == 0 {
			continue
		}
		if differs(o, status.Parents[0].Conditions, "Accepted", accepted) || differs(o, status.Parents[0].Conditions, "ResolvedRefs", resolved) {
			return kind, text
		}
	}
	return "", ""
}
