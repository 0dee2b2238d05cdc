package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// Kinds that follow from no stored object are read and listed, and neither written nor watched.
func TestComputedKinds(t *testing.T) {
	w := newWorld(t)
	state := func(namespace, name string) object.Object {
		return &object.ServiceL2Status{
			TypeMeta: object.TypeMeta{Kind: object.KindServiceL2Status, APIVersion: object.APIVersionMetalLB},
			Metadata: object.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"metallb.io/service-name": "web"}},
			Status:   object.ServiceL2StatusStatus{Node: "gw1", ServiceName: "web", ServiceNamespace: "default", Interfaces: []object.InterfaceInfo{{Name: "eth0"}}},
		}
	}
	w.server.computed = map[string]func() []object.Object{object.KindServiceL2Status: func() []object.Object {
		return []object.Object{state("b", "l2-2"), state("a", "l2-3"), state("a", "l2-1")}
	}}
	const group = "/apis/metallb.io/v1beta1/"
	names := func(path string) string {
		var all []string
		for _, item := range w.get(path)["items"].([]any) {
			all = append(all, metadataIn(item.(map[string]any))["name"].(string))
		}
		return strings.Join(all, " ")
	}
	for path, want := range map[string]string{
		"servicel2statuses": "l2-1 l2-3 l2-2", "namespaces/a/servicel2statuses": "l2-1 l2-3", "namespaces/c/servicel2statuses": "",
		"servicel2statuses?labelSelector=metallb.io/service-name%3Dother": "", "servicel2statuses?fieldSelector=metadata.name%3Dl2-2": "l2-2",
		"servicebgpstatuses": "",
	} {
		if got := names(group + path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	one := w.get(group + "namespaces/b/servicel2statuses/l2-2")
	if status := one["status"].(map[string]any); status["node"] != "gw1" || metadataIn(one)["resourceVersion"] == "" {
		t.Errorf("one is %v", one)
	}
	if got := w.ask(http.MethodGet, group+"namespaces/c/servicel2statuses/l2-2"); got.Code != http.StatusNotFound {
		t.Errorf("one that is not there: %d %s", got.Code, got.Body)
	}
	for method, path := range map[string]string{http.MethodPost: "namespaces/a/servicel2statuses", http.MethodDelete: "namespaces/a/servicel2statuses/l2-1"} {
		if got := w.send(method, group+path, "{}"); got.Code != http.StatusMethodNotAllowed || !strings.Contains(got.Body.String(), "computed on request") {
			t.Errorf("%s: %d %s", method, got.Code, got.Body)
		}
	}
	if got := w.ask(http.MethodGet, group+"servicel2statuses?watch=true"); got.Code != http.StatusMethodNotAllowed {
		t.Errorf("watch: %d %s", got.Code, got.Body)
	}
	table := w.get(group+"servicel2statuses", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	if cells := table["rows"].([]any)[0].(map[string]any)["cells"].([]any); cells[0] != "l2-1" || cells[1] != "gw1" || cells[2] != "web" || cells[3] != "default" {
		t.Errorf("the row is %v", cells)
	}
	for path, want := range map[string]string{ // as MetalLB's CustomResourceDefinitions have them
		"servicel2statuses": "Name, Allocated Node, Service Name, Service Namespace", "servicebgpstatuses": "Name, Node, Service Name, Service Namespace",
		"configurationstates": "Name, Result, ErrorSummary, Age",
	} {
		var columns []string
		for _, c := range w.get(group+path, "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")["columnDefinitions"].([]any) {
			if c := c.(map[string]any); c["priority"] == 0.0 { // others are of -o wide
				columns = append(columns, c["name"].(string))
			}
		}
		if got := strings.Join(columns, ", "); got != want {
			t.Errorf("the columns of %s are %s, want %s", path, got, want)
		}
	}
}

// Test1095_watches_of_computed_objects_resume: a client that is cut off between two events of one change, wherever that is, and goes on behind the
// resourceVersion of the last one that it has, gets all others.
func Test1095_watches_of_computed_objects_resume(t *testing.T) {
	const path = "/apis/networking.k8s.io/v1/ipaddresses"
	w := newWorld(t)
	watch := w.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", path, w.store.Revision()))
	dual := service("a", `"type":"LoadBalancer","ipFamilyPolicy":"RequireDualStack"`)
	for _, step := range []struct {
		kind   string
		change func()
	}{
		{"ADDED", func() { w.put(dual) }},
		{"DELETED", func() { w.remove("Service", "a") }},
	} {
		step.change()
		var names []string
		var versions []uint64
		for range 3 {
			event := watch.next()
			if event["type"] != step.kind {
				t.Fatalf("%v, want %s", event, step.kind)
			}
			names, versions = append(names, fmt.Sprint(at(event, "object", "metadata", "name"))), append(versions, versionOf(t, event))
		}
		for i, version := range versions[:2] {
			again := w.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", path, version))
			for missing := names[i+1:]; len(missing) > 0; { // it may get again what it has
				event := again.next()
				name := fmt.Sprint(at(event, "object", "metadata", "name"))
				if missing = slices.DeleteFunc(slices.Clone(missing), func(n string) bool { return n == name }); event["type"] != step.kind {
					t.Fatalf("cut off behind %s: %v, want %s", names[i], event, step.kind)
				}
			}
		}
		if last := versions[2]; last != w.store.Revision() {
			t.Errorf("the last event has resourceVersion %d, want %d", last, w.store.Revision())
		}
	}
}

// A pool says how many of its addresses are used, in both families, whatever its writer says.
func TestPoolStatus(t *testing.T) {
	w := newWorld(t)
	w.put(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"metallb-system"}}`)
	const path = "/apis/metallb.io/v1beta1/namespaces/metallb-system/ipaddresspools"
	w.does(http.StatusCreated, http.MethodPost, path, `{"kind":"IPAddressPool","apiVersion":"metallb.io/v1beta1","metadata":{"name":"lan"},
		"spec":{"addresses":["198.51.100.0/30","2001:db8::10-2001:db8::19","198.51.100.8-198.51.100.9"]},"status":{"assignedIPv4":99}}`)
	use := []store.Pool{
		{Name: "metallb-system/lan", Range: "198.51.100.0-198.51.100.3", Size: 4, Used: 1},
		{Name: "metallb-system/lan", Range: "198.51.100.8-198.51.100.9", Size: 2, Used: 2},
		{Name: "metallb-system/lan", Range: "2001:db8::10-2001:db8::19", Size: 10, Used: 3},
		{Name: "metallb-system/huge", Range: "2001:db8:1::-2001:db8:2::", Size: 1<<64 - 1, Used: 5},
		{Name: "", Range: "192.0.2.0-192.0.2.9", Size: 10, Used: 9},
	}
	stored := stored{w.store, object.KindIPAddressPool}.get("metallb-system", "lan").(*object.IPAddressPool)
	if stored.Status != nil {
		t.Errorf("stored is the status %+v", stored.Status)
	}
	shown := withUse(stored, use)
	if want := (object.IPAddressPoolStatus{AssignedIPv4: 3, AssignedIPv6: 3, AvailableIPv4: 3, AvailableIPv6: 7}); *shown.Status != want {
		t.Errorf("the status is %+v, want %+v", *shown.Status, want)
	}
	huge := object.DeepCopy(stored)
	huge.Metadata.Name = "huge"
	if shown := withUse(huge, use); shown.Status.AvailableIPv6 != 1<<63-1 || shown.Status.AssignedIPv6 != 5 {
		t.Errorf("of a huge pool it is %+v", shown.Status)
	}
	// Over the API, as Services come and a pool is watched.
	w.store.SetPools([]alloc.Pool{})
	got := w.get(path + "/lan")
	if status, is := got["status"].(map[string]any); !is || status["availableIPv4"] != 0.0 {
		t.Errorf("a pool that is not used shows %v", got["status"])
	}
	if items := w.get(path)["items"].([]any); len(items) != 1 || items[0].(map[string]any)["status"] == nil {
		t.Errorf("the list is %v", items)
	}
	watch := w.watch(path + "?watch=1&resourceVersion=" + fmt.Sprint(w.store.Revision()))
	w.does(http.StatusOK, http.MethodPatch, path+"/lan", `{"spec":{"autoAssign":false}}`, asMerge)
	w.does(http.StatusOK, http.MethodDelete, path+"/lan", "")
	for _, want := range []string{"MODIFIED", "DELETED"} {
		if event := watch.next(); event["type"] != want || at(event, "object", "status", "availableIPv4") != 0.0 {
			t.Errorf("a pool that is watched is %v, want %s", event, want)
		}
	}
}
