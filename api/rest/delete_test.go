package rest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestDelete(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", servicesPath, service("web", ""))
	o := w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm"}}`)
	uid := at(o, "metadata", "uid")
	for _, body := range []string{`{"preconditions":{"uid":"x"}}`, `{"preconditions":{"resourceVersion":"1"}}`} {
		if status := w.does(http.StatusConflict, "DELETE", configMapsPath+"/cm", body); !strings.Contains(fmt.Sprint(status["message"]), "Precondition failed") {
			t.Error(status)
		}
	}
	w.does(http.StatusUnprocessableEntity, "DELETE", configMapsPath+"/cm", `{"propagationPolicy":"Sideways"}`)
	w.does(http.StatusBadRequest, "DELETE", configMapsPath+"/cm", `{"kind":"Service"}`)
	w.does(http.StatusBadRequest, "DELETE", configMapsPath+"/cm", `{`)
	status := w.does(http.StatusOK, "DELETE", configMapsPath+"/cm", fmt.Sprintf(`{"propagationPolicy":"Background","gracePeriodSeconds":0,"preconditions":{"uid":%q}}`, uid))
	want := map[string]any{"name": "cm", "kind": "configmaps", "uid": uid}
	if status["status"] != "Success" || fmt.Sprint(status["details"]) != fmt.Sprint(want) {
		t.Error(status)
	}
	if status = w.does(http.StatusNotFound, "DELETE", configMapsPath+"/cm", ""); status["message"] != `configmaps "cm" not found` {
		t.Error(status)
	}
	// Protobuf, as client-go sends it.
	if o = w.does(http.StatusOK, "DELETE", servicesPath+"/web", "k8s\x00\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x00", "Content-Type: application/vnd.kubernetes.protobuf"); o["kind"] != "Service" {
		t.Error(o)
	}
	w.ask(http.MethodGet, servicesPath+"/web")
}

// Who watches from the version that a removal answers with is not told of the removal.
func TestDeleteAnswersWithItsRevision(t *testing.T) {
	w := newWorld(t)
	version := func(o map[string]any) string { return at(o, "metadata", "resourceVersion").(string) }
	stored := version(w.does(http.StatusCreated, "POST", servicesPath, service("web", "")))
	if got := version(w.does(http.StatusOK, "DELETE", servicesPath+"/web?dryRun=All", "")); got != stored {
		t.Errorf("a dry run has the version %s, want %s", got, stored)
	}
	watcher := w.watch(servicesPath + "?watch=1&resourceVersion=" + stored)
	answered := version(w.does(http.StatusOK, "DELETE", servicesPath+"/web", ""))
	if told := version(at(watcher.next(), "object").(map[string]any)); answered != told || answered == stored {
		t.Errorf("the answer has the version %s, the event %s, what was stored %s", answered, told, stored)
	}
}

// What is only there for a Service goes with it.
func TestDeleteServiceWithDependents(t *testing.T) {
	const endpointsPath, slicesPath = "/api/v1/namespaces/default/endpoints", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	for name, remove := range map[string]func(w *world){
		"one": func(w *world) { w.does(http.StatusOK, "DELETE", servicesPath+"/web", "") },
		"all": func(w *world) { w.does(http.StatusOK, "DELETE", servicesPath, "") },
		"last finalizer": func(w *world) {
			w.does(http.StatusOK, "PATCH", servicesPath+"/web", `{"metadata":{"finalizers":["example.com/f"]}}`, asMerge)
			w.does(http.StatusOK, "DELETE", servicesPath+"/web", "")
			w.does(http.StatusOK, "GET", endpointsPath+"/web", "")
			w.does(http.StatusOK, "PATCH", servicesPath+"/web", `{"metadata":{"finalizers":null}}`, asMerge)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			uid := at(w.does(http.StatusCreated, "POST", servicesPath, service("web", "")), "metadata", "uid")
			cm := at(w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm"}}`), "metadata", "uid")
			w.does(http.StatusCreated, "POST", endpointsPath, `{"metadata":{"name":"web"},"subsets":[]}`)
			w.does(http.StatusCreated, "POST", endpointsPath, `{"metadata":{"name":"other"},"subsets":[]}`)
			for _, slice := range []struct{ name, owners string }{
				{"owned", fmt.Sprintf(`[{"apiVersion":"v1","kind":"Service","name":"web","uid":%q}]`, uid)},
				{"shared", fmt.Sprintf(`[{"apiVersion":"v1","kind":"Service","name":"web","uid":%q},{"apiVersion":"v1","kind":"ConfigMap","name":"cm","uid":%q}]`, uid, cm)},
				{"nobodys", `[]`},
			} {
				w.does(http.StatusCreated, "POST", slicesPath, fmt.Sprintf(
					`{"metadata":{"name":%q,"labels":{"kubernetes.io/service-name":"web"},"ownerReferences":%s},"addressType":"IPv4","endpoints":[]}`, slice.name, slice.owners))
			}
			w.does(http.StatusOK, "DELETE", servicesPath+"/web?dryRun=All", "")
			if got := names(w.get(slicesPath)); got != "nobodys owned shared" {
				t.Fatal("a dry run has removed something: ", got)
			}
			remove(w)
			if got := names(w.get(slicesPath)); got != "nobodys shared" {
				t.Error("slices left:", got)
			}
			// Of "web" there is what is computed from its slices, which is none.
			if got := names(w.get(endpointsPath)); got != "other" {
				t.Error("endpoints left:", got)
			}
		})
	}
}

// Garbage collection: what has lost all its owners goes, whatever their kind, and what depends on
// it in turn; an owner that is left alone keeps what depends on it, and orphans stay.
func TestGarbageCollection(t *testing.T) {
	for name, tt := range map[string]struct {
		query, left string
	}{
		"background": {"", "free stranger"},
		"foreground": {"?propagationPolicy=Foreground", "free stranger"},
		"orphan":     {"?propagationPolicy=Orphan", "child free grandchild shared stranger"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			make := func(name string, owners ...string) string {
				var refs []string
				for _, owner := range owners {
					owner, uid, _ := strings.Cut(owner, "=")
					refs = append(refs, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q}`, owner, uid))
				}
				body := fmt.Sprintf(`{"metadata":{"name":%q,"ownerReferences":[%s]}}`, name, strings.Join(refs, ","))
				return name + "=" + at(w.does(http.StatusCreated, "POST", configMapsPath, body), "metadata", "uid").(string)
			}
			owner, other := make("owner"), make("other")
			child := make("child", owner)
			make("grandchild", child)
			make("shared", owner, other)
			make("free")
			make("stranger", "exported=00000000-0000-4000-8000-00000000aaaa")
			w.does(http.StatusOK, "DELETE", configMapsPath+"/owner?dryRun=All", "")
			if got := names(w.get(configMapsPath)); got != "child free grandchild other owner shared stranger" {
				t.Fatal("a dry run has removed something: ", got)
			}
			w.does(http.StatusOK, "DELETE", configMapsPath+"/owner"+tt.query, "")
			if tt.left == "free stranger" {
				if got := names(w.get(configMapsPath)); got != "free other shared stranger" {
					t.Error("with one of two owners left:", got)
				}
			}
			w.does(http.StatusOK, "DELETE", configMapsPath+"/other"+tt.query, "")
			if got := names(w.get(configMapsPath)); got != tt.left {
				t.Error("left:", got)
			}
			if tt.query == "?propagationPolicy=Orphan" {
				if refs := at(w.get(configMapsPath+"/child"), "metadata", "ownerReferences"); refs != nil {
					t.Error("an orphan names its owner still:", refs)
				}
			}
		})
	}
}

// What a client has made for a Service of a file goes with that, and the next Service of that
// name begins without it.
func TestGarbageOfFiles(t *testing.T) {
	const slicesPath = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	w := newWorld(t)
	w.files(map[string]string{"web.yaml": webFile})
	uid := at(w.get(servicesPath+"/web"), "metadata", "uid")
	w.does(http.StatusCreated, "POST", slicesPath, fmt.Sprintf(
		`{"metadata":{"name":"mine","labels":{"kubernetes.io/service-name":"web"},"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"web","uid":%q}]},"addressType":"IPv4","endpoints":[]}`, uid))
	w.files(nil)
	if err := w.store.CollectGarbage(); err != nil {
		t.Fatal(err)
	}
	if got := names(w.get(slicesPath)); got != "" {
		t.Error("left:", got)
	}
}

func TestFinalizers(t *testing.T) {
	w := newWorld(t)
	cm := configMapsPath + "/cm"
	w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm","finalizers":["example.com/f"]}}`)
	o := w.does(http.StatusOK, "DELETE", cm, "")
	if at(o, "metadata", "deletionTimestamp") == nil || o["kind"] != "ConfigMap" {
		t.Error(o)
	}
	w.does(http.StatusAccepted, "DELETE", cm, `{"orphanDependents":false}`)
	status := w.does(http.StatusConflict, "POST", configMapsPath, `{"metadata":{"name":"cm"}}`)
	if status["message"] != `object is being deleted: configmaps "cm" already exists` {
		t.Error(status)
	}
	w.does(http.StatusUnprocessableEntity, "PATCH", cm, `{"metadata":{"finalizers":["example.com/f","example.com/g"]}}`, asMerge)
	o = w.does(http.StatusOK, "PATCH", cm, `{"metadata":{"finalizers":null}}`, asMerge)
	if at(o, "metadata", "finalizers") != nil {
		t.Error(o)
	}
	if got := w.ask("GET", cm).Code; got != http.StatusNotFound {
		t.Error("still there:", got)
	}
}

func TestDeleteCollection(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.does(http.StatusCreated, "POST", configMapsPath, fmt.Sprintf(`{"metadata":{"name":"cm%d","labels":{"odd":"%t"}}}`, i, i%2 == 1))
	}
	list := w.does(http.StatusOK, "DELETE", configMapsPath+"?labelSelector=odd%3Dtrue", "")
	if list["kind"] != "ConfigMapList" || names(list) != "cm1 cm3" {
		t.Error(list)
	}
	if got := names(w.get(configMapsPath)); got != "cm0 cm2" {
		t.Error("left", got)
	}
	w.does(http.StatusBadRequest, "DELETE", configMapsPath+"?labelSelector=%21%21", "")
	w.does(http.StatusOK, "DELETE", configMapsPath+"?fieldSelector=metadata.name%3Dcm0", `{"kind":"DeleteOptions","apiVersion":"v1"}`)
	if got := names(w.get(configMapsPath)); got != "cm2" {
		t.Error("left", got)
	}
}

// TestDeleteCollectionIsOfAList: what is removed is what a list with the same query has, and a query
// that a list is refused for removes nothing.
func TestDeleteCollectionIsOfAList(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.does(http.StatusCreated, "POST", configMapsPath, fmt.Sprintf(`{"metadata":{"name":"cm%d"}}`, i))
	}
	for query, want := range map[string]int{
		"?limit=1&continue=abc":               http.StatusBadRequest,
		"?limit=x":                            http.StatusBadRequest,
		"?resourceVersion=abc":                http.StatusBadRequest,
		"?resourceVersionMatch=Exact":         http.StatusUnprocessableEntity,
		"?sendInitialEvents=true":             http.StatusUnprocessableEntity,
		"?resourceVersion=999999999999999999": http.StatusGatewayTimeout,
	} {
		if got := w.ask("DELETE", configMapsPath+query).Code; got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	if got := names(w.get(configMapsPath)); got != "cm0 cm1 cm2 cm3 cm4" {
		t.Fatal("a query that was refused has removed something; left: ", got)
	}
	list := w.does(http.StatusOK, "DELETE", configMapsPath+"?limit=2", "")
	next, _ := at(list, "metadata", "continue").(string)
	if names(list) != "cm0 cm1" || next == "" || fmt.Sprint(at(list, "metadata", "remainingItemCount")) != "3" {
		t.Error(list)
	}
	if got := names(w.get(configMapsPath)); got != "cm2 cm3 cm4" {
		t.Error("with a limit, left:", got)
	}
	list = w.does(http.StatusOK, "DELETE", configMapsPath+"?limit=1&continue="+next, "")
	if names(list) != "cm2" || names(w.get(configMapsPath)) != "cm3 cm4" {
		t.Error("the next one:", list)
	}
}

func TestDeleteCollectionOfFiles(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", servicesPath, service("a", ""))
	w.files(map[string]string{"web.yaml": webFile})
	status := w.does(http.StatusConflict, "DELETE", servicesPath, "")
	if !strings.Contains(fmt.Sprint(status["message"]), "web.yaml:1") {
		t.Error(status)
	}
	if got := names(w.get(servicesPath)); got != "a web" {
		t.Error("left", got)
	}
}
