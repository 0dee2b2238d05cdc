package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Warnings returns texts about unusual parts of an object that Validate accepts.
func Warnings(o Object) []string {
	switch o := o.(type) {
	case warner:
		return o.warnings()
	case *Gateway, *ListenerSet, *TCPRoute, *UDPRoute, *TLSRoute, *HTTPRoute:
		return noEffect(o)
	}
	return nil
}

func (s *Service) warnings() []string {
	var warnings []string
	if _, ok := s.Metadata.Annotations[annotationTopologyHints]; ok {
		warnings = append(warnings, fmt.Sprintf("annotation %s is deprecated, please use %s instead", annotationTopologyHints, annotationTopologyMode))
	}
	warnings = append(warnings, ignoredFieldWarnings(s)...)
	warnings = append(warnings, addressWarnings(s)...)
	warnings = append(warnings, sourceRangeWarnings(s)...)
	if Deref(s.Spec.TrafficDistribution) == PreferClose {
		warnings = append(warnings, fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q", PreferClose, PreferSameZone))
	}
	return warnings
}

// ignoredFieldWarnings returns a warning for each field that has no effect on this Service.
func ignoredFieldWarnings(s *Service) []string {
	var warnings []string
	spec := &s.Spec
	external := spec.Type == TypeExternalName
	if s.Headless() {
		if spec.LoadBalancerIP != "" {
			warnings = append(warnings, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(spec.ExternalIPs) > 0 {
			warnings = append(warnings, "spec.externalIPs is ignored for headless services")
		}
		for i := range spec.Ports {
			if p := &spec.Ports[i]; len(spec.Selector) == 0 && p.TargetPort.Name == "" && p.TargetPort.Int != 0 && p.TargetPort.Int != p.Port {
				warnings = append(warnings, fmt.Sprintf("%s: %d is not the port, %d, and a headless Service without a selector translates none: clients connect to the port of its endpoints", portsPath.index(i).child("targetPort"), p.TargetPort.Int, p.Port))
			}
		}
		if spec.SessionAffinity != AffinityNone {
			warnings = append(warnings, "spec.SessionAffinity is ignored for headless services")
		}
	} else if spec.LoadBalancerIP != "" && spec.Type != TypeLoadBalancer {
		warnings = append(warnings, fmt.Sprintf("spec.loadBalancerIP is ignored when spec.type is not %q", TypeLoadBalancer))
	}
	if external && len(spec.ExternalIPs) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q", TypeExternalName))
	}
	if !external && spec.ExternalName != "" {
		warnings = append(warnings, fmt.Sprintf("spec.externalName is ignored when spec.type is not %q", TypeExternalName))
	}
	return warnings
}

// addressWarnings returns warnings about addresses that are not in canonical form.
func addressWarnings(s *Service) []string {
	var warnings []string
	if !s.Headless() {
		for i, ip := range s.clusterIPs() {
			warnings = append(warnings, ipWarnings(clusterIPsPath.index(i), ip)...)
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		warnings = append(warnings, ipWarnings(specPath.child("externalIPs").index(i), ip)...)
	}
	if ip := s.Spec.LoadBalancerIP; ip != "" {
		p := specPath.child("loadBalancerIP")
		if familyOf(ip) == "" {
			// Kubernetes leaves the meaning to each load balancer; here it is an address.
			warnings = append(warnings, fmt.Sprintf("%s: %q is not an IP address and is ignored", p, ip))
		}
		warnings = append(warnings, ipWarnings(p, ip)...)
	}
	return warnings
}

func sourceRangeWarnings(s *Service) []string {
	var warnings []string
	given := set{}
	ranges, fromAnnotation := s.sourceRanges()
	for i, text := range ranges {
		prefix, ok := parseLegacyCIDR(text)
		if !ok {
			continue
		}
		given[FamilyOf(prefix.Addr())] = true
		p := specPath.child("loadBalancerSourceRanges").index(i)
		if fromAnnotation {
			p = metaPath.child("annotations").key(AnnotationSourceRanges)
		}
		switch {
		case cidrProblem(text) != "":
			warnings = append(warnings, fmt.Sprintf("%s: non-standard CIDR value %q is invalid: use %q", p, text, prefix))
		case prefix.String() != text:
			warnings = append(warnings, fmt.Sprintf("%s: IPv6 CIDR value %q should be in RFC 5952 canonical format (%q)", p, text, prefix))
		}
	}
	if len(given) == 0 || s.Spec.Type != TypeLoadBalancer {
		return warnings
	}
	for _, family := range s.Spec.IPFamilies {
		if !given[family] {
			warnings = append(warnings, fmt.Sprintf(
				"spec.loadBalancerSourceRanges has no %s range: the %s address of the load balancer is closed to all clients", family, family))
		}
	}
	return warnings
}

// ipWarnings returns a warning if an address is not in canonical form, as GetWarningsForIP of apimachinery does. The warning contains the canonical
// form. For a text that is no address it returns none.
func ipWarnings(p path, value string) []string {
	if addr, err := netip.ParseAddr(value); err == nil && addr.Is4() {
		return nil
	}
	legacy, ok := parseLegacyIP(value)
	if !ok {
		return nil
	}
	if ipProblem(value) != "" {
		return []string{fmt.Sprintf("%s: non-standard IP address %q is invalid: use %q", p, value, legacy)}
	}
	if addr, err := netip.ParseAddr(value); err == nil && addr.String() != value {
		return []string{fmt.Sprintf("%s: IPv6 address %q should be in RFC 5952 canonical format (%q)", p, value, addr)}
	}
	return nil
}

func (o *Endpoints) warnings() []string {
	var warnings []string
	for i, subset := range o.Subsets {
		for j, address := range subset.Addresses {
			warnings = append(warnings, ipWarnings(subsetsPath.index(i).child("addresses").index(j).child("ip"), address.IP)...)
		}
		for j, address := range subset.NotReadyAddresses {
			warnings = append(warnings, ipWarnings(subsetsPath.index(i).child("notReadyAddresses").index(j).child("ip"), address.IP)...)
		}
	}
	return warnings
}

func (o *EndpointSlice) warnings() []string {
	var warnings []string
	if o.Metadata.Labels[LabelServiceName] == "" {
		warnings = append(warnings, fmt.Sprintf("metadata.labels: without %s the slice belongs to no Service and is ignored", LabelServiceName))
	}
	if o.AddressType == FQDN {
		return append(warnings, fmt.Sprintf("addressType: %q is ignored, traffic is only sent to IP addresses: have svcctl.io/endpoints-from: dns:NAME of the Service follow the name", FQDN))
	}
	for i, endpoint := range o.Endpoints {
		p := endpointsPath.index(i).child("addresses")
		if len(endpoint.Addresses) > 1 {
			warnings = append(warnings, fmt.Sprintf("%s: only the first address is used", p))
		}
		for j, ip := range endpoint.Addresses {
			warnings = append(warnings, ipWarnings(p.index(j), ip)...)
		}
	}
	hasNoNumber := func(port EndpointPort) bool { return Deref(port.Port) == 0 }
	if i := slices.IndexFunc(o.Ports, hasNoNumber); i >= 0 {
		warnings = append(warnings, fmt.Sprintf("%s: a port without a number is ignored", slicePortsPath.index(i)))
	}
	return warnings
}

// noEffect returns warnings about svcctl annotations on an object of the Gateway API: they are only read in spec.infrastructure.annotations
// of the Gateway.
func noEffect(o Object) (warnings []string) {
	for _, key := range sortedKeys(o.GetMeta().Annotations) {
		if strings.HasPrefix(key, "svcctl.io/") {
			warnings = append(warnings, fmt.Sprintf("metadata.annotations[%s]: has no effect on a %s: it is read in spec.infrastructure.annotations of the Gateway", key, StrategyOf(o).Name))
		}
	}
	return warnings
}
