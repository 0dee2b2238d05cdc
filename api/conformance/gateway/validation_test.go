package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"svcctl.io/svcctl/api/conformance/served"
)

// A definition is a CustomResourceDefinition, whose own validators are the judge.
type definition struct {
	plural, version string
	namespaced      bool
	schema          *structural.Structural
	fields          validation.SchemaValidator
	rules           *cel.Validator
	// all are the rules of several fields, as "spec.listeners: message"; seen are those that were broken.
	all, seen map[string]bool
	// paths are the fields of spec, visited those that were made wrong.
	paths, visited map[string]bool
}

// definitions reads the definitions of the version that go.mod names.
func definitions(t *testing.T) map[string]*definition {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*definition{}
	files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/gateway.networking.k8s.io_*.yaml"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd extensions.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil || crd.Kind != "CustomResourceDefinition" {
			continue // an admission policy
		}
		for _, v := range crd.Spec.Versions {
			if v.Name != "v1" {
				continue
			}
			d := &definition{plural: crd.Spec.Names.Plural, version: v.Name, namespaced: crd.Spec.Scope == extensions.NamespaceScoped}
			var internal apiextensions.CustomResourceValidation
			if err := extensions.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, &internal, nil); err != nil {
				t.Fatal(err)
			}
			if d.schema, err = structural.NewStructural(internal.OpenAPIV3Schema); err != nil {
				t.Fatal(err)
			}
			if d.fields, _, err = validation.NewSchemaValidator(internal.OpenAPIV3Schema); err != nil {
				t.Fatal(err)
			}
			d.rules = cel.NewValidator(d.schema, true, celconfig.PerCallLimit)
			d.all, d.seen, d.paths, d.visited = map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
			spec := d.schema.Properties["spec"]
			d.collect("spec", &spec)
			all[crd.Spec.Names.Kind] = d
		}
	}
	return all
}

// collect notes all fields and rules below a place.
func (d *definition) collect(at string, s *structural.Structural) {
	for _, rule := range s.XValidations {
		d.all[at+": "+rule.Message] = true
	}
	for name, child := range s.Properties {
		d.paths[at+"."+name] = true
		d.collect(at+"."+name, &child)
	}
	if s.Items != nil {
		d.collect(at+"[]", s.Items)
	}
}

// judge returns what Kubernetes finds wrong with an object: "field: message", and whether it stopped half-way.
func (d *definition) judge(o map[string]any) (found map[string]bool, half, wrongType bool) {
	o = clone(o).(map[string]any)
	defaulting.Default(o, d.schema)
	errs := validation.ValidateCustomResource(nil, o, d.fields)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.schema, o)...)
	for _, e := range errs {
		half = half || slices.Contains([]field.ErrorType{field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid}, e.Type)
		wrongType = wrongType || e.Type == field.ErrorTypeTypeInvalid
	}
	if d.rules != nil && !half {
		more, _ := d.rules.Validate(context.Background(), nil, d.schema, o, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, more...)
		for _, e := range more {
			_, message, evaluated := strings.Cut(e.Detail, " evaluating rule: ")
			if !evaluated {
				message = e.Detail
			}
			d.seen[anyIndex.ReplaceAllString(e.Field, "[]")+": "+message] = true
		}
	}
	found = map[string]bool{}
	for _, e := range errs {
		found[e.Field+": "+e.ErrorBody()] = true
	}
	return found, half, wrongType
}

var anyIndex = regexp.MustCompile(`\[\d+\]`)

// A wrong object, and what was done to it.
type wrong struct {
	what   string
	kind   string
	object map[string]any
}

// A walk makes each field of an object wrong in turn.
type walk struct {
	kind    string
	of      *definition
	object  map[string]any
	objects *[]wrong
}

// with adds a copy with another value at a path; remove leaves it out.
func (w *walk) with(path []any, what string, value any) {
	o := clone(w.object)
	at := o
	for _, step := range path[:len(path)-1] {
		switch step := step.(type) {
		case string:
			at = at.(map[string]any)[step]
		case int:
			at = at.([]any)[step]
		}
	}
	switch last := path[len(path)-1].(type) {
	case string:
		if value == remove {
			delete(at.(map[string]any), last)
		} else {
			at.(map[string]any)[last] = value
		}
	case int:
		at.([]any)[last] = value
	}
	*w.objects = append(*w.objects, wrong{fmt.Sprintf("%s %v: %s", w.kind, path, what), w.kind, o.(map[string]any)})
}

var remove = new(int)

func (w *walk) value(path []any, s *structural.Structural, v any, name string) {
	w.of.visited[name] = true
	w.with(path, "a boolean", true)
	switch v := v.(type) {
	case string:
		w.text(path, s, v)
	case int64:
		w.number(path, s, v)
	case []any:
		w.with(path, "empty", []any{})
		w.with(path, "twice", append(slices.Clone(v), v...))
		if s.ValueValidation != nil && s.ValueValidation.MaxItems != nil {
			w.with(path, "too many", slices.Repeat(v[:1], int(*s.ValueValidation.MaxItems)+1))
		}
		for i := range v {
			w.value(append(slices.Clone(path), i), s.Items, v[i], name+"[]")
		}
	case map[string]any:
		w.with(path, "empty", map[string]any{})
		if s.AdditionalProperties != nil {
			more := map[string]any{}
			for i := range 20 {
				more["k"+strconv.Itoa(i)] = "v"
			}
			w.with(path, "too many", more)
			for key := range v {
				w.text(append(slices.Clone(path), key), s.AdditionalProperties.Structural, v[key].(string))
			}
			return
		}
		for key := range v {
			child := s.Properties[key]
			w.with(append(slices.Clone(path), key), "left out", remove)
			w.value(append(slices.Clone(path), key), &child, v[key], name+"."+key)
		}
	}
}

func (w *walk) text(path []any, s *structural.Structural, v string) {
	for _, text := range []string{"", "_", "A", "a.b", "a_b!", "*.a", "-a", "none", "1x", strings.Repeat("a", 64), strings.Repeat("a", 254), strings.Repeat("a.", 130) + "a", strings.Repeat("x", 5000)} {
		if text != v {
			w.with(path, fmt.Sprintf("%.20q", text), text)
		}
	}
	if s.ValueValidation != nil {
		for _, other := range s.ValueValidation.Enum {
			w.with(path, "another", other.Object)
		}
	}
}

func (w *walk) number(path []any, s *structural.Structural, v int64) {
	for _, n := range []int64{-1, 0, 65535, 65536, 1000000, 1000001, 299} {
		w.with(path, strconv.FormatInt(n, 10), n)
	}
}

// clone copies a tree as JSON has it, with int64 for numbers.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := map[string]any{}
		for key, value := range v {
			c[key] = clone(value)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i := range v {
			c[i] = clone(v[i])
		}
		return c
	case float64:
		return int64(v)
	}
	return v
}

// wrongObjects returns all objects that are judged: those of testdata with each field wrong in turn.
func wrongObjects(t *testing.T, defined map[string]*definition) []wrong {
	t.Helper()
	text, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []wrong
	for _, document := range strings.Split(string(text), "\n---\n") {
		var tree map[string]any
		if err := yaml.Unmarshal([]byte(document), &tree); err != nil {
			t.Fatal(err)
		}
		tree = clone(tree).(map[string]any)
		if objects, is := tree["objects"]; is {
			for i, o := range objects.([]any) {
				kind := o.(map[string]any)["kind"].(string)
				all = append(all, wrong{fmt.Sprintf("%s: object %d", kind, i), kind, o.(map[string]any)})
			}
			continue
		}
		kind := tree["kind"].(string)
		all = append(all, wrong{kind + " as it is", kind, tree})
		if testing.Short() {
			continue
		}
		w := &walk{kind, defined[kind], tree, &all}
		spec := w.of.schema.Properties["spec"]
		w.value([]any{"spec"}, &spec, tree["spec"], "spec")
	}
	return all
}

// Test942 asks the API for each wrong object, and reads each from a file.
func Test942_every_field_wrong_in_turn_has_the_answer_of_the_definitions(t *testing.T) {
	defined := definitions(t)
	objects := wrongObjects(t, defined)
	a := served.New(t)
	a.Start()
	ask := asking(a)
	dir := t.TempDir()
	expected := make([]verdict, len(objects))
	refused := 0
	for i, o := range objects {
		v := &expected[i]
		v.found, v.half, v.wrongType = defined[o.kind].judge(o.object)
		if len(v.found) > 0 {
			refused++
		}
		code, got := ask(t, defined[o.kind], o.object)
		v.compare(t, "API: "+o.what, code != http.StatusCreated, got)
		o.object["metadata"].(map[string]any)["name"] = fmt.Sprintf("o%06d", i)
		text, err := json.Marshal(o.object)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.json", i)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, got := range inFiles(t, a, dir) {
		expected[i].compare(t, "file: "+objects[i].what, true, got)
		expected[i].read = true
	}
	for i := range expected {
		if v := &expected[i]; !v.read && len(v.found) > 0 {
			t.Errorf("file: %s: accepted, want %v", objects[i].what, slices.Sorted(maps.Keys(v.found)))
		}
	}
	rules := 0
	for kind, d := range defined {
		if kind == "GRPCRoute" || kind == "BackendTLSPolicy" {
			continue
		}
		rules += len(d.all)
		for rule := range d.all {
			if !d.seen[rule] && !slices.ContainsFunc(unbreakable, func(end string) bool { return strings.HasSuffix(rule, end) }) {
				t.Errorf("%s: no object breaks %q", kind, rule)
			}
		}
		for path := range d.paths {
			if !d.visited[path] && !testing.Short() {
				t.Errorf("%s: no object has %s", kind, path)
			}
		}
	}
	t.Logf("%d objects, of which %d are refused; %d rules of several fields in their places", len(objects), refused, rules)
}

// unbreakable are the rules that no new object breaks: that of changes (see Test943), and one that the list of
// values of the field comes before.
var unbreakable = []string{"Value is immutable", "type must be one of ['Exact', 'PathPrefix', 'RegularExpression']"}

// A verdict is that of the definitions.
type verdict struct {
	found                 map[string]bool
	half, wrongType, read bool
}

var zeroValue = regexp.MustCompile(`^(.*): (Invalid|Unsupported) value: (""|0): .*`)

// compare compares it with what svcctl found. These differences are meant: a value of another type has the answer that all
// kinds have; an empty text or 0 in a required field is a field that is left out, and a structure that is left out an empty
// one; a rule that Kubernetes fails to evaluate,
// as that of a field that is absent, has its message without the error; and selectors have the rules of Kubernetes' own kinds.
func (v *verdict) compare(t *testing.T, what string, refused bool, got map[string]bool) {
	t.Helper()
	if refused && len(v.found) == 0 && strings.Contains(what, "matchExpressions") {
		return
	}
	if refused != (len(v.found) > 0) {
		t.Errorf("%s\nrefused: %t, %v\nwant     %v", what, refused, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(v.found)))
		return
	}
	if v.wrongType {
		return
	}
	for text := range v.found {
		if strings.Contains(text, " evaluating rule: ") {
			v.half = true
			continue
		}
		if field, is := strings.CutSuffix(text, ": Required value"); is && !got[text] {
			for text := range got {
				if strings.HasPrefix(text, field+".") && strings.HasSuffix(text, ": Required value") {
					delete(got, text)
					got[field+": Required value"] = true
				}
			}
		}
		if m := zeroValue.FindStringSubmatch(text); m != nil && got[m[1]+": Required value"] {
			got[text] = true
			delete(got, m[1]+": Required value")
			continue
		}
		if !got[text] {
			t.Errorf("%s\ngot  %v\nwant %s", what, slices.Sorted(maps.Keys(got)), text)
			return
		}
	}
	for text := range got {
		if !v.half && !v.found[text] && !zeroValue.MatchString(text) {
			t.Errorf("%s\ngot  %s\nwant %v", what, text, slices.Sorted(maps.Keys(v.found)))
			return
		}
	}
}

// asking returns a function that asks the API to create an object, as a dry run.
func asking(a *served.Appliance) func(*testing.T, *definition, map[string]any) (int, map[string]bool) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.Socket)
	}}}
	return func(t *testing.T, d *definition, o map[string]any) (int, map[string]bool) {
		t.Helper()
		path := "/apis/gateway.networking.k8s.io/" + d.version + "/"
		if d.namespaced {
			path += "namespaces/default/"
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Post("http://svcctl"+path+d.plural+"?dryRun=All&fieldValidation=Strict", "application/json", bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		var status struct {
			Message string
			Details struct {
				Causes []struct{ Field, Message string }
			}
		}
		if err := json.Unmarshal(body, &status); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got := map[string]bool{}
		for _, c := range status.Details.Causes {
			got[c.Field+": "+c.Message] = true
		}
		if response.StatusCode != http.StatusCreated && len(got) == 0 {
			got[status.Message] = true
		}
		return response.StatusCode, got
	}
}

// inFiles returns the errors of `svcctl validate` for files named NUMBER.json, by number.
func inFiles(t *testing.T, a *served.Appliance, dir string) map[int]map[string]bool {
	t.Helper()
	out, _ := exec.Command(a.Program, "validate", "-o", "json", dir).Output() // it exits with 1
	var report struct {
		Problems []struct{ Level, File, Field, Reason, Message string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%.300s: %v", out, err)
	}
	all := map[int]map[string]bool{}
	for _, p := range report.Problems {
		if p.Level != "error" || p.Field == "" || p.Reason == "GatewayNotProgrammed" {
			continue // what the controller does not serve is a condition over the API, or the condition of no controller
		}
		i, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(p.File), ".json"))
		if err != nil {
			t.Fatal(err)
		}
		if all[i] == nil {
			all[i] = map[string]bool{}
		}
		all[i][p.Field+": "+p.Message] = true
	}
	return all
}

// Test943 has what no single new object shows: changes, fields that the standard channel does not have, older versions.
func Test943_changes_and_fields_that_are_not_served(t *testing.T) {
	a := served.New(t)
	a.Start()
	run := func(document string, args ...string) string {
		t.Helper()
		cmd := exec.Command(a.Program, append(args, "--socket", a.Socket)...)
		cmd.Stdin = strings.NewReader(document)
		out, err := cmd.CombinedOutput()
		return fmt.Sprintf("%s%v", out, err)
	}
	head := "apiVersion: gateway.networking.k8s.io/v1\nmetadata: {name: a}\n"
	class := head + "kind: GatewayClass\nspec: {controllerName: example.com/a}\n"
	if got := run(class, "apply", "-f", "-"); !strings.HasSuffix(got, "<nil>") {
		t.Fatal(got)
	}
	if got, want := run(strings.Replace(class, "com/a", "com/b", 1), "apply", "-f", "-"), `spec.controllerName: Invalid value: "example.com/b": Value is immutable`; !strings.Contains(got, want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	for field, document := range map[string]string{
		"spec.defaultScope":                head + "kind: Gateway\nspec: {gatewayClassName: c, listeners: [{name: a, port: 1, protocol: TCP}], defaultScope: All}\n",
		"spec.useDefaultGateways":          head + "kind: TCPRoute\nspec: {rules: [{backendRefs: [{name: s, port: 1}]}], useDefaultGateways: All}\n",
		"spec.rules[0].sessionPersistence": head + "kind: HTTPRoute\nspec: {rules: [{sessionPersistence: {}}]}\n",
		"spec.bogus":                       head + "kind: UDPRoute\nspec: {rules: [{backendRefs: [{name: s, port: 1}]}], bogus: All}\n",
	} {
		want := fmt.Sprintf("unknown field %q", field)
		if field != "spec.bogus" {
			want += ", which is of the experimental channel of the Gateway API: remove it"
		}
		if got := run(document, "apply", "-f", "-"); !strings.Contains(got, want) {
			t.Errorf("API: got %s\nwant %s", got, want)
		}
		file := filepath.Join(t.TempDir(), "a.yaml")
		if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, _ := exec.Command(a.Program, "validate", file).CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("file: got %s\nwant %s", out, want)
		}
	}
	for kind, versions := range map[string]string{
		"gatewayclass": "v1beta1", "tcproute": "v1alpha2", "udproute": "v1alpha2", "tlsroute": "v1alpha2 v1alpha3", "referencegrant": "v1beta1",
	} {
		for version := range strings.FieldsSeq(versions) {
			name := kind + "-" + version
			document := map[string]string{
				"gatewayclass":   "kind: GatewayClass\nspec: {controllerName: example.com/a}\n",
				"tcproute":       "kind: TCPRoute\nspec: {rules: [{backendRefs: [{name: s, port: 1}]}]}\n",
				"udproute":       "kind: UDPRoute\nspec: {rules: [{backendRefs: [{name: s, port: 1}]}]}\n",
				"tlsroute":       "kind: TLSRoute\nspec: {hostnames: [a.example.com], rules: [{backendRefs: [{name: s, port: 1}]}]}\n",
				"referencegrant": "kind: ReferenceGrant\nspec: {from: [{group: g, kind: K, namespace: n}], to: [{group: '', kind: Service}]}\n",
			}[kind]
			text := "apiVersion: gateway.networking.k8s.io/" + version + "\nmetadata: {name: " + name + "}\n" + document
			if err := os.WriteFile(filepath.Join(a.Manifests, name+".yaml"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			if got := run("", "wait", kind+"/"+name, "--for=create", "--timeout=2m"); !strings.HasSuffix(got, "<nil>") {
				t.Errorf("%s of %s: %s", kind, version, got)
			}
			if got := run("", "get", kind, name, "-o", "jsonpath={.apiVersion}"); !strings.Contains(got, "networking.k8s.io/v1<nil>") {
				t.Errorf("%s of %s is served as %s", kind, version, got)
			}
		}
	}
}
