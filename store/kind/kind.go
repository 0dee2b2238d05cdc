package kind

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// Kind describes a kind of object that the API serves.
type Kind struct {
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
	// StatusVerbs are the verbs of a status subresource.
	StatusVerbs = []string{"get", "patch", "update"}
)

// All returns all kinds: the core group first, the other groups by name.
func All() []Kind { return slices.Clone(table()) }

// table is All without a copy; callers must not modify it.
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
		version("v1beta1", group("metallb.io",
			Kind{Name: object.KindBFDProfile, Plural: "bfdprofiles", Namespaced: true},
			Kind{Name: object.KindBGPAdvertisement, Plural: "bgpadvertisements", Namespaced: true},
			Kind{Name: object.KindCommunity, Plural: "communities", Namespaced: true},
			Kind{Name: object.KindConfigurationState, Plural: "configurationstates", Namespaced: true, Verbs: glancing},
			Kind{Name: object.KindIPAddressPool, Plural: "ipaddresspools", Namespaced: true},
			Kind{Name: object.KindL2Advertisement, Plural: "l2advertisements", Namespaced: true},
			Kind{Name: object.KindServiceBGPStatus, Plural: "servicebgpstatuses", Namespaced: true, Verbs: glancing},
			Kind{Name: object.KindServiceL2Status, Plural: "servicel2statuses", Namespaced: true, Verbs: glancing},
		)),
		version("v1beta2", group("metallb.io",
			Kind{Name: object.KindBGPPeer, Plural: "bgppeers", Namespaced: true},
		)),
		group("networking.k8s.io",
			Kind{Name: object.KindIPAddress, Plural: "ipaddresses", ShortNames: []string{"ip"}, Verbs: looking},
			Kind{Name: object.KindServiceCIDR, Plural: "servicecidrs", HasStatus: true},
		),
	)
})

// group sets the group and version of kinds, and all verbs for those without any.
func group(name string, kinds ...Kind) []Kind {
	for i := range kinds {
		kinds[i].Group, kinds[i].Version = name, "v1"
		if kinds[i].Verbs == nil {
			kinds[i].Verbs = everything
		}
	}
	return kinds
}

// version sets the version of kinds that are custom resources.
func version(name string, kinds []Kind) []Kind {
	for i := range kinds {
		kinds[i].Version, kinds[i].Custom = name, true
	}
	return kinds
}

// ByResource returns the kind of a path: /apis/GROUP/VERSION/PLURAL.
func ByResource(group, version, plural string) (Kind, bool) {
	return find(func(k Kind) bool { return k.Group == group && k.Version == version && k.Plural == plural })
}

// ByName returns the kind of a document, by apiVersion and kind.
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

// APIVersion returns "v1", or "discovery.k8s.io/v1".
func (k Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Singular returns the name in lower case, as in `kubectl get service`.
func (k Kind) Singular() string { return strings.ToLower(k.Name) }

// GroupResource returns "services", or "endpointslices.discovery.k8s.io", the name of the
// kind in messages.
func (k Kind) GroupResource() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Stored reports whether objects of the kind are stored; reviews are not.
func (k Kind) Stored() bool { return slices.Contains(k.Verbs, "get") }

// New returns an empty object of the kind with its TypeMeta set.
func (k Kind) New() object.Object {
	o, ok := object.New(k.APIVersion(), k.Name)
	if !ok {
		panic(fmt.Sprintf("kind: no type for %s %s", k.APIVersion(), k.Name))
	}
	return o
}

// GroupPath returns "/api/v1", or "/apis/discovery.k8s.io/v1".
func (k Kind) GroupPath() string {
	if k.Group == "" {
		return "/api/" + k.Version
	}
	return "/apis/" + k.Group + "/" + k.Version
}

// CollectionPath returns the path of the objects of a namespace, with the placeholder
// {namespace}, or of all objects of a cluster-scoped kind.
func (k Kind) CollectionPath() string {
	if !k.Namespaced {
		return k.GroupPath() + "/" + k.Plural
	}
	return k.GroupPath() + "/namespaces/{namespace}/" + k.Plural
}

// ObjectPath returns the path of one object, with the placeholder {name}.
func (k Kind) ObjectPath() string { return k.CollectionPath() + "/{name}" }
