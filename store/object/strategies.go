package object

import (
	"reflect"
	"slices"
)

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

// A Resource says how the API serves a kind.
type Resource struct {
	Group      string // "" is the core group
	Version    string // v1
	Name       string // EndpointSlice
	Plural     string // endpointslices, as in paths
	ShortNames []string
	Namespaced bool
	// InAll puts the kind into `kubectl get all`.
	InAll bool
	// HasStatus means that the kind has a status subresource.
	HasStatus bool
	// Open means that unknown fields of Kubernetes are accepted and dropped, because only
	// part of the kind is stored.
	Open bool
	// Custom means that the kind is one of a CustomResourceDefinition in Kubernetes: protobuf has no
	// messages of it.
	Custom bool
	// Verbs are the verbs of the kind, sorted.
	Verbs []string
}

// APIVersion returns "v1", or "discovery.k8s.io/v1".
func (r *Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// Stored reports whether objects of the kind are stored; reviews are not.
func (r *Resource) Stored() bool { return slices.Contains(r.Verbs, "get") }

// A Strategy has all facts that differ between kinds; the strategies of Kubernetes' registry are the
// model. A new kind is one of them (in strategies) and its type. It has more than 15 fields: no other
// place says what is done with objects of a kind.
type Strategy struct {
	Resource
	// View means that what is stored is another kind: this one is another form of it (events.k8s.io).
	View bool
	// InFiles means that manifests have it, OlderVersions are API versions that are read there, too.
	InFiles       bool
	OlderVersions []string
	// Ephemeral objects are for clients to talk to each other: Services never follow from them.
	Ephemeral bool
	// Passing objects expire by themselves: they keep no Namespace from going.
	Passing bool
	// CreateOnUpdate means that a PUT may create an object (AllowCreateOnUpdate), VersionRequired that it
	// has to say which version it replaces (AllowUnconditionalUpdate is false).
	CreateOnUpdate, VersionRequired bool
	// StatusOnCreate means that who creates an object gives it its first status; SpecOfServer that
	// spec belongs to the server, as status does.
	StatusOnCreate, SpecOfServer bool

	create func() Object
	// nameProblems returns what is wrong with a name; nil: it has to be a DNS subdomain.
	nameProblems func(name string, opts Options) []string
	setDefaults  func(Object)
	// validate checks the content; old is nil for a new object. It is not asked about metadata.
	validate func(o, old Object) Errors
	// validateChange checks what may not change.
	validateChange func(o, old Object) Errors
	warnings       func(Object) []string
	// spec has what the generation counts versions of; nil: the kind has no generation.
	spec func(Object) []any
	// copyStatus makes the status of one object that of another; copyOwned all that belongs to the server.
	copyStatus, copyOwned func(to, from Object)
}

// on adapts a function of one kind.
func on[T Object](f func(T)) func(Object) { return func(o Object) { f(o.(T)) } }

// onCopy adapts a function that copies from one object of a kind to another.
func onCopy[T Object](f func(to, from T)) func(to, from Object) {
	return func(to, from Object) { f(to.(T), from.(T)) }
}

// onPair adapts a function of two versions; the old one is nil for a new object, or for one of another kind.
func onPair[T Object](f func(o, old T) Errors) func(o, old Object) Errors {
	return func(o, old Object) Errors {
		before, _ := old.(T)
		return f(o.(T), before)
	}
}

// onNew adapts a function that does not look at the old version.
func onNew[T Object](f func(T) Errors) func(o, old Object) Errors {
	return func(o, _ Object) Errors { return f(o.(T)) }
}

// of adapts a function that returns something of a kind.
func of[T Object, V any](f func(T) V) func(Object) V { return func(o Object) V { return f(o.(T)) } }

// weighted adds the rules of annotations of weights.
func weighted[T Object](validate func(o, old T) Errors) func(o, old Object) Errors {
	return func(o, old Object) Errors {
		before, is := old.(T)
		var meta *ObjectMeta
		if is {
			meta = before.GetMeta()
		}
		return append(validate(o.(T), before), checkEndpointWeights(o.GetMeta(), meta)...)
	}
}

// named adapts a rule of names that no option changes.
func named(problems func(string) []string) func(string, Options) []string {
	return func(name string, _ Options) []string { return problems(name) }
}

var (
	// everything has the verbs of stored objects.
	everything = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	// oneByOne lacks deletecollection: other objects depend on these.
	oneByOne = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	// looking has the verbs of objects that are computed from others.
	looking = []string{"get", "list", "watch"}
	// glancing has the verbs of objects that are computed from what is no object, and have no history.
	glancing = []string{"get", "list"}
	// asking has the verb of requests that are not stored (reviews).
	asking = []string{"create"}
)

// strategies has the strategies of all kinds: the core group first, the other groups by name. They
// are made by init, because their functions refer to them.
var (
	strategies []Strategy
	byType     = map[reflect.Type]*Strategy{}
	byMeta     = map[TypeMeta]*Strategy{}
	byKind     = map[string]*Strategy{} // of those that are stored
)

func init() {
	strategies = slices.Concat(coreStrategies(), groupStrategies(), metalLBStrategies(), networkStrategies())
	for i := range strategies {
		s := &strategies[i]
		if s.Version == "" {
			s.Version = "v1"
		}
		if s.Verbs == nil {
			s.Verbs = everything
		}
		byType[reflect.TypeOf(s.create())] = s
		byMeta[TypeMeta{APIVersion: s.APIVersion(), Kind: s.Name}] = s
		if !s.View {
			byKind[s.Name] = s
		}
	}
}

// Strategies returns the strategies of all kinds, in the order of discovery. Callers must not
// modify them.
func Strategies() []Strategy { return strategies }

// StrategyOf returns the strategy of the kind of an object.
func StrategyOf(o Object) *Strategy { return byType[reflect.TypeOf(o)] }

// StrategyFor returns the strategy of a kind; nil for an unknown one.
func StrategyFor(apiVersion, kind string) *Strategy {
	return byMeta[TypeMeta{APIVersion: apiVersion, Kind: kind}]
}

// StrategyOfKind returns the strategy of a kind by the name alone, which Refs have; nil for an unknown one.
func StrategyOfKind(kind string) *Strategy { return byKind[kind] }

// New returns an empty object of the kind with its TypeMeta set.
func (s *Strategy) New() Object {
	o := s.create()
	*o.GetTypeMeta() = TypeMeta{APIVersion: s.APIVersion(), Kind: s.Name}
	return o
}

// HasGeneration reports whether versions of what is wanted are counted.
func (s *Strategy) HasGeneration() bool { return s.spec != nil }

// SameSpec reports whether two versions of an object of the kind want the same: they differ in metadata and
// status alone.
func (s *Strategy) SameSpec(a, b Object) bool { return reflect.DeepEqual(s.spec(a), s.spec(b)) }

// CopyStatus makes the status of one object that of another; false when the kind has none.
func (s *Strategy) CopyStatus(to, from Object) bool {
	if s.copyStatus == nil {
		return false
	}
	s.copyStatus(to, from)
	return true
}

// KeepOwned replaces what does not change with a write of the object itself: its status as a rule. Before is the
// stored version, nil when the object is created.
func (s *Strategy) KeepOwned(o, before Object) {
	switch {
	case s.copyOwned == nil && s.copyStatus == nil, before == nil && s.StatusOnCreate:
		return
	case before == nil:
		before = s.create()
	}
	if s.copyOwned != nil {
		s.copyOwned(o, before)
	} else {
		s.copyStatus(o, before)
	}
}

// The kinds that only the API knows: no manifest has them.
const (
	KindNamespace               = "Namespace"
	KindNode                    = "Node"
	KindEvent                   = "Event"
	KindServiceCIDR             = "ServiceCIDR"
	KindIPAddress               = "IPAddress"
	KindLease                   = "Lease"
	KindConfigMap               = "ConfigMap"
	KindSecret                  = "Secret"
	KindSelfSubjectAccessReview = "SelfSubjectAccessReview"
	KindSelfSubjectRulesReview  = "SelfSubjectRulesReview"
	KindSelfSubjectReview       = "SelfSubjectReview"
)

// The API versions of these kinds.
const (
	APIVersionEvents         = "events.k8s.io/v1"
	APIVersionNetworking     = "networking.k8s.io/v1"
	APIVersionCoordination   = "coordination.k8s.io/v1"
	APIVersionAuthorization  = "authorization.k8s.io/v1"
	APIVersionAuthentication = "authentication.k8s.io/v1"
)

// The API versions, as they are written in documents.
const (
	APIVersionCore      = "v1"
	APIVersionDiscovery = "discovery.k8s.io/v1"
)

// New returns an empty object of a kind, with its TypeMeta set; false when the kind is
// not one this product reads. A List is no object: who decodes takes it apart.
func New(apiVersion, kind string) (Object, bool) {
	s := StrategyFor(apiVersion, kind)
	if s == nil {
		return nil, false
	}
	return s.New(), true
}
