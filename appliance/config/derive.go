package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Box returns the parts of the configuration and of the host's facts on which the ruleset depends. If facts is nil, it uses the
// configuration alone.
func (c *Config) Box(facts *node.Facts) nft.Box {
	box := nft.Box{
		ServiceRanges:    c.Addresses.ClusterIPRanges,
		InternalSources:  c.Addresses.ClusterCIDRs,
		InsideSources:    c.Addresses.InternalFrom.Prefixes,
		EgressFrom:       c.Addresses.EgressFrom,
		MasqueradeOnLink: c.Services.SNAT == SNATAuto,
		Counters:         c.Services.Traffic != TrafficOff,
		Ping:             map[VIPPing]nft.Ping{VIPPingWhenReady: nft.PingWhenReady, VIPPingAlways: nft.PingAlways, VIPPingNever: nft.PingNever}[c.Services.VIPPing],
	}
	box.Owned, box.Fast = c.owned(facts), c.flowtable(facts)
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
		iface := nft.Interface{Index: i.Index, Name: i.Name, Inside: slices.Contains(c.Addresses.InternalFrom.Interfaces, i.Name)}
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

// OfflineBox returns Box without facts. Its node port addresses are those that the configuration lists as single addresses.
func (c *Config) OfflineBox() nft.Box {
	box := c.Box(nil)
	for _, p := range c.Addresses.NodePortAddresses.Prefixes {
		if p.IsSingleIP() {
			box.NodePortAddresses = append(box.NodePortAddresses, p.Addr())
		}
	}
	slices.SortFunc(box.NodePortAddresses, netip.Addr.Compare)
	return box
}

// HostNodePortAddresses returns the host addresses of both families on which node ports answer, sorted. By default these are all except loopback and
// link-local ones. The configuration can restrict them to prefixes, to interfaces, or to the primary address of each family; a link-local IPv4 prefix
// also admits addresses in it.
func (c *Config) HostNodePortAddresses(facts *node.Facts) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		if addr.IsLoopback() || !c.Addresses.NodePortAddresses.accept(&a, facts) || addr.IsLinkLocalUnicast() && !c.Addresses.NodePortAddresses.namesLink(addr) {
			continue
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

func (n NodePortAddresses) accept(a *node.Address, facts *node.Facts) bool {
	addr := a.Prefix.Addr()
	if n.Primary {
		return slices.Contains(facts.Primary, addr)
	}
	if slices.Contains(n.Interfaces, a.Interface) {
		return true
	}
	named := len(n.Interfaces) > 0
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

// namesLink reports whether a configured prefix of link-local IPv4 addresses contains addr. IPv6 is not supported: clients would have
// link-local sources too, and the kernel does not forward packets from them (ip6_forward).
func (n NodePortAddresses) namesLink(addr netip.Addr) bool {
	return addr.Is4() && slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() && p.Contains(addr) })
}

// ResolveFacts returns the facts used to resolve Services. isVIP reports whether an address of the host was added to an interface as a VIP;
// nil means that none was.
func (c *Config) ResolveFacts(facts *node.Facts, isVIP func(netip.Addr) bool) resolve.Facts {
	f := resolve.Facts{
		NodeName:               c.NodeName,
		Zone:                   c.Zone,
		Balance:                resolve.ParsedBalance(c.Services.Balance),
		Fleet:                  c.Fleet.Name != "",
		NodelessLocal:          c.Services.NodelessEndpoints == NodelessLocal,
		MasqueradeAll:          c.Services.MasqueradeAll,
		SourceRangesApplyToAll: c.Services.SourceRangesApply == SourceRangesAll,
		ConnectionLog:          c.Services.ConnectionLog,
		FastPath:               resolve.FastPath{Asked: c.Services.FastPath == FastPathServices, All: c.Services.FastPath == FastPathAll},
		OwnPorts:               c.ownPorts(),
		Networks: resolve.Networks{
			ServiceRanges: c.Addresses.ClusterIPRanges, ExternalIPRanges: c.Addresses.ExternalIPRanges.Prefixes, NoExternalIPs: c.Addresses.ExternalIPRanges.None,
			Host: map[netip.Addr]string{}, Broadcast: map[netip.Addr]bool{}, EgressFrom: c.Addresses.EgressFrom, Local: map[netip.Addr]bool{},
		},
	}
	f.Pools, f.InternalPools = c.AnnouncedRanges(), slices.Clone(c.Addresses.InternalPools)
	if c.Addresses.ClusterIPClients == ClusterIPInternal {
		for _, p := range c.Addresses.ClusterIPRanges {
			f.InternalPools = append(f.InternalPools, nft.PrefixRange(p))
		}
	}
	for _, p := range c.ObjectPools.all() {
		if p.Internal {
			f.InternalPools = append(f.InternalPools, nft.Range{First: p.First, Last: p.Last})
		}
	}
	if facts == nil {
		return f
	}
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		if len(f.EgressFrom) > 0 {
			f.Local[addr] = true
		}
		// A host prefix is how a VIP is bound to an interface; what comes with a
		// segment is how the host itself is reached, unless it is a VIP that was brought.
		if a.Prefix.IsSingleIP() {
			continue
		}
		if isVIP == nil || !isVIP(addr) {
			f.Host[addr] = "an address of this host, on " + a.Interface
		}
		if addr.Is4() && a.Prefix.Bits() < 31 && !addr.IsLoopback() { // RFC 3021
			f.Broadcast[nft.PrefixRange(a.Prefix).Last] = true
		}
	}
	f.Relays = c.relays(facts, isVIP)
	for _, o := range c.overlaps(facts) {
		if !o.network.IsSingleIP() {
			f.Connected = append(f.Connected, o.network)
		}
	}
	for _, g := range facts.Gateways {
		f.Host[g] = "a gateway of this host"
	}
	return f
}

// ownPorts returns the ports on which the appliance and its announcer listen. A listener with a host name counts as listening on all
// addresses, because names are not resolved.
func (c *Config) ownPorts() (ports []resolve.OwnPort) {
	add := func(address, what string, protocols ...string) {
		host, number, err := net.SplitHostPort(address)
		port, _ := strconv.ParseUint(number, 10, 16)
		addr, _ := netip.ParseAddr(host)
		if err != nil || port == 0 || addr.IsLoopback() {
			return
		}
		if addr = addr.Unmap().WithZone(""); addr.IsUnspecified() {
			addr = netip.Addr{}
		}
		for _, protocol := range protocols {
			ports = append(ports, resolve.OwnPort{Protocol: protocol, At: netip.AddrPortFrom(addr, uint16(port)), What: what + " listens there"})
		}
	}
	add(c.API.Listen, "the API of svcctl (--listen)", object.ProtocolTCP)
	add(c.API.MetricsListen, "/metrics of svcctl (--metrics-listen)", object.ProtocolTCP)
	for _, address := range c.DNS.Listen {
		add(address, "the DNS server of svcctl (--dns-listen)", object.ProtocolTCP, object.ProtocolUDP)
	}
	for _, port := range []uint16{c.Services.RelayPorts.First, c.Services.RelayPorts.Last} {
		add(fmt.Sprintf(":%d", port), "the relay of svcctl (--relay-ports)", object.ProtocolTCP, object.ProtocolUDP)
	}
	for _, port := range []uint16{3784, 4784} { // RFC 5881 and RFC 5883
		add(fmt.Sprintf(":%d", port), "BFD of svcctl announce", object.ProtocolUDP)
	}
	return ports
}

// relays returns the addresses of the relay by family. Each family uses one address of the host: the lowest among the first addresses of its
// interfaces, except for loopback addresses, link-local addresses and VIPs. The choice does not depend on routes, because they change.
func (c *Config) relays(facts *node.Facts, isVIP func(netip.Addr) bool) map[nft.Family][nft.NumPools]netip.AddrPort {
	at := map[nft.Family]netip.Addr{}
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		family := nft.FamilyOf(addr)
		if !a.First || addr.IsLoopback() || addr.IsLinkLocalUnicast() || isVIP != nil && isVIP(addr) {
			continue
		}
		if have := at[family]; !have.IsValid() || addr.Less(have) {
			at[family] = addr
		}
	}
	relays := map[nft.Family][nft.NumPools]netip.AddrPort{}
	for family, addr := range at {
		relays[family] = [nft.NumPools]netip.AddrPort{
			nft.PoolCluster: netip.AddrPortFrom(addr, c.Services.RelayPorts.First),
			nft.PoolLocal:   netip.AddrPortFrom(addr, c.Services.RelayPorts.Last),
		}
	}
	return relays
}

// ClusterObjects returns the settings for control.ClusterObjects.
func (c *Config) ClusterObjects() control.ClusterConfig {
	return control.ClusterConfig{NodeName: c.NodeName, Zone: c.Zone, NodeOwner: c.NodeOwner(), Version: c.Version, ServiceRanges: c.Addresses.ClusterIPRanges}
}

// EndpointsFacts returns the settings for control.Endpoints.
func (c *Config) EndpointsFacts() endpoints.Facts {
	return endpoints.Facts{NodeName: c.NodeName, Zone: c.Zone, ServiceRanges: c.Addresses.ClusterIPRanges}
}

// LoopbackAddresses returns the loopback addresses on which node ports answer through the relay: those in a configured prefix other than
// /0.
func (c *Config) LoopbackAddresses(facts *node.Facts) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		named := slices.ContainsFunc(c.Addresses.NodePortAddresses.Prefixes, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(addr) })
		if addr.IsLoopback() && named && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// overlap is a network or an address of this host that overlaps a service range.
type overlap struct {
	network   netip.Prefix
	serviceIn netip.Prefix // the overlapping service range
	what      string       // description, such as "192.0.2.1/24 on eth0"
	address   netip.Addr   // the address of this host in network; invalid for a route
}

// overlaps returns the overlaps of the service ranges with addresses and connected networks of the host. A connected network counts only if its
// prefix is longer than that of the range, because a route to the whole range is there for the box's own packets to cluster IPs.
func (c *Config) overlaps(facts *node.Facts) []overlap {
	var all []overlap
	if facts == nil {
		return nil
	}
	for _, r := range c.Addresses.ClusterIPRanges {
		r = r.Masked()
		for _, a := range facts.Addresses {
			if p := a.Prefix.Masked(); p.Overlaps(r) {
				all = append(all, overlap{p, r, a.Prefix.String() + " on " + a.Interface, a.Prefix.Addr()})
			}
		}
		for _, p := range facts.Connected {
			twice := slices.ContainsFunc(all, func(o overlap) bool { return o.network == p && o.serviceIn == r })
			if p.Overlaps(r) && p.Bits() > r.Bits() && !twice {
				all = append(all, overlap{network: p, serviceIn: r, what: "the connected network " + p.String()})
			}
		}
	}
	return all
}

// OverlapProblems returns a problem for each overlap of a service range with a network of this host. A VIP that was added to an interface
// does not count.
func (c *Config) OverlapProblems(facts *node.Facts, isVIP func(netip.Addr) bool) []manifest.Problem {
	var problems []manifest.Problem
	for _, o := range c.overlaps(facts) {
		if o.network.IsSingleIP() || o.address.IsValid() && isVIP != nil && isVIP(o.address) {
			continue
		}
		problems = append(problems, manifest.Problem{Reason: manifest.ReasonHost, Message: fmt.Sprintf(
			"the service range %s overlaps %s: cluster IPs there would be hosts of that network, which are reached as if the range were elsewhere; "+
				"give --service-cluster-ip-range a range that no network of this box uses", o.serviceIn, o.what)})
	}
	return problems
}

// FamilyProblems returns a warning if the box has only IPv6 addresses, but Services get IPv4 cluster IPs by default.
func (c *Config) FamilyProblems(facts *node.Facts) []manifest.Problem {
	has4, has6 := false, false
	for _, a := range facts.Addresses {
		if addr := a.Prefix.Addr(); !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			has4, has6 = has4 || addr.Is4(), has6 || addr.Is6()
		}
	}
	ranges := c.Addresses.ClusterIPRanges
	if has4 || !has6 || len(ranges) == 0 || !ranges[0].Addr().Is4() {
		return nil
	}
	return []manifest.Problem{{Reason: manifest.ReasonHost, Warning: true, Message: fmt.Sprintf(
		"this box has no IPv4 address, and Services without spec.ipFamilies get a cluster IP of %s, behind which IPv6 endpoints are not used; "+
			"give --service-cluster-ip-range an IPv6 range alone or first, as fd00:10:96::/112", ranges[0])}}
}

// InterfaceProblems returns a warning for each interface that is named in a setting but is not up on this host.
func (c *Config) InterfaceProblems(facts *node.Facts) (problems []manifest.Problem) {
	for _, of := range []struct {
		setting, effect string
		names           []string
	}{
		{"--nodeport-addresses", "node ports answer at none of its addresses", c.Addresses.NodePortAddresses.Interfaces},
		{"--load-balancer-internal-from", "no client counts as internal by it", c.Addresses.InternalFrom.Interfaces},
	} {
		for _, name := range of.names {
			if !slices.ContainsFunc(facts.Interfaces, func(i node.Interface) bool { return i.Name == name }) {
				problems = append(problems, manifest.Problem{Reason: manifest.ReasonHost, Warning: true, Message: fmt.Sprintf(
					"no interface of this host is up under the name %s (%s), so %s; correct the name in /etc/svcctl/svcctl.yaml, or bring the link up: it is followed", name, of.setting, of.effect)})
			}
		}
	}
	return problems
}

// Store returns the configuration of the store.
func (c *Config) Store() store.Config {
	cfg := store.Config{
		ClusterIPRanges: c.Addresses.ClusterIPRanges,
		NodePorts:       store.PortRange(c.Addresses.NodePortRange),
		Rules:           c.rules(),
		Objects:         object.Options{RelaxedServiceNames: c.Services.Names == ServiceNamesRFC1123},
		LegacyIPs:       c.Services.LegacyIP == LegacyIPAccept,
		Pinned:          c.Addresses.Allocate == AllocateNever,
		Box:             c.NodeName,
	}
	if c.Addresses.NodePortSpace == NodePortShared {
		cfg.NodePortSpace = alloc.Shared
	}
	for _, r := range c.Addresses.LoadBalancerPools {
		cfg.Pools = append(cfg.Pools, alloc.Pool{First: r.First, Last: r.Last})
	}
	for _, r := range c.Addresses.InternalPools {
		cfg.Pools = append(cfg.Pools, alloc.Pool{First: r.First, Last: r.Last, Internal: true})
	}
	return cfg
}

// rules returns the rules used to validate objects that clients write.
func (c *Config) rules() *resolve.Rules {
	rules := &resolve.Rules{ConnectionLog: c.Services.ConnectionLog}
	for _, set := range c.Services.SourceSets {
		rules.SourceSets = append(rules.SourceSets, set.Name)
	}
	return rules
}

// AnnouncedRanges returns the ranges of addresses that may be announced: all pools of load balancer IPs.
func (c *Config) AnnouncedRanges() []nft.Range {
	pools := slices.Concat(c.Addresses.LoadBalancerPools, c.Addresses.InternalPools)
	for _, p := range c.ObjectPools.all() {
		pools = append(pools, nft.Range{First: p.First, Last: p.Last})
	}
	return pools
}

// IsSetAside reports whether an address lies in a load balancer pool or an external IP range.
func (c *Config) IsSetAside(addr netip.Addr) bool {
	return slices.ContainsFunc(c.Addresses.ExternalIPRanges.Prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) ||
		slices.ContainsFunc(c.AnnouncedRanges(), func(r nft.Range) bool { return r.Contains(addr) })
}

// Resolvers returns the addresses of the name servers that this host uses, from --dns-upstream and from resolv.conf.
func (c *Config) Resolvers() map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for _, upstream := range c.DNS.Upstreams {
		addrs[upstream.Addr()] = true
	}
	for _, addr := range dns.Resolvers(resolvConf) {
		addrs[addr] = true
	}
	return addrs
}

// resolvConf is the path of resolv.conf(5).
const resolvConf = "/etc/resolv.conf"
