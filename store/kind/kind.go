package kind

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// A Kind is a kind of object that the API serves.
type Kind struct {
	Group      string // "" is the core group
	Version    string // v1
	Name       string // EndpointSlice
	Plural     string // endpointslices, as in paths
	ShortNames []string
	Namespaced bool
	// InAll puts the kind into `kubectl get all`.
	InAll bool
	// HasStatus says that the status is written at a path of its own.
	HasStatus bool
	// Open says that only a part of the kind is kept: fields that Kubernetes has and
	// this product does not read are accepted, and dropped.
	Open bool
	// Verbs are what can be done with objects of the kind, sorted.
	Verbs []string
}

var (
	// everything is what can be done with objects that are kept.
	everything = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	// oneByOne is what can be done with objects that others hang on: not all at once.
	oneByOne = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	// looking is what can be done with objects that are computed from other ones.
	looking = []string{"get", "list", "watch"}
	// asking is what can be done with a question.
	asking = []string{"create"}
	// StatusVerbs are what can be done with a status at a path of its own.
	StatusVerbs = []string{"get", "patch", "update"}
)

// All is every kind that is served, the core group first, the others by their names.
func All() []Kind { return slices.Clone(table()) }

// table is All, for those who only look.
var table = sync.OnceValue(func() []Kind {
	return slices.Concat(
		group("",
			Kind{Name: object.KindConfigMap, Plural: "configmaps", ShortNames: []string{"cm"}, Namespaced: true},
			Kind{Name: object.KindEndpoints, Plural: "endpoints", ShortNames: []string{"ep"}, Namespaced: true},
			Kind{Name: object.KindEvent, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true},
			Kind{Name: object.KindNamespace, Plural: "namespaces", ShortNames: []string{"ns"}, HasStatus: true, Verbs: oneByOne},
			Kind{Name: object.KindNode, Plural: "nodes", ShortNames: []string{"no"}, HasStatus: true, Open: true},
			Kind{Name: object.KindPod, Plural: "pods", ShortNames: []string{"po"}, Namespaced: true, InAll: true, HasStatus: true, Open: true},
			Kind{Name: object.KindSecret, Plural: "secrets", Namespaced: true},
			Kind{Name: object.KindService, Plural: "services", ShortNames: []string{"svc"}, Namespaced: true, InAll: true, HasStatus: true},
		),
		group("authentication.k8s.io",
			Kind{Name: object.KindSelfSubjectReview, Plural: "selfsubjectreviews", Verbs: asking},
		),
		group("authorization.k8s.io",
			Kind{Name: object.KindSelfSubjectAccessReview, Plural: "selfsubjectaccessreviews", Verbs: asking},
			Kind{Name: object.KindSelfSubjectRulesReview, Plural: "selfsubjectrulesreviews", Verbs: asking},
		),
		group("coordination.k8s.io",
			Kind{Name: object.KindLease, Plural: "leases", Namespaced: true},
		),
		group("discovery.k8s.io",
			Kind{Name: object.KindEndpointSlice, Plural: "endpointslices", Namespaced: true},
		),
		group("events.k8s.io",
			Kind{Name: object.KindEvent, Plural: "events", ShortNames: []string{"ev"}, Namespaced: true},
		),
		group("networking.k8s.io",
			Kind{Name: object.KindIPAddress, Plural: "ipaddresses", ShortNames: []string{"ip"}, Verbs: looking},
			Kind{Name: object.KindServiceCIDR, Plural: "servicecidrs", HasStatus: true},
		),
	)
})

// group fills in what is the same for the kinds of a group: all of one version, and
// everything can be done with those that do not say what.
func group(name string, kinds ...Kind) []Kind {
	for i := range kinds {
		kinds[i].Group, kinds[i].Version = name, "v1"
		if kinds[i].Verbs == nil {
			kinds[i].Verbs = everything
		}
	}
	return kinds
}

// ByResource is the kind at a path: /apis/GROUP/VERSION/PLURAL.
func ByResource(group, version, plural string) (Kind, bool) {
	return find(func(k Kind) bool { return k.Group == group && k.Version == version && k.Plural == plural })
}

// ByName is the kind that a document names: its apiVersion and kind.
func ByName(apiVersion, name string) (Kind, bool) {
	return find(func(k Kind) bool { return k.Name == name && k.APIVersion() == apiVersion })
}

func find(is func(Kind) bool) (Kind, bool) {
	all := table()
	i := slices.IndexFunc(all, is)
	if i < 0 {
		return Kind{}, false
	}
	return all[i], true
}

// APIVersion is "v1", or "discovery.k8s.io/v1".
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Singular is the name in lower case, as in `kubectl get service`.
func (k Kind) Singular() string { return strings.ToLower(k.Name) }

// GroupResource is "services", or "endpointslices.discovery.k8s.io": how messages name
// the kind.
func (k Kind) GroupResource() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Stored reports whether objects of the kind are kept; questions are not.
func (k Kind) Stored() bool { return slices.Contains(k.Verbs, "get") }

// New is an empty object of the kind, with its TypeMeta set.
func (k Kind) New() object.Object {
	o, ok := object.New(k.APIVersion(), k.Name)
	if !ok {
		panic(fmt.Sprintf("kind: no type for %s %s", k.APIVersion(), k.Name))
	}
	return o
}

// GroupPath is "/api/v1", or "/apis/discovery.k8s.io/v1".
func (k Kind) GroupPath() string {
	if k.Group == "" {
		return "/api/" + k.Version
	}
	return "/apis/" + k.Group + "/" + k.Version
}

// CollectionPath is the path of all objects of one namespace, {namespace} standing for
// its name, or of all objects of a kind without namespaces.
func (k Kind) CollectionPath() string {
	if !k.Namespaced {
		return k.GroupPath() + "/" + k.Plural
	}
	return k.GroupPath() + "/namespaces/{namespace}/" + k.Plural
}

// ObjectPath is the path of one object, {name} standing for its name.
func (k Kind) ObjectPath() string { return k.CollectionPath() + "/{name}" }
