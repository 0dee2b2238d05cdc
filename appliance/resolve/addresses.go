package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// vips holds the addresses of a Service in one IP family, by kind.
type vips struct {
	cluster  netip.Addr
	balancer []netip.Addr
	external []netip.Addr
	// withoutClusterIP is set if the cluster IP must not be served, because it is an address of the host.
	withoutClusterIP bool
}

type addresses map[nft.Family]*vips

func (a addresses) of(f nft.Family) *vips {
	if a[f] == nil {
		a[f] = &vips{}
	}
	return a[f]
}

// addresses returns the addresses of the Service by family. A family is served only if the Service has a cluster IP of that family.
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

// AnnotationHostAddress, if "true", permits a Service to use an address of the host itself. This is safe only if nothing else has to be reachable at
// the address.
const AnnotationHostAddress = "svcctl.io/allow-host-address"

// mayBe reports whether the Service may use an address. It returns false, and adds an error to the problems, if the address belongs to the host, or
// if the Service is to be internal and no internal pool contains the address.
func (r *resolver) mayBe(field string, a netip.Addr) bool {
	return r.mayBeInternal(field, a) && r.mayServe(field, a)
}

// mayServe reports whether an address does not belong to the host (Facts.Host), or AnnotationHostAddress permits its use. If it returns false, it has
// added an error to the problems.
func (r *resolver) mayServe(field string, a netip.Addr) bool {
	what, is := r.facts.Host[a]
	if !is || r.Service.Metadata.Annotations[AnnotationHostAddress] == "true" {
		return true
	}
	r.refuse(field, "HostAddress", "%s is %s and is not served; choose another address, or annotate the Service with %s: \"true\"", a, what, AnnotationHostAddress)
	return false
}

// ExternalIPRefusal returns why an address must not be used as an external IP, because of the configuration or the networks of the host. The results
// are the Reason and the text of a Problem. Both are "" if Services may use the address.
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

// Reasons of Problems about refused external IPs.
const (
	reasonOutsideExternalIPs = "OutsideExternalIPRange"
	reasonServiceRange       = "ServiceRange"
	reasonNotUnicast         = "NotUnicast"
)

// isSetAside reports whether an address is in a pool of load balancer IPs or in --external-ip-range. At such an address all ports are reserved for
// Services, not only those that Services use.
func (f *Facts) isSetAside(a netip.Addr) bool {
	return slices.ContainsFunc(f.ExternalIPRanges, func(p netip.Prefix) bool { return p.Contains(a) }) ||
		slices.ContainsFunc(f.Pools, func(r nft.Range) bool { return r.Contains(a) })
}

// reserved4 is the IPv4 class E (RFC 1112, section 4), which includes the limited broadcast address.
var reserved4 = netip.MustParsePrefix("240.0.0.0/4")

// isNoHost reports whether an address cannot belong to a single host: it is a multicast address, in reserved4, or a broadcast address of the host's
// networks.
func (f *Facts) isNoHost(a netip.Addr) bool {
	return a.IsMulticast() || reserved4.Contains(a) || f.Broadcast[a]
}

func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	return a, err == nil && a.Zone() == ""
}

// Annotations that restrict which external clients may connect to a Service.
const (
	// AnnotationSourceRangesApply overrides --source-ranges-apply for one Service. The value is "all" or "load-balancer".
	AnnotationSourceRangesApply = "svcctl.io/source-ranges-apply"
	// AnnotationSourceSets lists the source sets whose clients may connect, or with "!" may not, such as "office,vpn,!scanners".
	AnnotationSourceSets = "svcctl.io/source-sets"
	// AnnotationELBExtraGroups lists source sets whose clients may connect in addition to the source ranges. AnnotationELBGroups lists source sets
	// whose clients may connect instead of the source ranges.
	AnnotationELBExtraGroups = "service.beta.kubernetes.io/aws-load-balancer-extra-security-groups"
	AnnotationELBGroups      = "service.beta.kubernetes.io/aws-load-balancer-security-groups"
)

// Reasons of Problems about source ranges and source sets.
const (
	reasonUnknownValue     = "UnknownValue"
	reasonUnknownSourceSet = "UnknownSourceSet"
	reasonInvalidSets      = "InvalidSourceSets"
	reasonNoEffect         = "NoEffect"
)

// clients specifies the clients that may connect to a Service from outside. Its cluster IPs are open to all.
type clients struct {
	// ranges are the source ranges of both families. ranged is set if any are given.
	ranges      []netip.Prefix
	ranged      bool
	allow, deny []*nft.SourceSet
	// nobody is set if a source set is unknown or invalid, so that no client may connect.
	nobody bool
	// everywhere is set if the restrictions also apply to node ports and external IPs, not only to load balancer IPs.
	everywhere bool
}

// readClients reads spec.loadBalancerSourceRanges and the annotations for source ranges and source sets.
func (r *resolver) readClients() clients {
	var c clients
	balanced := r.Service.Spec.Type == "LoadBalancer"
	if balanced {
		c.ranges, c.ranged = r.sourceRanges()
	}
	if !r.Service.ExternallyAccessible() {
		for _, key := range []string{AnnotationSourceSets, AnnotationSourceRangesApply} {
			if _, given := r.Service.Metadata.Annotations[key]; given {
				r.warnNoEffect(key, "has no effect: the Service has cluster IPs alone, which are open to all clients")
			}
		}
		return c
	}
	names := r.sourceSetNames(&c, balanced)
	limited := c.ranged || len(names) > 0 || c.nobody
	shuts := len(names) > 0 || c.nobody || slices.ContainsFunc(nft.Families[:], func(family nft.Family) bool {
		sources, _ := c.of(family)
		served := r.relayed.Asked() || slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return s.AddressType == family.Name() && len(s.Endpoints) > 0 })
		return sources != nil && served && slices.Contains(r.Service.Spec.IPFamilies, family.Name())
	})
	c.everywhere = r.rangesApplyToAll(balanced && shuts)
	if len(names) > 0 && !balanced {
		c.everywhere = true // there is no load balancer IP that they could be meant for
	}
	for _, n := range names {
		r.addSourceSet(&c, n)
	}
	field := annotation.Field(AnnotationSourceRangesApply)
	if _, given := r.Service.Metadata.Annotations[AnnotationSourceRangesApply]; given && !limited && !r.wrong[field] {
		r.warn(r.ref, field, reasonNoEffect, "has no effect: the Service has neither spec.loadBalancerSourceRanges nor %s", AnnotationSourceSets)
	}
	return c
}

// of returns the permitted clients of a family, as the fields Sources and Sets of an nft.Frontend. If both are nil, all clients may connect.
func (c *clients) of(family nft.Family) (sources []netip.Prefix, sets *nft.SourceSets) {
	if c.nobody {
		return []netip.Prefix{}, nil
	}
	if c.ranged {
		sources = []netip.Prefix{}
	}
	for _, p := range c.ranges {
		switch {
		case nft.FamilyOf(p.Addr()) != family:
		case p.Bits() == 0:
			if len(c.deny) == 0 {
				return nil, nil
			}
			return nil, &nft.SourceSets{Deny: c.deny}
		default:
			sources = append(sources, p)
		}
	}
	if len(c.allow)+len(c.deny) == 0 {
		return sources, nil
	}
	return sources, &nft.SourceSets{Allow: c.allow, Deny: c.deny}
}

// sourceRanges returns the permitted client prefixes in r.sources (spec.loadBalancerSourceRanges, or an annotation). given is false if neither is
// set.
func (r *resolver) sourceRanges() (prefixes []netip.Prefix, given bool) {
	for _, s := range r.sources {
		if p, err := netip.ParsePrefix(strings.TrimSpace(s)); err == nil { // malformed ones are reported already
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes, r.sources != nil
}

// rangesApplyToAll reports whether the restrictions of clients also apply to node ports and external IPs. The annotation determines this; without it,
// they apply if Facts.SourceRangesApplyToAll is set or the Service is an AWS NLB. An unknown value of the annotation counts as "all". It is reported
// as an error if shuts is set (the restrictions may exclude clients), and otherwise as a warning.
func (r *resolver) rangesApplyToAll(shuts bool) bool {
	value, given := r.Service.Metadata.Annotations[AnnotationSourceRangesApply]
	switch {
	case !given:
		return r.facts.SourceRangesApplyToAll || annotation.IsNLB(r.Service)
	case value == "all", value == "load-balancer":
		return value == "all"
	}
	report := r.warnValue
	if shuts {
		report = r.refuseValue
	}
	report(AnnotationSourceRangesApply, reasonUnknownValue,
		"%q is neither \"all\" nor \"load-balancer\"; source ranges hold on node ports and external IPs too until it is one of them", value)
	return true
}

// setName is a source set named in an annotation. deny is set if its clients may not connect.
type setName struct {
	annotation, name string
	deny             bool
}

// sourceSetNames returns the source sets that the annotations name, without duplicates. If a name is invalid, it sets c.nobody. balanced is set for a
// Service of type LoadBalancer; only then are the AWS annotations read.
func (r *resolver) sourceSetNames(c *clients, balanced bool) (names []setName) {
	for _, key := range []string{AnnotationELBGroups, AnnotationELBExtraGroups, AnnotationSourceSets} {
		text, given := r.Service.Metadata.Annotations[key]
		if !given {
			continue
		}
		if !balanced && key != AnnotationSourceSets {
			continue
		}
		for part := range strings.SplitSeq(text, ",") {
			name, deny := strings.CutPrefix(strings.TrimSpace(part), "!")
			n := setName{key, strings.TrimSpace(name), deny && key == AnnotationSourceSets}
			if n.name == "" || deny && !n.deny {
				r.refuseValue(key, reasonInvalidSets,
					"%q is no name of a source set, so no client may connect where source ranges hold; write names with commas between them, like %q", part, "office,vpn")
				c.nobody = true
				continue
			}
			same := func(o setName) bool { return o.name == n.name && o.deny == n.deny }
			if !slices.ContainsFunc(names, same) {
				names = append(names, n)
			}
		}
		if key == AnnotationELBGroups {
			c.ranges, c.ranged = nil, false // these groups take the place of the one that the ranges are in
		}
	}
	if len(names) > nft.MaxSourceSets {
		r.refuseValue(names[nft.MaxSourceSets].annotation, reasonInvalidSets,
			"%d source sets are named, so no client may connect where source ranges hold; at most %d are possible: merge some of their files", len(names), nft.MaxSourceSets)
		c.nobody, names = true, names[:nft.MaxSourceSets]
	}
	return names
}

// addSourceSet adds a source set to c. If the set is unknown, it sets c.nobody, so that no client may connect.
func (r *resolver) addSourceSet(c *clients, n setName) {
	switch set := r.sourceSet(n.annotation, n.name, "no client may connect where source ranges hold"); {
	case set == nil:
		c.nobody = true
	case n.deny:
		c.deny = append(c.deny, set)
	default:
		c.allow = append(c.allow, set)
	}
}

// sourceSet returns the source set with the given name. If there is none, or its file could not be read yet, it returns nil and adds an error about
// the annotation key. The text so follows the word "so" in the error message and states the consequence.
func (r *resolver) sourceSet(key, name, so string) *nft.SourceSet {
	s := r.state(Need{Kind: NeedSourceSet, Name: name})
	switch field := annotation.Field(key); {
	case s.Set != nil:
	case s.Missing:
		r.refuse(field, reasonUnknownSourceSet, "the file of --source-set %s could not be read yet, so %s; correct the file", name, so)
	default:
		r.refuse(field, reasonUnknownSourceSet, "there is no --source-set %s, so %s; start svcctl serve with --source-set %[1]s=FILE, or correct the name", name, so)
	}
	return s.Set
}
