package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"svcctl.io/svcctl/appliance/dns"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// PortRange is an inclusive range of port numbers.
type PortRange struct{ First, Last uint16 }

// String returns the range in the form "30000-32767".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// NodePortAddresses selects the box's addresses on which node ports answer. A VIP never answers node
// ports. The zero value means every local address that is not loopback.
type NodePortAddresses struct {
	// Primary selects the primary address of each family: the source address that the default route uses. Prefixes and Interfaces are then
	// empty.
	Primary bool
	// Prefixes selects local addresses. If it has no prefix of a family, and Interfaces is empty, all addresses of that family are selected.
	Prefixes []netip.Prefix
	// Interfaces selects the current addresses of the named interfaces.
	Interfaces []string
}

// InternalFrom selects the clients that reach internal load balancers.
type InternalFrom struct {
	Prefixes   []netip.Prefix
	Interfaces []string // accepts clients with packets that arrive on these interfaces
}

// ExternalIPRanges restricts the externalIPs of Services. The zero value accepts any address without another use on this box.
type ExternalIPRanges struct {
	// None refuses all externalIPs. Prefixes is then empty.
	None bool
	// Prefixes lists the accepted prefixes.
	Prefixes []netip.Prefix
}

// noExternalIPs is the value of the flag that sets ExternalIPRanges.None.
const noExternalIPs = "none"

// primaryAddresses is the value of the flag that sets NodePortAddresses.Primary.
const primaryAddresses = "primary"

// parseList parses each entry of a list. The error names every invalid entry.
func parseList[T any](list []string, parse func(string) (T, error)) (out []T, _ error) {
	var errs []error
	for _, s := range list {
		v, err := parse(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, v)
	}
	return out, errors.Join(errs...)
}

// ParseSourceSets parses a list of NAME=FILE.
func ParseSourceSets(list []string) ([]SourceSet, error) {
	return parseList(list, func(s string) (SourceSet, error) {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			return SourceSet{}, fmt.Errorf("%q has no file: write NAME=FILE, as office=/etc/svcctl/office.txt", s)
		}
		return SourceSet{name, file}, nil
	})
}

// ParsePrefixes parses a list of CIDRs. Host bits are cleared, as Kubernetes does.
func ParsePrefixes(list []string) ([]netip.Prefix, error) { return parseList(list, parsePrefix) }

// parsePrefix parses one CIDR, and clears its host bits.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if a, e := netip.ParseAddr(s); e == nil && a.Zone() == "" {
			return p, fmt.Errorf("%q is an address, not a CIDR: write %s/%d", s, a, a.BitLen())
		}
		return p, fmt.Errorf("%q is not a CIDR: write it as 192.0.2.0/24 or 2001:db8::/64", s)
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is an IPv4 prefix in IPv6 form: write it as IPv4", s)
	}
	return p.Masked(), nil
}

// ParseSourcePorts parses a port range such as "61000-61255", or "ephemeral" as the zero range.
func ParseSourcePorts(s string) (PortRange, error) {
	if s == "ephemeral" {
		return PortRange{}, nil
	}
	return ParsePortRange(s)
}

// ParsePortRange parses "A-B", or "A" for a single port.
func ParsePortRange(s string) (PortRange, error) {
	first, last, found := strings.Cut(s, "-")
	if !found {
		last = first
	}
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if errA != nil || errB != nil {
		return PortRange{}, fmt.Errorf("%q is not a range of ports: write it as 30000-32767", s)
	}
	return PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// ParseAddrRange parses a pool: "A-B", or a CIDR, which stands for its host addresses (hostsOf).
func ParseAddrRange(s string) (nft.Range, error) {
	if strings.Contains(s, "/") {
		p, err := parsePrefix(s)
		if err != nil {
			return nft.Range{}, err
		}
		return hostsOf(p), nil
	}
	first, last, found := strings.Cut(s, "-")
	if !found {
		last = first
	}
	a, errA := netip.ParseAddr(strings.TrimSpace(first))
	b, errB := netip.ParseAddr(strings.TrimSpace(last))
	switch {
	case errA != nil || errB != nil || a.Zone() != "" || b.Zone() != "" || a.Is4In6() || b.Is4In6():
		return nft.Range{}, fmt.Errorf("%q is neither a CIDR nor a range: write it as 198.51.100.0/28 or 198.51.100.10-198.51.100.20", s)
	case a.BitLen() != b.BitLen():
		return nft.Range{}, fmt.Errorf("%q goes from one family to the other: give one range for each", s)
	case a.Compare(b) > 0:
		return nft.Range{}, fmt.Errorf("%q ends before it starts: write %s-%s", s, b, a)
	}
	return nft.Range{First: a, Last: b}, nil
}

// hostsOf returns the host addresses of a network: all except the first, which is the network address or in IPv6 the subnet-router anycast
// address (RFC 4291, section 2.6.1), and in IPv4 the last, the broadcast address. In a network of one or two addresses all are host
// addresses (RFC 3021, RFC 6164).
func hostsOf(p netip.Prefix) nft.Range {
	r := nft.PrefixRange(p)
	if p.Addr().BitLen()-p.Bits() < 2 {
		return r
	}
	r.First = r.First.Next()
	if p.Addr().Is4() {
		r.Last = r.Last.Prev()
	}
	return r
}

// ParseAddrRanges parses a list of pools.
func ParseAddrRanges(list []string) ([]nft.Range, error) { return parseList(list, ParseAddrRange) }

// maxInterfaceName is the longest name of a network interface (IFNAMSIZ without the closing NUL).
const maxInterfaceName = 15

// ParseInternalFrom parses a list of CIDRs and names of interfaces. The error names every invalid entry.
func ParseInternalFrom(list []string) (from InternalFrom, err error) {
	from.Prefixes, from.Interfaces, err = prefixesAndInterfaces(list)
	return from, err
}

func prefixesAndInterfaces(list []string) (prefixes []netip.Prefix, interfaces []string, err error) {
	var errs []error
	for _, s := range list {
		switch _, addrErr := netip.ParseAddr(s); {
		case strings.Contains(s, "/"):
			p, err := ParsePrefixes([]string{s})
			prefixes, errs = append(prefixes, p...), append(errs, err)
		case s == "" || len(s) > maxInterfaceName || addrErr == nil || strings.ContainsAny(s, ": \t\n"):
			errs = append(errs, fmt.Errorf("%q is neither a CIDR nor the name of an interface: write it as 10.0.0.0/8 or eth1", s))
		default:
			interfaces = append(interfaces, s)
		}
	}
	return prefixes, interfaces, errors.Join(errs...)
}

// ParseNodePortAddresses parses "primary", or a list of CIDRs and names of interfaces.
func ParseNodePortAddresses(list []string) (n NodePortAddresses, err error) {
	switch {
	case !slices.Contains(list, primaryAddresses):
		n.Prefixes, n.Interfaces, err = prefixesAndInterfaces(list)
	case len(list) > 1:
		err = fmt.Errorf("%q does not go with CIDRs or interfaces: give the one or the others", primaryAddresses)
	default:
		n.Primary = true
	}
	return n, err
}

// ParseExternalIPRanges parses "none" or a list of CIDRs.
func ParseExternalIPRanges(list []string) (r ExternalIPRanges, err error) {
	if r.None = slices.Contains(list, noExternalIPs); !r.None {
		r.Prefixes, err = ParsePrefixes(list)
	} else if len(list) > 1 {
		r.None, err = false, fmt.Errorf("%q does not go with CIDRs: give the one or the other", noExternalIPs)
	}
	return r, err
}

// ParseAddrPorts parses a list of addresses with ports.
func ParseAddrPorts(list []string) ([]netip.AddrPort, error) {
	return parseList(list, func(s string) (netip.AddrPort, error) {
		a, err := netip.ParseAddrPort(s)
		if err != nil || a.Port() == 0 {
			return a, fmt.Errorf("%q is not an address and port: write it as 192.0.2.53:53 or [2001:db8::53]:53", s)
		}
		return a, nil
	})
}

// ParseClientNamespaces parses a list of "PREFIX=NAMESPACE".
func ParseClientNamespaces(list []string) ([]ClientNamespace, error) {
	return parseList(list, func(s string) (ClientNamespace, error) {
		text, namespace, found := strings.Cut(s, "=")
		if !found {
			return ClientNamespace{}, fmt.Errorf("%q names no namespace: write it as 10.1.0.0/16=default", s)
		}
		p, err := parsePrefix(strings.TrimSpace(text))
		return ClientNamespace{Prefix: p, Namespace: strings.TrimSpace(namespace)}, err
	})
}

// ParseTable parses the number of a routing table; 0 is none. The tables default, main and local (253 to 255) are refused.
func ParseTable(s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31)
	if err != nil || n >= 253 && n <= 255 {
		return 0, fmt.Errorf("%q is no number of a table of routes from 1 to 2147483647, and not 253 to 255, which the kernel uses itself: write one that nothing else uses, as 118", s)
	}
	return int(n), nil
}

// ClientNamespace maps a prefix of DNS clients to a namespace.
type ClientNamespace = dns.ClientNamespace

// validate adds the errors in the settings of the DNS server.
func (d *DNS) validate(v *validation) {
	for _, address := range d.Listen {
		if !isHostPort(address) {
			v.add("dns-listen", address, "not a host and port: write it as 192.0.2.1:53, or :53 for every address")
		}
	}
	if domain := d.Domain; len(domain) > dns.MaxDomain || len(object.NameProblems(domain)) > 0 {
		v.add("cluster-domain", domain, "not a domain that names can be in: use lower case letters, digits, '-' and '.', at most %d, as %s",
			dns.MaxDomain, DefaultClusterDomain)
	}
	for _, upstream := range d.Upstreams {
		for _, address := range d.Listen {
			if listensAt(address, upstream) {
				v.add("dns-upstream", upstream.String(), "is --dns-listen %s itself: give the resolver of other names", address)
			}
		}
	}
	seen := map[netip.Prefix]bool{}
	for _, n := range d.ClientNamespaces {
		text := n.Prefix.String() + "=" + n.Namespace
		if len(object.DNSLabelProblems(n.Namespace)) > 0 {
			v.add("dns-client-namespaces", text, "%q is not a namespace: use lower case letters, digits and '-', at most 63", n.Namespace)
		}
		if seen[n.Prefix] {
			v.add("dns-client-namespaces", text, "the prefix has a namespace already: clients are in one")
		}
		seen[n.Prefix] = true
	}
}

// listensAt reports whether a listener, given as host:port, receives packets to the address and port `to`. Host names are not resolved, and a
// wildcard listener counts only for loopback addresses.
func listensAt(listener string, to netip.AddrPort) bool {
	host, port, err := net.SplitHostPort(listener)
	if err != nil || port != strconv.Itoa(int(to.Port())) {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return to.Addr().IsLoopback() && (host == "" || err == nil && addr.IsUnspecified()) || err == nil && addr == to.Addr()
}

// DNSServer returns the configuration of the DNS server.
func (c *Config) DNSServer() dns.Config {
	return dns.Config{
		Addresses: c.DNS.Listen, Domain: c.DNS.Domain, Upstreams: c.DNS.Upstreams,
		Internal: c.Addresses.ClusterCIDRs, ServiceRanges: c.Addresses.ClusterIPRanges, Namespaces: c.DNS.ClientNamespaces,
	}
}

// owned returns the ranges for nft.Box.Owned: service ranges and load balancer pools, without the networks and addresses of the box. In a
// pool that is a network of the box, addresses without a Service may belong to other hosts. External IP ranges are left out, since they may
// cover everything.
func (c *Config) owned(facts *node.Facts) []nft.Range {
	var all []nft.Range
	for _, p := range c.Addresses.ClusterIPRanges {
		all = append(all, nft.PrefixRange(p))
	}
	for _, o := range c.overlaps(facts) {
		all = without(all, nft.PrefixRange(o.network))
	}
	var pools []nft.Range
	for _, r := range c.AnnouncedRanges() {
		pools = append(pools, wholePrefix(r))
	}
	if facts != nil {
		for _, a := range facts.Addresses {
			pools = without(pools, nft.PrefixRange(a.Prefix))
		}
		for _, p := range facts.Connected {
			pools = without(pools, nft.PrefixRange(p))
		}
	}
	return append(all, pools...)
}

// wholePrefix returns the range of a prefix if r holds exactly the host addresses of that prefix, otherwise r. The network address and the broadcast
// address may be included, since packets to them have no destination either.
func wholePrefix(r nft.Range) nft.Range {
	for bits := r.First.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(r.First, bits)
		switch hosts := hostsOf(p); {
		case hosts == r:
			return nft.PrefixRange(p)
		case hosts.Last.Compare(r.Last) > 0:
			return r
		}
	}
	return r
}

// without returns those parts of the ranges that lie outside of `gone`.
func without(ranges []nft.Range, gone nft.Range) (rest []nft.Range) {
	for _, r := range ranges {
		if r.First.BitLen() != gone.First.BitLen() || r.Last.Less(gone.First) || gone.Last.Less(r.First) {
			rest = append(rest, r)
			continue
		}
		if r.First.Less(gone.First) {
			rest = append(rest, nft.Range{First: r.First, Last: gone.First.Prev()})
		}
		if gone.Last.Less(r.Last) {
			rest = append(rest, nft.Range{First: gone.Last.Next(), Last: r.Last})
		}
	}
	return rest
}

// ObjectPools holds the pools from IPAddressPool objects, but not those from flags. Its methods may be called concurrently. A nil
// ObjectPools is empty.
type ObjectPools struct {
	mu    sync.Mutex
	pools []alloc.Pool
}

// Set replaces the pools. It ignores pools from flags, which have no name.
func (p *ObjectPools) Set(pools []alloc.Pool) {
	named := slices.DeleteFunc(slices.Clone(pools), func(pool alloc.Pool) bool { return pool.Name == "" })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools = named
}

func (p *ObjectPools) all() []alloc.Pool {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pools
}
