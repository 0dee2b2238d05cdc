package object

import (
	"cmp"
	"slices"
)

// PatchFromOld copies allocated values of the stored Service (old, which is not changed) to an update
// that does not give them, so that applying the same document again changes nothing. Call Default before,
// and DefaultFamilies after it. It copies cluster IPs, IP families, node ports (of the port with the same
// name or, if a port was renamed, with the same protocol and number) and the health-check port. It does
// not copy node ports to a load balancer that allocates none, which is how these are released; see
// KeepNodePorts. It drops values that the new type does not use and that the update did not change, as
// the node ports of a Service that became ClusterIP. It is patchAllocatedValues and
// dropTypeDependentFields of pkg/registry/core/service; families and renamed ports are copied besides, as
// a client that patches would. It leaves the status to the caller, except the ingress of a Service that
// is no longer a load balancer.
func PatchFromOld(svc, old *Service) {
	if svc.NeedsClusterIP() && old.NeedsClusterIP() {
		spec := &svc.Spec
		spec.ClusterIP = cmp.Or(spec.ClusterIP, old.Spec.ClusterIP)
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
		}
	}
	if svc.AllocatesNodePorts() && old.NeedsNodePort() {
		KeepNodePorts(svc, old)
	}
	if svc.NeedsHealthCheckNodePort() && old.NeedsHealthCheckNodePort() && svc.Spec.HealthCheckNodePort == 0 {
		svc.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
	syncClusterIPs(svc, old)
	dropUnused(svc, old)
}

// AllocatesNodePorts reports whether ports of the Service that name no node port get one.
func (s *Service) AllocatesNodePorts() bool {
	switch s.Spec.Type {
	case TypeNodePort:
		return true
	case TypeLoadBalancer:
		allocate := s.Spec.AllocateLoadBalancerNodePorts
		return allocate == nil || *allocate
	}
	return false
}

// protocolNumber identifies a port, or a node port, by protocol and number.
type protocolNumber struct {
	protocol string
	number   int32
}

// KeepNodePorts copies stored node ports to the ports of an update that name none.
// PatchFromOld does so for Services that allocate node ports. With documents that are
// applied rather than put, omitting a field does not remove it, so load balancers that no
// longer allocate node ports keep theirs, too.
func KeepNodePorts(svc, old *Service) {
	names, taken := map[string]bool{}, map[protocolNumber]bool{}
	for _, port := range svc.Spec.Ports {
		names[port.Name] = true
		taken[protocolNumber{port.Protocol, port.NodePort}] = true
	}
	byName, renamed := map[string]int32{}, map[protocolNumber]int32{}
	for _, port := range old.Spec.Ports {
		byName[port.Name] = port.NodePort
		if !names[port.Name] {
			renamed[protocolNumber{port.Protocol, port.Port}] = port.NodePort
		}
	}
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		if port.NodePort != 0 {
			continue
		}
		number, found := byName[port.Name]
		if !found {
			number = renamed[protocolNumber{port.Protocol, port.Port}]
		}
		if key := (protocolNumber{port.Protocol, number}); !taken[key] {
			port.NodePort = number
			taken[key] = true
		}
	}
}

// dropUnused clears fields that the new type does not use. Fields that the update
// itself changed stay, so that validation refuses them.
func dropUnused(svc, old *Service) {
	spec, before := &svc.Spec, &old.Spec
	if !svc.NeedsClusterIP() && old.NeedsClusterIP() {
		if spec.ClusterIP == before.ClusterIP && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
			spec.ClusterIP, spec.ClusterIPs = "", nil
		}
		if slices.Equal(spec.IPFamilies, before.IPFamilies) {
			spec.IPFamilies = nil
		}
		dropSame(&spec.IPFamilyPolicy, before.IPFamilyPolicy)
		dropSame(&spec.InternalTrafficPolicy, before.InternalTrafficPolicy)
	}
	if !svc.NeedsNodePort() && old.NeedsNodePort() && addsNoNodePort(svc, old) {
		for i := range spec.Ports {
			spec.Ports[i].NodePort = 0
		}
	}
	if !svc.NeedsHealthCheckNodePort() && old.NeedsHealthCheckNodePort() && spec.HealthCheckNodePort == before.HealthCheckNodePort {
		spec.HealthCheckNodePort = 0
	}
	if spec.Type != TypeLoadBalancer && before.Type == TypeLoadBalancer {
		dropSame(&spec.AllocateLoadBalancerNodePorts, before.AllocateLoadBalancerNodePorts)
		dropSame(&spec.LoadBalancerClass, before.LoadBalancerClass)
	}
	if !svc.ExternallyAccessible() && old.ExternallyAccessible() && spec.ExternalTrafficPolicy == before.ExternalTrafficPolicy {
		spec.ExternalTrafficPolicy = ""
	}
	// A patch with sessionAffinity None alone leaves the old timeout.
	if spec.SessionAffinity == AffinityNone && before.SessionAffinity == AffinityClientIP &&
		samePointee(Deref(Deref(spec.SessionAffinityConfig).ClientIP).TimeoutSeconds, Deref(Deref(before.SessionAffinityConfig).ClientIP).TimeoutSeconds) {
		spec.SessionAffinityConfig = nil
	}
	if spec.Type != TypeLoadBalancer {
		svc.Status.LoadBalancer = LoadBalancerStatus{}
	}
}

// dropSame makes *field nil if its value is the old one.
func dropSame[T comparable](field **T, before *T) {
	if samePointee(*field, before) {
		*field = nil
	}
}

func addsNoNodePort(svc, old *Service) bool {
	had := map[int32]bool{0: true}
	for _, port := range old.Spec.Ports {
		had[port.NodePort] = true
	}
	return !slices.ContainsFunc(svc.Spec.Ports, func(port ServicePort) bool { return !had[port.NodePort] })
}

// OnceSet is the end of the message about a field that is immutable once it is set.
const OnceSet = "may not change once set"

// validateChange returns an error for each change of an update that is not allowed.
func (svc *Service) validateChange(previous Object) Errors {
	old, _ := previous.(*Service)
	errs := checkClusterIPChange(svc, old)
	errs = append(errs, checkFamiliesChange(svc, old)...)
	if class := svc.Spec.LoadBalancerClass; svc.Spec.Type == TypeLoadBalancer && old.Spec.Type == TypeLoadBalancer &&
		!samePointee(class, old.Spec.LoadBalancerClass) {
		errs = append(errs, invalid(specPath.child("loadBalancerClass"), class, OnceSet)...)
	}
	if svc.NeedsHealthCheckNodePort() && old.NeedsHealthCheckNodePort() && svc.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, forbidden(specPath.child("healthCheckNodePort"), immutableText)...)
	}
	return errs
}

// checkClusterIPChange returns errors for changes of cluster IPs: they are immutable,
// except that a second one may be added, and removed with the policy SingleStack, and
// that ExternalName has none.
func checkClusterIPChange(svc, old *Service) Errors {
	if !svc.NeedsClusterIP() || !old.NeedsClusterIP() || svc.Headless() && old.Headless() {
		return nil
	}
	ips, before := svc.clusterIPs(), old.clusterIPs()
	var errs Errors
	if len(ips) == 0 && len(before) > 0 {
		return invalid(clusterIPsPath.index(0), ips, "primary clusterIP can not be unset")
	}
	compared := 1
	if len(ips) == len(before) {
		compared = len(ips)
	}
	for i := range before[:min(compared, len(before))] {
		if ips[i] != before[i] {
			errs = append(errs, invalid(clusterIPsPath.index(i), ips, OnceSet)...)
		}
	}
	if len(ips) == 1 && len(before) > 1 && Deref(svc.Spec.IPFamilyPolicy) != SingleStack {
		errs = append(errs, invalid(familyPolicyPath, svc.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary clusterIP")...)
	}
	return errs
}

// checkFamiliesChange returns errors for changes of ipFamilies by the rules of
// checkClusterIPChange; those of a headless Service may change.
func checkFamiliesChange(svc, old *Service) Errors {
	if !svc.NeedsClusterIP() || !old.NeedsClusterIP() || svc.Headless() || old.Headless() {
		return nil
	}
	families, before := svc.Spec.IPFamilies, old.Spec.IPFamilies
	if len(before) == 0 {
		return nil
	}
	p := familiesPath.index(0)
	if len(families) == 0 {
		return invalid(p, families, "primary ipFamily can not be unset")
	}
	var errs Errors
	if families[0] != before[0] || len(families) == len(before) && !slices.Equal(families, before) {
		errs = append(errs, invalid(p, families, OnceSet)...)
	}
	if len(families) == 1 && len(before) > 1 && Deref(svc.Spec.IPFamilyPolicy) != SingleStack {
		errs = append(errs, invalid(familyPolicyPath, svc.Spec.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary ipFamily")...)
	}
	return errs
}

// defaultNamespace is the namespace of an object of a namespaced kind that names none.
const defaultNamespace = "default"

// Default sets the defaults of absent fields that follow from the object alone (SetDefaults_Service,
// SetDefaults_Endpoints, SetDefaults_EndpointSlice, SetDefaults_Pod). It is idempotent. DefaultFamilies
// sets those that depend on the service ranges of the box. One difference is intentional: Kubernetes
// silently drops a sessionAffinityConfig beside sessionAffinity None; here it stays, and Validate refuses
// it.
func Default(o Object) {
	s := StrategyOf(o)
	if meta := o.GetMeta(); meta.Namespace == "" && s.Namespaced {
		meta.Namespace = defaultNamespace
	}
	if o, has := o.(defaulter); has {
		o.setDefaults()
	}
}

func (o *Endpoints) setDefaults() {
	for i := range o.Subsets {
		for j := range o.Subsets[i].Ports {
			setDefault(&o.Subsets[i].Ports[j].Protocol, ProtocolTCP)
		}
	}
}

func (o *EndpointSlice) setDefaults() {
	for i := range o.Ports {
		setDefault(&o.Ports[i].Name, "")
		setDefault(&o.Ports[i].Protocol, ProtocolTCP)
	}
}

// setDefault makes *field point to value when it is nil.
func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func (svc *Service) setDefaults() {
	spec := &svc.Spec
	spec.Type = cmp.Or(spec.Type, TypeClusterIP)
	for i := range spec.Ports {
		port := &spec.Ports[i]
		port.Protocol = cmp.Or(port.Protocol, ProtocolTCP)
		if port.TargetPort.IsZero() || port.TargetPort == FromString("") {
			port.TargetPort = FromInt(port.Port)
		}
	}
	spec.SessionAffinity = cmp.Or(spec.SessionAffinity, AffinityNone)
	if spec.SessionAffinity == AffinityClientIP {
		setDefault(&spec.SessionAffinityConfig, SessionAffinityConfig{})
		setDefault(&spec.SessionAffinityConfig.ClientIP, ClientIPConfig{})
		setDefault(&spec.SessionAffinityConfig.ClientIP.TimeoutSeconds, defaultAffinitySeconds)
	}
	if svc.ExternallyAccessible() && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = PolicyCluster
	}
	if spec.Type == TypeClusterIP || svc.NeedsNodePort() {
		setDefault(&spec.InternalTrafficPolicy, PolicyCluster)
	}
	if spec.Type == TypeLoadBalancer {
		setDefault(&spec.AllocateLoadBalancerNodePorts, true)
		for i := range svc.Status.LoadBalancer.Ingress {
			if ingress := &svc.Status.LoadBalancer.Ingress[i]; ingress.IP != "" {
				setDefault(&ingress.IPMode, IPModeVIP)
			}
		}
	}
}
