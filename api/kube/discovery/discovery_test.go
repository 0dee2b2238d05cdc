package discovery

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/kind"
)

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOldDocuments(t *testing.T) {
	group, _ := GroupOf("discovery.k8s.io")
	slices, _ := ResourcesOf("discovery.k8s.io/v1")
	for _, test := range []struct {
		got  any
		want string
	}{
		{Versions("127.0.0.1:6443"), `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"127.0.0.1:6443"}]}`},
		{group, `{"kind":"APIGroup","apiVersion":"v1","name":"discovery.k8s.io","versions":[{"groupVersion":"discovery.k8s.io/v1","version":"v1"}],"preferredVersion":{"groupVersion":"discovery.k8s.io/v1","version":"v1"}}`},
		{slices, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"discovery.k8s.io/v1","resources":[{"name":"endpointslices","singularName":"endpointslice","namespaced":true,"kind":"EndpointSlice","verbs":["create","delete","deletecollection","get","list","patch","update","watch"]}]}`},
	} {
		if got := text(t, test.got); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
	core, _ := ResourcesOf("v1")
	for _, want := range []string{
		`{"name":"services","singularName":"service","namespaced":true,"kind":"Service","verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["svc"],"categories":["all"]}`,
		`{"name":"services/status","singularName":"","namespaced":true,"kind":"Service","verbs":["get","patch","update"]}`,
		`{"name":"nodes","singularName":"node","namespaced":false,"kind":"Node",`,
	} {
		if !strings.Contains(text(t, core), want) {
			t.Errorf("%s\nis not in %s", want, text(t, core))
		}
	}
}

func TestGroups(t *testing.T) {
	var names []string
	for _, g := range Groups().Groups {
		names = append(names, g.Name)
		if of, ok := GroupOf(g.Name); !ok || of.PreferredVersion != g.PreferredVersion {
			t.Errorf("%s: %+v", g.Name, of)
		}
	}
	want := []string{"authentication.k8s.io", "authorization.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "gateway.networking.k8s.io", "metallb.io", "networking.k8s.io"}
	if !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	for _, name := range []string{"", "apps"} {
		if _, ok := GroupOf(name); ok {
			t.Errorf("there is a group %q", name)
		}
	}
	for _, apiVersion := range []string{"", "v2", "apps/v1", "discovery.k8s.io/v1beta1"} {
		if list, ok := ResourcesOf(apiVersion); ok {
			t.Errorf("%s has %v", apiVersion, list)
		}
	}
}

func TestAggregated(t *testing.T) {
	core := text(t, Aggregated("v2", true))
	if !strings.HasPrefix(core, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{},"versions":[{"version":"v1","resources":[`) {
		t.Errorf("%.300s", core)
	}
	want := `{"resource":"services","responseKind":{"group":"","version":"v1","kind":"Service"},"scope":"Namespaced","singularResource":"service",` +
		`"verbs":["create","delete","deletecollection","get","list","patch","update","watch"],"shortNames":["svc"],"categories":["all"],` +
		`"subresources":[{"subresource":"status","responseKind":{"group":"","version":"v1","kind":"Service"},"verbs":["get","patch","update"]}]}`
	if !strings.Contains(core, want) {
		t.Errorf("%s\nis not in %s", want, core)
	}
	others := Aggregated("v2beta1", false)
	if others.APIVersion != "apidiscovery.k8s.io/v2beta1" || len(others.Items) != len(Groups().Groups) {
		t.Errorf("%s", text(t, others))
	}
	if got := text(t, others); !strings.Contains(got, `"resource":"ipaddresses","responseKind":{"group":"networking.k8s.io","version":"v1","kind":"IPAddress"},"scope":"Cluster"`) {
		t.Errorf("%s", got)
	}
	if got := AggregatedType("v2"); got != "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" {
		t.Errorf("%s", got)
	}
}

// Both forms tell of the same kinds, and of all of them.
func TestFormsAgree(t *testing.T) {
	count := 0
	for _, list := range []AggregatedList{Aggregated("v2", true), Aggregated("v2", false)} {
		for _, group := range list.Items {
			for _, version := range group.Versions {
				apiVersion := strings.TrimPrefix(group.Metadata.Name+"/"+version.Version, "/")
				old, ok := ResourcesOf(apiVersion)
				if !ok {
					t.Fatalf("nothing in %s", apiVersion)
				}
				for _, r := range version.Resources {
					count++
					i := slices.IndexFunc(old.Resources, func(o Resource) bool { return o.Name == r.Resource })
					if i < 0 || old.Resources[i].Kind != r.ResponseKind.Kind || !slices.Equal(old.Resources[i].Verbs, r.Verbs) || old.Resources[i].Namespaced != (r.Scope == "Namespaced") {
						t.Errorf("%s: %+v and %+v", r.Resource, r, old.Resources)
					}
				}
			}
		}
	}
	if count != len(kind.All()) {
		t.Errorf("%d kinds of %d", count, len(kind.All()))
	}
}
