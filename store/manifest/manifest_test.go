package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcctl.io/svcctl/store/object"
)

// web is the Service that the tests write in many ways.
func web() *object.Service {
	return &object.Service{
		TypeMeta: object.TypeMeta{Kind: "Service", APIVersion: "v1"},
		Metadata: object.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec: object.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []object.ServicePort{{Name: "http", Port: 80, TargetPort: object.FromInt(8080)}},
		},
	}
}

const webYAML = `apiVersion: v1
kind: Service
metadata:
  name: web
  labels:
    app: web
spec:
  selector:
    app: web
  ports:
  - name: http
    port: 80
    targetPort: 8080
`

const webJSON = `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"app":"web"}},
 "spec":{"selector":{"app":"web"},"ports":[{"name":"http","port":80,"targetPort":8080}]}}`

// objects decodes text and fails on any error; warnings may be.
func objects(t *testing.T, path, text string) []object.Object {
	t.Helper()
	f := Decode(path, []byte(text), Limits{})
	if f.Err != nil {
		t.Fatalf("Decode: %v", f.Err)
	}
	var out []object.Object
	for _, d := range f.Documents {
		out = append(out, d.Object)
	}
	for _, p := range f.Problems {
		if !p.Warning {
			t.Errorf("problem: %v", p)
		}
	}
	return out
}

func messages(f *File) []string {
	var out []string
	if f.Err != nil {
		out = append(out, f.Err.String())
	}
	for _, p := range f.Problems {
		out = append(out, p.String())
	}
	return out
}

func TestWaysToWriteOneObject(t *testing.T) {
	for name, c := range map[string]struct{ path, text string }{
		"yaml":               {"a.yaml", webYAML},
		"yaml with markers":  {"a.yaml", "---\n# a comment\n" + webYAML + "---\n"},
		"crlf":               {"a.yaml", strings.ReplaceAll("---\n"+webYAML, "\n", "\r\n")},
		"byte order mark":    {"a.yaml", "\xef\xbb\xbf" + webYAML},
		"marks of documents": {"a.yaml", "\xef\xbb\xbf# one\n---\n\xef\xbb\xbf" + webYAML + "\xef\xbb\xbf---\n# another\n"},
		"yaml directive":     {"a.yaml", "%YAML 1.1\n---\n" + webYAML + "...\n"},
		"content after ---":  {"a.yaml", "--- " + webJSON + "\n"},
		"json":               {"a.json", webJSON},
		"json in yaml":       {"a.yaml", webJSON},
		"tabbed json":        {"a.json", strings.ReplaceAll(webJSON, ",", ",\t\n\t")},
		"flow yaml":          {"a.yaml", "{apiVersion: v1, kind: Service, metadata: {name: web, labels: {app: web}}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}"},
		"anchors":            {"a.yaml", strings.Replace(strings.Replace(webYAML, "  labels:\n", "  labels: &l\n", 1), "  selector:\n    app: web\n", "  selector: *l\n", 1)},
		"merge key":          {"a.yaml", strings.Replace(strings.Replace(webYAML, "  labels:\n", "  labels: &l\n", 1), "  selector:\n    app: web\n", "  selector:\n    <<: *l\n", 1)},
		"explicit tags":      {"a.yaml", strings.Replace(webYAML, "port: 80\n", "port: !!int 80\n", 1)},
		"numbers of YAML":    {"a.yaml", strings.NewReplacer("port: 80\n", "port: 0x50\n", "8080", "8_080").Replace(webYAML)},
		"octal with an o":    {"a.yaml", strings.Replace(webYAML, "port: 80\n", "port: 0o120\n", 1)},
		"float without rest": {"a.yaml", strings.Replace(webYAML, "port: 80\n", "port: 8e1\n", 1)},
		"nulls":              {"a.yaml", webYAML + "  clusterIP: null\n  sessionAffinityConfig: ~\n  externalIPs:\nstatus: null\n"},
		"fields of dumps":    {"a.yaml", strings.Replace(webYAML, "  name: web\n", "  name: web\n  creationTimestamp: null\n  selfLink: /x\n  managedFields: [{a: b}]\n", 1)},
		"v1 List":            {"a.yaml", "apiVersion: v1\nkind: List\nmetadata: {}\nitems:\n- " + strings.TrimSpace(strings.ReplaceAll(webYAML, "\n", "\n  ")) + "\n"},
		"ServiceList":        {"a.yaml", "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: web, labels: {app: web}}\n  spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}\n"},
		"List in json":       {"a.json", `{"apiVersion":"v1","items":[` + webJSON + `],"kind":"List","metadata":{"resourceVersion":""}}`},
		"List in List":       {"a.json", `{"apiVersion":"v1","items":[{"apiVersion":"v1","kind":"List","items":[` + webJSON + `]}],"kind":"List"}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := objects(t, c.path, c.text)
			if diff := cmp.Diff([]object.Object{web()}, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// A namespace of an object that is in none is dropped, as kube-apiserver does and the API here: charts set one for all of their objects.
func Test1153_namespace_of_an_object_that_is_in_none(t *testing.T) {
	all := objects(t, "class.yaml", "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: own, namespace: edge}\nspec: {controllerName: svcctl.io/gateway-controller}\n")
	if len(all) != 1 || object.RefOf(all[0]) != (object.Ref{Kind: object.KindGatewayClass, Name: "own"}) {
		t.Fatalf("objects %v", all)
	}
	object.Default(all[0])
	if errs := object.Validate(all[0], object.Options{}); len(errs) > 0 {
		t.Error(errs)
	}
}

func TestManyDocuments(t *testing.T) {
	slice := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1}\naddressType: IPv4\nports: []\nendpoints: []\n"
	for name, c := range map[string]struct {
		path, text string
		want       int
	}{
		"empty file":        {"a.yaml", "", 0},
		"only comments":     {"a.yaml", "# a\n\n# b\n", 0},
		"empty documents":   {"a.yaml", "---\n---\n# x\n---\n", 0},
		"empty json":        {"a.json", " \n", 0},
		"json null":         {"a.json", "null", 0},
		"two and a gap":     {"a.yaml", webYAML + "---\n---\n" + slice, 2},
		"document end":      {"a.yaml", webYAML + "...\n---\n" + slice, 2},
		"concatenated json": {"a.json", webJSON + "\n" + webJSON + webJSON, 3},
		"json with ---":     {"a.yaml", webJSON + "\n---\n" + webJSON, 2},
		"empty List":        {"a.yaml", "apiVersion: v1\nkind: List\nitems: []\n", 0},
		"no items":          {"a.yaml", "apiVersion: v1\nkind: List\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := objects(t, c.path, c.text); len(got) != c.want {
				t.Errorf("%d objects, want %d", len(got), c.want)
			}
		})
	}
}

// TestSamples decodes every object of the Kubernetes documentation's Service pages.
func TestSamples(t *testing.T) {
	want := map[string]int{"kubernetes-1.2.json": 6, "kubernetes-1.6.yaml": 6, "kubernetes-1.9.yaml": 4, "kubernetes-current.yaml": 10, "pod-of-a-cluster.yaml": 1}
	for name, n := range want {
		path := filepath.Join("testdata", "samples", name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := Decode(path, data, Limits{})
		for _, m := range messages(f) {
			t.Error(m)
		}
		if len(f.Documents) != n {
			t.Errorf("%s: %d objects, want %d", name, len(f.Documents), n)
		}
	}
}

// TestProblems has what can be wrong, and the line that says so.
func TestProblems(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	for name, c := range map[string]struct {
		path, text string
		want       []string
	}{
		"unknown field":        {"", head + "spec:\n  bogus: 1\n", []string{`a.yaml:5:3: Service default/web: unknown field "spec.bogus"`}},
		"misspelled field":     {"", head + "spec:\n  ports:\n  - prot: 1\n    port: 80\n", []string{`a.yaml:6:5: Service default/web: unknown field "spec.ports[0].prot"; did you mean "port"?`}},
		"wrong case":           {"", head + "spec:\n  clusterip: None\n", []string{`a.yaml:5:3: Service default/web: unknown field "spec.clusterip"; did you mean "clusterIP"?`}},
		"text for number":      {"", head + "spec:\n  ports:\n  - port: http\n", []string{`a.yaml:6:11: Service default/web: spec.ports[0].port: expected a whole number, got the text "http"`}},
		"quoted number":        {"", head + "spec:\n  ports:\n  - port: \"80\"\n", []string{`a.yaml:6:11: Service default/web: spec.ports[0].port: expected a whole number, got the text "80"`}},
		"fraction":             {"", head + "spec:\n  ports:\n  - port: 80.5\n", []string{`a.yaml:6:11: Service default/web: spec.ports[0].port: expected a whole number, got the number 80.5`}},
		"number too large":     {"", head + "spec:\n  healthCheckNodePort: 12345678901234567890\n", []string{`a.yaml:5:24: Service default/web: spec.healthCheckNodePort: 12345678901234567890 is too large`}},
		"33 bits":              {"", head + "spec:\n  healthCheckNodePort: 4294967296\n", []string{`a.yaml:5:24: Service default/web: spec.healthCheckNodePort: 4294967296 does not fit in 32 bits`}},
		"looks octal":          {"", head + "spec:\n  healthCheckNodePort: 010\n", []string{`a.yaml:5:24: Service default/web: spec.healthCheckNodePort: the leading zero of 010 makes it an octal number to some readers; write it without`}},
		"looks octal, is 8":    {"", head + "spec:\n  healthCheckNodePort: 030080\n", []string{`a.yaml:5:24: Service default/web: spec.healthCheckNodePort: the leading zero of 030080 makes it an octal number to some readers; write it without`}},
		"number for text":      {"", head + "spec:\n  selector: {version: 1}\n", []string{`a.yaml:5:23: Service default/web: spec.selector[version]: expected a text, got the number 1; quote it: "1"`}},
		"bool for text":        {"", head + "spec:\n  selector: {on.x/y: true}\n", []string{`a.yaml:5:22: Service default/web: spec.selector[on.x/y]: expected a text, got the bool true; quote it: "true"`}},
		"text for bool":        {"", head + "spec:\n  publishNotReadyAddresses: \"true\"\n", []string{`a.yaml:5:29: Service default/web: spec.publishNotReadyAddresses: expected true or false, got the text "true"`}},
		"mapping for list":     {"", head + "spec:\n  ports: {port: 80}\n", []string{`a.yaml:5:10: Service default/web: spec.ports: expected a list, got a mapping`}},
		"list for mapping":     {"", head + "spec: []\n", []string{`a.yaml:4:7: Service default/web: spec: expected a mapping, got a list`}},
		"bad time":             {"", "apiVersion: v1\nkind: Service\nmetadata: {name: web, creationTimestamp: 2001-01-01}\n", []string{`a.yaml:3:42: Service default/web: metadata.creationTimestamp: expected a time as in "2006-01-02T15:04:05Z" (RFC 3339), got the text "2001-01-01"`}},
		"duplicate key":        {"", head + "spec:\n  type: NodePort\n  type: ClusterIP\n", []string{`a.yaml:6:3: Service default/web: spec.type: duplicate key "type"; remove one of them`}},
		"duplicate 1 and 1":    {"", head + "spec:\n  selector: {1: a, \"1\": b}\n", []string{`a.yaml:5:20: Service default/web: spec.selector[1]: duplicate key "1"; remove one of them`}},
		"json duplicate key":   {"a.json", "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"web\",\n\"name\":\"x\"}}", []string{`a.json:2:1: Service default/web: metadata.name: duplicate key "name"; remove one of them`}},
		"mapping as a key":     {"", head + "spec: {? {a: b} : c}\n", []string{`a.yaml:4:10: Service default/web: spec: a key must be text, not a mapping or a list`}},
		"tag":                  {"", head + "spec: !mine {type: ClusterIP}\n", []string{`a.yaml:4:7: Service default/web: spec: the tag "!mine" has no meaning here; remove it`}},
		"binary":               {"", head + "spec: {type: !!binary Zm9v}\n", []string{`a.yaml:4:14: Service default/web: spec.type: the tag "!!binary" has no meaning here; remove it`}},
		"merge of a text":      {"", head + "spec: {<<: foo}\n", []string{`a.yaml:4:12: Service default/web: spec: a merge key wants a mapping or a list of mappings, got the text "foo"`}},
		"no kind":              {"", "apiVersion: v1\nmetadata: {name: web}\n", []string{`a.yaml:1:1: kind: Required value: name the kind, as in "kind: Service"`}},
		"no apiVersion":        {"", "kind: Service\nmetadata: {name: web, namespace: prod}\n", []string{`a.yaml:1:1: Service prod/web: apiVersion: Required value: write "apiVersion: v1"`}},
		"no name":              {"", "apiVersion: v1\nkind: Service\nmetadata:\n  labels: {}\n", []string{`a.yaml:3:1: metadata.name: Required value: an object in a file needs a name`}},
		"lower case kind":      {"", "apiVersion: v1\nkind: service\n", []string{`a.yaml:2:1: kind: Unsupported value: "service": write "Service"`}},
		"old version":          {"", "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n", []string{`a.yaml:1:1: apiVersion: Unsupported value: "discovery.k8s.io/v1beta1": supported values: "discovery.k8s.io/v1"`}},
		"slice in core":        {"", "apiVersion: v1\nkind: EndpointSlice\n", []string{`a.yaml:1:1: apiVersion: Unsupported value: "v1": supported values: "discovery.k8s.io/v1"`}},
		"ConfigMap":            {"", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n", []string{"a.yaml:1:1: warning: ConfigMap default/c: kind ConfigMap is not read from files, and the document is ignored: clients bring it, as `svcctl apply -f FILE`"}},
		"Namespace":            {"", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n", []string{`a.yaml:1:1: warning: Namespace shop: not needed in files: namespaces come with the objects in them; the document is ignored`}},
		"not served":           {"", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: yes, replicas: 2}\n", []string{`a.yaml:1:1: warning: Deployment default/x: kind Deployment of apps/v1 is not served here (no containers are started; name running servers in an EndpointSlice, or as Pods with status.podIP); the document is ignored`}},
		"a range":              {"", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: x}\n", []string{`a.yaml:1:1: warning: ServiceCIDR default/x: the ranges of cluster IPs are settings of the box: the document is ignored; give --service-cluster-ip-range, or serviceClusterIPRange in /etc/svcctl/svcctl.yaml`}},
		"another Service":      {"", "apiVersion: serving.knative.dev/v1\nkind: Service\n", []string{`a.yaml:1:1: warning: kind Service of serving.knative.dev/v1 is not served here; the document is ignored`}},
		"NodeList":             {"", "apiVersion: v1\nkind: NodeList\nitems: []\n", []string{`a.yaml:1:1: warning: kind NodeList is not served here; the document is ignored`}},
		"misspelled Pod field": {"", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {podip: 10.0.0.1, Phase: Running}\n", []string{`a.yaml:4:10: warning: Pod default/a: unknown field "status.podip"; did you mean "podIP"?`}},
		"misspelled Pod label": {"", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, lables: {app: x}}\n", []string{`a.yaml:3:21: Pod default/a: unknown field "metadata.lables"; did you mean "labels"?`}},
		"wrong Pod port":       {"", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{ports: [{containerPort: http}]}]}\n", []string{`a.yaml:4:46: Pod default/a: spec.containers[0].ports[0].containerPort: expected a whole number, got the text "http"`}},
		"text":                 {"", "hello\n", []string{`a.yaml:1:1: expected an object with apiVersion and kind, got the text "hello"`}},
		"list of objects":      {"", "- a\n", []string{`a.yaml:1:1: expected an object with apiVersion and kind, got a list`}},
		"List without list":    {"", "apiVersion: v1\nkind: List\nitems: 3\n", []string{`a.yaml:3:8: items: expected a list, got the number 3`}},
		"field gone":           {"", head + "spec:\n  topologyKeys: [\"*\"]\n", []string{`a.yaml:5:3: warning: Service default/web: spec.topologyKeys: Kubernetes no longer has this field, and it has no effect here; remove it`}},
		"unquoted yes":         {"", head + "spec: {publishNotReadyAddresses: yes}\n", []string{`a.yaml:4:34: warning: Service default/web: spec.publishNotReadyAddresses: the unquoted yes is read as true, as kubectl does; write true`}},
		"unquoted on":          {"", head + "spec: {selector: {a: on}}\n", []string{`a.yaml:4:22: warning: Service default/web: spec.selector[a]: kubectl reads the unquoted on as a bool; write "on"`}},
		"unquoted key":         {"", head + "spec: {selector: {y: a}}\n", []string{`a.yaml:4:19: warning: Service default/web: spec.selector[y]: kubectl reads the unquoted key y as a bool; quote it`}},
		"decimal key":          {"", head + "spec: {selector: {1.10: a}}\n", []string{`a.yaml:4:19: warning: Service default/web: spec.selector[1.10]: kubectl reads the unquoted key 1.10 as 1.1; quote it`}},
		"octal key":            {"", head + "spec:\n  selector:\n    010: a\n", []string{`a.yaml:6:5: warning: Service default/web: spec.selector[010]: kubectl reads the unquoted key 010 as 8; quote it`}},
		"null key":             {"", head + "spec:\n  selector:\n    null: a\n", []string{`a.yaml:6:5: Service default/web: spec.selector[null]: a key must be text, not null; quote it`}},
		"plain keys":           {"", head + "spec: {selector: {1: a, \"1.10\": b, 10.1.2.3: c, 2020-01-01: d, 1.5: e, !!str 010: f}}\n", nil},
		"tagged as null":       {"", head + "spec: {selector: {a: !!null b}}\n", []string{`a.yaml:4:22: Service default/web: spec.selector[a]: "b" is tagged as null; remove the tag, or the value`}},
		"template of a name": {"", "apiVersion: v1\nkind: Service\nmetadata:\n  name: {{ .Release.Name }}\n", []string{
			`a.yaml:4:10: metadata.name: a key must be text, not a mapping or a list; this looks like a template: render it first, as with ` + "`helm template`",
			`a.yaml:4:9: metadata.name: expected a text, got a mapping`,
		}},
		"quoted yes":        {"", head + "spec: {selector: {a: \"yes\", 'on': !!str no}}\n", nil},
		"one line for many": {"", head + "spec: {selector: {\"a\\nb\\e[1m\": 1}}\n", []string{`a.yaml:4:32: Service default/web: spec.selector[a\nb\x1b[1m]: expected a text, got the number 1; quote it: "1"`}},
		"all at once": {"", head + "spec:\n  bogus: 1\n  ports:\n  - port: x\n  type: [a]\n", []string{
			`a.yaml:5:3: Service default/web: unknown field "spec.bogus"`,
			`a.yaml:7:11: Service default/web: spec.ports[0].port: expected a whole number, got the text "x"`,
			`a.yaml:8:9: Service default/web: spec.type: expected a text, got a list`}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.path == "" {
				c.path = "a.yaml"
			}
			f := Decode(c.path, []byte(c.text), Limits{})
			if diff := cmp.Diff(c.want, messages(f)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			bad := false
			for _, p := range f.Problems {
				bad = bad || !p.Warning || p.Reason == ReasonNotServed
			}
			if bad != (len(f.Documents) == 0) {
				t.Errorf("%d documents", len(f.Documents))
			}
		})
	}
}

// A merge that is not finished is told as such, at its first marker.
func TestConflictMarkers(t *testing.T) {
	for text, line := range map[string]int{
		"apiVersion: v1\nkind: Service\n<<<<<<< HEAD\nmetadata: {name: a}\n=======\nmetadata: {name: b}\n>>>>>>> next\n": 3,
		"<<<<<<< HEAD\napiVersion: v1\nkind: Service\n=======\n":                                                         1,
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Service\n=======\nkind: Pod\n":   7,
		"<<<<<<< HEAD\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n":                                        1,
	} {
		want := fmt.Sprintf("a.yaml:%d:1: this line is a conflict marker of git: the merge is not finished; resolve it, and commit", line)
		if got := messages(Decode("a.yaml", []byte(text), Limits{})); len(got) == 0 || got[0] != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"kind: [\n", "a: |\n  =======\nb: [\n"} {
		if got := messages(Decode("a.yaml", []byte(text), Limits{})); len(got) == 0 || strings.Contains(got[0], "git") {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestBadDocumentsLeaveTheOthers(t *testing.T) {
	list := "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a, name: b}}\n" +
		"- {apiVersion: v1, kind: Service, metadata: {name: c}, spec: {x: 1}}\n- {apiVersion: v1, kind: Service, metadata: {name: d}}\n"
	for name, c := range map[string]struct{ path, text string }{
		"documents": {"a.yaml", "kind: Service\n---\napiVersion: v1\nkind: Service\nmetadata: {name: c}\nspec: 1\n---\n{apiVersion: v1, kind: Service, metadata: {name: d}}\n"},
		"List":      {"a.yaml", list},
		"json": {"a.json", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","name":"b"}},7,` +
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"d"}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := Decode(c.path, []byte(c.text), Limits{})
			if f.Err != nil || len(f.Problems) != 2 || len(f.Documents) != 1 || f.Documents[0].Object.GetMeta().Name != "d" {
				t.Errorf("%d documents; %q", len(f.Documents), messages(f))
			}
		})
	}
}

func TestProblemsOfADocumentAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  unknown%d: 1\n", i)
	}
	f := Decode("a.yaml", []byte(b.String()), Limits{})
	if len(f.Problems) != maxProblems+1 || !strings.Contains(f.Problems[maxProblems].Message, "more than 50 problems") {
		t.Errorf("%d problems, last %v", len(f.Problems), f.Problems[len(f.Problems)-1])
	}
}

// TestTruncated cuts a file everywhere: nothing may panic, and a cut JSON file is
// always an error. That a cut YAML file can be good is a fact that watch deals with.
func TestTruncated(t *testing.T) {
	yaml, good := webYAML+"---\n"+webYAML, 0
	for i := range yaml {
		if f := Decode("a.yaml", []byte(yaml[:i]), Limits{}); f.Err == nil {
			good++
		}
		crlf := strings.ReplaceAll(yaml, "\n", "\r\n")
		Decode("a.yaml", []byte(crlf[:i]), Limits{})
	}
	if good == 0 {
		t.Error("no prefix was good YAML; the watcher's settling rests on the contrary")
	}
	list := `{"apiVersion":"v1","kind":"List","items":[` + webJSON + `]}`
	for i := 1; i < len(list); i++ {
		if f := Decode("a.json", []byte(list[:i]), Limits{}); f.Err == nil || f.Err.Reason != ReasonSyntax {
			t.Fatalf("prefix of %d bytes: %v", i, f.Err)
		}
	}
}

func TestPosition(t *testing.T) {
	const text = "# first\n---\napiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  labels:\n    app.kubernetes.io/name: web\nspec:\n  ports:\n  - name: a\n    port: 80\n  - port: 81\n"
	f := Decode("a.yaml", []byte(text), Limits{})
	if len(f.Documents) != 1 {
		t.Fatal(messages(f))
	}
	d := &f.Documents[0]
	for field, want := range map[string][2]int{
		"":                   {3, 1},
		"metadata.name":      {6, 3},
		"metadata.namespace": {5, 1},
		"metadata.labels[app.kubernetes.io/name]": {8, 5},
		"spec.ports[0].port":                      {12, 5},
		"spec.ports[1].port":                      {13, 5},
		"spec.ports[1].nodePort":                  {13, 5},
		"spec.ports[7].port":                      {10, 3},
		"spec.clusterIPs[0]":                      {9, 1},
		"nonsense[":                               {3, 1},
	} {
		if line, column := d.Position(field); line != want[0] || column != want[1] {
			t.Errorf("%s: %d:%d, want %d:%d", field, line, column, want[0], want[1])
		}
	}
	got := f.Problem(d, "spec.ports[1].port", "FieldValueInvalid", "Invalid value: 0").String()
	if want := "a.yaml:13:5: Service default/web: spec.ports[1].port: Invalid value: 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestUpdateKeepsObjects(t *testing.T) {
	doc := func(name, kind string) string {
		return "---\napiVersion: v1\nkind: " + kind + "\nmetadata:\n  name: " + name + "\n  labels: {a: on}\n"
	}
	item := func(name string) string {
		return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"` + name + `"}}`
	}
	list := `{"kind":"List","apiVersion":"v1","items":[` + "\n"
	for name, c := range map[string]struct {
		path, before, after string
		line                int // of b afterwards
	}{
		"yaml": {"a.yaml", doc("a", "Service") + doc("b", "Endpoints"), "# x\n\n" + doc("c", "Service") + doc("a", "Service") + doc("b", "Endpoints"), 16},
		"json": {"a.json", list + item("a") + ",\n" + item("b") + "]}", list + item("c") + ",\n" + item("a") + ",\n" + item("b") + "]}", 4},
	} {
		t.Run(name, func(t *testing.T) {
			before := Decode(c.path, []byte(c.before), Limits{})
			after := before.Update([]byte(c.after), Limits{})
			fresh := Decode(c.path, []byte(c.after), Limits{})
			if len(before.Documents) != 2 || len(after.Documents) != 3 {
				t.Fatalf("%q\n%q", messages(before), messages(after))
			}
			for i := range before.Documents {
				if before.Documents[i].Object != after.Documents[i+1].Object {
					t.Errorf("object %d was decoded again", i)
				}
			}
			if diff := cmp.Diff(fresh, after, cmpopts.IgnoreUnexported(File{}, Document{})); diff != "" {
				t.Errorf("an update differs from a fresh file: -fresh +updated:\n%s", diff)
			}
			if line, _ := after.Documents[2].Position("metadata.name"); after.Documents[2].Line != c.line || line < c.line {
				t.Errorf("line %d, name in %d, want %d", after.Documents[2].Line, line, c.line)
			}
		})
	}
}

// TestFreeMappings sees that paths put the keys of every map[string]string in brackets.
func TestFreeMappings(t *testing.T) {
	for structure := range structures().plans {
		for _, f := range reflect.VisibleFields(structure) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			at := path{{key: name, isKey: true}}
			if strings.HasSuffix(structure.Name(), "Namespaces") {
				at = append(path{{key: "namespaces", isKey: true}}, at...)
			}
			if free := f.Type.Kind() == reflect.Map; free != at.isFreeMapping() {
				t.Errorf("%v.%s is a map: %t", structure, f.Name, free)
			}
		}
	}
}

// Labels that are selected, too, are held once; a copy has two of them.
func TestSelectedLabelsAreHeldOnce(t *testing.T) {
	const text = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  labels: {app: web}\nspec:\n  selector: {app: %s}\n  ports: [{port: 80}]\n"
	for selected, once := range map[string]bool{"web": true, "other": false} {
		svc := Decode("a.yaml", fmt.Appendf(nil, text, selected), DefaultLimits()).Documents[0].Object.(*object.Service)
		if svc.Spec.Selector["app"] != selected || svc.Metadata.Labels["app"] != "web" {
			t.Errorf("labels %v, selector %v", svc.Metadata.Labels, svc.Spec.Selector)
		}
		if same := reflect.ValueOf(svc.Spec.Selector).Pointer() == reflect.ValueOf(svc.Metadata.Labels).Pointer(); same != once {
			t.Errorf("selector %v: held once %t", svc.Spec.Selector, same)
		}
		copied := object.DeepCopy(svc)
		copied.Spec.Selector["app"] = "changed"
		if copied.Metadata.Labels["app"] != "web" || svc.Spec.Selector["app"] != selected {
			t.Error("a copy shares its maps")
		}
	}
}

// Secrets are served, and no message shows a value of one.
func TestSecrets(t *testing.T) {
	const head = "apiVersion: v1\nkind: Secret\nmetadata: {name: web}\n"
	f := Decode("a.yaml", []byte(head+"type: kubernetes.io/tls\ndata:\n  tls.crt: |\n    aGVs\n    bG8=\nstringData: {tls.key: yes}\n"), DefaultLimits())
	if len(f.Documents) != 1 || len(f.Problems) != 0 {
		t.Fatalf("%+v", f)
	}
	secret := f.Documents[0].Object.(*object.Secret)
	if string(secret.Data["tls.key"]) != "yes" || string(secret.Data["tls.crt"]) != "hello" || secret.StringData != nil || secret.Type != object.SecretTLS {
		t.Errorf("%+v", secret)
	}
	for name, text := range map[string]string{
		"no base64": "data: {key: hunter2!}", "number": "stringData: {key: 31337}", "list": "data: {key: [hunter2]}", "no mapping": "stringData: hunter2",
	} {
		f := Decode("a.yaml", []byte(head+text+"\n"), DefaultLimits())
		if len(f.Documents) != 0 || len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Field, "ata") {
			t.Errorf("%s: %+v", name, f.Problems)
		}
		if text := fmt.Sprint(f.Problems); strings.Contains(text, "hunter2") || strings.Contains(text, "31337") {
			t.Errorf("%s: the message shows the value: %s", name, text)
		}
	}
}

func TestNearest(t *testing.T) {
	for word, want := range map[string]string{"shpo": "shop", "wbe": "web", "web1": "web", "invocies": "invoices", "x": "", "redis": "", "wb": "web"} {
		if got := Nearest(word, slices.Values([]string{"shop", "web", "invoices"})); got != want {
			t.Errorf("nearest to %q: %q, want %q", word, got, want)
		}
	}
}
