package object

// The strategies of all kinds. CONTRIBUTING.md says what else a new one needs.

func coreStrategies() []Strategy {
	return []Strategy{
		{
			Resource: Resource{Name: KindConfigMap, Plural: "configmaps", ShortNames: []string{"cm"}, Namespaced: true},
			create:   func() Object { return new(ConfigMap) },
			validate: onPair(validateConfigMap),
		},
		{
			Resource: Resource{Name: KindEndpoints, Plural: "endpoints", ShortNames: []string{"ep"}, Namespaced: true},
			InFiles:  true, CreateOnUpdate: true,
			create:      func() Object { return new(Endpoints) },
			setDefaults: on(defaultEndpoints),
			validate:    weighted(validateEndpoints),
			warnings:    of(endpointsWarnings),
			spec:        of(func(o *Endpoints) []any { return []any{o.Subsets} }),
		},
		{
			Resource:  Resource{Name: KindEvent, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true},
			Ephemeral: true, Passing: true, CreateOnUpdate: true,
			create:   func() Object { return new(Event) },
			validate: onNew(validateEvent),
		},
		{
			Resource:     Resource{Name: KindNamespace, Plural: "namespaces", ShortNames: []string{"ns"}, HasStatus: true, Verbs: oneByOne},
			SpecOfServer: true,
			create:       func() Object { return new(Namespace) },
			nameProblems: named(dns1123LabelProblems),
			setDefaults:  on(defaultNamespaceObject),
			copyStatus:   onCopy(func(to, from *Namespace) { to.Status = from.Status }),
			copyOwned:    onCopy(func(to, from *Namespace) { to.Status, to.Spec = from.Status, from.Spec }),
		},
		{
			Resource:       Resource{Name: KindNode, Plural: "nodes", ShortNames: []string{"no"}, HasStatus: true, Open: true},
			StatusOnCreate: true,
			create:         func() Object { return new(Node) },
			copyStatus:     onCopy(func(to, from *Node) { to.Status = from.Status }),
		},
		{
			Resource: Resource{Name: KindPod, Plural: "pods", ShortNames: []string{"po"}, Namespaced: true, InAll: true, HasStatus: true, Open: true},
			InFiles:  true, StatusOnCreate: true,
			create:      func() Object { return new(Pod) },
			setDefaults: on(defaultPod),
			validate:    weighted(validatePod),
			warnings:    of(podWarnings),
			spec:        of(func(o *Pod) []any { return []any{o.Spec} }),
			copyStatus:  onCopy(func(to, from *Pod) { to.Status = from.Status }),
		},
		{
			Resource:    Resource{Name: KindSecret, Plural: "secrets", Namespaced: true},
			InFiles:     true,
			create:      func() Object { return new(Secret) },
			setDefaults: on(defaultSecret),
			validate:    onPair(validateSecret),
		},
		{
			Resource: Resource{Name: KindService, Plural: "services", ShortNames: []string{"svc"}, Namespaced: true, InAll: true, HasStatus: true},
			InFiles:  true, CreateOnUpdate: true,
			create:         func() Object { return new(Service) },
			nameProblems:   serviceNameProblems,
			setDefaults:    on(defaultService),
			validate:       onPair(validateService),
			validateChange: onPair(validateServiceChange),
			warnings:       of(serviceWarnings),
			spec:           of(func(o *Service) []any { return []any{o.Spec} }),
			copyStatus:     onCopy(func(to, from *Service) { to.Status = from.Status.deepCopy() }),
		},
	}
}

func groupStrategies() []Strategy {
	return []Strategy{
		{
			Resource: Resource{Group: "authentication.k8s.io", Name: KindSelfSubjectReview, Plural: "selfsubjectreviews", Verbs: asking},
			create:   func() Object { return new(SelfSubjectReview) },
		},
		{
			Resource: Resource{Group: "authorization.k8s.io", Name: KindSelfSubjectAccessReview, Plural: "selfsubjectaccessreviews", Verbs: asking},
			create:   func() Object { return new(SelfSubjectAccessReview) },
			validate: onNew(validateAccessReview),
		},
		{
			Resource: Resource{Group: "authorization.k8s.io", Name: KindSelfSubjectRulesReview, Plural: "selfsubjectrulesreviews", Verbs: asking},
			create:   func() Object { return new(SelfSubjectRulesReview) },
		},
		{
			Resource:  Resource{Group: "coordination.k8s.io", Name: KindLease, Plural: "leases", Namespaced: true},
			Ephemeral: true, CreateOnUpdate: true, VersionRequired: true,
			create:   func() Object { return new(Lease) },
			validate: onNew(validateLease),
		},
		{
			Resource:       Resource{Group: "discovery.k8s.io", Name: KindEndpointSlice, Plural: "endpointslices", Namespaced: true},
			InFiles:        true,
			create:         func() Object { return new(EndpointSlice) },
			setDefaults:    on(defaultEndpointSlice),
			validate:       weighted(validateEndpointSlice),
			validateChange: onPair(validateEndpointSliceChange),
			warnings:       of(endpointSliceWarnings),
			spec:           of(func(o *EndpointSlice) []any { return []any{o.AddressType, o.Endpoints, o.Ports} }),
		},
		{
			Resource: Resource{Group: "events.k8s.io", Name: KindEvent, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true},
			View:     true, CreateOnUpdate: true,
			create:   func() Object { return new(EventView) },
			validate: onNew(func(o *EventView) Errors { return validateEvent(o.Event()) }),
		},
	}
}

// metalLBStrategies returns the strategies of MetalLB's kinds. They validate nothing that depends on other
// objects.
func metalLBStrategies() []Strategy {
	const group, beta1 = "metallb.io", "v1beta1"
	resource := func(name, plural string) Resource {
		return Resource{Group: group, Version: beta1, Name: name, Plural: plural, Namespaced: true, Custom: true}
	}
	state := func(name, plural string) Resource {
		r := resource(name, plural)
		r.Verbs = glancing
		return r
	}
	peer := resource(KindBGPPeer, "bgppeers")
	peer.Version = "v1beta2"
	return []Strategy{
		{Resource: resource(KindBFDProfile, "bfdprofiles"), InFiles: true, create: func() Object { return new(BFDProfile) }, setDefaults: on(func(o *BFDProfile) { o.Status = nil }), validate: onNew(validateBFDProfile)},
		{Resource: resource(KindBGPAdvertisement, "bgpadvertisements"), InFiles: true, create: func() Object { return new(BGPAdvertisement) }, setDefaults: on(func(o *BGPAdvertisement) { o.Status = nil }), validate: onNew(validateBGPAdvertisement)},
		{Resource: resource(KindCommunity, "communities"), InFiles: true, create: func() Object { return new(Community) }, setDefaults: on(func(o *Community) { o.Status = nil }), validate: onNew(validateCommunity)},
		{Resource: state(KindConfigurationState, "configurationstates"), create: func() Object { return new(ConfigurationState) }},
		{
			Resource:    resource(KindIPAddressPool, "ipaddresspools"),
			InFiles:     true,
			create:      func() Object { return new(IPAddressPool) },
			setDefaults: on(func(o *IPAddressPool) { o.Status = nil }),
			validate:    onNew(validateIPAddressPool),
		},
		{Resource: resource(KindL2Advertisement, "l2advertisements"), InFiles: true, create: func() Object { return new(L2Advertisement) }, setDefaults: on(func(o *L2Advertisement) { o.Status = nil }), validate: onNew(validateL2Advertisement)},
		{Resource: state(KindServiceBGPStatus, "servicebgpstatuses"), create: func() Object { return new(ServiceBGPStatus) }},
		{Resource: state(KindServiceL2Status, "servicel2statuses"), create: func() Object { return new(ServiceL2Status) }},
		{Resource: peer, InFiles: true, OlderVersions: []string{APIVersionMetalLB}, create: func() Object { return new(BGPPeer) }, setDefaults: on(func(o *BGPPeer) { o.Status = nil }), validate: onNew(validateBGPPeer)},
	}
}

func networkStrategies() []Strategy {
	return []Strategy{
		{
			Resource:     Resource{Group: "networking.k8s.io", Name: KindIPAddress, Plural: "ipaddresses", ShortNames: []string{"ip"}, Verbs: looking},
			create:       func() Object { return new(IPAddress) },
			nameProblems: named(addressNameProblems),
			validate:     onNew(validateIPAddress),
		},
		{
			Resource:   Resource{Group: "networking.k8s.io", Name: KindServiceCIDR, Plural: "servicecidrs", HasStatus: true},
			create:     func() Object { return new(ServiceCIDR) },
			validate:   onNew(validateServiceCIDR),
			copyStatus: onCopy(func(to, from *ServiceCIDR) { to.Status = from.Status }),
		},
	}
}
