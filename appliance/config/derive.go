package config

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// Box is what the dataplane needs to know of this host. Without facts it holds what
// the configuration alone tells.
func (c *Config) Box(facts *node.Facts) nft.Box {
	box := nft.Box{
		ServiceRanges:    c.ServiceClusterIPRanges,
		InternalSources:  c.ClusterCIDRs,
		MasqueradeOnLink: c.SNAT == SNATAuto,
		Ping:             map[VIPPing]nft.Ping{VIPPingWhenReady: nft.PingWhenReady, VIPPingAlways: nft.PingAlways, VIPPingNever: nft.PingNever}[c.VIPPing],
	}
	if facts == nil {
		return box
	}
	box.NodePortAddresses = c.HostNodePortAddresses(facts)
	for _, a := range facts.Addresses {
		box.LocalAddresses = append(box.LocalAddresses, a.Prefix.Addr())
	}
	for _, i := range facts.Interfaces {
		if i.Loopback {
			continue
		}
		iface := nft.Interface{Index: i.Index, Name: i.Name}
		for _, a := range facts.Addresses {
			// A link-local segment has no clients of a VIP, and a host prefix none at all.
			if a.Index == i.Index && !a.Prefix.IsSingleIP() && !a.Prefix.Addr().IsLinkLocalUnicast() {
				iface.Prefixes = append(iface.Prefixes, a.Prefix.Masked())
			}
		}
		box.Interfaces = append(box.Interfaces, iface)
	}
	return box
}

// OfflineBox is the box as far as the configuration alone tells.
func (c *Config) OfflineBox() nft.Box {
	box := c.Box(nil)
	for _, p := range c.NodePortAddresses.Prefixes {
		if p.IsSingleIP() {
			box.NodePortAddresses = append(box.NodePortAddresses, p.Addr())
		}
	}
	slices.SortFunc(box.NodePortAddresses, netip.Addr.Compare)
	return box
}

// HostNodePortAddresses are the addresses of the host that node ports answer on. A family
// that the configuration names no prefix of answers on all its addresses.
func (c *Config) HostNodePortAddresses(facts *node.Facts) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		if addr.IsLoopback() || addr.IsLinkLocalUnicast() || !c.NodePortAddresses.accept(addr, facts) {
			continue
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

func (n NodePortAddresses) accept(addr netip.Addr, facts *node.Facts) bool {
	if n.Primary {
		return slices.Contains(facts.Primary, addr)
	}
	named := false
	for _, p := range n.Prefixes {
		if p.Addr().Is4() == addr.Is4() {
			named = true
			if p.Contains(addr) {
				return true
			}
		}
	}
	return !named
}

// ResolveFacts is what Services are resolved against.
func (c *Config) ResolveFacts(facts *node.Facts) resolve.Facts {
	f := resolve.Facts{
		NodeName:               c.NodeName,
		Zone:                   c.Zone,
		NodelessLocal:          c.NodelessEndpoints == NodelessLocal,
		MasqueradeAll:          c.MasqueradeAll,
		SourceRangesApplyToAll: c.SourceRangesApply == SourceRangesAll,
		ServiceRanges:          c.ServiceClusterIPRanges,
		ExternalIPRanges:       c.ExternalIPRanges,
		Host:                   map[netip.Addr]string{},
	}
	if facts == nil {
		return f
	}
	for _, a := range facts.Addresses {
		// A host prefix is how a VIP is bound to an interface; what comes with a
		// segment is how the host itself is reached.
		if !a.Prefix.IsSingleIP() {
			f.Host[a.Prefix.Addr()] = "an address of this host, on " + a.Interface
		}
	}
	for _, g := range facts.Gateways {
		f.Host[g] = "a gateway of this host"
	}
	return f
}

// ClusterObjects is the configuration of control.ClusterObjects.
func (c *Config) ClusterObjects() control.ClusterConfig {
	return control.ClusterConfig{NodeName: c.NodeName, Zone: c.Zone, Version: c.Version, ServiceRanges: c.ServiceClusterIPRanges}
}

// EndpointsFacts is the configuration of control.Endpoints.
func (c *Config) EndpointsFacts() endpoints.Facts {
	return endpoints.Facts{NodeName: c.NodeName, Zone: c.Zone, ServiceRanges: c.ServiceClusterIPRanges}
}

// LoopbackAddresses are the host's loopback addresses that node ports are to answer on:
// those that the configuration names by a prefix. Nothing is relayed unless asked for.
func (c *Config) LoopbackAddresses(facts *node.Facts) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		named := slices.ContainsFunc(c.NodePortAddresses.Prefixes, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(addr) })
		if addr.IsLoopback() && named && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// Store is what the store is told.
func (c *Config) Store() store.Config {
	cfg := store.Config{
		ClusterIPRanges: c.ServiceClusterIPRanges,
		NodePorts:       store.PortRange(c.ServiceNodePortRange),
		Objects:         object.Options{RelaxedServiceNames: c.ServiceNames == ServiceNamesRFC1123},
		LegacyIPs:       c.LegacyIP == LegacyIPAccept,
	}
	if c.NodePortSpace == NodePortShared {
		cfg.NodePortSpace = alloc.Shared
	}
	for _, r := range c.LoadBalancerPools {
		cfg.Pools = append(cfg.Pools, alloc.Pool(r))
	}
	return cfg
}
