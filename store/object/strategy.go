package object

import (
	"reflect"
	"slices"
)

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
