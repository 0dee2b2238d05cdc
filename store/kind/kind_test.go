package kind

import (
	"slices"
	"testing"
)

func TestTableIsSound(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range All() {
		for _, key := range []string{k.APIVersion() + " " + k.Name, k.APIVersion() + "/" + k.Plural} {
			if seen[key] {
				t.Errorf("%s is there twice", key)
			}
			seen[key] = true
		}
		o := k.New()
		if meta := o.GetTypeMeta(); meta.Kind != k.Name || meta.APIVersion != k.APIVersion() {
			t.Errorf("New of %s is a %v", k.Name, meta)
		}
		if !slices.IsSorted(k.Verbs) {
			t.Errorf("%s: verbs %v are not sorted", k.Name, k.Verbs)
		}
		if found, ok := ByName(k.APIVersion(), k.Name); !ok || found.Plural != k.Plural {
			t.Errorf("ByName(%s, %s) is %v", k.APIVersion(), k.Name, found)
		}
		if found, ok := ByResource(k.Group, k.Version, k.Plural); !ok || found.Name != k.Name {
			t.Errorf("ByResource(%s, %s) is %v", k.APIVersion(), k.Plural, found)
		}
	}
}

func TestPaths(t *testing.T) {
	for _, test := range []struct{ group, plural, collection, object, resource string }{
		{"", "services", "/api/v1/namespaces/{namespace}/services", "/api/v1/namespaces/{namespace}/services/{name}", "services"},
		{"", "nodes", "/api/v1/nodes", "/api/v1/nodes/{name}", "nodes"},
		{"discovery.k8s.io", "endpointslices", "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
			"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}", "endpointslices.discovery.k8s.io"},
		{"networking.k8s.io", "ipaddresses", "/apis/networking.k8s.io/v1/ipaddresses", "/apis/networking.k8s.io/v1/ipaddresses/{name}", "ipaddresses.networking.k8s.io"},
	} {
		k, ok := ByResource(test.group, "v1", test.plural)
		if !ok || k.CollectionPath() != test.collection || k.ObjectPath() != test.object || k.GroupResource() != test.resource {
			t.Errorf("%s: %t %s %s %s", test.plural, ok, k.CollectionPath(), k.ObjectPath(), k.GroupResource())
		}
	}
}

func TestUnknown(t *testing.T) {
	if k, ok := ByResource("", "v1beta1", "services"); ok {
		t.Errorf("found %v", k)
	}
	if k, ok := ByName("v1", "services"); ok {
		t.Errorf("found %v", k)
	}
}
