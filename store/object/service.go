package object

import (
	"fmt"
	"slices"
	"strings"
)

var (
	specPath  = root("spec")
	portsPath = root("spec.ports")
)

const onlyLoadBalancerText = "may only be used when `type` is 'LoadBalancer'"

// validate is ValidateService of pkg/apis/core/validation, with the errors in the same order. previous is nil for a new Service.
func (s *Service) validate(previous Object) Errors {
	old, _ := previous.(*Service)
	return slices.Concat(
		checkTopologyAnnotations(s),
		checkType(s),
		checkPorts(s),
		validateLabels(specPath.child("selector"), s.Spec.Selector),
		checkSessionAffinity(s),
		checkClusterIPs(s, old),
		checkExternalIPs(s, old),
		checkNodePorts(s),
		checkSourceRanges(s, old),
		checkLoadBalancerFields(s),
		checkTrafficPolicies(s),
		checkIngress(s, old),
		checkServiceAnnotations(s, old),
		checkRelayed(s, old),
	)
}

func checkTopologyAnnotations(s *Service) Errors {
	mode, hasMode := s.Metadata.Annotations[annotationTopologyMode]
	if hints, hasHints := s.Metadata.Annotations[annotationTopologyHints]; !hasMode || !hasHints || mode == hints {
		return nil
	}
	return invalid(metaPath.child("annotations").key(annotationTopologyMode), mode,
		fmt.Sprintf("must match annotations[%s] when both are specified", annotationTopologyHints))
}

func checkType(s *Service) Errors {
	var errs Errors
	if len(s.Spec.Ports) == 0 && !s.Headless() && s.Spec.Type != TypeExternalName {
		errs = append(errs, required(portsPath, "")...)
	}
	switch s.Spec.Type {
	case TypeLoadBalancer, TypeNodePort:
		if s.Headless() {
			errs = append(errs, invalid(specPath.child("clusterIPs").index(0), ClusterIPNone,
				fmt.Sprintf("may not be set to 'None' for %s services", s.Spec.Type))...)
		}
	case TypeExternalName:
		errs = append(errs, checkExternalName(s)...)
	case "":
		errs = append(errs, required(specPath.child("type"), "")...)
	default:
		errs = append(errs, oneOf(specPath.child("type"), s.Spec.Type,
			[]string{TypeClusterIP, TypeExternalName, TypeLoadBalancer, TypeNodePort})...)
	}
	return errs
}

func checkExternalName(s *Service) Errors {
	const not = "may not be set for ExternalName services"
	var errs Errors
	if len(s.clusterIPs()) > 0 {
		errs = append(errs, forbidden(specPath.child("clusterIPs"), not)...)
	}
	if len(s.Spec.IPFamilies) > 0 {
		errs = append(errs, forbidden(specPath.child("ipFamilies"), not)...)
	}
	if s.Spec.IPFamilyPolicy != nil {
		errs = append(errs, forbidden(specPath.child("ipFamilyPolicy"), not)...)
	}
	// A dot at the end marks a complete name.
	name := strings.TrimSuffix(s.Spec.ExternalName, ".")
	if name == "" {
		return append(errs, required(specPath.child("externalName"), "")...)
	}
	return append(errs, invalidFor(specPath.child("externalName"), name, dns1123SubdomainProblems(name))...)
}

func checkPorts(s *Service) Errors {
	var errs Errors
	names := set{}
	for i := range s.Spec.Ports {
		p, port := portsPath.index(i), &s.Spec.Ports[i]
		switch {
		case port.Name != "":
			errs = append(errs, invalidFor(p.child("name"), port.Name, DNSLabelProblems(port.Name))...)
			if names[port.Name] {
				errs = append(errs, duplicate(p.child("name"), port.Name)...)
			}
			names[port.Name] = true
		case len(s.Spec.Ports) > 1:
			errs = append(errs, required(p.child("name"), "")...)
		}
		errs = append(errs, invalidFor(p.child("port"), port.Port, portNumberProblems(port.Port))...)
		errs = append(errs, validateProtocol(p.child("protocol"), port.Protocol)...)
		errs = append(errs, checkPort(p.child("targetPort"), port.TargetPort)...)
		errs = append(errs, validateAppProtocol(p.child("appProtocol"), port.AppProtocol)...)
	}
	return append(errs, checkSamePorts(s.Spec.Ports)...)
}

func checkPort(p path, port IntOrString) Errors {
	if port.IsString {
		return invalidFor(p, port.Name, portNameProblems(port.Name))
	}
	return invalidFor(p, port.Int, portNumberProblems(port.Int))
}

// protocolPort is the combination of protocol and port that must be unique in a Service. In
// messages it is formatted as Kubernetes does: as a ServicePort with only these two fields
// set.
type protocolPort struct {
	Name        string
	Protocol    string
	AppProtocol *string
	Port        int32
	TargetPort  int
	NodePort    int32
}

func checkSamePorts(ports []ServicePort) Errors {
	var errs Errors
	seen := map[protocolPort]bool{}
	for i, port := range ports {
		key := protocolPort{Protocol: port.Protocol, Port: port.Port}
		if seen[key] {
			errs = append(errs, duplicate(portsPath.index(i), key)...)
		}
		seen[key] = true
	}
	return errs
}

func checkSessionAffinity(s *Service) Errors {
	p := specPath.child("sessionAffinity")
	switch s.Spec.SessionAffinity {
	case "":
		return required(p, "")
	case AffinityNone:
		return nil
	case AffinityClientIP:
		return checkClientIPConfig(specPath.child("sessionAffinityConfig"), s.Spec.SessionAffinityConfig)
	}
	return notSupported(p, s.Spec.SessionAffinity, []string{AffinityClientIP, AffinityNone})
}

func checkClientIPConfig(p path, config *SessionAffinityConfig) Errors {
	const detail = "when session affinity type is ClientIP"
	timeoutPath := p.child("clientIP").child("timeoutSeconds")
	switch {
	case config == nil:
		return required(p, detail)
	case config.ClientIP == nil:
		return required(p.child("clientIP"), detail)
	case config.ClientIP.TimeoutSeconds == nil:
		return required(timeoutPath, detail)
	}
	if n := *config.ClientIP.TimeoutSeconds; n < 1 || n > maxAffinitySeconds {
		return invalid(timeoutPath, n, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds))
	}
	return nil
}

func checkExternalIPs(s, old *Service) Errors {
	var kept set
	if old != nil {
		kept = setOf(old.Spec.ExternalIPs)
	}
	var errs Errors
	for i, ip := range s.Spec.ExternalIPs {
		errs = append(errs, checkReachableIP(specPath.child("externalIPs").index(i), ip, kept)...)
	}
	return errs
}

func checkNodePorts(s *Service) Errors {
	var errs Errors
	seen := map[protocolNumber]bool{}
	for i, port := range s.Spec.Ports {
		if port.NodePort == 0 {
			continue
		}
		p := portsPath.index(i).child("nodePort")
		if s.Spec.Type == TypeClusterIP {
			errs = append(errs, forbidden(p, "may not be used when `type` is 'ClusterIP'")...)
		}
		key := protocolNumber{port.Protocol, port.NodePort}
		if seen[key] {
			errs = append(errs, duplicate(p, port.NodePort)...)
		}
		seen[key] = true
	}
	return errs
}

// sourceRanges returns the prefixes of clients that may use the load balancer IPs of a Service, from spec.loadBalancerSourceRanges or, if that is
// empty, from the annotation. It removes blanks around each prefix.
func (o *Service) sourceRanges() (ranges []string, fromAnnotation bool) {
	ranges = o.Spec.LoadBalancerSourceRanges
	if len(ranges) == 0 {
		text := strings.TrimSpace(o.Metadata.Annotations[AnnotationSourceRanges])
		if text == "" {
			return nil, false
		}
		ranges, fromAnnotation = strings.Split(text, ","), true
	}
	ranges = slices.Clone(ranges)
	for i := range ranges {
		ranges[i] = strings.TrimSpace(ranges[i])
	}
	return ranges, fromAnnotation
}

func checkSourceRanges(s, old *Service) Errors {
	var kept set
	if old != nil {
		before, _ := old.sourceRanges()
		kept = setOf(before)
	}
	ranges, fromAnnotation := s.sourceRanges()
	p := specPath.child("loadBalancerSourceRanges")
	if _, ok := s.Metadata.Annotations[AnnotationSourceRanges]; ok && len(s.Spec.LoadBalancerSourceRanges) == 0 {
		p = metaPath.child("annotations").key(AnnotationSourceRanges)
	} else if len(ranges) == 0 {
		return nil
	}
	var errs Errors
	if s.Spec.Type != TypeLoadBalancer {
		errs = append(errs, forbidden(p, onlyLoadBalancerText)...)
	}
	for i, text := range ranges {
		at := p
		if !fromAnnotation {
			at = p.index(i)
		}
		errs = append(errs, unlessKept(at, text, kept, cidrProblem(text))...)
	}
	return errs
}

func checkLoadBalancerFields(s *Service) Errors {
	var errs Errors
	allocatePath := specPath.child("allocateLoadBalancerNodePorts")
	classPath := specPath.child("loadBalancerClass")
	if s.Spec.Type == TypeLoadBalancer {
		if s.Spec.AllocateLoadBalancerNodePorts == nil {
			errs = append(errs, required(allocatePath, "")...)
		}
		if class := s.Spec.LoadBalancerClass; class != nil {
			errs = append(errs, invalidFor(classPath, *class, LabelKeyProblems(*class))...)
		}
		return errs
	}
	if s.Spec.AllocateLoadBalancerNodePorts != nil {
		errs = append(errs, forbidden(allocatePath, onlyLoadBalancerText)...)
	}
	if s.Spec.LoadBalancerClass != nil {
		errs = append(errs, forbidden(classPath, onlyLoadBalancerText)...)
	}
	return errs
}

func checkTrafficPolicies(s *Service) Errors {
	var errs Errors
	policies := []string{PolicyCluster, PolicyLocal}

	p, external := specPath.child("externalTrafficPolicy"), s.Spec.ExternalTrafficPolicy
	switch {
	case s.ExternallyAccessible() && external == "":
		errs = append(errs, required(p, "")...)
	case s.ExternallyAccessible():
		errs = append(errs, oneOf(p, external, policies)...)
	case external != "":
		errs = append(errs, invalid(p, external, "may only be set for externally-accessible services")...)
	}

	p, port := specPath.child("healthCheckNodePort"), s.Spec.HealthCheckNodePort
	switch {
	case port == 0: // not allocated yet, or not needed
	case s.NeedsHealthCheckNodePort():
		errs = append(errs, invalidFor(p, port, portNumberProblems(port))...)
	default:
		errs = append(errs, invalid(p, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")...)
	}

	if p, internal := specPath.child("internalTrafficPolicy"), s.Spec.InternalTrafficPolicy; internal != nil {
		errs = append(errs, oneOf(p, *internal, policies)...)
	} else if s.Spec.Type == TypeClusterIP || s.NeedsNodePort() {
		errs = append(errs, required(p, "")...)
	}

	if distribution := s.Spec.TrafficDistribution; distribution != nil {
		errs = append(errs, oneOf(specPath.child("trafficDistribution"), *distribution,
			[]string{PreferClose, PreferSameZone, PreferSameNode})...)
	}
	return errs
}

// checkIngress is ValidateLoadBalancerStatus of pkg/apis/core/validation: it checks the ingress of a status.
func checkIngress(s, old *Service) Errors {
	p := root("status.loadBalancer.ingress")
	ingress := s.Status.LoadBalancer.Ingress
	if s.Spec.Type != TypeLoadBalancer {
		if len(ingress) > 0 {
			return forbidden(p, "may only be used when `spec.type` is 'LoadBalancer'")
		}
		return nil
	}
	kept := set{}
	if old != nil {
		for _, i := range old.Status.LoadBalancer.Ingress {
			kept[i.IP] = true
		}
	}
	var errs Errors
	for i := range ingress {
		errs = append(errs, checkIngressPoint(p.index(i), &ingress[i], kept)...)
	}
	return errs
}

func checkIngressPoint(p path, ingress *LoadBalancerIngress, kept set) Errors {
	var errs Errors
	switch modePath := p.child("ipMode"); {
	case ingress.IP == "" && ingress.IPMode != nil:
		errs = append(errs, forbidden(modePath, "may not be specified when `ip` is not set")...)
	case ingress.IP == "":
	case ingress.IPMode == nil:
		errs = append(errs, required(modePath, "must be specified when `ip` is set")...)
	default:
		errs = append(errs, oneOf(modePath, *ingress.IPMode, []string{IPModeProxy, IPModeVIP})...)
	}
	if ingress.IP != "" {
		errs = append(errs, unlessKept(p.child("ip"), ingress.IP, kept, ipProblem(ingress.IP))...)
	}
	if name := ingress.Hostname; name != "" {
		errs = append(errs, invalidFor(p.child("hostname"), name, dns1123SubdomainProblems(name))...)
		if familyOf(name) != "" {
			errs = append(errs, invalid(p.child("hostname"), name, "must be a DNS name, not an IP address")...)
		}
	}
	return errs
}
