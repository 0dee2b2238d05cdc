package object

// ServiceSpec.Type.
const (
	TypeClusterIP    = "ClusterIP"
	TypeNodePort     = "NodePort"
	TypeLoadBalancer = "LoadBalancer"
	TypeExternalName = "ExternalName"
)

// Protocols of ports.
const (
	ProtocolTCP  = "TCP"
	ProtocolUDP  = "UDP"
	ProtocolSCTP = "SCTP"
)

// ServiceSpec.IPFamilies and EndpointSlice.AddressType; FQDN only as the latter.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
	FQDN = "FQDN"
)

// ServiceSpec.IPFamilyPolicy.
const (
	SingleStack      = "SingleStack"
	PreferDualStack  = "PreferDualStack"
	RequireDualStack = "RequireDualStack"
)

// ServiceSpec.ExternalTrafficPolicy and InternalTrafficPolicy.
const (
	PolicyCluster = "Cluster"
	PolicyLocal   = "Local"
)

// ServiceSpec.SessionAffinity.
const (
	AffinityNone     = "None"
	AffinityClientIP = "ClientIP"
)

// ServiceSpec.TrafficDistribution; PreferClose is the old name of PreferSameZone.
const (
	PreferClose    = "PreferClose"
	PreferSameZone = "PreferSameZone"
	PreferSameNode = "PreferSameNode"
)

// LoadBalancerIngress.IPMode.
const (
	IPModeVIP   = "VIP"
	IPModeProxy = "Proxy"
)

// ClusterIPNone in ServiceSpec.ClusterIP makes a Service headless.
const ClusterIPNone = "None"

// Labels and annotations with a meaning.
const (
	// LabelServiceName ties an EndpointSlice to the Service of that name.
	LabelServiceName = "kubernetes.io/service-name"
	// AnnotationSourceRanges is the old place of spec.loadBalancerSourceRanges:
	// CIDRs with commas between them. The field wins.
	AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

	annotationTopologyMode  = "service.kubernetes.io/topology-mode"
	annotationTopologyHints = "service.kubernetes.io/topology-aware-hints"
)

// Limits, by where Kubernetes has them.
const (
	// MaxEndpointsAddresses is the most addresses, ready and not, in one Endpoints
	// object (the endpoints controller's truncation limit).
	MaxEndpointsAddresses = 1000

	maxSliceEndpoints = 1000  // pkg/apis/discovery/validation maxEndpoints
	maxSliceAddresses = 100   // maxAddresses, of one endpoint
	maxSlicePorts     = 20000 // maxPorts
	maxSliceTopology  = 16    // maxTopologyLabels
	maxSliceHints     = 8     // maxZoneHints and maxNodeHints

	maxAnnotationBytes = 256 << 10 // apimachinery TotalAnnotationSizeLimitB

	defaultAffinitySeconds = 10800 // v1.DefaultClientIPServiceAffinitySeconds
	maxAffinitySeconds     = 86400 // core.MaxClientIPServiceAffinitySeconds
)

// Headless reports whether the Service asked for no cluster IP at all.
func (o *Service) Headless() bool {
	ips := o.clusterIPs()
	return len(ips) == 1 && ips[0] == ClusterIPNone
}

// NeedsClusterIP reports whether clusterIP means something for the Service ("None"
// included).
func (o *Service) NeedsClusterIP() bool { return o.Spec.Type != TypeExternalName }

// NeedsNodePort reports whether ports of the Service may have node ports.
func (o *Service) NeedsNodePort() bool {
	return o.Spec.Type == TypeNodePort || o.Spec.Type == TypeLoadBalancer
}

// NeedsHealthCheckNodePort reports whether the Service needs a health-check port.
func (o *Service) NeedsHealthCheckNodePort() bool {
	return o.Spec.Type == TypeLoadBalancer && o.Spec.ExternalTrafficPolicy == PolicyLocal
}

// ExternallyAccessible reports whether the Service is reachable by more than its
// cluster IP, which is when externalTrafficPolicy has a meaning.
func (o *Service) ExternallyAccessible() bool {
	return o.NeedsNodePort() || o.Spec.Type == TypeClusterIP && len(o.Spec.ExternalIPs) > 0
}

// clusterIPs is spec.clusterIPs, or spec.clusterIP alone where a document gave
// only that one and DefaultFamilies has not been here yet.
func (o *Service) clusterIPs() []string {
	if len(o.Spec.ClusterIPs) == 0 && o.Spec.ClusterIP != "" {
		return []string{o.Spec.ClusterIP}
	}
	return o.Spec.ClusterIPs
}

// Deref returns the value that p points to, or the zero value.
func Deref[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

// samePointee reports whether both are nil or point to equal values.
func samePointee[T comparable](a, b *T) bool {
	return (a == nil) == (b == nil) && Deref(a) == Deref(b)
}
