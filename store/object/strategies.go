package object

import (
	"cmp"
	"reflect"
	"slices"
)

// strategies has the strategies of all kinds: the core group first, the other groups by name. CONTRIBUTING.md has what else a new kind
// needs.
var strategies = []Strategy{
	{Resource: Resource{Name: KindConfigMap, Plural: "configmaps", ShortNames: []string{"cm"}, Namespaced: true}, sample: new(ConfigMap)},
	{Resource: Resource{Name: KindEndpoints, Plural: "endpoints", ShortNames: []string{"ep"}, Namespaced: true}, InFiles: true, CreateOnUpdate: true, HasGeneration: true, sample: new(Endpoints)},
	{Resource: Resource{Name: KindEvent, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true}, Ephemeral: true, Passing: true, CreateOnUpdate: true, sample: new(Event)},
	{Resource: Resource{Name: KindNamespace, Plural: "namespaces", ShortNames: []string{"ns"}, HasStatus: true, Verbs: oneByOne}, SpecOfServer: true, sample: new(Namespace)},
	{Resource: Resource{Name: KindNode, Plural: "nodes", ShortNames: []string{"no"}, HasStatus: true, Open: true}, StatusOnCreate: true, sample: new(Node)},
	{Resource: Resource{Name: KindPod, Plural: "pods", ShortNames: []string{"po"}, Namespaced: true, InAll: true, HasStatus: true, Open: true}, InFiles: true, StatusOnCreate: true, HasGeneration: true, sample: new(Pod)},
	{Resource: Resource{Name: KindSecret, Plural: "secrets", Namespaced: true}, InFiles: true, sample: new(Secret)},
	{Resource: Resource{Name: KindService, Plural: "services", ShortNames: []string{"svc"}, Namespaced: true, InAll: true, HasStatus: true}, InFiles: true, CreateOnUpdate: true, HasGeneration: true, sample: new(Service)},
	{Resource: Resource{Group: "authentication.k8s.io", Name: KindSelfSubjectReview, Plural: "selfsubjectreviews", Verbs: asking}, sample: new(SelfSubjectReview)},
	{Resource: Resource{Group: "authorization.k8s.io", Name: KindSelfSubjectAccessReview, Plural: "selfsubjectaccessreviews", Verbs: asking}, sample: new(SelfSubjectAccessReview)},
	{Resource: Resource{Group: "authorization.k8s.io", Name: KindSelfSubjectRulesReview, Plural: "selfsubjectrulesreviews", Verbs: asking}, sample: new(SelfSubjectRulesReview)},
	{Resource: Resource{Group: "coordination.k8s.io", Name: KindLease, Plural: "leases", Namespaced: true}, Ephemeral: true, CreateOnUpdate: true, VersionRequired: true, sample: new(Lease)},
	{Resource: Resource{Group: "discovery.k8s.io", Name: KindEndpointSlice, Plural: "endpointslices", Namespaced: true}, InFiles: true, HasGeneration: true, sample: new(EndpointSlice)},
	{Resource: Resource{Group: "events.k8s.io", Name: KindEvent, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true}, View: true, CreateOnUpdate: true, sample: new(EventView)},
	{Resource: gateway(KindGatewayClass, "gatewayclasses", "gc"), InFiles: true, OlderVersions: []string{gatewayBeta}, HasGeneration: true, sample: &GatewayClass{Status: GatewayClassStatus{Conditions: Waiting("Accepted")}}},
	{Resource: gateway(KindGateway, "gateways", "gtw"), InFiles: true, OlderVersions: []string{gatewayBeta}, HasGeneration: true, sample: &Gateway{Status: GatewayStatus{Conditions: Waiting("Accepted", "Programmed")}}},
	{Resource: gateway(KindHTTPRoute, "httproutes"), InFiles: true, OlderVersions: []string{gatewayBeta}, HasGeneration: true, sample: new(HTTPRoute)},
	{Resource: gateway(KindListenerSet, "listenersets", "lset"), InFiles: true, HasGeneration: true, sample: &ListenerSet{Status: ListenerSetStatus{Conditions: Waiting("Accepted", "Programmed")}}},
	{Resource: gateway(KindReferenceGrant, "referencegrants", "refgrant"), InFiles: true, OlderVersions: []string{gatewayBeta}, HasGeneration: true, sample: new(ReferenceGrant)},
	{Resource: gateway(KindTCPRoute, "tcproutes"), InFiles: true, OlderVersions: []string{GroupGateway + "/v1alpha2"}, HasGeneration: true, sample: new(TCPRoute)},
	{Resource: gateway(KindTLSRoute, "tlsroutes"), InFiles: true, OlderVersions: []string{GroupGateway + "/v1alpha2", GroupGateway + "/v1alpha3"}, HasGeneration: true, sample: new(TLSRoute)},
	{Resource: gateway(KindUDPRoute, "udproutes"), InFiles: true, OlderVersions: []string{GroupGateway + "/v1alpha2"}, HasGeneration: true, sample: new(UDPRoute)},
	// MetalLB's kinds validate nothing that depends on other objects.
	{Resource: metalLB(KindBFDProfile, "bfdprofiles", "v1beta1", everything), InFiles: true, sample: new(BFDProfile)},
	{Resource: metalLB(KindBGPAdvertisement, "bgpadvertisements", "v1beta1", everything), InFiles: true, sample: new(BGPAdvertisement)},
	{Resource: metalLB(KindCommunity, "communities", "v1beta1", everything), InFiles: true, sample: new(Community)},
	{Resource: metalLB(KindConfigurationState, "configurationstates", "v1beta1", glancing), sample: new(ConfigurationState)},
	{Resource: metalLB(KindIPAddressPool, "ipaddresspools", "v1beta1", everything), InFiles: true, sample: new(IPAddressPool)},
	{Resource: metalLB(KindL2Advertisement, "l2advertisements", "v1beta1", everything), InFiles: true, sample: new(L2Advertisement)},
	{Resource: metalLB(KindServiceBGPStatus, "servicebgpstatuses", "v1beta1", glancing), sample: new(ServiceBGPStatus)},
	{Resource: metalLB(KindServiceL2Status, "servicel2statuses", "v1beta1", glancing), sample: new(ServiceL2Status)},
	{Resource: metalLB(KindBGPPeer, "bgppeers", "v1beta2", everything), InFiles: true, OlderVersions: []string{APIVersionMetalLB}, sample: new(BGPPeer)},
	{Resource: Resource{Group: "networking.k8s.io", Name: KindIPAddress, Plural: "ipaddresses", ShortNames: []string{"ip"}, Verbs: looking}, sample: new(IPAddress)},
	{Resource: Resource{Group: "networking.k8s.io", Name: KindServiceCIDR, Plural: "servicecidrs", HasStatus: true}, sample: new(ServiceCIDR)},
}

// gateway returns the Resource of a kind of the Gateway API.
func gateway(name, plural string, short ...string) Resource {
	return Resource{
		Group: GroupGateway, Name: name, Plural: plural, ShortNames: short, Custom: true,
		Namespaced: name != KindGatewayClass, HasStatus: name != KindReferenceGrant,
	}
}

// metalLB returns the Resource of a kind of MetalLB.
func metalLB(name, plural, version string, verbs []string) Resource {
	return Resource{Group: "metallb.io", Version: version, Name: name, Plural: plural, Namespaced: true, Custom: true, Verbs: verbs}
}

// A Resource describes how the API serves a kind.
type Resource struct {
	Group      string // "" is the core group
	Version    string // such as v1
	Name       string // kind, such as EndpointSlice
	Plural     string // plural name, as in API paths, such as endpointslices
	ShortNames []string
	Namespaced bool
	// InAll puts the kind into `kubectl get all`.
	InAll bool
	// HasStatus means that the kind has a status subresource.
	HasStatus bool
	// Open means that unknown fields of Kubernetes are accepted and dropped, because only
	// part of the kind is stored.
	Open bool
	// Custom means that Kubernetes defines the kind by a CustomResourceDefinition, so that it has no protobuf messages.
	Custom bool
	// Verbs are the verbs of the kind, sorted.
	Verbs []string
}

// APIVersion returns group and version, such as "discovery.k8s.io/v1", or the version alone for the core group ("v1").
func (r *Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// Stored reports whether objects of the kind can be read, because they are stored or computed. It is false for reviews, which are only requests.
func (r *Resource) Stored() bool { return slices.Contains(r.Verbs, "get") }

// A Strategy has all properties in which kinds differ, as the strategies of Kubernetes' registry do. A
// new kind needs an entry in strategies, and its type.
type Strategy struct {
	Resource
	// View means that the kind is another form of a stored kind (Event of events.k8s.io), and is not stored itself.
	View bool
	// InFiles means that manifests may have objects of the kind. OlderVersions are API versions that are accepted there too.
	InFiles       bool
	OlderVersions []string
	// Ephemeral means that objects serve API clients only: Services never depend on them.
	Ephemeral bool
	// Passing means that objects expire by themselves: they do not delay the deletion of their Namespace.
	Passing bool
	// CreateOnUpdate means that a PUT may create an object (AllowCreateOnUpdate). VersionRequired means that a PUT must contain the resourceVersion
	// of the version that it replaces (AllowUnconditionalUpdate is false).
	CreateOnUpdate, VersionRequired bool
	// HasGeneration means that metadata.generation counts the versions of the spec.
	HasGeneration bool
	// StatusOnCreate means that a client may set the status when it creates an object. SpecOfServer means that only the server writes the spec.
	StatusOnCreate, SpecOfServer bool

	// sample is an empty object of the kind. The rules of one kind are methods of its type, see defaulter and
	// the interfaces after it.
	sample Object
}

// Interfaces that the type of an object may implement, for rules of its kind.
type (
	defaulter interface{ setDefaults() }
	// A validator checks the content of an object, without its metadata. previous is nil for a new object, or for one of another kind.
	validator interface{ validate(previous Object) Errors }
	// A changeValidator checks that an update does not change immutable fields.
	changeValidator interface{ validateChange(previous Object) Errors }
	warner          interface{ warnings() []string }
)

// validate implements validator: the two forms of an event have the same rules.
func (o *EventView) validate(Object) Errors { return o.Event().validate(nil) }

var (
	// everything is the list of API verbs of objects that are stored.
	everything = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	// oneByOne is everything without deletecollection, for kinds that other objects depend on.
	oneByOne = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	// looking is the list of read-only API verbs of objects that are computed from stored objects.
	looking = []string{"get", "list", "watch"}
	// glancing is the list of API verbs of objects that are computed from other state, so that they cannot be watched.
	glancing = []string{"get", "list"}
	// asking is the list of API verbs of reviews, which are requests that are not stored.
	asking = []string{"create"}
)

var (
	byType = map[reflect.Type]*Strategy{}
	byMeta = map[TypeMeta]*Strategy{}
	byKind = map[string]*Strategy{} // without kinds that are views
)

func init() {
	for i := range strategies {
		s := &strategies[i]
		s.Version = cmp.Or(s.Version, "v1")
		if s.Verbs == nil {
			s.Verbs = everything
		}
		byType[reflect.TypeOf(s.sample)] = s
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

// StrategyOfKind returns the strategy of the stored kind with a name, such as the Kind of a Ref; nil if it is unknown.
func StrategyOfKind(kind string) *Strategy { return byKind[kind] }

// New returns an empty object of the kind with its TypeMeta set.
func (s *Strategy) New() Object {
	o := reflect.New(reflect.TypeOf(s.sample).Elem()).Interface().(Object)
	*o.GetTypeMeta() = TypeMeta{APIVersion: s.APIVersion(), Kind: s.Name}
	return o
}

// SameSpec reports whether two versions of an object of the kind differ at most in metadata and status.
func (s *Strategy) SameSpec(a, b Object) bool {
	was, is := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range was.NumField() {
		switch was.Type().Field(i).Name {
		case "TypeMeta", "Metadata", "Status":
		default:
			if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
				return false
			}
		}
	}
	return true
}

// CopyStatus sets the status of one object (to) to that of another (from). It reports whether the kind has a status, and does nothing if not.
func (s *Strategy) CopyStatus(to, from Object) bool {
	if s.HasStatus {
		copyField(to, from, "Status")
	}
	return s.HasStatus
}

func copyField(to, from Object, name string) {
	field := reflect.ValueOf(to).Elem().FieldByName(name)
	field.Set(reflect.ValueOf(from).Elem().FieldByName(name))
	unshare(field)
}

// KeepOwned restores the fields of o that a write of the object itself must not change, usually the status, from the stored version, before. When the
// object is created, before is nil. The fields then get the values of a new object of the kind, unless the kind has StatusOnCreate.
func (s *Strategy) KeepOwned(o, before Object) {
	if before == nil && s.StatusOnCreate {
		return
	} else if before == nil {
		before = s.sample
	}
	if s.CopyStatus(o, before); s.SpecOfServer {
		copyField(o, before, "Spec")
	}
}

// The kinds of Kubernetes that only the API has, and Secret, which manifests may have, too.
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

// The API versions of kinds that only the API has, not manifests.
const (
	APIVersionEvents     = "events.k8s.io/v1"
	APIVersionNetworking = "networking.k8s.io/v1"
)

// The API versions of kinds that manifests may have.
const (
	APIVersionCore      = "v1"
	APIVersionDiscovery = "discovery.k8s.io/v1"
)
