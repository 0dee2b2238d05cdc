package rest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

var endpointsUser = auth.User{Name: "svcctl-discover", Role: auth.Endpoints}

// sliceOf is an EndpointSlice with a managed-by label ("": none) of a Service.
func sliceOf(name, managedBy, service string) string {
	label := ""
	if managedBy != "" {
		label = fmt.Sprintf(`,"endpointslice.kubernetes.io/managed-by":%q`, managedBy)
	}
	return fmt.Sprintf(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":%q,"namespace":"default","labels":{"kubernetes.io/service-name":%q%s}},
		"addressType":"IPv4","endpoints":[{"addresses":["10.1.2.3"]}],"ports":[{"port":80}]}`, name, service, label)
}

func leaseOf(namespace, name string) string {
	return fmt.Sprintf(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":%q,"namespace":%q},"spec":{"holderIdentity":"gw1"}}`, name, namespace)
}

// The role endpoints writes EndpointSlices with the label of svcctl discover for Services that have the annotation, its Leases, and
// Events; with every other kind, verb and subresource it is refused, and nothing is stored.
func Test975_role_endpoints_writes_nothing_else(t *testing.T) {
	const ours = "discover.svcctl.io"
	w := newWorld(t)
	w.put(
		`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system"}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","annotations":{"svcctl.io/endpoints-from":"consul:web"}},"spec":{"ports":[{"port":80}]}}`,
		service("db", ""), sliceOf("foreign", "", "web"), sliceOf("generated", "endpointslice-controller.k8s.io", "db"), sliceOf("ours", ours, "web"),
		leaseOf("kube-system", "discover-consul"), leaseOf("kube-system", "other"), leaseOf("default", "discover-x"),
		`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"key"},"data":{"a":"YQ=="}}`,
	)
	w.user = endpointsUser
	patches := []string{"application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml"}
	asked := 0
	before := w.store.Revision()
	for _, k := range kind.All() {
		if k.Name == object.KindEvent || !k.Stored() {
			continue // it may
		}
		space, name := "default", "web"
		switch k.Name {
		case object.KindEndpointSlice:
			name = "foreign"
		case object.KindLease:
			name = "discover-x"
		case object.KindSecret:
			name = "key"
		}
		list := strings.ReplaceAll(k.CollectionPath(), "{namespace}", space)
		one := list + "/" + name
		body := fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"name":%q,"labels":{"endpointslice.kubernetes.io/managed-by":%q}}}`, k.Name, k.APIVersion(), name, ours)
		switch k.Name {
		case object.KindEndpointSlice:
			body = sliceOf(name, ours, "web")
		case object.KindLease:
			lease, _ := w.store.Get(object.Ref{Kind: k.Name, Namespace: space, Name: name})
			body = strings.Replace(leaseOf(space, name), `"metadata":{`, fmt.Sprintf(`"metadata":{"resourceVersion":%q,`, lease.GetMeta().ResourceVersion), 1)
		}
		refused := func(method, path, body string, headers ...string) {
			t.Helper()
			asked++
			if answer := w.sends(method, path, body, headers...); answer.Code != http.StatusForbidden && answer.Code != http.StatusMethodNotAllowed && answer.Code != http.StatusNotFound &&
				!(answer.Code == http.StatusConflict && strings.Contains(answer.Body.String(), "AlreadyExists")) {
				t.Errorf("%s %s %v: %d %s", method, path, headers, answer.Code, answer.Body)
			}
		}
		for _, sub := range []string{"", "/status"} {
			refused("PUT", one+sub, body)
			refused("DELETE", one+sub, "")
			for _, form := range patches {
				text := body
				if form == patches[1] {
					text = `[{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/endpointslice.kubernetes.io~1managed-by","value":"discover.svcctl.io"}]`
				}
				query := ""
				if form == patches[3] {
					query = "?fieldManager=t&force=true"
				}
				refused("PATCH", one+sub+query, text, "Content-Type: "+form)
			}
		}
		refused("POST", list, strings.Replace(body, `"resourceVersion"`, `"generateName"`, 1))
		refused("DELETE", list, "")
		refused("DELETE", list+"?labelSelector=endpointslice.kubernetes.io/managed-by="+ours, "")
		if k.Name == object.KindSecret {
			for _, path := range []string{list, one, list + "?watch=true&timeoutSeconds=1", "/api/v1/secrets"} {
				refused("GET", path, "")
			}
		} else if answer := w.ask("GET", list); answer.Code != http.StatusOK {
			t.Errorf("GET %s: %d", list, answer.Code)
		}
		asked++
		if answer := w.sends("POST", "/svcctl/v1/apply?fieldManager=t&force=true", body, "Content-Type: application/x-ndjson"); !strings.Contains(answer.Body.String(), `"result":"refused"`) {
			t.Errorf("apply of %s: %d %s", k.Name, answer.Code, answer.Body)
		}
	}
	if after := w.store.Revision(); after != before {
		t.Errorf("%d revisions came of what is refused", after-before)
	}
	if asked < 400 {
		t.Errorf("%d requests were made: the matrix is smaller than it should be", asked)
	}

	const slices, leases = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	const apply, merge = "Content-Type: application/apply-patch+yaml", "Content-Type: application/merge-patch+json"
	for _, c := range []struct {
		method, path, body string
		header             string
		code               int
	}{
		{"POST", slices, sliceOf("more", ours, "web"), "", 201},
		{"POST", slices, sliceOf("of-db", ours, "db"), "", 403}, // it does not ask for endpoints
		{"POST", slices, sliceOf("of-none", ours, "none"), "", 403},
		{"POST", slices, sliceOf("other", "x", "web"), "", 403},
		{"PATCH", slices + "/ours?fieldManager=t&force=true", sliceOf("ours", ours, "web"), apply, 200},
		{"PATCH", slices + "/ours", `{"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":null}}}`, merge, 403},
		{"PATCH", slices + "/ours", `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}}}`, merge, 403},
		{"PATCH", slices + "/foreign", `{"metadata":{"labels":{"endpointslice.kubernetes.io/managed-by":"discover.svcctl.io"}}}`, merge, 403},
		{"PUT", slices + "/generated", sliceOf("generated", ours, "web"), "", 403},
		{"DELETE", slices + "/generated", "", "", 403},
		{"DELETE", slices + "/ours", "", "", 200},
		{"POST", leases, leaseOf("kube-system", "discover-dns"), "", 201},
		{"PATCH", leases + "/discover-consul", `{"spec":{"holderIdentity":"gw2"}}`, merge, 200},
		{"PATCH", leases + "/other", `{"spec":{"holderIdentity":"gw2"}}`, merge, 403},
		{"POST", leases, leaseOf("kube-system", "sources"), "", 403},
		{"POST", "/api/v1/namespaces/default/events", `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e","namespace":"default"},"involvedObject":{"kind":"Service","namespace":"default","name":"web"},"reason":"Discovered"}`, "", 201},
	} {
		headers := []string{}
		if c.header != "" {
			headers = append(headers, c.header)
		}
		if answer := w.sends(c.method, c.path, c.body, headers...); answer.Code != c.code {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, answer.Code, c.code, answer.Body)
		}
	}
}
