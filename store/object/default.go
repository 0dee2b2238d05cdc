package object

// defaultNamespace is the namespace of an object of a namespaced kind that names none.
const defaultNamespace = "default"

// Default sets the defaults of absent fields, as far as they follow from the object alone
// (SetDefaults_Service, SetDefaults_Endpoints, SetDefaults_EndpointSlice, SetDefaults_Pod). It may be
// called again on its own result. What depends on the service ranges of the box is DefaultFamilies.
//
// One difference on purpose: Kubernetes drops a sessionAffinityConfig beside
// sessionAffinity None without a word; here it stays, and Validate refuses it.
func Default(o Object) {
	s := StrategyOf(o)
	if meta := o.GetMeta(); meta.Namespace == "" && s.Namespaced {
		meta.Namespace = defaultNamespace
	}
	if s.setDefaults != nil {
		s.setDefaults(o)
	}
}

func defaultEndpoints(o *Endpoints) {
	for i := range o.Subsets {
		for j := range o.Subsets[i].Ports {
			setDefault(&o.Subsets[i].Ports[j].Protocol, ProtocolTCP)
		}
	}
}

func defaultEndpointSlice(o *EndpointSlice) {
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

func defaultService(svc *Service) {
	spec := &svc.Spec
	if spec.Type == "" {
		spec.Type = TypeClusterIP
	}
	for i := range spec.Ports {
		port := &spec.Ports[i]
		if port.Protocol == "" {
			port.Protocol = ProtocolTCP
		}
		if port.TargetPort.IsZero() || port.TargetPort == FromString("") {
			port.TargetPort = FromInt(port.Port)
		}
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = AffinityNone
	}
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
