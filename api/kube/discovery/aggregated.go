package discovery

import "svcctl.io/svcctl/store/kind"

// aggregatedGroup is the group of the aggregated form.
const aggregatedGroup = "apidiscovery.k8s.io"

// AggregatedVersions are the versions of the aggregated form, which differ only in name,
// the preferred one first. kubectl before 1.30 requests v2beta1.
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

// Aggregated returns the aggregated document of the core group, or of all others.
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
