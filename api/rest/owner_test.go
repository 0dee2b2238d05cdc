package rest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/store"
	fields "svcctl.io/svcctl/store/managedfields"
)

const webFile = `apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {tier: front}
spec:
  selector: {app: web}
  ports:
  - {port: 80, targetPort: 8080}
`

// entry is the entry of a manager among the managedFields of an object.
func entry(o map[string]any, manager string) map[string]any {
	entries, _ := at(o, "metadata", "managedFields").([]any)
	for _, e := range entries {
		if at(e, "manager") == manager {
			return e.(map[string]any)
		}
	}
	return nil
}

func TestFileOwns(t *testing.T) {
	w := newWorld(t)
	w.files(map[string]string{"a/web.yaml": "# comment\n" + webFile})
	web := servicesPath + "/web"
	o := w.get(web)
	if e := entry(o, fields.FileManager); e["operation"] != "Apply" || at(e, "fieldsV1", "f:spec", "f:selector") == nil || at(e, "fieldsV1", "f:spec", "f:clusterIP") != nil {
		t.Fatalf("managed by %v", at(o, "metadata", "managedFields"))
	}
	version := at(o, "metadata", "resourceVersion")
	for name, c := range map[string]struct{ header, body, field string }{
		"change a field": {asMerge, `{"spec":{"selector":{"app":"x"}}}`, ".spec.selector"},
		"remove a label": {asMerge, `{"metadata":{"labels":{"tier":null}}}`, ".metadata.labels.tier"},
		"change a label": {asMerge, `{"metadata":{"labels":{"tier":"x"}}}`, ".metadata.labels.tier"},
		"change a port":  {asStrategic, `{"spec":{"ports":[{"port":80,"targetPort":1}]}}`, `.spec.ports[port=80,protocol="TCP"].targetPort`},
		"forced apply":   {asApply, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","labels":{"tier":"x"}}}`, ".metadata.labels.tier"},
	} {
		path := web
		if c.header == asApply {
			path += "?fieldManager=me&force=true"
		}
		status := w.does(http.StatusConflict, "PATCH", path, c.body, c.header)
		cause := at(status, "details", "causes", 0)
		if at(cause, "reason") != fieldManagerConflict || at(cause, "field") != c.field || !strings.Contains(fmt.Sprint(status["message"]), "a/web.yaml:2") {
			t.Errorf("%s: %v", name, status)
		}
	}
	// Without force it is the conflict of server-side apply, which names the file, too.
	status := w.does(http.StatusConflict, "PATCH", web+"?fieldManager=me", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","labels":{"tier":"x"}}}`, asApply)
	if message := fmt.Sprint(status["message"]); !strings.Contains(message, `conflict with "gitops": .metadata.labels.tier`) || !strings.Contains(message, "a/web.yaml:2") {
		t.Error(message)
	}
	status = w.does(http.StatusConflict, "DELETE", web, "")
	if !strings.Contains(fmt.Sprint(status["message"]), "a/web.yaml:2") {
		t.Error(status)
	}
	if got := at(w.get(web), "metadata", "resourceVersion"); got != version {
		t.Error("refusals have changed something")
	}
}

func TestFreeFieldsOfAFile(t *testing.T) {
	w := newWorld(t)
	w.files(map[string]string{"web.yaml": webFile})
	web := servicesPath + "/web"
	// kubectl label, kubectl annotate, kubectl apply of the same content.
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"labels":{"mine":"1"}}}`, asMerge)
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}}}`, asStrategic)
	same := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","labels":{"tier":"front"}},"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`
	w.does(http.StatusOK, "PATCH", web+"?fieldManager=kubectl", same, asApply)
	w.does(http.StatusOK, "PATCH", web, `{"spec":{"sessionAffinity":"ClientIP"}}`, asMerge)
	o := w.get(web)
	version := at(o, "metadata", "resourceVersion")
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"labels":{"mine":"1"}}}`, asMerge)
	if o = w.get(web); at(o, "metadata", "resourceVersion") != version {
		t.Error("changed by nothing")
	}
	// Who says that the file manages something else does not change what it manages.
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"managedFields":[{"manager":"gitops","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:type":{}}}}]}}`, asMerge)
	if e := entry(w.get(web), fields.FileManager); at(e, "fieldsV1", "f:spec", "f:selector") == nil || at(e, "fieldsV1", "f:spec", "f:type") != nil {
		t.Error("the file manages", e)
	}
	// Taking the entry of the file away does not take the file's fields away.
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"managedFields":[{}]}}`, asMerge)
	w.does(http.StatusConflict, "PATCH", web, `{"spec":{"selector":{"app":"x"}}}`, asMerge)

	// The same file, read again, changes nothing.
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"labels":{"mine":"1"}}}`, asMerge)
	version = at(w.get(web), "metadata", "resourceVersion")
	w.files(map[string]string{"web.yaml": webFile})
	w.files(map[string]string{"web.yaml": "# read again\n" + webFile})
	if got := at(w.get(web), "metadata", "resourceVersion"); got != version {
		t.Error("the same file has made another version")
	}

	// The file changes: what it says wins, what it says no more goes, what others added stays.
	w.does(http.StatusOK, "PATCH", web, `{"metadata":{"labels":{"mine":"2"}}}`, asMerge)
	w.files(map[string]string{"web.yaml": strings.NewReplacer("tier: front", "stage: prod", "8080", "9090").Replace(webFile)})
	o = w.get(web)
	if got := fmt.Sprint(at(o, "metadata", "labels")); got != "map[mine:2 stage:prod]" {
		t.Error("labels", got, at(o, "metadata", "managedFields"))
	}
	if at(o, "spec", "ports", 0, "targetPort") != 9090.0 || at(o, "spec", "sessionAffinity") != "ClientIP" {
		t.Error(o)
	}
	// The file takes over what others had set.
	w.files(map[string]string{"web.yaml": strings.ReplaceAll(webFile, "tier: front", "mine: file")})
	if got := fmt.Sprint(at(w.get(web), "metadata", "labels")); got != "map[mine:file]" {
		t.Error("labels", got)
	}
	w.does(http.StatusConflict, "PATCH", web, `{"metadata":{"labels":{"mine":"3"}}}`, asMerge)
	// The file goes, and the object with it.
	w.files(nil)
	if got := w.ask("GET", web).Code; got != http.StatusNotFound {
		t.Error("still there:", got)
	}
}

func TestPutToAFile(t *testing.T) {
	w := newWorld(t)
	w.files(map[string]string{"web.yaml": webFile})
	web := servicesPath + "/web"
	// What GET gives can be put back, with additions.
	text := w.ask("GET", web).Body.String()
	w.does(http.StatusOK, "PUT", web, text)
	w.does(http.StatusOK, "PUT", web, strings.Replace(text, `"tier":"front"`, `"tier":"front","x":"y"`, 1))
	// A body that lacks what the file declares would take it away.
	status := w.does(http.StatusConflict, "PUT", web, `{"metadata":{"name":"web"},"spec":{"ports":[{"port":80,"targetPort":8080}]}}`)
	if got := fmt.Sprint(at(status, "details", "causes")); !strings.Contains(got, ".spec.selector") || !strings.Contains(got, ".metadata.labels.tier") {
		t.Error(status)
	}
	w.does(http.StatusConflict, "POST", servicesPath, service("web", ""))
}

func TestControllerOwns(t *testing.T) {
	w := newWorld(t)
	slice := read(t, `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"s"},"addressType":"IPv4","endpoints":[],"ports":[]}`)
	if _, err := w.store.Generate("endpoints", append(nilObjects, slice), nil); err != nil {
		t.Fatal(err)
	}
	path := "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s"
	for _, method := range []string{"PATCH", "DELETE"} {
		header := asMerge
		if method == "DELETE" {
			header = "Content-Type: " + typeJSON
		}
		status := w.does(http.StatusConflict, method, path, `{}`, header)
		if !strings.Contains(fmt.Sprint(status["message"]), "the endpoints controller") {
			t.Error(status)
		}
	}
}

func TestNamespaceOfTheController(t *testing.T) {
	w := newWorld(t)
	if _, err := w.store.Generate(store.NamespacesController, append(nilObjects, read(t, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"made"}}`)), nil); err != nil {
		t.Fatal(err)
	}
	o := w.does(http.StatusOK, "PATCH", "/api/v1/namespaces/made", `{"metadata":{"labels":{"a":"b"}}}`, asMerge)
	if at(o, "metadata", "labels", "a") != "b" {
		t.Error(o)
	}
	if owner := ownerOf(w, "made"); owner != "the API" {
		t.Error("it belongs to", owner)
	}
}
