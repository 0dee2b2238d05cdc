package rest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestPatch(t *testing.T) {
	w := newWorld(t)
	web := servicesPath + "/web"
	created := w.does(http.StatusCreated, "POST", servicesPath, service("web", ""))
	for _, c := range []struct {
		header, body string
		path         []any
		want         any
	}{
		{asMerge, `{"metadata":{"labels":{"a":"1","app":null}}}`, []any{"metadata", "labels"}, map[string]any{"a": "1"}},
		{asJSONPatch, `[{"op":"add","path":"/metadata/labels/b","value":"2"}]`, []any{"metadata", "labels", "b"}, "2"},
		{asStrategic, `{"spec":{"ports":[{"port":443,"name":"tls"},{"port":80,"name":"http"}]}}`, []any{"spec", "ports", 0, "name"}, "tls"},
		{asMerge + "; charset=utf-8", `{"spec":{"sessionAffinity":"ClientIP"}}`, []any{"spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"}, 10800.0},
	} {
		o := w.does(http.StatusOK, "PATCH", web, c.body, c.header)
		if got := at(o, c.path...); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v is %v, want %v", c.body, c.path, got, c.want)
		}
	}
	o := w.get(web)
	if at(o, "spec", "clusterIP") != at(created, "spec", "clusterIP") || at(o, "metadata", "uid") != at(created, "metadata", "uid") {
		t.Error("another Service:", o)
	}
	version := at(o, "metadata", "resourceVersion")
	for _, c := range []string{`{}`, `{"metadata":{"labels":{"a":"1"}}}`, `{"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}`} {
		if got := at(w.does(http.StatusOK, "PATCH", web, c, asMerge), "metadata", "resourceVersion"); got != version {
			t.Errorf("%s made version %v of %v", c, got, version)
		}
	}
}

func TestPatchRefuses(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", servicesPath, service("web", ""))
	web := servicesPath + "/web"
	for name, c := range map[string]struct {
		path, header, body string
		code               int
		want               string
	}{
		"media type":    {"", "Content-Type: application/json", `{}`, 415, "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"},
		"no object":     {"", asMerge, `[]`, 400, "error decoding patch"},
		"truncated":     {"", asStrategic, `{"a"`, 400, "error decoding patch"},
		"no operations": {"", asJSONPatch, `{}`, 400, "a JSON patch is a list of operations"},
		"test":          {"", asJSONPatch, `[{"op":"test","path":"/spec/type","value":"x"}]`, 422, "the server rejected our request due to an error in our request"},
		"no such":       {servicesPath + "/none", asMerge, `{}`, 404, `services "none" not found`},
		"force":         {web + "?force=true", asMerge, `{}`, 422, `PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch`},
		"unknown":       {web + "?fieldValidation=Strict", asMerge, `{"spec":{"bogus":1}}`, 422, `strict decoding error: unknown field "spec.bogus"`},
		"type":          {"", asMerge, `{"spec":{"ports":1}}`, 422, ` "" is invalid: patch: Invalid value: `},
		"stale":         {"", asMerge, `{"metadata":{"resourceVersion":"1"}}`, 409, "the object has been modified"},
		"uid":           {"", asMerge, `{"metadata":{"uid":"x"}}`, 422, "metadata.uid: Invalid value: \"x\": field is immutable"},
		"going":         {"", asMerge, `{"metadata":{"deletionTimestamp":"2030-01-01T00:00:00Z"}}`, 422, "metadata.deletionTimestamp: Invalid value"},
		"name":          {"", asMerge, `{"metadata":{"name":"db"}}`, 400, "does not match the name on the URL"},
		"namespace":     {"", asMerge, `{"metadata":{"namespace":"x"}}`, 400, "does not match the namespace"},
		"kind":          {"", asMerge, `{"kind":"Pod"}`, 422, "kind: Pod: it cannot be changed, this is a Service of v1"},
		"version":       {"", asMerge, `{"apiVersion":"v2"}`, 422, "apiVersion: v2: it cannot be changed"},
		"operation":     {"", asJSONPatch, `[{"op":"replace","path":"/kind","value":"Pod"}]`, 422, "kind: Pod: it cannot be changed"},
		"not valid":     {"", asMerge, `{"spec":{"ports":null}}`, 422, `Service "web" is invalid: spec.ports: Required value`},
		"cluster IP":    {"", asMerge, `{"spec":{"clusterIP":"10.96.0.99","clusterIPs":["10.96.0.99"]}}`, 422, "may not change once set"},
		"directive":     {"", asStrategic, `{"spec":{"$patch":"bogus"}}`, 400, "bogus"},
		"view":          {"/apis/networking.k8s.io/v1/ipaddresses/10.0.0.1", asMerge, `{}`, 405, "cannot be written"},
	} {
		path := c.path
		if path == "" {
			path = web
		}
		before := w.store.Revision()
		answer := w.sends("PATCH", path, c.body, c.header)
		message := fmt.Sprint(decoded(t, answer.Body.Bytes())["message"])
		if answer.Code != c.code || !strings.Contains(message, c.want) {
			t.Errorf("%s: %d %s, want %d %s", name, answer.Code, answer.Body, c.code, c.want)
		}
		if w.store.Revision() != before {
			t.Errorf("%s: something has changed", name)
		}
	}
}

func TestApply(t *testing.T) {
	w := newWorld(t)
	web := servicesPath + "/web"
	applied := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[{"port":80}],"selector":{"app":"web"}}}`
	o := w.does(http.StatusCreated, "PATCH", web+"?fieldManager=a", applied, asApply)
	version := at(o, "metadata", "resourceVersion")
	if at(o, "metadata", "managedFields", 0, "operation") != "Apply" || at(o, "spec", "clusterIP") == nil {
		t.Error(o)
	}
	// Again, and in YAML, changes nothing.
	for _, body := range []string{applied, "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  ports:\n  - port: 80\n  selector: {app: web}\n"} {
		o = w.does(http.StatusOK, "PATCH", web+"?fieldManager=a", body, asApply)
		if at(o, "metadata", "resourceVersion") != version {
			t.Error("changed by nothing:", o)
		}
	}
	other := strings.Replace(applied, `{"app":"web"}`, `{"app":"x"}`, 1)
	status := w.does(http.StatusConflict, "PATCH", web+"?fieldManager=b", other, asApply)
	if got := at(status, "details", "causes", 0); fmt.Sprint(got) != `map[field:.spec.selector message:conflict with "a" reason:FieldManagerConflict]` {
		t.Errorf("cause %v of %v", got, status["message"])
	}
	o = w.does(http.StatusOK, "PATCH", web+"?fieldManager=b&force=true", other, asApply)
	if at(o, "spec", "selector", "app") != "x" {
		t.Error(o)
	}
	// What an applier says no more goes.
	o = w.does(http.StatusOK, "PATCH", web+"?fieldManager=c", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","labels":{"l":"1"}}}`, asApply)
	if at(o, "metadata", "labels", "l") != "1" {
		t.Error(o)
	}
	o = w.does(http.StatusOK, "PATCH", web+"?fieldManager=c", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"}}`, asApply)
	if at(o, "metadata", "labels") != nil {
		t.Error(o)
	}
	for name, c := range map[string]struct {
		query, body string
		code        int
		want        string
	}{
		"no manager": {"", applied, 422, "fieldManager: Required value: is required for apply patch"},
		"no kind":    {"?fieldManager=a", `{"apiVersion":"v1"}`, 400, "kind must be set"},
		"other kind": {"?fieldManager=a", `{"apiVersion":"v1","kind":"Pod"}`, 400, "invalid object type"},
		"entries":    {"?fieldManager=a", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","managedFields":[]}}`, 400, "metadata.managedFields must be nil"},
		"unknown":    {"?fieldManager=a&fieldValidation=Strict", strings.Replace(applied, `"selector"`, `"bogus":1,"selector"`, 1), 400, `unknown field "spec.bogus"`},
		// An apply is typed: a field without a type is refused whatever fieldValidation is, as in Kubernetes.
		"a warning": {"?fieldManager=a", strings.Replace(applied, `"selector"`, `"bogus":1,"selector"`, 1), 400, `unknown field "spec.bogus"`},
		"ignored":   {"?fieldManager=a&fieldValidation=Ignore", strings.Replace(applied, `"selector"`, `"bogus":1,"selector"`, 1), 400, `unknown field "spec.bogus"`},
		"twice":     {"?fieldManager=a&fieldValidation=Strict", strings.Replace(applied, `"selector"`, `"selector":{},"selector"`, 1), 400, `duplicate field "spec.selector"`},
		"type":      {"?fieldManager=a", `{"apiVersion":"v1","kind":"Service","spec":[]}`, 400, "failed to create typed patch object (default/web; v1, Kind=Service)"},
		"stale":     {"?fieldManager=a&force=1", strings.Replace(applied, `"name":"web"`, `"name":"web","resourceVersion":"1"`, 1), 409, "modified"},
		"nothing":   {"?fieldManager=a", ``, 400, "error decoding patch"},
	} {
		answer := w.sends("PATCH", web+c.query, c.body, asApply)
		if message := fmt.Sprint(decoded(t, answer.Body.Bytes())["message"]); answer.Code != c.code || !strings.Contains(message, c.want) {
			t.Errorf("%s: %d %s, want %d %s", name, answer.Code, message, c.code, c.want)
		}
	}
}
