package rest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

const (
	servicesPath   = "/api/v1/namespaces/default/services"
	configMapsPath = "/api/v1/namespaces/default/configmaps"
)

// sends makes a request with a body in JSON, unless a header ("Content-Type: text") says
// what else it is in.
func (w *world) sends(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	w.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", typeJSON)
	r.Header.Set("User-Agent", "tester/1.0")
	for _, header := range headers {
		key, value, _ := strings.Cut(header, ": ")
		r.Header.Set(key, value)
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	return answer
}

// does is sends for what has to be answered with a code.
func (w *world) does(code int, method, path, body string, headers ...string) map[string]any {
	w.Helper()
	answer := w.sends(method, path, body, headers...)
	if answer.Code != code {
		w.Fatalf("%s %s %s: %d, want %d: %s", method, path, body, answer.Code, code, answer.Body)
	}
	return decoded(w, answer.Body.Bytes())
}

const (
	asMerge     = "Content-Type: " + typeMergePatch
	asJSONPatch = "Content-Type: " + typeJSONPatch
	asStrategic = "Content-Type: " + typeStrategicPatch
	asApply     = "Content-Type: " + typeApplyPatch
)

func TestCreate(t *testing.T) {
	w := newWorld(t)
	o := w.does(http.StatusCreated, "POST", servicesPath, service("web", ""))
	if ip := at(o, "spec", "clusterIP"); ip == nil || ip == "" {
		t.Error("no cluster IP:", o)
	}
	if got := at(o, "metadata", "managedFields", 0, "manager"); got != "tester" {
		t.Errorf("managed by %v", got)
	}
	if got := at(o, "metadata", "managedFields", 0, "operation"); got != "Update" {
		t.Errorf("operation %v", got)
	}
	same := w.get(servicesPath + "/web")
	if fmt.Sprint(same) != fmt.Sprint(o) {
		t.Errorf("stored %v, answered %v", same, o)
	}
	status := w.does(http.StatusConflict, "POST", servicesPath, service("web", ""))
	if status["reason"] != wire.ReasonAlreadyExists || status["message"] != `services "web" already exists` {
		t.Error(status)
	}
	// What is wrong with the object itself comes first.
	status = w.does(http.StatusUnprocessableEntity, "POST", servicesPath, strings.Replace(service("web", ""), `"port":80`, `"port":0`, 1))
	if status["reason"] != wire.ReasonInvalid || !strings.Contains(fmt.Sprint(status["message"]), "spec.ports[0].port") {
		t.Error(status)
	}
	// generateName
	for range 2 {
		o = w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"generateName":"my-"},"data":{"a":"b"}}`)
		if name := fmt.Sprint(at(o, "metadata", "name")); !strings.HasPrefix(name, "my-") || len(name) != 8 {
			t.Errorf("generated name %q", name)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	w := newWorld(t)
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for name, c := range map[string]struct {
		path, body, header string
		code               int
		want               string
	}{
		"truncated":        {body: `{"kind":"Service"`, code: 400, want: "the object provided is unrecognized (must be of type Service)"},
		"empty":            {body: ``, code: 400, want: "<empty>"},
		"array":            {body: `[]`, code: 400, want: "unrecognized"},
		"not UTF-8":        {body: "{\"metadata\":{\"name\":\"\xff\"}}", code: 400, want: "UTF-8"},
		"deep":             {body: `{"metadata":` + deep + `}`, code: 400, want: "more than 64 deep"},
		"long":             {body: `{"metadata":{"name":"` + strings.Repeat("x", 4<<20) + `"}}`, code: 413, want: "limit is 3145728"},
		"wrong type":       {body: `{"spec":{"ports":"x"}}`, code: 400, want: `Service in version "v1" cannot be handled as a Service: json: cannot unmarshal string`},
		"other kind":       {body: `{"kind":"ConfigMap","apiVersion":"v1"}`, code: 400, want: `ConfigMap in version "v1" cannot be handled as a Service`},
		"other version":    {body: `{"kind":"Service","apiVersion":"v2"}`, code: 400, want: "the API version in the data (v2) does not match the expected API version (v1)"},
		"kind no text":     {body: `{"kind":{},"apiVersion":[]}`, code: 400, want: "have to be text"},
		"other namespace":  {body: `{"metadata":{"name":"web","namespace":"x"}}`, code: 400, want: "does not match the namespace sent on the request"},
		"no namespace":     {path: "/api/v1/namespaces/none/services", body: service("web", ""), code: 404, want: `namespaces "none" not found`},
		"no name":          {body: `{"spec":{"ports":[{"port":80}]}}`, code: 422, want: "name or generateName is required"},
		"with a version":   {body: `{"metadata":{"name":"web","resourceVersion":"7"}}`, code: 400, want: "resourceVersion should not be set"},
		"media type":       {body: service("web", ""), header: "Content-Type: text/plain", code: 415, want: "accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"},
		"encoded":          {body: service("web", ""), header: "Content-Encoding: gzip", code: 415, want: "content encoding"},
		"dry run":          {path: servicesPath + "?dryRun=Some", body: service("web", ""), code: 422, want: `CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"`},
		"validation":       {path: servicesPath + "?fieldValidation=x", body: service("web", ""), code: 422, want: "fieldValidation: Unsupported value"},
		"manager":          {path: servicesPath + "?fieldManager=" + strings.Repeat("x", 129), body: service("web", ""), code: 422, want: "fieldManager: Too long: may not be more than 128 bytes"},
		"unprintable":      {path: servicesPath + "?fieldManager=a%0ab", body: service("web", ""), code: 422, want: "invalid character U+000A (at position 1)"},
		"unknown field":    {path: servicesPath + "?fieldValidation=Strict", body: service("web", `"bogus":1`), code: 400, want: `Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "spec.bogus"`},
		"twice":            {path: servicesPath + "?fieldValidation=Strict", body: `{"metadata":{"name":"a","name":"b"}}`, code: 400, want: `duplicate field "metadata.name"`},
		"not valid":        {body: service("web", `"type":"Bogus"`), code: 422, want: `Service "web" is invalid: spec.type: Unsupported value: "Bogus"`},
		"address":          {path: "/apis/networking.k8s.io/v1/ipaddresses", body: `{"metadata":{"name":"10.0.0.1"}}`, code: 405, want: "cannot be written"},
		"range":            {path: "/apis/networking.k8s.io/v1/servicecidrs", body: `{"metadata":{"name":"x"},"spec":{"cidrs":["10.0.0.0/24"]}}`, code: 403, want: "settings of the box"},
		"two documents":    {body: "a: b\n---\nc: d\n", header: "Content-Type: application/yaml", code: 400, want: "2 documents"},
		"protobuf":         {body: "nonsense", header: "Content-Type: application/vnd.kubernetes.protobuf", code: 400, want: "unrecognized"},
		"truncated protob": {body: "k8s\x00\x0a\xff", header: "Content-Type: application/vnd.kubernetes.protobuf", code: 400, want: "unrecognized"},
	} {
		path := c.path
		if path == "" {
			path = servicesPath
		}
		before := w.store.Revision()
		var headers []string
		if c.header != "" {
			headers = append(headers, c.header)
		}
		answer := w.sends("POST", path, c.body, headers...)
		status := decoded(t, answer.Body.Bytes())
		if answer.Code != c.code || status["kind"] != "Status" || !strings.Contains(fmt.Sprint(status["message"]), c.want) {
			t.Errorf("%s: %d %s, want %d %s", name, answer.Code, answer.Body, c.code, c.want)
		}
		if w.store.Revision() != before {
			t.Errorf("%s: something has changed", name)
		}
	}
}

func TestFieldValidationWarns(t *testing.T) {
	w := newWorld(t)
	body := `{"metadata":{"name":"a","name":"web"},"spec":{"ports":[{"port":80,"bogus":"\"x\""}]}}`
	answer := w.sends("POST", servicesPath, body)
	want := []string{`299 - "duplicate field \"metadata.name\""`, `299 - "unknown field \"spec.ports[0].bogus\""`}
	if got := answer.Header().Values("Warning"); answer.Code != http.StatusCreated || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d %q, want %q", answer.Code, got, want)
	}
	answer = w.sends("PUT", servicesPath+"/web?fieldValidation=Ignore", body)
	if got := answer.Header().Values("Warning"); answer.Code != http.StatusOK || len(got) > 0 {
		t.Errorf("%d %q", answer.Code, got)
	}
}

func TestUpdate(t *testing.T) {
	w := newWorld(t)
	web := servicesPath + "/web"
	if status := w.does(http.StatusNotFound, "PUT", configMapsPath+"/x", `{"metadata":{"name":"x"}}`); status["message"] != `configmaps "x" not found` {
		t.Error(status)
	}
	// A Service is created by a PUT, as in Kubernetes.
	o := w.does(http.StatusCreated, "PUT", web, service("web", ""))
	version, ip := at(o, "metadata", "resourceVersion"), at(o, "spec", "clusterIP")
	// The same again, without what the server gave, changes nothing.
	o = w.does(http.StatusOK, "PUT", web, service("web", ""))
	if at(o, "metadata", "resourceVersion") != version || at(o, "spec", "clusterIP") != ip {
		t.Error("changed by nothing:", o)
	}
	o = w.does(http.StatusOK, "PUT", web, service("web", `"type":"NodePort"`))
	if at(o, "spec", "ports", 0, "nodePort") == nil || at(o, "metadata", "generation") != 2.0 {
		t.Error("not changed:", o)
	}
	stale := strings.Replace(service("web", ""), `"name":"web",`, fmt.Sprintf(`"name":"web","resourceVersion":%q,`, version), 1)
	status := w.does(http.StatusConflict, "PUT", web, stale)
	if status["reason"] != wire.ReasonConflict || !strings.Contains(fmt.Sprint(status["message"]), `Operation cannot be fulfilled on services "web": the object has been modified`) {
		t.Error(status)
	}
	other := strings.Replace(service("web", ""), `"name":"web",`, `"name":"web","uid":"x",`, 1)
	w.does(http.StatusConflict, "PUT", web, other)
	w.does(http.StatusBadRequest, "PUT", web, service("db", ""))
	w.does(http.StatusBadRequest, "PUT", web, `{"spec":{}}`)
	w.does(http.StatusConflict, "PUT", servicesPath+"/gone", `{"metadata":{"name":"gone","uid":"x"},"spec":{"ports":[{"port":1}]}}`)
	// A Lease is not updated without a version.
	lease := "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
	w.does(http.StatusCreated, "PUT", lease, `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me","renewTime":"2026-01-02T03:04:05.678901Z"}}`)
	status = w.does(http.StatusUnprocessableEntity, "PUT", lease, `{"metadata":{"name":"l"},"spec":{"holderIdentity":"you"}}`)
	if !strings.Contains(fmt.Sprint(status["message"]), "must be specified for an update") {
		t.Error(status)
	}
	if got := at(w.get(lease), "spec", "renewTime"); got != "2026-01-02T03:04:05.678901Z" {
		t.Error("renewTime", got)
	}
}

func TestDryRun(t *testing.T) {
	w := newWorld(t)
	before := w.store.Revision()
	lb := service("web", `"type":"LoadBalancer"`)
	shown := w.does(http.StatusCreated, "POST", servicesPath+"?dryRun=All", lb)
	again := w.does(http.StatusCreated, "POST", servicesPath+"?dryRun=All", lb)
	if w.store.Revision() != before {
		t.Error("a dry run has changed something")
	}
	made := w.does(http.StatusCreated, "POST", servicesPath, lb)
	for _, field := range [][]any{{"spec", "clusterIP"}, {"spec", "ports", 0, "nodePort"}} {
		if at(shown, field...) == nil || at(shown, field...) != at(made, field...) || at(again, field...) != at(made, field...) {
			t.Errorf("%v: dry runs show %v and %v, made is %v", field, at(shown, field...), at(again, field...), at(made, field...))
		}
	}
	version := at(made, "metadata", "resourceVersion")
	w.does(http.StatusOK, "PATCH", servicesPath+"/web?dryRun=All", `{"metadata":{"labels":{"x":"y"}}}`, asMerge)
	w.does(http.StatusOK, "DELETE", servicesPath+"/web?dryRun=All", "")
	w.does(http.StatusOK, "DELETE", servicesPath+"?dryRun=All", "")
	if o := w.get(servicesPath + "/web"); at(o, "metadata", "resourceVersion") != version {
		t.Error("a dry run has changed something:", o)
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(t)
	web := servicesPath + "/web"
	w.does(http.StatusCreated, "POST", servicesPath, service("web", `"type":"LoadBalancer","loadBalancerClass":"other.example/lb"`))
	o := w.does(http.StatusOK, "PATCH", web+"/status", `{"metadata":{"labels":{"no":"no"}},"spec":{"type":"ClusterIP"},"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.7"}]}}}`, asMerge)
	if at(o, "status", "loadBalancer", "ingress", 0, "ip") != "198.51.100.7" || at(o, "spec", "type") != "LoadBalancer" || at(o, "metadata", "labels", "no") != nil {
		t.Error(o)
	}
	if got := at(o, "metadata", "managedFields", 1, "subresource"); got != "status" {
		t.Errorf("managed by %v", at(o, "metadata", "managedFields"))
	}
	// The main path does not see a status.
	o = w.does(http.StatusOK, "PUT", web, service("web", `"type":"LoadBalancer","loadBalancerClass":"other.example/lb"`))
	if at(o, "status", "loadBalancer", "ingress", 0, "ip") != "198.51.100.7" {
		t.Error(o)
	}
	o = w.does(http.StatusOK, "PATCH", web+"/status?fieldManager=s&force=true", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.8"}]}}}`, asApply)
	if at(o, "status", "loadBalancer", "ingress", 0, "ip") != "198.51.100.8" {
		t.Error(o)
	}
	version := at(o, "metadata", "resourceVersion")
	o = w.does(http.StatusOK, "PATCH", web+"/status?fieldManager=s", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.8"}]}}}`, asApply)
	if at(o, "metadata", "resourceVersion") != version {
		t.Error("changed by nothing:", o)
	}
	w.does(http.StatusNotFound, "PATCH", servicesPath+"/none/status?fieldManager=s", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"none"}}`, asApply)
	w.does(http.StatusNotFound, "PUT", servicesPath+"/none/status", `{"metadata":{"name":"none"}}`)
}

// What could not be changed any more is not stored.
func TestTooLargeToBeWritten(t *testing.T) {
	w := newWorld(t)
	// One byte each as it is sent, six as it is written.
	body := fmt.Sprintf(`{"metadata":{"name":"cm"},"data":{"a":"%s"}}`, strings.Repeat("<", 700<<10))
	if status := w.does(http.StatusRequestEntityTooLarge, "POST", configMapsPath, body); status["reason"] != wire.ReasonTooLarge {
		t.Error(status)
	}
	w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm"}}`)
	w.does(http.StatusRequestEntityTooLarge, "PATCH", configMapsPath+"/cm", body, asMerge)
	w.does(http.StatusOK, "PATCH", configMapsPath+"/cm", `{"data":{"a":"b"}}`, asMerge)
}

func TestYAML(t *testing.T) {
	w := newWorld(t)
	o := w.does(http.StatusCreated, "POST", servicesPath, webFile, "Content-Type: application/yaml")
	if at(o, "spec", "ports", 0, "targetPort") != 8080.0 || at(o, "metadata", "labels", "tier") != "front" {
		t.Error(o)
	}
	answer := w.sends("PUT", servicesPath+"/web", strings.Replace(webFile, "kind: Service", "kind: Service\nkind: Service", 1), "Content-Type: application/yaml")
	if got := answer.Header().Get("Warning"); answer.Code != http.StatusOK || got != `299 - "duplicate field \"kind\""` {
		t.Errorf("%d %s", answer.Code, got)
	}
	// The last one counts, as in JSON, and as in Kubernetes.
	twice := strings.Replace(webFile, "tier: front", "tier: front, tier: back", 1)
	for _, c := range []struct{ method, path, body, header string }{
		{"PUT", "", twice, "Content-Type: application/yaml"},
		{"PATCH", "&fieldManager=x&force=true", twice, asApply},
	} {
		o = w.does(http.StatusOK, c.method, servicesPath+"/web?fieldValidation=Ignore"+c.path, c.body, c.header)
		if got := at(o, "metadata", "labels", "tier"); got != "back" {
			t.Errorf("%s: %v", c.method, got)
		}
		w.does(http.StatusOK, "PUT", servicesPath+"/web", webFile, "Content-Type: application/yaml")
	}
}

func TestSecret(t *testing.T) {
	w := newWorld(t)
	path := "/api/v1/namespaces/default/secrets"
	o := w.does(http.StatusCreated, "POST", path, `{"metadata":{"name":"s"},"stringData":{"a":"b"},"data":{"c":"ZA=="}}`)
	if at(o, "data", "a") != "Yg==" || at(o, "data", "c") != "ZA==" || o["stringData"] != nil || o["type"] != "Opaque" {
		t.Error(o)
	}
	o = w.does(http.StatusOK, "PATCH", path+"/s", `{"immutable":true}`, asMerge)
	w.does(http.StatusUnprocessableEntity, "PATCH", path+"/s", `{"stringData":{"a":"x"}}`, asMerge)
	w.does(http.StatusOK, "PATCH", path+"/s", `{"metadata":{"labels":{"a":"x"}}}`, asMerge)
	_ = o
}

func TestManagedFieldsCanBeTakenAway(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm"},"data":{"a":"b"}}`)
	o := w.does(http.StatusOK, "PATCH", configMapsPath+"/cm", `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`, asJSONPatch)
	if at(o, "metadata", "managedFields") != nil {
		t.Error(o)
	}
}

func TestImportantPathsOfOtherKinds(t *testing.T) {
	w := newWorld(t)
	for path, body := range map[string]string{
		"/api/v1/nodes":                                               `{"metadata":{"name":"n"},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`,
		"/api/v1/namespaces/default/pods":                             `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]},"status":{"podIP":"192.0.2.2"}}`,
		"/api/v1/namespaces/default/endpoints":                        `{"metadata":{"name":"e"},"subsets":[{"addresses":[{"ip":"192.0.2.1"}],"ports":[{"port":80}]}]}`,
		"/api/v1/namespaces":                                          `{"metadata":{"name":"ns"}}`,
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": `{"metadata":{"name":"s"},"addressType":"IPv4","endpoints":[{"addresses":["192.0.2.1"]}],"ports":[{"port":80}]}`,
	} {
		o := w.does(http.StatusCreated, "POST", path, body)
		if o["kind"] == nil || at(o, "metadata", "uid") == nil {
			t.Errorf("%s: %v", path, o)
		}
		if o["kind"] == object.KindNode && at(o, "status", "addresses", 0, "address") != "192.0.2.1" {
			t.Errorf("the first status of a Node is lost: %v", o)
		}
		if o["kind"] == object.KindPod && at(o, "status", "podIP") != "192.0.2.2" {
			t.Errorf("the first status of a Pod is lost: %v", o)
		}
		if o["kind"] == object.KindNamespace && (at(o, "status", "phase") != "Active" || at(o, "metadata", "labels", "kubernetes.io/metadata.name") != "ns") {
			t.Errorf("%v", o)
		}
	}
}

// As client-go sends it.
func TestProtobuf(t *testing.T) {
	w := newWorld(t)
	body := "k8s\x00" + "\x0a\x0d\x0a\x02v1\x12\x07Service" + "\x12\x0d" + "\x0a\x05\x0a\x03web" + "\x12\x04\x0a\x02\x18\x50"
	o := w.does(http.StatusCreated, "POST", servicesPath, body, "Content-Type: application/vnd.kubernetes.protobuf")
	if at(o, "metadata", "name") != "web" || at(o, "spec", "ports", 0, "port") != 80.0 || at(o, "spec", "clusterIP") == nil {
		t.Error(o)
	}
	version := at(o, "metadata", "resourceVersion")
	if o = w.does(http.StatusOK, "PUT", servicesPath+"/web", body, "Content-Type: application/vnd.kubernetes.protobuf"); at(o, "metadata", "resourceVersion") != version {
		t.Error("changed by nothing:", o)
	}
}
