package rest

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// unharmed sends a body and checks what holds whatever it says: no panic, no error of the
// server's own, a Status when it is refused, and nothing changed then.
func unharmed(t *testing.T, w *world, method, path, mediaType string, body []byte) {
	before := w.store.Revision()
	answer := w.sends(method, path, string(body), "Content-Type: "+mediaType)
	var o struct {
		Kind string
		Code int
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &o); err != nil {
		t.Fatalf("%s %s %s %q: %v: %s", method, path, mediaType, body, err, answer.Body)
	}
	switch {
	case answer.Code >= http.StatusInternalServerError:
		t.Fatalf("%s %s %s %q: %d %s", method, path, mediaType, body, answer.Code, answer.Body)
	case answer.Code < http.StatusBadRequest:
	case o.Kind != "Status" || o.Code != answer.Code:
		t.Fatalf("%s %s %s %q: %d without its Status: %s", method, path, mediaType, body, answer.Code, answer.Body)
	case w.store.Revision() != before:
		t.Fatalf("%s %s %s %q: refused, and changed something", method, path, mediaType, body)
	}
	// What is stored can be read, and written again without a change.
	if method == "POST" {
		return
	}
	object := w.ask("GET", path)
	if object.Code == http.StatusOK {
		version := w.store.Revision()
		if again := w.sends("PUT", path, object.Body.String()); again.Code != http.StatusOK || w.store.Revision() != version {
			t.Fatalf("%s %s %s %q: not put back: %d %s\n%s", method, path, mediaType, body, again.Code, again.Body, object.Body)
		}
	}
}

// createPaths are collections of kinds that have something special about them.
var createPaths = []string{
	servicesPath, configMapsPath, eventsPath, "/api/v1/namespaces", "/api/v1/nodes", "/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/pods",
	"/api/v1/namespaces/default/endpoints", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "/apis/events.k8s.io/v1/namespaces/default/events",
	"/apis/coordination.k8s.io/v1/namespaces/default/leases", "/apis/networking.k8s.io/v1/servicecidrs", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
	"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "/apis/authentication.k8s.io/v1/selfsubjectreviews",
}

func FuzzCreateBody(f *testing.F) {
	for _, body := range []string{
		service("web", `"type":"LoadBalancer","externalTrafficPolicy":"Local"`),
		`{"metadata":{"name":"x","generateName":"y","finalizers":["a/b"],"managedFields":[{}],"ownerReferences":[{},{}],"annotations":{"a":null}},"stringData":{"a":"b"},"immutable":true}`,
		`{"metadata":{"name":"x"},"eventTime":"2026-03-01T12:00:00.000001Z","regarding":{"namespace":"default"},"spec":{"renewTime":"9999-12-31T23:59:59.999999+23:59"}}`,
		`{"metadata":{"name":"x","creationTimestamp":"0000-01-01T00:00:00Z","deletionTimestamp":null},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{}]}`,
		"kind: Service\nmetadata: {name: &a web, labels: {x: *a}}\nspec: {ports: [{port: 0x50}]}\n",
		"k8s\x00\x0a\x0d\x0a\x02v1\x12\x07Service\x12\x0a\x0a\x08\x0a\x03web\x12\x00\x1a\x00",
		`{"spec":{"resourceAttributes":{"verb":"get"}}}`, `{`, `[]`, `{"a":1e999}`,
	} {
		for i := range createPaths {
			f.Add(uint8(i), uint8(0), []byte(body))
			f.Add(uint8(i), uint8(1), []byte(body))
			f.Add(uint8(i), uint8(2), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, path, mediaType uint8, body []byte) {
		w := newWorld(t)
		unharmed(t, w, "POST", createPaths[int(path)%len(createPaths)], bodyTypes[int(mediaType)%len(bodyTypes)], body)
	})
}

// patchWorld is a world with an object of an API client and one of a file.
func patchWorld(t *testing.T) *world {
	w := newWorld(t)
	w.files(map[string]string{"web.yaml": webFile})
	w.does(http.StatusCreated, "PATCH", servicesPath+"/db?fieldManager=other", applied1("db", "db"), asApply)
	return w
}

var patchPaths = []string{servicesPath + "/web", servicesPath + "/db", servicesPath + "/db/status", "/api/v1/namespaces/default"}

func fuzzPatch(f *testing.F, mediaType, query string, seeds ...string) {
	for _, seed := range seeds {
		for i := range patchPaths {
			f.Add(uint8(i), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, path uint8, body []byte) {
		w := patchWorld(t)
		unharmed(t, w, "PATCH", patchPaths[int(path)%len(patchPaths)]+query, mediaType, body)
		declared(t, w, body)
	})
}

// declared checks that what a file declares still stands, whatever clients have sent.
func declared(t *testing.T, w *world, body []byte) {
	o, owner := w.store.Get(object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"})
	web, ok := o.(*object.Service)
	if !ok || owner.File != "web.yaml" {
		t.Fatalf("%q: the Service of the file is %v of %s", body, o, owner)
	}
	port := slices.IndexFunc(web.Spec.Ports, func(p object.ServicePort) bool { return p.Port == 80 && p.TargetPort == object.FromInt(8080) })
	if port < 0 || !maps.Equal(web.Spec.Selector, map[string]string{"app": "web"}) || web.Metadata.Labels["tier"] != "front" {
		t.Fatalf("%q: the Service of the file is %+v", body, web)
	}
}

func FuzzPatchJSON(f *testing.F) {
	fuzzPatch(f, typeJSONPatch, "", `[{"op":"add","path":"/metadata/labels/b","value":"2"}]`, `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`,
		`[{"op":"copy","from":"/spec","path":"/metadata"}]`, `[{"op":"remove","path":"/spec/ports/0"},{"op":"test","path":"","value":null}]`, `[{"op":"move","from":"/a","path":"/a/b"}]`, `[{"op":"test","path":""}]`)
}

func FuzzPatchMerge(f *testing.F) {
	fuzzPatch(f, typeMergePatch, "", `{"metadata":{"labels":{"a":"1","app":null}}}`, `{"metadata":{"managedFields":[{"operation":"Apply"}]}}`, `{"spec":{"type":"ExternalName","externalName":"a"}}`,
		`{"metadata":null,"spec":null,"status":null}`, `{"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}`)
}

func FuzzPatchStrategic(f *testing.F) {
	fuzzPatch(f, typeStrategicPatch, "", `{"spec":{"ports":[{"port":443,"name":"tls"},{"port":80,"name":"http"}]}}`, `{"spec":{"$patch":"replace","ports":[{"port":1}]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]},"spec":{"$setElementOrder/ports":[{"port":80}],"$retainKeys":["ports"]}}`, `{"spec":{"ports":[{"$patch":"delete","port":80}]}}`)
}

func FuzzPatchApply(f *testing.F) {
	fuzzPatch(f, typeApplyPatch, "?fieldManager=kubectl&force=true", applied1("web", "web"), applied1("db", "x"), "apiVersion: v1\nkind: Service\nmetadata: {name: db, labels: {a: b}}\n",
		`{"apiVersion":"v1","kind":"Service","status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"},{"ip":"1.2.3.4"}]}}}`, `{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":80},{"port":80}]}}`,
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{"}}}`)
}

func FuzzDeleteOptions(f *testing.F) {
	for i, seed := range []string{`{"preconditions":{"uid":"x"}}`, "propagationPolicy: Orphan\n", "k8s\x00\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x00", `{"dryRun":["All"]}`} {
		f.Add(uint8(i), []byte(seed))
	}
	f.Fuzz(func(t *testing.T, mediaType uint8, body []byte) {
		unharmed(t, patchWorld(t), "DELETE", servicesPath+"/db", bodyTypes[int(mediaType)%len(bodyTypes)], body)
	})
}

// Every batch is answered with lines, the last of which may say that the rest is no good.
func FuzzBatch(f *testing.F) {
	for i, seed := range []string{applied1("a", "a") + applied1("web", "b"), "[" + applied1("a", "a") + ",1]", webFile + "---\n" + webFile + "---\na: [", `{"kind":"List","items":[{}]}`, "--- \n---\n--"} {
		f.Add(uint8(i), []byte(seed))
	}
	types := []string{typeLines, typeJSON, typeYAML}
	f.Fuzz(func(t *testing.T, mediaType uint8, body []byte) {
		w := patchWorld(t)
		answer := w.sends("POST", batchPath+"&force=true", string(body), "Content-Type: "+types[int(mediaType)%len(types)])
		if answer.Code != http.StatusOK {
			t.Fatalf("%q: %d %s", body, answer.Code, answer.Body)
		}
		for line := range bytes.Lines(answer.Body.Bytes()) {
			var r struct {
				Result string
				Status *struct{ Code int }
			}
			if err := json.Unmarshal(line, &r); err != nil || (r.Status != nil) != (r.Result == "refused") || r.Status != nil && r.Status.Code >= http.StatusInternalServerError {
				t.Fatalf("%q: %v: %s", body, err, line)
			}
		}
	})
}
