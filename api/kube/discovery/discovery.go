package discovery

import (
	"slices"

	"svcctl.io/svcctl/store/kind"
)

// VersionList is meta/v1 APIVersions: the answer to /api.
type VersionList struct {
	Kind            string          `json:"kind"`
	Versions        []string        `json:"versions"`
	ServerAddresses []ServerAddress `json:"serverAddressByClientCIDRs"`
}

// ServerAddress is meta/v1 ServerAddressByClientCIDR.
type ServerAddress struct {
	ClientCIDR    string `json:"clientCIDR"`
	ServerAddress string `json:"serverAddress"`
}

// GroupList is meta/v1 APIGroupList: the answer to /apis.
type GroupList struct {
	Kind       string  `json:"kind"`
	APIVersion string  `json:"apiVersion"`
	Groups     []Group `json:"groups"`
}

// Group is meta/v1 APIGroup: the answer to /apis/GROUP.
type Group struct {
	Kind             string         `json:"kind,omitempty"`
	APIVersion       string         `json:"apiVersion,omitempty"`
	Name             string         `json:"name"`
	Versions         []GroupVersion `json:"versions"`
	PreferredVersion GroupVersion   `json:"preferredVersion"`
}

// GroupVersion is meta/v1 GroupVersionForDiscovery.
type GroupVersion struct {
	GroupVersion string `json:"groupVersion"`
	Version      string `json:"version"`
}

// ResourceList is meta/v1 APIResourceList: the answer to /api/v1 and /apis/GROUP/VERSION.
type ResourceList struct {
	Kind         string     `json:"kind"`
	APIVersion   string     `json:"apiVersion"`
	GroupVersion string     `json:"groupVersion"`
	Resources    []Resource `json:"resources"`
}

// Resource is meta/v1 APIResource. It describes a kind or its subresource status.
type Resource struct {
	Name         string   `json:"name"`
	SingularName string   `json:"singularName"`
	Namespaced   bool     `json:"namespaced"`
	Kind         string   `json:"kind"`
	Verbs        []string `json:"verbs"`
	ShortNames   []string `json:"shortNames,omitempty"`
	Categories   []string `json:"categories,omitempty"`
}

// status is the name of the only subresource that kinds have.
const status = "status"

// Versions returns the versions of the core group, with an address for all clients.
func Versions(serverAddress string) VersionList {
	return VersionList{
		Kind: "APIVersions", Versions: versions(""),
		ServerAddresses: []ServerAddress{{ClientCIDR: "0.0.0.0/0", ServerAddress: serverAddress}},
	}
}

// Groups returns all groups but the core group.
func Groups() GroupList {
	list := GroupList{Kind: "APIGroupList", APIVersion: "v1", Groups: []Group{}}
	for _, name := range groupNames() {
		if name != "" {
			list.Groups = append(list.Groups, group(name))
		}
	}
	return list
}

// GroupOf returns a group by name; false for the core group and unknown ones.
func GroupOf(name string) (Group, bool) {
	if name == "" || !slices.Contains(groupNames(), name) {
		return Group{}, false
	}
	g := group(name)
	g.Kind, g.APIVersion = "APIGroup", "v1"
	return g, true
}

// ResourcesOf returns the resources of a group version ("v1", "discovery.k8s.io/v1");
// false for an unknown one.
func ResourcesOf(apiVersion string) (ResourceList, bool) {
	list := ResourceList{Kind: "APIResourceList", APIVersion: "v1", GroupVersion: apiVersion}
	for _, k := range kind.All() {
		if k.APIVersion() != apiVersion {
			continue
		}
		list.Resources = append(list.Resources, Resource{
			Name: k.Plural, SingularName: k.Singular(), Namespaced: k.Namespaced, Kind: k.Name,
			Verbs: k.Verbs, ShortNames: k.ShortNames, Categories: categories(k),
		})
		if k.HasStatus {
			list.Resources = append(list.Resources, Resource{
				Name: k.Plural + "/" + status, Namespaced: k.Namespaced, Kind: k.Name, Verbs: kind.StatusVerbs,
			})
		}
	}
	return list, list.Resources != nil
}

func categories(k kind.Kind) []string {
	if k.InAll {
		return []string{"all"}
	}
	return nil
}

// groupNames returns the names of all groups in the order of kind.All.
func groupNames() []string {
	var names []string
	for _, k := range kind.All() {
		if !slices.Contains(names, k.Group) {
			names = append(names, k.Group)
		}
	}
	return names
}

func versions(group string) []string {
	var all []string
	for _, k := range kind.All() {
		if k.Group == group && !slices.Contains(all, k.Version) {
			all = append(all, k.Version)
		}
	}
	return all
}

func group(name string) Group {
	g := Group{Name: name}
	for _, version := range versions(name) {
		g.Versions = append(g.Versions, GroupVersion{GroupVersion: name + "/" + version, Version: version})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

// aggregatedGroup is the API group of aggregated discovery documents.
const aggregatedGroup = "apidiscovery.k8s.io"

// AggregatedVersions are the versions of the aggregated documents, the preferred one first. Their contents are the same. kubectl before 1.30 requests
// v2beta1.
var AggregatedVersions = []string{"v2", "v2beta1"}

// AggregatedType returns the media type of a version of the aggregated form.
func AggregatedType(version string) string {
	return "application/json;g=" + aggregatedGroup + ";v=" + version + ";as=APIGroupDiscoveryList"
}

// AggregatedList is apidiscovery.k8s.io APIGroupDiscoveryList.
type AggregatedList struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   struct{}          `json:"metadata"`
	Items      []AggregatedGroup `json:"items"`
}

// AggregatedGroup is apidiscovery.k8s.io APIGroupDiscovery.
type AggregatedGroup struct {
	Metadata struct {
		Name string `json:"name,omitempty"`
	} `json:"metadata"`
	Versions []AggregatedVersion `json:"versions"`
}

// AggregatedVersion is apidiscovery.k8s.io APIVersionDiscovery.
type AggregatedVersion struct {
	Version   string               `json:"version"`
	Resources []AggregatedResource `json:"resources"`
	Freshness string               `json:"freshness"`
}

// AggregatedResource is apidiscovery.k8s.io APIResourceDiscovery.
type AggregatedResource struct {
	Resource         string                  `json:"resource"`
	ResponseKind     ResponseKind            `json:"responseKind"`
	Scope            string                  `json:"scope"` // Namespaced or Cluster
	SingularResource string                  `json:"singularResource"`
	Verbs            []string                `json:"verbs"`
	ShortNames       []string                `json:"shortNames,omitempty"`
	Categories       []string                `json:"categories,omitempty"`
	Subresources     []AggregatedSubresource `json:"subresources,omitempty"`
}

// AggregatedSubresource is apidiscovery.k8s.io APISubresourceDiscovery.
type AggregatedSubresource struct {
	Subresource  string       `json:"subresource"`
	ResponseKind ResponseKind `json:"responseKind"`
	Verbs        []string     `json:"verbs"`
}

// ResponseKind is meta/v1 GroupVersionKind.
type ResponseKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// Aggregated returns the aggregated document of the core group if core is set, or else that of all other groups.
func Aggregated(version string, core bool) AggregatedList {
	list := AggregatedList{Kind: "APIGroupDiscoveryList", APIVersion: aggregatedGroup + "/" + version, Items: []AggregatedGroup{}}
	for _, name := range groupNames() {
		if (name == "") != core {
			continue
		}
		var g AggregatedGroup
		g.Metadata.Name = name
		for _, v := range versions(name) {
			g.Versions = append(g.Versions, AggregatedVersion{Version: v, Resources: resources(name, v), Freshness: "Current"})
		}
		list.Items = append(list.Items, g)
	}
	return list
}

func resources(group, version string) []AggregatedResource {
	var all []AggregatedResource
	for _, k := range kind.All() {
		if k.Group != group || k.Version != version {
			continue
		}
		response := ResponseKind{k.Group, k.Version, k.Name}
		r := AggregatedResource{
			Resource: k.Plural, ResponseKind: response, Scope: "Cluster", SingularResource: k.Singular(),
			Verbs: k.Verbs, ShortNames: k.ShortNames, Categories: categories(k),
		}
		if k.Namespaced {
			r.Scope = "Namespaced"
		}
		if k.HasStatus {
			r.Subresources = []AggregatedSubresource{{Subresource: status, ResponseKind: response, Verbs: kind.StatusVerbs}}
		}
		all = append(all, r)
	}
	return all
}
