package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// vips are a Service's addresses in one family.
type vips struct {
	cluster  netip.Addr
	balancer []netip.Addr
	external []netip.Addr
	// withoutClusterIP is set when the cluster IP is not served.
	withoutClusterIP bool
}

type addresses map[nft.Family]*vips

func (a addresses) of(f nft.Family) *vips {
	if a[f] == nil {
		a[f] = &vips{}
	}
	return a[f]
}

// addresses collects the Service's own addresses. A family is served where the
// Service has a cluster IP of it.
func (r *resolver) addresses() addresses {
	all := addresses{}
	for i, s := range r.Service.Spec.ClusterIPs {
		if a, ok := parseAddr(s); ok {
			v := all.of(nft.FamilyOf(a))
			v.cluster, v.withoutClusterIP = a, !r.mayServe(fmt.Sprintf("spec.clusterIPs[%d]", i), a)
		}
	}
	if r.Service.Spec.Type == "LoadBalancer" {
		for i, in := range r.Service.Status.LoadBalancer.Ingress {
			a, ok := parseAddr(in.IP)
			if ok && (in.IPMode == nil || *in.IPMode == "VIP") && r.mayBe(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), a) {
				v := all.of(nft.FamilyOf(a))
				v.balancer = append(v.balancer, a)
			}
		}
	}
	for i, s := range r.Service.Spec.ExternalIPs {
		field := fmt.Sprintf("spec.externalIPs[%d]", i)
		a, ok := parseAddr(s)
		if !ok {
			continue // refused by validation
		}
		if slices.Contains(all.of(nft.FamilyOf(a)).balancer, a) {
			continue // it is served as a load balancer IP
		}
		if reason, why := r.facts.ExternalIPRefusal(a); reason != "" {
			r.refuse(field, reason, "%s is not served: %s", a, why)
			continue
		}
		if !r.mayBe(field, a) {
			continue
		}
		v := all.of(nft.FamilyOf(a))
		if !v.cluster.IsValid() {
			r.warn(r.ref, field, "FamilyNotServed",
				"the Service has no cluster IP of the family of %s, so that address is not served; add the family to spec.ipFamilies", a)
		}
		if !slices.Contains(v.external, a) {
			v.external = append(v.external, a)
		}
	}
	return all
}

// AnnotationHostAddress lets a Service have an address of the host itself. It is safe only where
// nothing else has to be reached at the address.
const AnnotationHostAddress = "svcctl.io/allow-host-address"

// mayBe refuses addresses that are the host's own, or not as internal as the Service is.
func (r *resolver) mayBe(field string, a netip.Addr) bool {
	return r.mayBeInternal(field, a) && r.mayServe(field, a)
}

// mayServe refuses addresses that are the host's own.
func (r *resolver) mayServe(field string, a netip.Addr) bool {
	what, is := r.facts.Host[a]
	if !is || r.Service.Metadata.Annotations[AnnotationHostAddress] == "true" {
		return true
	}
	r.refuse(field, "HostAddress", "%s is %s and is not served; choose another address, or annotate the Service with %s: \"true\"", a, what, AnnotationHostAddress)
	return false
}

// ExternalIPRefusal returns why no Service may have an address as an external IP, by the
// configuration and the host's networks. The reason is one word; it is empty when nothing speaks
// against the address.
func (f *Facts) ExternalIPRefusal(a netip.Addr) (reason, why string) {
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	if f.NoExternalIPs {
		return reasonOutsideExternalIPs, "--external-ip-range is none, which allows no externalIPs: name the range that it lies in there"
	}
	if len(f.ExternalIPRanges) > 0 && !slices.ContainsFunc(f.ExternalIPRanges, contains) {
		return reasonOutsideExternalIPs, fmt.Sprintf("it is in no --external-ip-range %v: choose one that is", f.ExternalIPRanges)
	}
	if i := slices.IndexFunc(f.ServiceRanges, contains); i >= 0 {
		return reasonServiceRange, fmt.Sprintf("it lies in the service range %s, which is for cluster IPs: choose an address outside of it", f.ServiceRanges[i])
	}
	if f.isNoHost(a) {
		return reasonNotUnicast, "it is a multicast, broadcast or reserved address: choose a unicast one"
	}
	return "", ""
}

// The reasons for which an external IP is not served.
const (
	reasonOutsideExternalIPs = "OutsideExternalIPRange"
	reasonServiceRange       = "ServiceRange"
	reasonNotUnicast         = "NotUnicast"
)

// isSetAside reports whether the operator has set an address aside for Services, which then
// have all of its ports.
func (f *Facts) isSetAside(a netip.Addr) bool {
	return slices.ContainsFunc(f.ExternalIPRanges, func(p netip.Prefix) bool { return p.Contains(a) }) ||
		slices.ContainsFunc(f.Pools, func(r nft.Range) bool { return r.Contains(a) })
}

// reserved4 is class E (RFC 1112, section 4) with the limited broadcast address.
var reserved4 = netip.MustParsePrefix("240.0.0.0/4")

// isNoHost reports whether an address is one that no single host can have.
func (f *Facts) isNoHost(a netip.Addr) bool {
	return a.IsMulticast() || reserved4.Contains(a) || f.Broadcast[a]
}

func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	return a, err == nil && a.Zone() == ""
}
