package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/nft"
)

// PortRange is a range of port numbers; both ends belong to it.
type PortRange struct{ First, Last uint16 }

// String is "30000-32767".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// AddrRange is a range of addresses of one family; both ends belong to it.
type AddrRange struct{ First, Last netip.Addr }

// String is "198.51.100.10-198.51.100.20".
func (r AddrRange) String() string { return r.First.String() + "-" + r.Last.String() }

// Contains reports whether a is in the range.
func (r AddrRange) Contains(a netip.Addr) bool { return nft.Range(r).Contains(a) }

// Overlaps reports whether the two have an address in common.
func (r AddrRange) Overlaps(o AddrRange) bool { return r.Contains(o.First) || o.Contains(r.First) }

// NodePortAddresses selects the box's addresses on which node ports answer. A VIP never answers node
// ports. The zero value means every local address that is not loopback.
type NodePortAddresses struct {
	// Primary means the primary address of each family: the one that the default
	// route uses. Prefixes is empty then.
	Primary bool
	// Prefixes selects the local addresses that answer. A family without a prefix answers on all of
	// its addresses.
	Prefixes []netip.Prefix
}

// InternalFrom selects the clients that reach internal load balancers.
type InternalFrom struct {
	Prefixes   []netip.Prefix
	Interfaces []string // clients that arrive by one of them
}

// ExternalIPRanges has the ranges of externalIPs that are accepted. The zero value means any address
// of which nothing else is known here.
type ExternalIPRanges struct {
	// None means that no externalIPs are accepted. Prefixes is empty then.
	None bool
	// Prefixes has the accepted prefixes.
	Prefixes []netip.Prefix
}

// noExternalIPs is the text of ExternalIPRanges.None.
const noExternalIPs = "none"

// primaryAddresses is the text of NodePortAddresses.Primary.
const primaryAddresses = "primary"

// ParseSourceSets reads a list of NAME=FILE. The error names every entry that is wrong.
func ParseSourceSets(list []string) ([]SourceSet, error) {
	var out []SourceSet
	var errs []error
	for _, s := range list {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("%q has no file: write NAME=FILE, as office=/etc/svcctl/office.txt", s))
			continue
		}
		out = append(out, SourceSet{name, file})
	}
	return out, errors.Join(errs...)
}

// ParsePrefixes reads a list of CIDRs. Bits behind a prefix's length are cleared, as
// Kubernetes does. The error names every entry that is wrong.
func ParsePrefixes(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var errs []error
	for _, s := range list {
		p, err := parsePrefix(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}

// parsePrefix reads one CIDR.
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

// ParseSourcePorts reads "61000-61255", or "ephemeral" as the zero range.
func ParseSourcePorts(s string) (PortRange, error) {
	if s == "ephemeral" {
		return PortRange{}, nil
	}
	return ParsePortRange(s)
}

// ParsePortRange reads "A-B", or "A" for a single port.
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

// ParseAddrRange reads a pool: a CIDR, all of whose addresses belong to it, or "A-B".
func ParseAddrRange(s string) (AddrRange, error) {
	if strings.Contains(s, "/") {
		p, err := parsePrefix(s)
		if err != nil {
			return AddrRange{}, err
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
		return AddrRange{}, fmt.Errorf("%q is neither a CIDR nor a range: write it as 198.51.100.0/28 or 198.51.100.10-198.51.100.20", s)
	case a.BitLen() != b.BitLen():
		return AddrRange{}, fmt.Errorf("%q goes from one family to the other: give one range for each", s)
	case a.Compare(b) > 0:
		return AddrRange{}, fmt.Errorf("%q ends before it starts: write %s-%s", s, b, a)
	}
	return AddrRange{First: a, Last: b}, nil
}

// hostsOf is the addresses of a network that hosts can have: all but the network address,
// which in IPv6 is the subnet-router anycast address (RFC 4291, section 2.6.1), and in IPv4 the
// broadcast address. Of two addresses, or one, all are (RFC 3021, RFC 6164).
func hostsOf(p netip.Prefix) AddrRange {
	r := AddrRange{First: p.Masked().Addr(), Last: LastAddr(p.Masked())}
	if p.Addr().BitLen()-p.Bits() < 2 {
		return r
	}
	r.First = r.First.Next()
	if p.Addr().Is4() {
		r.Last = r.Last.Prev()
	}
	return r
}

// ParseAddrRanges reads a list of pools. The error names every entry that is wrong.
func ParseAddrRanges(list []string) ([]AddrRange, error) {
	var out []AddrRange
	var errs []error
	for _, s := range list {
		r, err := ParseAddrRange(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}

// maxInterfaceName is the longest name of a network interface (IFNAMSIZ without the closing NUL).
const maxInterfaceName = 15

// ParseInternalFrom reads a list of CIDRs and names of interfaces. The error names every entry
// that is wrong.
func ParseInternalFrom(list []string) (from InternalFrom, err error) {
	var errs []error
	for _, s := range list {
		_, addrErr := netip.ParseAddr(s)
		switch {
		case strings.Contains(s, "/"):
			p, err := ParsePrefixes([]string{s})
			from.Prefixes, errs = append(from.Prefixes, p...), append(errs, err)
		case s == "" || len(s) > maxInterfaceName || addrErr == nil || strings.ContainsAny(s, ": \t\n"):
			errs = append(errs, fmt.Errorf("%q is neither a CIDR nor the name of an interface: write it as 10.0.0.0/8 or eth1", s))
		default:
			from.Interfaces = append(from.Interfaces, s)
		}
	}
	return from, errors.Join(errs...)
}

// ParseNodePortAddresses reads "primary" or a list of CIDRs.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	for _, s := range list {
		if s == primaryAddresses {
			if len(list) > 1 {
				return NodePortAddresses{}, fmt.Errorf("%q does not go with CIDRs: give the one or the other", primaryAddresses)
			}
			return NodePortAddresses{Primary: true}, nil
		}
	}
	prefixes, err := ParsePrefixes(list)
	return NodePortAddresses{Prefixes: prefixes}, err
}

// ParseExternalIPRanges reads "none" or a list of CIDRs.
func ParseExternalIPRanges(list []string) (ExternalIPRanges, error) {
	if slices.Contains(list, noExternalIPs) {
		if len(list) > 1 {
			return ExternalIPRanges{}, fmt.Errorf("%q does not go with CIDRs: give the one or the other", noExternalIPs)
		}
		return ExternalIPRanges{None: true}, nil
	}
	prefixes, err := ParsePrefixes(list)
	return ExternalIPRanges{Prefixes: prefixes}, err
}

// ParseAddrPorts reads a list of addresses with ports. The error names every entry that
// is wrong.
func ParseAddrPorts(list []string) ([]netip.AddrPort, error) {
	var out []netip.AddrPort
	var errs []error
	for _, s := range list {
		a, err := netip.ParseAddrPort(s)
		if err != nil || a.Port() == 0 {
			errs = append(errs, fmt.Errorf("%q is not an address and port: write it as 192.0.2.53:53 or [2001:db8::53]:53", s))
			continue
		}
		out = append(out, a)
	}
	return out, errors.Join(errs...)
}

// ParseClientNamespaces reads a list of "PREFIX=NAMESPACE". The error names every entry
// that is wrong.
func ParseClientNamespaces(list []string) ([]ClientNamespace, error) {
	var out []ClientNamespace
	var errs []error
	for _, s := range list {
		text, namespace, found := strings.Cut(s, "=")
		if !found {
			errs = append(errs, fmt.Errorf("%q names no namespace: write it as 10.1.0.0/16=default", s))
			continue
		}
		p, err := parsePrefix(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, ClientNamespace{Prefix: p, Namespace: strings.TrimSpace(namespace)})
	}
	return out, errors.Join(errs...)
}

// LastAddr is the highest address of a masked prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	_, last := nft.PrefixRange(p)
	return last
}

// ParseTable reads the number of a routing table, which must not be default, main or local. 0: none.
func ParseTable(s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31)
	if err != nil || n >= 253 && n <= 255 {
		return 0, fmt.Errorf("%q is no number of a table of routes from 1 to 2147483647, and not 253 to 255, which the kernel uses itself: write one that nothing else uses, as 118", s)
	}
	return int(n), nil
}
