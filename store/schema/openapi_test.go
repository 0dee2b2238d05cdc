package schema

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"svcctl.io/svcctl/store/kind"
)

// tree is a document, decoded.
func tree(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// at walks down a tree.
func at(t *testing.T, o any, path ...string) any {
	t.Helper()
	for _, step := range path {
		m, ok := o.(map[string]any)
		if !ok || m[step] == nil {
			t.Fatalf("nothing at %v: %q is not there", path, step)
		}
		o = m[step]
	}
	return o
}

func encoded(o any) string {
	b, _ := json.Marshal(o)
	return string(b)
}

// What kubectl looks for, kind by kind.
func TestOpenAPI3HasWhatKubectlLooksFor(t *testing.T) {
	for _, k := range kind.All() {
		document, ok := OpenAPI3(strings.TrimPrefix(k.GroupPath(), "/"))
		if !ok {
			t.Fatalf("no document for %s", k.GroupPath())
		}
		root := tree(t, document.JSON)
		gvk := map[string]any{"group": k.Group, "version": k.Version, "kind": k.Name}
		method := "patch"
		path := k.ObjectPath()
		if !k.Stored() {
			method, path = "post", k.CollectionPath()
		}
		operation := at(t, root, "paths", path, method)
		if got := at(t, operation, extensionGVK); encoded(got) != encoded(gvk) {
			t.Errorf("%s: %v", path, got)
		}
		if got := encoded(at(t, operation, "parameters")); !strings.Contains(got, `"fieldValidation"`) || !strings.Contains(got, `"dryRun"`) {
			t.Errorf("%s: parameters %s", path, got)
		}
		if method == "patch" {
			at(t, operation, "requestBody", "content", "application/strategic-merge-patch+json", "schema", "$ref")
			at(t, root, "paths", k.CollectionPath(), "get", extensionGVK)
		}
		if k.HasStatus {
			at(t, root, "paths", path+"/status", "patch")
		}
		if got := at(t, root, "components", "schemas", Of(k).Name, extensionGVK); encoded(got) != encoded([]any{gvk}) {
			t.Errorf("%s: %v", k.Name, got)
		}
	}
}

func TestOpenAPI3OfPorts(t *testing.T) {
	document, _ := OpenAPI3("api/v1")
	schemas := at(t, tree(t, document.JSON), "components", "schemas")
	ports := at(t, schemas, "io.k8s.api.core.v1.ServiceSpec", "properties", "ports")
	for key, want := range map[string]string{
		"type": `"array"`, "items": `{"$ref":"#/components/schemas/io.k8s.api.core.v1.ServicePort"}`,
		"x-kubernetes-list-type": `"map"`, "x-kubernetes-list-map-keys": `["port","protocol"]`,
		"x-kubernetes-patch-strategy": `"merge"`, "x-kubernetes-patch-merge-key": `"port"`,
	} {
		if got := encoded(at(t, ports, key)); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	// The description of a field survives beside the reference to its type.
	if got := encoded(at(t, schemas, "io.k8s.api.core.v1.ServiceSpec", "properties", "ipFamilies", "items", "enum")); got != `["IPv4","IPv6"]` {
		t.Errorf("an IP family is one of %s", got)
	}
	config := at(t, schemas, "io.k8s.api.core.v1.ServiceSpec", "properties", "sessionAffinityConfig")
	if got := encoded(at(t, config, "allOf")); got != `[{"$ref":"#/components/schemas/io.k8s.api.core.v1.SessionAffinityConfig"}]` {
		t.Errorf("%s", got)
	}
	if got := at(t, config, "description"); got != "How long affinity lasts." {
		t.Errorf("%s", got)
	}
	if got := encoded(at(t, config, "default")); got != `{}` {
		t.Errorf("%s", got)
	}
	if got := encoded(at(t, schemas, "io.k8s.api.core.v1.ServicePort", "required")); got != `["port"]` {
		t.Errorf("%s", got)
	}
	if got := encoded(at(t, schemas, "io.k8s.api.core.v1.PodSpec", extensionOpen)); got != "true" {
		t.Errorf("%s", got)
	}
}

// A default is a value of its schema: none is {} where fields are required.
func TestOpenAPI3DefaultsAreValid(t *testing.T) {
	for _, d := range documents3() {
		schemas := at(t, tree(t, d.JSON), "components", "schemas").(map[string]any)
		for name, schema := range schemas {
			properties, _ := schema.(map[string]any)["properties"].(map[string]any)
			for field, property := range properties {
				property := property.(map[string]any)
				if encoded(property["default"]) != "{}" {
					continue
				}
				ref := at(t, property["allOf"].([]any)[0], "$ref").(string)
				if of := schemas[strings.TrimPrefix(ref, dialect3.refs)].(map[string]any); of["required"] != nil {
					t.Errorf("%s: %s.%s: the default {} lacks %v", d.Path, name, field, of["required"])
				}
			}
		}
	}
}

// Every reference leads somewhere.
func TestReferencesLead(t *testing.T) {
	var walk func(o any, each func(ref string))
	walk = func(o any, each func(ref string)) {
		switch o := o.(type) {
		case map[string]any:
			if ref, ok := o["$ref"].(string); ok {
				each(ref)
			}
			for _, inner := range o {
				walk(inner, each)
			}
		case []any:
			for _, inner := range o {
				walk(inner, each)
			}
		}
	}
	for _, d := range documents3() {
		root := tree(t, d.JSON)
		schemas := at(t, root, "components", "schemas").(map[string]any)
		walk(root, func(ref string) {
			if _, ok := schemas[strings.TrimPrefix(ref, dialect3.refs)]; !ok {
				t.Errorf("%s: %s leads nowhere", d.Path, ref)
			}
		})
	}
}

func TestOpenAPI3Index(t *testing.T) {
	paths := at(t, tree(t, OpenAPI3Index()), "paths").(map[string]any)
	want := []string{
		"api/v1", "apis/authentication.k8s.io/v1", "apis/authorization.k8s.io/v1", "apis/coordination.k8s.io/v1",
		"apis/discovery.k8s.io/v1", "apis/events.k8s.io/v1", "apis/gateway.networking.k8s.io/v1", "apis/metallb.io/v1beta1", "apis/metallb.io/v1beta2", "apis/networking.k8s.io/v1",
	}
	if got := slices.Sorted(maps.Keys(paths)); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	d, _ := OpenAPI3("api/v1")
	if got := at(t, paths, "api/v1", "serverRelativeURL"); got != "/openapi/v3/api/v1?hash="+d.Hash {
		t.Errorf("%s", got)
	}
	if _, ok := OpenAPI3("apis/apps/v1"); ok {
		t.Error("there is a document for apps/v1")
	}
	if len(d.JSON) > 200<<10 {
		t.Errorf("the document of v1 is %d bytes long", len(d.JSON))
	}
}

// Fields of messages of OpenAPI v2 in protobuf.
const (
	documentSwagger, documentPaths, documentDefinitions       protowire.Number = 1, 8, 9
	namedName, namedValue, itemOnly, anyYAML                  protowire.Number = 1, 2, 1, 2
	definitionsSchema, pathsPath, itemPatch                   protowire.Number = 1, 2, 8
	schemaRef, schemaItems, schemaProperties, schemaExtension protowire.Number = 1, 23, 25, 31
)

// sub are the values of a field of a message that holds messages or text.
func sub(t *testing.T, message []byte, field protowire.Number) [][]byte {
	t.Helper()
	var all [][]byte
	for len(message) > 0 {
		n, wire, size := protowire.ConsumeField(message)
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		if n == field && wire == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(message)
			content, _ := protowire.ConsumeBytes(message[tag:])
			all = append(all, content)
		}
		message = message[size:]
	}
	return all
}

// byName is the value of the Named... message of a name.
func byName(t *testing.T, messages [][]byte, name string) []byte {
	t.Helper()
	for _, m := range messages {
		if string(sub(t, m, namedName)[0]) == name {
			return sub(t, m, namedValue)[0]
		}
	}
	t.Fatalf("no %s", name)
	return nil
}

func TestOpenAPI2(t *testing.T) {
	document := OpenAPI2()
	if got := string(sub(t, document, documentSwagger)[0]); got != "2.0" {
		t.Errorf("swagger %s", got)
	}
	definitions := sub(t, sub(t, document, documentDefinitions)[0], definitionsSchema)
	spec := byName(t, definitions, "io.k8s.api.core.v1.ServiceSpec")
	properties := sub(t, sub(t, spec, schemaProperties)[0], itemOnly)
	ports := byName(t, properties, "ports")
	item := sub(t, sub(t, ports, schemaItems)[0], itemOnly)[0]
	if got := string(sub(t, item, schemaRef)[0]); got != "#/definitions/io.k8s.api.core.v1.ServicePort" {
		t.Errorf("items %s", got)
	}
	key := byName(t, sub(t, ports, schemaExtension), "x-kubernetes-patch-merge-key")
	if got := string(sub(t, key, anyYAML)[0]); got != "\"port\"\n" {
		t.Errorf("merge key %q", got)
	}
	service := byName(t, definitions, "io.k8s.api.core.v1.Service")
	gvk := byName(t, sub(t, service, schemaExtension), extensionGVK)
	if got := string(sub(t, gvk, anyYAML)[0]); got != `[{"group":"","kind":"Service","version":"v1"}]`+"\n" {
		t.Errorf("%s", got)
	}
	paths := sub(t, sub(t, document, documentPaths)[0], pathsPath)
	patch := sub(t, byName(t, paths, "/api/v1/namespaces/{namespace}/services/{name}"), itemPatch)[0]
	if !strings.Contains(string(patch), "fieldValidation") || !strings.Contains(string(patch), "strategic-merge-patch+json") {
		t.Errorf("PATCH of a Service is %q", patch)
	}
	for _, k := range kind.All() {
		byName(t, definitions, Of(k).Name)
	}
}

// Who reads JSON is told the same as who reads protobuf.
func TestOpenAPI2JSON(t *testing.T) {
	document, root := OpenAPI2(), tree(t, OpenAPI2JSON())
	if got := at(t, root, "swagger"); got != "2.0" {
		t.Errorf("swagger %s", got)
	}
	definitions := at(t, root, "definitions").(map[string]any)
	if got := len(sub(t, sub(t, document, documentDefinitions)[0], definitionsSchema)); len(definitions) != got {
		t.Errorf("%d definitions, %d in protobuf", len(definitions), got)
	}
	paths := at(t, root, "paths").(map[string]any)
	if got := len(sub(t, sub(t, document, documentPaths)[0], pathsPath)); len(paths) != got {
		t.Errorf("%d paths, %d in protobuf", len(paths), got)
	}
	patch := encoded(at(t, paths, "/api/v1/namespaces/{namespace}/services/{name}", "patch"))
	for _, want := range []string{
		`"consumes":["application/apply-patch+yaml",`, `{"in":"body","name":"body","required":true,"schema":{"$ref":"#/definitions/io.k8s.api.core.v1.Service"}}`,
		`"name":"fieldValidation","type":"string"}`, `"x-kubernetes-group-version-kind":{"group":"","kind":"Service","version":"v1"}`,
	} {
		if !strings.Contains(patch, want) {
			t.Errorf("PATCH of a Service is %s, without %s", patch, want)
		}
	}
}

func BenchmarkDecodeService(b *testing.B) {
	body := []byte(`{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","namespace":"default","labels":{"app":"web"}},"spec":{"selector":{"app":"web"},"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}]}}`)
	t := typeOf(b, "v1", "Service")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Decode(body, t); err != nil {
			b.Fatal(err)
		}
	}
}
