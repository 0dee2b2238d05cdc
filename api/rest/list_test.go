package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

func TestSelectors(t *testing.T) {
	w := newWorld(t)
	w.put(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"other"}}`)
	w.put(service("a", ""), service("b", `"type":"NodePort"`), strings.Replace(service("c", `"clusterIP":"None"`), `"name":"c"`, `"name":"c","namespace":"other"`, 1))
	for query, want := range map[string]string{
		"/services":                                                      "a b c",
		"/namespaces/default/services":                                   "a b",
		"/namespaces/other/services":                                     "c",
		"/namespaces/none/services":                                      "",
		"/services?labelSelector=app%3Da":                                "a",
		"/services?labelSelector=app+in+(a,c)":                           "a c",
		"/services?labelSelector=%21app":                                 "",
		"/services?fieldSelector=metadata.name%3Db":                      "b",
		"/services?fieldSelector=metadata.namespace=other":               "c",
		"/services?fieldSelector=spec.clusterIP!=None":                   "a b",
		"/services?fieldSelector=spec.type=NodePort&labelSelector=app=b": "b",
		"/services?timeout=32s&bogus=1":                                  "a b c",
		"/services?watch=false":                                          "a b c",
		"/services?resourceVersion=0":                                    "a b c",
		"/services?resourceVersion=1&resourceVersionMatch=NotOlderThan":  "a b c",
		"/namespaces?fieldSelector=metadata.name!=default":               "other",
	} {
		if got := names(w.get("/api/v1" + query)); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if o := w.get("/api/v1/namespaces/other"); o["kind"] != "Namespace" {
		t.Errorf("%v", o)
	}
	if o := w.get("/api/v1/namespaces/other/status"); o["kind"] != "Namespace" {
		t.Errorf("%v", o)
	}
}

// A list in pages is of one revision, whatever happens meanwhile.
func TestPages(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.put(service(name, ""))
	}
	path := "/api/v1/services?limit=2"
	first := w.get(path)
	if names(first) != "a b" || at(first, "metadata", "remainingItemCount") != 3.0 {
		t.Fatalf("%v", first)
	}
	w.remove("Service", "d")
	w.put(service("c", `"type":"NodePort"`), service("bb", ""))
	token, _ := at(first, "metadata", "continue").(string)
	second := w.get(path + "&continue=" + token)
	if names(second) != "c d" || at(second, "metadata", "remainingItemCount") != 1.0 || at(second, "items", 0, "spec", "type") != "ClusterIP" ||
		at(second, "metadata", "resourceVersion") != at(first, "metadata", "resourceVersion") {
		t.Errorf("%v", second)
	}
	token2, _ := at(second, "metadata", "continue").(string)
	third := w.get(path + "&continue=" + token2)
	if names(third) != "e" || at(third, "metadata", "continue") != nil || at(third, "metadata", "remainingItemCount") != nil {
		t.Errorf("%v", third)
	}
	version := fmt.Sprint(at(first, "metadata", "resourceVersion"))
	if exact := w.get("/api/v1/services?resourceVersionMatch=Exact&resourceVersion=" + version); names(exact) != "a b c d e" {
		t.Errorf("%v", exact)
	}
	if newer := w.get("/api/v1/services?resourceVersion=" + version); names(newer) != "a b bb c e" {
		t.Errorf("%v", newer)
	}
	if paged := w.get("/api/v1/services?limit=4&resourceVersion=" + version); names(paged) != "a b c d" {
		t.Errorf("%v", paged)
	}
	selected := w.get("/api/v1/services?limit=1&labelSelector=app+in+(b,e)")
	if names(selected) != "b" || at(selected, "metadata", "remainingItemCount") != nil {
		t.Errorf("%v", selected)
	}
	rest := w.get("/api/v1/services?limit=1&labelSelector=app+in+(b,e)&continue=" + fmt.Sprint(at(selected, "metadata", "continue")))
	if names(rest) != "e" || at(rest, "metadata", "continue") != nil {
		t.Errorf("%v", rest)
	}
	for query, message := range map[string]string{
		"&resourceVersion=" + version:                            "specifying resource version is not allowed when using continue",
		"&resourceVersionMatch=Exact&resourceVersion=" + version: "ListOptions.meta.k8s.io",
	} {
		answer := w.ask("GET", path+"&continue="+token+query)
		if answer.Code != 400 && answer.Code != 422 || !strings.Contains(answer.Body.String(), message) {
			t.Errorf("%s: %d %s", query, answer.Code, answer.Body)
		}
	}
}

// Who goes on with a list of which nothing is known any more can go on with what there is.
func TestExpiredPages(t *testing.T) {
	w := newWorld(t)
	w.put(service("a", ""), service("b", ""), service("c", ""))
	token := after("default", "a", 1)
	answer := w.ask("GET", "/api/v1/services?limit=1&continue="+token)
	s := decoded(t, answer.Body.Bytes())
	if answer.Code != http.StatusGone || s["reason"] != "Expired" || !strings.HasPrefix(fmt.Sprint(s["message"]), "The provided continue parameter is too old to display a consistent list result.") {
		t.Fatalf("%d %v", answer.Code, s)
	}
	next := fmt.Sprint(at(s, "metadata", "continue"))
	list := w.get("/api/v1/services?limit=1&continue=" + url.QueryEscape(next))
	if names(list) != "b" || at(list, "metadata", "remainingItemCount") != 1.0 {
		t.Errorf("%v", list)
	}
	if future := w.ask("GET", "/api/v1/services?continue="+after("default", "a", 1<<62)); future.Code != http.StatusGatewayTimeout {
		t.Errorf("%d %s", future.Code, future.Body)
	}
}

func TestManagedFieldsOfFiles(t *testing.T) {
	w := newWorld(t)
	w.files(map[string]string{"/etc/web.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {ports: [{port: 80}]}\n"})
	web := w.get("/api/v1/namespaces/default/services/web")
	if at(web, "metadata", "managedFields", 0, "manager") != "gitops" || at(web, "metadata", "managedFields", 0, "operation") != "Apply" {
		t.Errorf("%v", web)
	}
	if o, _ := w.store.Get(object.Ref{Kind: "Service", Namespace: "default", Name: "web"}); len(o.GetMeta().ManagedFields) > 0 {
		t.Errorf("stored: %v", o.GetMeta())
	}
	status := w.get("/api/v1/namespaces/default/services/web/status", "Accept: application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	if status["kind"] != "PartialObjectMetadata" || at(status, "metadata", "managedFields", 0, "manager") != "gitops" {
		t.Errorf("%v", status)
	}
}

func TestEventsInTwoGroups(t *testing.T) {
	w := newWorld(t)
	w.put(`{"kind":"Event","apiVersion":"v1","metadata":{"name":"web.1"},"involvedObject":{"kind":"Service","name":"web","namespace":"default"},"reason":"Conflict","message":"no","type":"Warning"}`)
	w.put(`{"kind":"Event","apiVersion":"v1","metadata":{"name":"db.1"},"involvedObject":{"kind":"Service","name":"db","namespace":"default"},"reason":"Pending","message":"wait","type":"Normal"}`)
	core := w.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dweb,involvedObject.kind=Service")
	if names(core) != "web.1" || at(core, "items", 0, "message") != "no" {
		t.Errorf("%v", core)
	}
	other := w.get("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name=db")
	if other["kind"] != "EventList" || other["apiVersion"] != "events.k8s.io/v1" || names(other) != "db.1" || at(other, "items", 0, "note") != "wait" || at(other, "items", 0, "kind") != nil {
		t.Errorf("%v", other)
	}
	one := w.get("/apis/events.k8s.io/v1/namespaces/default/events/db.1")
	if one["apiVersion"] != "events.k8s.io/v1" || at(one, "regarding", "name") != "db" {
		t.Errorf("%v", one)
	}
	watch := w.watch("/apis/events.k8s.io/v1/events?watch=1&fieldSelector=reason=Pending")
	event := watch.next()
	if event["type"] != "ADDED" || at(event, "object", "note") != "wait" {
		t.Errorf("%v", event)
	}
	w.remove("Event", "db.1")
	if event = watch.next(); event["type"] != "DELETED" || at(event, "object", "note") != "wait" || at(event, "object", "apiVersion") != "events.k8s.io/v1" {
		t.Errorf("%v", event)
	}
}

func TestAddresses(t *testing.T) {
	w := newWorld(t)
	const path = "/apis/networking.k8s.io/v1/ipaddresses"
	w.put(service("web", `"clusterIP":"10.96.0.7","ipFamilyPolicy":"RequireDualStack","clusterIPs":["10.96.0.7","fd00:96::7"]`))
	list := w.get(path)
	if list["kind"] != "IPAddressList" || names(list) != "10.96.0.7 fd00:96::7" {
		t.Fatalf("%v", list)
	}
	one := w.get(path + "/fd00:96::7")
	if fmt.Sprint(at(one, "spec", "parentRef")) != "map[name:web namespace:default resource:services]" ||
		fmt.Sprint(at(one, "metadata", "labels")) != "map[ipaddress.kubernetes.io/ip-family:IPv6 ipaddress.kubernetes.io/managed-by:ipallocator.k8s.io]" {
		t.Errorf("%v", one)
	}
	if uid := at(one, "metadata", "uid"); uid != at(list, "items", 1, "metadata", "uid") || uid == at(list, "items", 0, "metadata", "uid") {
		t.Errorf("%v", uid)
	}
	if answer := w.ask("GET", path+"/10.96.0.8"); answer.Code != http.StatusNotFound || !strings.Contains(answer.Body.String(), `ipaddresses.networking.k8s.io \"10.96.0.8\" not found`) {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	watch := w.watch(path + "?watch=1&labelSelector=ipaddress.kubernetes.io/ip-family=IPv4&resourceVersion=" + fmt.Sprint(at(list, "metadata", "resourceVersion")))
	w.put(service("db", `"clusterIP":"10.96.0.9"`))
	watch.wants("ADDED 10.96.0.9")
	w.put(service("db", `"clusterIP":"10.96.0.9","type":"NodePort"`)) // its address stays
	w.put(service("lb", `"clusterIP":"10.96.0.10","type":"LoadBalancer","loadBalancerIP":"192.0.2.10"`))
	watch.wants("ADDED 10.96.0.10", "ADDED 192.0.2.10")
	w.remove("Service", "db")
	event := watch.next()
	if event["type"] != "DELETED" || at(event, "object", "metadata", "name") != "10.96.0.9" || at(event, "object", "metadata", "resourceVersion") != fmt.Sprint(w.store.Revision()) {
		t.Errorf("%v", event)
	}
	w.put(strings.Replace(service("lc", `"clusterIP":"10.96.0.11","type":"LoadBalancer","loadBalancerIP":"192.0.2.50"`), `"metadata":{`, `"metadata":{"annotations":{"svcctl.io/allow-shared-ip":"x"},`, 1))
	watch.wants("ADDED 10.96.0.11", "ADDED 192.0.2.50")
	w.put(strings.Replace(service("ld", `"clusterIP":"10.96.0.12","type":"LoadBalancer","loadBalancerIP":"192.0.2.50","ports":[{"port":81}]`), `"metadata":{`, `"metadata":{"annotations":{"svcctl.io/allow-shared-ip":"x"},`, 1))
	watch.wants("ADDED 10.96.0.12") // the shared one stays with the older
	w.remove("Service", "lc")
	watch.wants("DELETED 10.96.0.11", "DELETED 192.0.2.50", "ADDED 192.0.2.50")
	if one := w.get(path + "/192.0.2.50"); at(one, "spec", "parentRef", "name") != "ld" {
		t.Errorf("%v", one)
	}
}

const slice = `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"%s","labels":{"kubernetes.io/service-name":"%s"}},"addressType":"IPv4","ports":[{"name":"","port":8080}],"endpoints":[%s]}`

func TestEndpointsViews(t *testing.T) {
	w := newWorld(t)
	const path = "/api/v1/namespaces/default/endpoints"
	w.put(`{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"team":"a"}},"spec":{"ports":[{"port":80}]}}`)
	if list := w.get(path); names(list) != "" {
		t.Fatalf("%v", list)
	}
	watch := w.watch("/api/v1/endpoints?watch=1&resourceVersion=" + fmt.Sprint(w.store.Revision()))
	w.put(fmt.Sprintf(slice, "web-1", "web", `{"addresses":["192.0.2.2"]},{"addresses":["192.0.2.1"],"conditions":{"ready":true},"nodeName":"n","hostname":"h"},{"addresses":["192.0.2.3"],"conditions":{"ready":false}},{"addresses":["192.0.2.4"],"conditions":{"ready":false,"terminating":true}}`))
	watch.wants("ADDED web")
	want := `{"subsets":[{"addresses":[{"ip":"192.0.2.1","hostname":"h","nodeName":"n"},{"ip":"192.0.2.2"}],"notReadyAddresses":[{"ip":"192.0.2.3"}],"ports":[{"port":8080,"protocol":"TCP"}]}]}`
	web := w.get(path + "/web")
	if fmt.Sprint(web["subsets"]) != fmt.Sprint(decoded(t, []byte(want))["subsets"]) || at(web, "metadata", "labels", "team") != "a" || at(web, "metadata", "labels", "endpoints.kubernetes.io/managed-by") == nil {
		t.Errorf("%v", web)
	}
	if names(w.get(path)) != "web" || names(w.get("/api/v1/endpoints?labelSelector=team=a")) != "web" {
		t.Error("not in the list")
	}
	w.put(fmt.Sprintf(slice, "web-1", "web", `{"addresses":["192.0.2.1"]}`))
	event := watch.next()
	if event["type"] != "MODIFIED" || at(event, "object", "subsets", 0, "addresses", 1) != nil {
		t.Errorf("%v", event)
	}
	w.put(fmt.Sprintf(slice, "web-2", "web", ``)) // says nothing new
	w.put(fmt.Sprintf(slice, "web-2", "web", `{"addresses":["192.0.2.9"]}`))
	if event = watch.next(); at(event, "object", "subsets", 0, "addresses", 1, "ip") != "192.0.2.9" {
		t.Errorf("%v", event)
	}
	// One of its own comes before the view, which is another object.
	w.put(`{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"web"},"subsets":[{"addresses":[{"ip":"192.0.2.77"}],"ports":[{"port":1}]}]}`)
	watch.wants("DELETED web", "ADDED web")
	if web = w.get(path + "/web"); at(web, "subsets", 0, "addresses", 0, "ip") != "192.0.2.77" {
		t.Errorf("%v", web)
	}
	w.remove("Endpoints", "web")
	watch.wants("DELETED web", "ADDED web")
	w.write(store.Write{Ref: object.Ref{Kind: "EndpointSlice", Namespace: "default", Name: "web-2"}, Delete: true})
	watch.wants("MODIFIED web")
	w.remove("EndpointSlice", "web-1")
	watch.wants("DELETED web")
	w.put(fmt.Sprintf(slice, "web-3", "web", `{"addresses":["192.0.2.1"]}`))
	watch.wants("ADDED web")
	w.put(fmt.Sprintf(slice, "web-3", "db", `{"addresses":["192.0.2.1"]}`)) // to a Service that does not exist
	watch.wants("DELETED web")
	w.put(service("db", ""))
	watch.wants("ADDED db")
	mirror := strings.Replace(fmt.Sprintf(slice, "db-m", "db", `{"addresses":["192.0.2.8"]}`), `"labels":{`, `"labels":{"endpointslice.kubernetes.io/managed-by":"endpointslicemirroring-controller.k8s.io",`, 1)
	w.put(mirror)
	if db := w.get(path + "/db"); at(db, "subsets", 0, "addresses", 1) != nil {
		t.Errorf("%v", db)
	}
	w.remove("Service", "db")
	watch.wants("DELETED db")
}

// judged counts the Services whose conditions are computed.
type judged struct{ asked int }

func (j *judged) Of(*object.Service) ([]object.Condition, bool) {
	j.asked++
	return []object.Condition{{Type: "Ready", Status: object.ConditionTrue}}, true
}
func (j *judged) Since(uint64) ([]string, uint64, bool) { return nil, 0, true }
func (j *judged) Changed() <-chan struct{}              { return nil }

// Test1116_conditions_of_what_is_selected lists Services by an address and by page: conditions are computed of those in the answer.
func Test1116_conditions_of_what_is_selected(t *testing.T) {
	w := newWorld(t)
	w.many(100)
	j := &judged{}
	w.server.conditions = j
	for query, want := range map[string]int{"": 100, "?limit=10": 10, "?fieldSelector=metadata.name%3Dweb-00042": 1, "?labelSelector=no%3Done": 0} {
		j.asked = 0
		items, _ := w.get("/api/v1/services" + query)["items"].([]any)
		if len(items) != want || j.asked != want {
			t.Errorf("%q: %d Services with conditions of %d, want %d", query, len(items), j.asked, want)
		}
		for _, item := range items {
			if conditions, _ := at(item, "status", "conditions").([]any); len(conditions) != 1 {
				t.Errorf("%q: a Service without its conditions: %v", query, item)
			}
		}
	}
}

// Test1143_tables_without_conditions lists Services as Tables and as metadata: conditions are computed for whole objects alone.
func Test1143_tables_without_conditions(t *testing.T) {
	const tabular, partial = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	w := newWorld(t)
	w.many(10)
	j := &judged{}
	w.server.conditions = j
	for _, c := range []struct {
		query, accept, member string
		want                  int
	}{
		{"", tabular, "rows", 0}, {"?includeObject=None", tabular, "rows", 0}, {"?includeObject=Object", tabular, "rows", 10}, {"", partial, "items", 0},
	} {
		j.asked = 0
		items, _ := w.get("/api/v1/services"+c.query, c.accept)[c.member].([]any)
		if len(items) != 10 || j.asked != c.want {
			t.Errorf("%q as %s: %d Services with conditions of %d, want %d", c.query, c.accept, len(items), j.asked, c.want)
		}
		if c.want > 0 {
			if conditions, _ := at(items[0], "object", "status", "conditions").([]any); len(conditions) != 1 {
				t.Errorf("%q: a Service without its conditions: %v", c.query, items[0])
			}
		}
	}
	for version, want := range map[string]string{"v1": "meta.k8s.io/v1", "v1beta1": "meta.k8s.io/v1beta1"} {
		items, _ := w.get("/api/v1/services", "Accept: application/json;as=Table;v="+version+";g=meta.k8s.io")["rows"].([]any)
		if got := at(items[0], "object", "apiVersion"); got != want {
			t.Errorf("the metadata in a Table of %s is of %v, want %s", version, got, want)
		}
	}
}

// Of packed EndpointSlices a list decodes those that may be selected: by the Service, a label that others do not have, the address of an endpoint.
func Test1112_lists_decode_what_they_select(t *testing.T) {
	const many = 1200 // more than stay whole after a start
	w := newWorld(t)
	for i := range many {
		label := ""
		if i == 77 {
			label = `"svcctl.io/gateway":"edge",`
		}
		w.put(fmt.Sprintf(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"s%04d-x","labels":{%s"kubernetes.io/service-name":"s%04d"}},`+
			`"addressType":"IPv4","ports":[{"port":80}],"endpoints":[{"addresses":["10.1.%d.%d"]}]}`, i, label, i/2, i>>8, i&255))
	}
	of := map[string]string{
		"labelSelector=kubernetes.io/service-name%3Ds0007":                         "s0014-x s0015-x",
		"labelSelector=kubernetes.io/service-name+in+(s0007,s0009)":                "s0014-x s0015-x s0018-x s0019-x",
		"labelSelector=kubernetes.io/service-name+in+(s0007)":                      "s0014-x s0015-x",
		"labelSelector=kubernetes.io/service-name%3Ds0007&limit=1":                 "s0014-x",
		"labelSelector=svcctl.io/gateway":                                          "s0077-x",
		"labelSelector=svcctl.io/gateway,kubernetes.io/service-name%3Ds0007":       "",
		"labelSelector=svcctl.io/gateway%3Dother":                                  "",
		"labelSelector=kubernetes.io/service-name%3Ds0007,!svcctl.io/gateway":      "s0014-x s0015-x",
		"fieldSelector=svcctl.io/address%3D10.1.0.9":                               "s0009-x",
		"fieldSelector=svcctl.io/address%3Dfd00::9":                                "",
		"fieldSelector=metadata.name%3Ds0012-x":                                    "s0012-x",
		"fieldSelector=metadata.name%3Ds0012-x&labelSelector=svcctl.io/gateway":    "",
		"labelSelector=svcctl.io/gateway&fieldSelector=metadata.name!%3Ds0012-x":   "s0077-x",
		"labelSelector=kubernetes.io/service-name+notin+(s0007),svcctl.io/gateway": "s0077-x",
	}
	list := func(query string) string {
		return names(w.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?" + query))
	}
	for range 2 {
		for query, want := range of {
			if got := list(query); got != want {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		w.store.Pack()
	}
	all := testing.AllocsPerRun(1, func() { list("labelSelector=!other") })
	for _, query := range []string{"labelSelector=kubernetes.io/service-name%3Ds0007", "labelSelector=svcctl.io/gateway", "fieldSelector=svcctl.io/address%3D10.1.0.9"} {
		if n := testing.AllocsPerRun(1, func() { list(query) }); n > all/10 {
			t.Errorf("%s allocates %.0f times, a list of all %.0f", query, n, all)
		}
	}
	if n := testing.AllocsPerRun(1, func() { list("labelSelector=!other&limit=1000") }); n > all*21/20 { // each is decoded once
		t.Errorf("a page of all allocates %.0f times, a list of all %.0f", n, all)
	}
}
