package object

import (
	"cmp"
	"reflect"
	"slices"
)

// PatchFromOld copies allocated values from the stored Service (old) to an update that does not specify them, so that applying the same document
// again changes nothing. Default has to be called before it, and DefaultFamilies after it.
//
// It copies cluster IPs, IP families, the health-check port, and node ports. A node port is taken from the port with the same name or, if a port was
// renamed, with the same protocol and number. It does not copy node ports to a load balancer that allocates none, which is how these are released;
// see KeepNodePorts. It removes values that the new type does not use and that the update did not change, such as the node ports of a Service that
// became ClusterIP. It leaves the status to the caller, except for the ingress of a Service that is no longer a load balancer.
//
// It corresponds to patchAllocatedValues and dropTypeDependentFields of pkg/registry/core/service. In addition, it copies families and the node ports
// of renamed ports, as a client that patches would.
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

// AllocatesNodePorts reports whether node ports are allocated to the ports of the Service that specify none.
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

// KeepNodePorts copies stored node ports to the ports of an update that specify none. PatchFromOld calls it for Services that allocate node ports.
// Documents in files are applied, not put: omitting a field does not remove it. So with files, load balancers that no longer allocate node ports keep
// those that they have.
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

// checkClusterIPChange returns errors for changes of cluster IPs, which are immutable. As exceptions, a second one may be added, or removed with the
// policy SingleStack, and a Service that becomes ExternalName loses them.
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

// checkFamiliesChange returns errors for changes of ipFamilies, which follow the rules of checkClusterIPChange. A headless Service may change them.
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

// defaultNamespace is the namespace of an object that specifies none, if its kind is namespaced.
const defaultNamespace = "default"

// Default sets absent fields to the defaults that depend on the object alone (SetDefaults_Service, SetDefaults_Endpoints, SetDefaults_EndpointSlice,
// SetDefaults_Pod). It is idempotent. DefaultFamilies sets the defaults that depend on the service ranges of the box. One difference from Kubernetes
// is intentional: a sessionAffinityConfig with sessionAffinity None is not dropped silently, but kept, so that Validate refuses it.
func Default(o Object) {
	s := StrategyOf(o)
	if meta := o.GetMeta(); meta.Namespace == "" && s.Namespaced {
		meta.Namespace = defaultNamespace
	}
	switch o := o.(type) {
	case defaulter:
		o.setDefaults()
	case *IPAddressPool, *L2Advertisement, *BGPAdvertisement, *Community, *BFDProfile, *BGPPeer:
		copyField(o, s.sample, "Status") // it is MetalLB's, and none is stored
	default:
		if s.tagged() {
			setTagged(reflect.ValueOf(o))
		}
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
	switch spec.SessionAffinity {
	case AffinityNone:
		spec.SessionAffinityConfig = nil // as a patch with sessionAffinity None alone leaves it
	case AffinityClientIP:
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
