package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	badIPText   = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
	badCIDRText = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
)

// set is a set of values for membership tests.
type set map[string]bool

func setOf(values []string) set {
	s := make(set, len(values))
	s.add(values...)
	return s
}

func (s set) add(values ...string) {
	for _, value := range values {
		s[value] = true
	}
}

// Addrs returns the addresses that texts have. It leaves out a text that is no address.
func Addrs(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// IngressIPs returns the load balancer IPs of a Service: those in its status.
func (s *Service) IngressIPs() []string {
	var ips []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			ips = append(ips, ingress.IP)
		}
	}
	return ips
}

// VIPs returns the addresses that a Service answers on: its cluster IPs, external IPs and load balancer IPs.
func (s *Service) VIPs() []netip.Addr {
	return Addrs(slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs, s.IngressIPs()))
}

// parseLegacyIP parses an address as Kubernetes did before StrictIPCIDRValidation
// (1.36): leading zeros of decimal octets are ignored, and an IPv4-mapped IPv6 address
// is the IPv4 address. Zones are invalid.
func parseLegacyIP(value string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(withoutLeadingZeros(value))
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// withoutLeadingZeros returns an address without leading zeros in the octets of its
// dotted-decimal part, if it has one.
func withoutLeadingZeros(value string) string {
	if !strings.Contains(value, ".") || !hasLeadingZero(value) {
		return value
	}
	start := strings.LastIndexByte(value, ':') + 1
	octets := strings.Split(value[start:], ".")
	for i, octet := range octets {
		octets[i] = trimZeros(octet)
	}
	return value[:start] + strings.Join(octets, ".")
}

// hasLeadingZero reports whether a number in a text has a leading zero.
func hasLeadingZero(value string) bool {
	isDigit := func(i int) bool { return i >= 0 && i < len(value) && value[i] >= '0' && value[i] <= '9' }
	for i := range len(value) {
		if value[i] == '0' && !isDigit(i-1) && isDigit(i+1) {
			return true
		}
	}
	return false
}

// trimZeros removes the leading zeros of a number, but never its last digit.
func trimZeros(number string) string {
	for len(number) > 1 && number[0] == '0' {
		number = number[1:]
	}
	return number
}

// parseLegacyCIDR is parseLegacyIP for a prefix: it also ignores leading zeros of the
// length, and address bits beyond it.
func parseLegacyCIDR(value string) (netip.Prefix, bool) {
	ip, length, found := strings.Cut(value, "/")
	if !found {
		return netip.Prefix{}, false
	}
	prefix, err := netip.ParsePrefix(withoutLeadingZeros(ip) + "/" + trimZeros(length))
	if err != nil {
		return netip.Prefix{}, false
	}
	if addr := prefix.Addr(); addr.Is4In6() {
		// ::ffff:192.0.2.0/120 is 192.0.2.0/24; shorter than the mapping is no IPv4.
		if prefix.Bits() < 96 {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), true
}

// unlessKept returns an error about a value that has the given problem. It returns nil if problem is "", or if the value is in kept, the values of
// the stored object.
func unlessKept(p path, value string, kept set, problem string) Errors {
	if problem == "" || kept[value] {
		return nil
	}
	return invalid(p, value, problem)
}

func ipProblem(value string) string {
	if addr, err := netip.ParseAddr(value); err == nil && addr.Zone() == "" {
		if addr.Is4In6() {
			return "must not be an IPv4-mapped IPv6 address"
		}
		return ""
	}
	if _, ok := parseLegacyIP(value); ok {
		return "must not have leading 0s"
	}
	return badIPText
}

func cidrProblem(value string) string {
	if _, ok := parseLegacyCIDR(value); !ok {
		return badCIDRText
	}
	switch prefix, err := netip.ParsePrefix(value); {
	case err != nil:
		return "must not have leading 0s in IP or prefix length"
	case prefix.Addr().Is4In6():
		return "must not have an IPv4-mapped IPv6 address"
	case prefix != prefix.Masked():
		return "must not have bits set beyond the prefix length"
	}
	return ""
}

// checkReachableIP checks the address of an endpoint or an external IP. In addition to invalid addresses it refuses unspecified, loopback and
// link-local ones, unless they are in kept.
func checkReachableIP(p path, value string, kept set) Errors {
	problems := unreachableProblems(value)
	if problem := ipProblem(value); problem != "" {
		problems = append([]string{problem}, problems...)
	}
	if len(problems) == 0 || kept[value] {
		return nil
	}
	return invalidFor(p, value, problems)
}

func unreachableProblems(value string) []string {
	addr, ok := parseLegacyIP(value)
	if !ok {
		return nil
	}
	var problems []string
	if addr.IsUnspecified() {
		problems = append(problems, fmt.Sprintf("may not be unspecified (%v)", value))
	}
	if addr.IsLoopback() {
		problems = append(problems, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	}
	if addr.IsLinkLocalUnicast() {
		problems = append(problems, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	}
	if addr.IsLinkLocalMulticast() {
		problems = append(problems, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
	return problems
}

// familyOf returns IPv4 or IPv6, or "" for a text that is no address.
func familyOf(ip string) string {
	if addr, ok := parseLegacyIP(ip); ok {
		return FamilyOf(addr)
	}
	return ""
}

// FamilyOf returns the family of an address, IPv4 or IPv6.
func FamilyOf(addr netip.Addr) string {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// NormalizeLegacyIPs rewrites addresses and prefixes in forms that Kubernetes accepted
// before 1.36, and that Validate refuses, to their canonical form: leading zeros of
// octets are dropped (010.1.2.3 is 10.1.2.3), an IPv4-mapped IPv6 address becomes the
// IPv4 address, and bits beyond a prefix length are cleared. It leaves all other text
// unchanged, for Validate to check.
func NormalizeLegacyIPs(o Object) {
	switch o := o.(type) {
	case *Service:
		spec := &o.Spec
		normalizeIP(&spec.ClusterIP)
		normalizeIP(&spec.LoadBalancerIP)
		for _, list := range [][]string{spec.ClusterIPs, spec.ExternalIPs} {
			for i := range list {
				normalizeIP(&list[i])
			}
		}
		for i := range spec.LoadBalancerSourceRanges {
			normalizeCIDR(&spec.LoadBalancerSourceRanges[i])
		}
		if text, ok := o.Metadata.Annotations[AnnotationSourceRanges]; ok {
			ranges := strings.Split(text, ",")
			for i := range ranges {
				normalizeCIDR(&ranges[i])
			}
			o.Metadata.Annotations[AnnotationSourceRanges] = strings.Join(ranges, ",")
		}
		for i := range o.Status.LoadBalancer.Ingress {
			normalizeIP(&o.Status.LoadBalancer.Ingress[i].IP)
		}
	case *Endpoints:
		for i := range o.Subsets {
			for _, list := range [][]EndpointAddress{o.Subsets[i].Addresses, o.Subsets[i].NotReadyAddresses} {
				for j := range list {
					normalizeIP(&list[j].IP)
				}
			}
		}
	case *Pod:
		normalizeIP(&o.Status.PodIP)
		for i := range o.Status.PodIPs {
			normalizeIP(&o.Status.PodIPs[i].IP)
		}
	case *EndpointSlice:
		if o.AddressType == FQDN {
			return
		}
		for i := range o.Endpoints {
			for j := range o.Endpoints[i].Addresses {
				normalizeIP(&o.Endpoints[i].Addresses[j])
			}
		}
	}
}

func normalizeIP(value *string) {
	if ipProblem(*value) == "" {
		return
	}
	if addr, ok := parseLegacyIP(*value); ok {
		*value = addr.String()
	}
}

func normalizeCIDR(value *string) {
	trimmed := strings.TrimSpace(*value)
	if cidrProblem(trimmed) == "" {
		return
	}
	if prefix, ok := parseLegacyCIDR(trimmed); ok {
		*value = prefix.String()
	}
}

// ServiceCIDR is networking.k8s.io/v1 ServiceCIDR: a range that cluster IPs come from.
type ServiceCIDR struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Spec     ServiceCIDRSpec   `json:"spec,omitzero"`
	Status   ServiceCIDRStatus `json:"status,omitzero"`
}

// ServiceCIDRSpec is networking.k8s.io/v1 ServiceCIDRSpec.
type ServiceCIDRSpec struct {
	CIDRs []string `json:"cidrs,omitempty"`
}

// ServiceCIDRStatus is networking.k8s.io/v1 ServiceCIDRStatus.
type ServiceCIDRStatus struct {
	Conditions []Condition `json:"conditions,omitempty" schema:"keys=type merge=type"`
}

// IPAddress is networking.k8s.io/v1 IPAddress: it records which object has a cluster IP. Its name is the address in canonical form.
type IPAddress struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     IPAddressSpec `json:"spec,omitzero"`
}

// IPAddressSpec is networking.k8s.io/v1 IPAddressSpec.
type IPAddressSpec struct {
	ParentRef *ParentReference `json:"parentRef,omitempty" schema:"required"`
}

// ParentReference is networking.k8s.io/v1 ParentReference.
type ParentReference struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource,omitempty" schema:"required"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty" schema:"required"`
}

func (o *ServiceCIDR) GetMeta() *ObjectMeta { return &o.Metadata }
func (o *IPAddress) GetMeta() *ObjectMeta   { return &o.Metadata }

// addressNameProblems returns the problems of an IPAddress's name, which must be a canonical address.
func addressNameProblems(name string) []string {
	if addr, err := netip.ParseAddr(name); err != nil || addr.Zone() != "" {
		return []string{"must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"}
	} else if addr.String() != name || addr.Is4In6() {
		return []string{"must be a valid IP address in canonical form"}
	}
	return nil
}

// validate requires one CIDR, or one of each family (ValidateServiceCIDR of
// pkg/apis/networking/validation).
func (o *ServiceCIDR) validate(Object) Errors {
	at := specPath.child("cidrs")
	var errs Errors
	var families []string
	switch n := len(o.Spec.CIDRs); {
	case n == 0:
		return required(at, "at least one CIDR required")
	case n > 2:
		return invalid(at, o.Spec.CIDRs, "must only contain up to 2 values")
	}
	for i, cidr := range o.Spec.CIDRs {
		switch prefix, err := netip.ParsePrefix(cidr); {
		case err != nil || prefix.Addr().Is4In6():
			errs = append(errs, invalid(at.index(i), cidr, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")...)
		case prefix.Masked().String() != cidr:
			errs = append(errs, invalid(at.index(i), cidr, "must be in canonical form ("+prefix.Masked().String()+")")...)
		default:
			families = append(families, FamilyOf(prefix.Addr()))
		}
	}
	if len(families) == 2 && families[0] == families[1] {
		errs = append(errs, invalid(at, o.Spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")...)
	}
	return errs
}

func (o *IPAddress) validate(Object) Errors {
	at := specPath.child("parentRef")
	if o.Spec.ParentRef == nil {
		return required(at, "")
	}
	var errs Errors
	if o.Spec.ParentRef.Resource == "" {
		errs = append(errs, required(at.child("resource"), "")...)
	}
	if o.Spec.ParentRef.Name == "" {
		errs = append(errs, required(at.child("name"), "")...)
	}
	return errs
}
