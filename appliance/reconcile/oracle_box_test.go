package reconcile

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
)

// configOf is how an appliance is told to be that box.
func configOf(box *oracle.Box) *config.Config {
	cfg := config.Default()
	cfg.NodeName, cfg.Zone = box.NodeName, box.Zone
	cfg.Addresses.ClusterIPRanges, cfg.Addresses.ClusterCIDRs, cfg.Addresses.ExternalIPRanges.Prefixes = box.ServiceRanges, box.InternalSources, box.ExternalIPRanges
	for _, p := range box.Pools {
		cfg.Addresses.LoadBalancerPools = append(cfg.Addresses.LoadBalancerPools, config.AddrRange{First: p.Addr(), Last: config.LastAddr(p)})
	}
	for _, p := range box.InternalPools {
		cfg.Addresses.InternalPools = append(cfg.Addresses.InternalPools, config.AddrRange{First: p.Addr(), Last: config.LastAddr(p)})
	}
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

// factsOf returns the facts that the appliance reads on that box; its interfaces are numbered
// from 1.
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

// hostOf is the box as the simulator knows it, for one family. What is on no interface
// leaves by the one of the gateway.
func hostOf(box *oracle.Box, ruleset nft.Ruleset, is4 bool) *sim.Host {
	const loopback = 1
	isLocal := func(addr netip.Addr) bool {
		return slices.ContainsFunc(box.Interfaces, func(i oracle.Interface) bool {
			return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
		})
	}
	route := func(dst netip.Addr) (uint32, bool) {
		if isLocal(dst) {
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
	masqueradeAddr := func(index uint32) netip.Addr {
		for _, p := range box.Interfaces[index-1].Addresses {
			if p.Addr().Is4() == is4 {
				return p.Addr()
			}
		}
		return netip.Addr{}
	}
	return &sim.Host{Ruleset: ruleset, IsLocal: isLocal, Route: route, MasqueradeAddr: masqueradeAddr}
}

var simProtocols = map[oracle.Protocol]nft.Protocol{oracle.TCP: nft.TCP, oracle.UDP: nft.UDP, oracle.SCTP: nft.SCTP}

func simPacket(box *oracle.Box, p oracle.Packet) sim.Packet {
	packet := sim.Packet{Saddr: p.From.Addr(), Daddr: p.To.Addr()}
	packet.Iif = uint32(slices.IndexFunc(box.Interfaces, func(i oracle.Interface) bool { return i.Name == p.Interface }) + 1)
	if p.Protocol == oracle.Ping {
		packet.ICMPEcho = true
		return packet
	}
	packet.Proto, packet.Sport, packet.Dport = simProtocols[p.Protocol], p.From.Port(), p.To.Port()
	return packet
}
