package kind

import (
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// Kind describes a kind of object that the API serves.
type Kind object.Resource

// StatusVerbs are the API verbs of a status subresource.
var StatusVerbs = []string{"get", "patch", "update"}

// All returns all kinds: first the core group, then the other groups sorted by name.
func All() []Kind { return slices.Clone(table()) }

// table holds the result of All. Callers must not modify it.
var table = sync.OnceValue(func() []Kind {
	all := object.Strategies()
	kinds := make([]Kind, len(all))
	for i := range all {
		kinds[i] = Kind(all[i].Resource)
	}
	return kinds
})

// ByResource returns the kind of the resource in a URL path /apis/GROUP/VERSION/PLURAL.
func ByResource(group, version, plural string) (Kind, bool) {
	return find(func(k Kind) bool { return k.Group == group && k.Version == version && k.Plural == plural })
}

// ByName returns the kind for the apiVersion and kind of a document.
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

// APIVersion returns the group and version, as "v1" or "discovery.k8s.io/v1".
func (k Kind) APIVersion() string { return (*object.Resource)(&k).APIVersion() }

// Singular returns the name in lower case, as in `kubectl get service`.
func (k Kind) Singular() string { return strings.ToLower(k.Name) }

// GroupResource returns the plural and the group for messages, as "services" or
// "endpointslices.discovery.k8s.io".
func (k Kind) GroupResource() string {
	if k.Group == "" {
		return k.Plural
	}
	return k.Plural + "." + k.Group
}

// Stored reports whether objects of the kind are stored; reviews are not.
func (k Kind) Stored() bool { return (*object.Resource)(&k).Stored() }

// Strategy returns the strategy of the kind.
func (k Kind) Strategy() *object.Strategy { return object.StrategyFor(k.APIVersion(), k.Name) }

// New returns an empty object of the kind with its TypeMeta set.
func (k Kind) New() object.Object { return k.Strategy().New() }

// GroupPath returns the URL path of the group and version, as "/api/v1" or "/apis/discovery.k8s.io/v1".
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
