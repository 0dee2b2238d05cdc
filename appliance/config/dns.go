package config

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"sync"

	"svcctl.io/svcctl/appliance/dns"
)

// ClientNamespace maps a prefix of DNS clients to a namespace.
type ClientNamespace = dns.ClientNamespace

// namespacePattern, compiled when it is needed, is a DNS label (RFC 1123), which Kubernetes' namespaces are.
var namespacePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`) })

// validate looks at the settings of the DNS server.
func (d *DNS) validate(v *validation) {
	for _, address := range d.Listen {
		if !isHostPort(address) {
			v.add("dns-listen", address, "not a host and port: write it as 192.0.2.1:53, or :53 for every address")
		}
	}
	if domain := d.Domain; len(domain) > dns.MaxDomain || !nodeNamePattern.MatchString(domain) {
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
		if !namespacePattern().MatchString(n.Namespace) {
			v.add("dns-client-namespaces", text, "%q is not a namespace: use lower case letters, digits and '-', at most 63", n.Namespace)
		}
		if seen[n.Prefix] {
			v.add("dns-client-namespaces", text, "the prefix has a namespace already: clients are in one")
		}
		seen[n.Prefix] = true
	}
}

// listensAt reports whether a packet to an address comes to a listener, by its name
// alone.
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
