package object

import (
	"fmt"
	"slices"
)

var (
	clusterIPsPath   = root("spec.clusterIPs")
	familiesPath     = root("spec.ipFamilies")
	familyPolicyPath = root("spec.ipFamilyPolicy")
)

// DefaultFamilies sets clusterIPs from clusterIP. It also sets ipFamilyPolicy and ipFamilies where they depend on the stored Service (old, nil for a
// new one), or on the families of the box's service ranges (boxFamilies: IPv4, IPv6 or both, the primary first). It returns errors about values that
// conflict. It allocates no cluster IPs: the allocator then has to allocate one for each of ipFamilies, in that order, unless the Service is
// headless.
//
// It corresponds to initIPFamilyFields of pkg/registry/core/service/storage. As in Kubernetes, a Service that prefers dual stack does not gain or
// lose its second family when the families of the box change, but only when its own policy, families or cluster IPs change.
func DefaultFamilies(svc, old *Service, boxFamilies []string) Errors {
	syncClusterIPs(svc, old)
	if svc.Spec.Type == TypeExternalName {
		return nil
	}
	if len(boxFamilies) == 0 {
		return forbidden(familiesPath, "there is no range to take cluster IPs from: set service-cluster-ip-range")
	}
	defaultFamilyPolicy(svc, old)
	if keepsPreferredFamilies(svc, old) {
		return nil
	}
	if errs := checkClusterIPs(svc, old); len(errs) > 0 {
		return errs
	}
	errs := releaseSecondary(svc, old)
	errs = append(errs, checkSingleStack(svc)...)
	errs = append(errs, inferFamilies(svc, boxFamilies)...)
	if len(errs) > 0 {
		return errs
	}
	return completeFamilies(svc, boxFamilies)
}

// syncClusterIPs sets clusterIPs from clusterIP, for clients that write only the latter. It does
// not set clusterIP from clusterIPs: clients that write the list have to write both.
func syncClusterIPs(svc, old *Service) {
	spec := &svc.Spec
	if old == nil {
		spec.ClusterIPs = slices.Clone(svc.clusterIPs())
		return
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP == old.Spec.ClusterIP {
		spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
	}
	if spec.ClusterIP == old.Spec.ClusterIP || !slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) {
		return
	}
	// Only clusterIP changed: the list goes with it.
	spec.ClusterIPs = nil
	if spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// keepsPreferredFamilies reports whether an update of a Service with PreferDualStack leaves its type, policy, families and cluster IPs unchanged.
func keepsPreferredFamilies(svc, old *Service) bool {
	return old != nil && old.Spec.Type == svc.Spec.Type &&
		Deref(old.Spec.IPFamilyPolicy) == PreferDualStack && *svc.Spec.IPFamilyPolicy == PreferDualStack &&
		sameClusterIPs(svc, old) && slices.Equal(svc.Spec.IPFamilies, old.Spec.IPFamilies)
}

// defaultFamilyPolicy sets ipFamilyPolicy if it is missing. It takes the policy of the stored Service, so that only an explicit policy changes a
// Service between single and dual stack; a new Service gets the default.
func defaultFamilyPolicy(svc, old *Service) {
	switch policy := &svc.Spec.IPFamilyPolicy; {
	case *policy != nil:
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		*policy = new(*old.Spec.IPFamilyPolicy)
	case svc.headlessWithoutSelector():
		// Its endpoints are written by hand, of whatever family.
		setDefault(policy, RequireDualStack)
	default:
		setDefault(policy, SingleStack)
	}
}

func (o *Service) headlessWithoutSelector() bool {
	return o.Headless() && len(o.Spec.Selector) == 0
}

// checkClusterIPs checks clusterIPs, ipFamilies and ipFamilyPolicy by the rules that do not depend on the families of the box
// (ValidateServiceClusterIPsRelatedFields).
func checkClusterIPs(s, old *Service) Errors {
	if s.Spec.Type == TypeExternalName {
		return nil
	}
	var errs Errors
	ips := s.clusterIPs()
	switch {
	case s.Spec.ClusterIP == "" && len(ips) > 0:
		errs = append(errs, invalid(clusterIPsPath, ips, "must be empty when `clusterIP` is not specified")...)
	case len(ips) > 0 && ips[0] != s.Spec.ClusterIP:
		errs = append(errs, invalid(clusterIPsPath, ips, "first value must match `clusterIP`")...)
	}
	seen := set{}
	for i, family := range s.Spec.IPFamilies {
		errs = append(errs, oneOf(familiesPath.index(i), family, []string{IPv4, IPv6})...)
		if seen[family] {
			errs = append(errs, duplicate(familiesPath.index(i), family)...)
		}
		seen[family] = true
	}
	if policy := s.Spec.IPFamilyPolicy; policy != nil {
		errs = append(errs, oneOf(familyPolicyPath, *policy, []string{PreferDualStack, RequireDualStack, SingleStack})...)
	}
	problems := checkEachClusterIP(ips, old)
	errs = append(errs, problems...)
	if len(ips) > 2 {
		errs = append(errs, invalid(clusterIPsPath, ips, "may only hold up to 2 values")...)
	}
	if len(problems) > 0 || s.Headless() {
		return errs
	}
	return append(errs, checkIPFamilies(ips, s.Spec.IPFamilies)...)
}

// checkEachClusterIP checks the syntax of the cluster IPs; "None" must be the only one.
func checkEachClusterIP(ips []string, old *Service) Errors {
	var kept set
	if old != nil {
		kept = setOf(old.clusterIPs())
	}
	var errs Errors
	for i, ip := range ips {
		switch {
		case i > 0 || ip != ClusterIPNone:
			errs = append(errs, unlessKept(clusterIPsPath.index(i), ip, kept, ipProblem(ip))...)
		case len(ips) > 1:
			errs = append(errs, invalid(clusterIPsPath, ips, "'None' must be the first and only value")...)
		}
	}
	return errs
}

// checkIPFamilies checks that two cluster IPs are of different families, and that each is of the family at the same index of ipFamilies.
func checkIPFamilies(ips, families []string) Errors {
	var errs Errors
	count := map[string]int{}
	for _, ip := range ips {
		count[familyOf(ip)]++
	}
	if len(ips) > 1 && len(count) == 1 {
		errs = append(errs, invalid(clusterIPsPath, ips, "may specify no more than one IP for each IP family")...)
	}
	for i, ip := range ips[:min(len(ips), len(families))] {
		if family := families[i]; (family == IPv4 || family == IPv6) && familyOf(ip) != family {
			errs = append(errs, invalid(clusterIPsPath.index(i), ip,
				fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", family, i))...)
		}
	}
	return errs
}

// releaseSecondary removes the second cluster IP and family of a stored Service whose
// policy becomes SingleStack. Under any other policy it returns an error if the update
// removes them.
func releaseSecondary(svc, old *Service) Errors {
	if old == nil {
		return nil
	}
	spec := &svc.Spec
	if *spec.IPFamilyPolicy == SingleStack {
		if sameClusterIPs(svc, old) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1:1]
		}
		if slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1:1]
		}
		return nil
	}
	var errs Errors
	if n := len(spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
		errs = append(errs, invalid(familyPolicyPath, *spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP")...)
	}
	if n := len(spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
		errs = append(errs, invalid(familyPolicyPath, *spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family")...)
	}
	return errs
}

func sameClusterIPs(a, b *Service) bool {
	return a.Spec.ClusterIP == b.Spec.ClusterIP && slices.Equal(a.Spec.ClusterIPs, b.Spec.ClusterIPs)
}

func checkSingleStack(svc *Service) Errors {
	if *svc.Spec.IPFamilyPolicy != SingleStack {
		return nil
	}
	const detail = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
	var errs Errors
	if len(svc.Spec.ClusterIPs) == 2 {
		errs = append(errs, invalid(familyPolicyPath, SingleStack, fmt.Sprintf(detail, "cluster IPs"))...)
	}
	if len(svc.Spec.IPFamilies) == 2 {
		errs = append(errs, invalid(familyPolicyPath, SingleStack, fmt.Sprintf(detail, "IP families"))...)
	}
	return errs
}

// inferFamilies appends to ipFamilies the families of the cluster IPs that have no entry there.
func inferFamilies(svc *Service, boxFamilies []string) Errors {
	if svc.Headless() {
		return nil
	}
	var errs Errors
	spec := &svc.Spec
	for i, ip := range spec.ClusterIPs {
		if i < len(spec.IPFamilies) {
			continue
		}
		family := familyOf(ip)
		if !slices.Contains(boxFamilies, family) {
			errs = append(errs, invalid(clusterIPsPath.index(i), spec.ClusterIPs, family+" is not configured on this cluster")...)
			continue
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
	return errs
}

// completeFamilies checks families and policy against the box's families, except for a headless Service without a selector. It sets missing families,
// and appends the second one if the policy asks for it.
func completeFamilies(svc *Service, boxFamilies []string) Errors {
	spec := &svc.Spec
	dual := *spec.IPFamilyPolicy != SingleStack
	// Without a selector and without a VIP nothing on the box decides the families.
	if !svc.headlessWithoutSelector() {
		var errs Errors
		if *spec.IPFamilyPolicy == RequireDualStack && len(boxFamilies) < 2 {
			errs = append(errs, invalid(familyPolicyPath, RequireDualStack, "this cluster is not configured for dual-stack services")...)
		}
		for i, family := range spec.IPFamilies {
			if !slices.Contains(boxFamilies, family) {
				errs = append(errs, invalid(familiesPath.index(i), family, "not configured on this cluster")...)
			}
		}
		if len(errs) > 0 {
			return errs
		}
		dual = dual && len(boxFamilies) == 2
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []string{boxFamilies[0]}
	}
	if dual && len(spec.IPFamilies) == 1 {
		other := IPv4
		if spec.IPFamilies[0] == IPv4 {
			other = IPv6
		}
		spec.IPFamilies = append(spec.IPFamilies, other)
	}
	return nil
}

// OtherFamily looks for a cluster IP of a Service to which connections are refused because all endpoints are of the other IP family. It returns the
// family of that cluster IP and a message; both are "" if there is no such cluster IP. at is inserted into the message after "client" or "addresses"
// to name the ports concerned; "" means all ports. A headless Service has no cluster IP and uses endpoints of both families.
func OtherFamily(svc *Service, slices []*EndpointSlice, at string) (family, why string) {
	if svc.Headless() || svc.Spec.Type == TypeExternalName {
		return "", ""
	}
	endpoints := map[string]map[string]bool{IPv4: {}, IPv6: {}}
	for _, s := range slices {
		for i := range s.Endpoints {
			if of := endpoints[s.AddressType]; of != nil && len(s.Endpoints[i].Addresses) > 0 {
				of[s.Endpoints[i].Addresses[0]] = true
			}
		}
	}
	for i, ip := range svc.Spec.ClusterIPs {
		own := familyOf(ip)
		other := map[string]string{IPv4: IPv6, IPv6: IPv4}[own]
		if len(endpoints[own]) > 0 || len(endpoints[other]) == 0 {
			continue
		}
		all := "the 1 endpoint is"
		if n := len(endpoints[other]); n > 1 {
			all = fmt.Sprintf("all %d endpoints are", n)
		}
		if len(svc.Spec.ClusterIPs) > 1 {
			why = fmt.Sprintf("%s %s, so every client of its %s addresses%s is refused: name %s endpoints", all, other, own, at, own)
			if i > 0 { // the first family stays
				why += ", or set spec.ipFamilyPolicy to SingleStack"
			}
			return own, why
		}
		return own, fmt.Sprintf("its addresses are %s and %s %s, so every client%s is refused: set spec.ipFamilyPolicy to PreferDualStack, or delete the Service and create it with spec.ipFamilies: [%s]",
			own, all, other, at, other)
	}
	return "", ""
}
