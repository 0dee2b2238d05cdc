package schema

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
)

// node is an object in an OpenAPI document. Its keys are encoded in sorted order, so that
// equal schemas have equal text.
type node map[string]any

// dialect has the differences between OpenAPI v2, OpenAPI v3 and JSON Schema.
type dialect struct {
	refs string // prefix of references
	// wrapped means that a reference with a description is wrapped in allOf. Otherwise
	// the description is left out.
	wrapped bool
	// closed means that a structure allows only the fields of its type, unless the type is Open.
	closed bool
}

var (
	dialect2   = dialect{refs: "#/definitions/"}
	dialect3   = dialect{refs: "#/components/schemas/", wrapped: true}
	jsonSchema = dialect{refs: "#/definitions/", wrapped: true, closed: true} // JSON Schema draft 7
)

// The names of OpenAPI extensions of Kubernetes.
const (
	extensionGVK     = "x-kubernetes-group-version-kind"
	extensionAction  = "x-kubernetes-action"
	extensionOpen    = "x-kubernetes-preserve-unknown-fields"
	extensionMapType = "x-kubernetes-map-type"
)

// schemas returns the schemas of kinds, of their lists and of all types in them, by name.
func (d dialect) schemas(kinds []kind.Kind) node {
	all := node{}
	for _, k := range kinds {
		t := Of(k)
		d.add(all, t)
		all[t.Name].(node)[extensionGVK] = []node{gvkOf(k, k.Name)}
		if k.Stored() {
			all[t.Name+"List"] = d.list(k, t)
		}
	}
	d.add(all, DeleteOptions())
	return all
}

// ref returns a reference to the schema with a name.
func (d dialect) ref(name string) node { return node{"$ref": d.refs + name} }

func gvkOf(k kind.Kind, name string) node {
	return node{"group": k.Group, "version": k.Version, "kind": name}
}

// add adds the schema of a structure, and those of the structures in it.
func (d dialect) add(all node, t *Type) {
	if _, there := all[t.Name]; there {
		return
	}
	properties := node{}
	s := node{"type": "object", "description": t.Doc, "properties": properties}
	all[t.Name] = s
	var required []string
	for _, f := range t.Fields {
		properties[f.Name] = d.property(f)
		if f.Required {
			required = append(required, f.Name)
		}
		for inner := f.Type; inner != nil; inner = inner.Elem {
			if inner.Form == Structure {
				d.add(all, inner)
			}
		}
	}
	if required != nil {
		s["required"] = required
	}
	if t.Open {
		s[extensionOpen] = true
	} else if d.closed {
		s["additionalProperties"] = false
	}
	if t.Atomic {
		s[extensionMapType] = "atomic"
	}
}

// property returns the schema of a field.
func (d dialect) property(f *Field) node {
	s := d.value(f.Type)
	if _, bare := s["$ref"]; bare {
		if !d.wrapped {
			return s
		}
		s = node{"allOf": []node{s}}
		if !slices.ContainsFunc(f.Type.Fields, func(f *Field) bool { return f.Required }) { // an empty structure is valid
			s["default"] = node{}
		}
	}
	s["description"] = f.Doc
	if f.Default != nil {
		s["default"] = f.Default
	}
	return s
}

// value returns the schema of the values of a type.
func (d dialect) value(t *Type) node {
	switch t.Form {
	case Structure:
		return d.ref(t.Name)
	case Map:
		s := node{"type": "object", "additionalProperties": d.value(t.Elem)}
		if t.Atomic {
			s[extensionMapType] = "atomic"
		}
		return s
	case List:
		return d.array(t)
	case Integer:
		return node{"type": "integer", "format": fmt.Sprintf("int%d", t.Bits)}
	case Boolean:
		return node{"type": "boolean"}
	case Time, MicroTime:
		return node{"type": "string", "format": "date-time"}
	case IntOrString:
		if d.wrapped {
			return node{"format": "int-or-string", "oneOf": []node{{"type": "integer"}, {"type": "string"}}}
		}
		return node{"type": "string", "format": "int-or-string"}
	case Bytes:
		return node{"type": "string", "format": "byte"}
	case FieldSet:
		return node{"type": "object"}
	}
	if t.Enum != nil && d != dialect2 { // as in Kubernetes: OpenAPI v2 is for older clients
		return node{"type": "string", "enum": t.Enum}
	}
	return node{"type": "string"}
}

func (d dialect) array(t *Type) node {
	s := node{"type": "array", "items": d.value(t.Elem), "x-kubernetes-list-type": t.ListType()}
	if t.Keys != nil {
		s["x-kubernetes-list-map-keys"] = t.Keys
	}
	if t.Merge {
		s["x-kubernetes-patch-strategy"] = "merge"
	}
	if t.MergeKey != "" {
		s["x-kubernetes-patch-merge-key"] = t.MergeKey
	}
	return s
}

// list returns the schema of the list of a kind.
func (d dialect) list(k kind.Kind, t *Type) node {
	text := func(description string) node { return node{"type": "string", "description": description} }
	return node{
		"type": "object", "description": "A list of objects of kind " + k.Name + ".", "required": []string{"items"},
		extensionGVK: []node{gvkOf(k, k.Name+"List")},
		"properties": node{
			"apiVersion": text("The group and version of the list: " + k.APIVersion() + "."),
			"kind":       text("The kind of the list: " + k.Name + "List."),
			"items":      node{"type": "array", "items": d.value(t), "description": "The objects."},
			"metadata": node{"type": "object", "description": "What the list is of.", "properties": node{
				"resourceVersion":    text("The version of everything at the time of the list; a watch goes on from here."),
				"continue":           text("Where the next part of the list begins; absent in the last one."),
				"remainingItemCount": node{"type": "integer", "format": "int64", "description": "How many objects come after this part."},
			}},
		},
	}
}

// parameter is a query parameter with its schema and description.
type parameter struct{ name, form, doc string }

// parametersOf returns the query parameters of an HTTP method.
func parametersOf(method string) []parameter {
	dryRun := parameter{"dryRun", "string", "All: do everything but keep the result."}
	manager := parameter{"fieldManager", "string", "Author of the change, for metadata.managedFields."}
	validation := parameter{"fieldValidation", "string", "What to do about unknown and duplicate fields: Strict refuses them, Warn (the default) warns, Ignore drops them."}
	switch method {
	case "post", "put":
		return []parameter{dryRun, manager, validation}
	case "patch":
		return []parameter{dryRun, manager, validation,
			{"force", "boolean", "Take over fields that others manage; for server-side apply only."}}
	case "delete":
		return []parameter{dryRun, {"propagationPolicy", "string", "Accepted; every deletion happens in the background."}}
	}
	return nil
}

// patchTypes are the media types of the body of a PATCH.
var patchTypes = []string{
	"application/apply-patch+yaml", "application/json-patch+json",
	"application/merge-patch+json", "application/strategic-merge-patch+json",
}

// operation is an HTTP method of a path.
type operation struct {
	method, action string
	kind           kind.Kind
	answer         string // the name of the response schema
	body           string // the name of the body schema; "" without a body
}

// route is an API path with its operations.
type route struct {
	path       string
	names      []string // names of the path parameters
	operations []operation
}

// routesOf returns the paths of a kind.
func routesOf(k kind.Kind) []route {
	t := Of(k)
	var names []string
	if k.Namespaced {
		names = []string{"namespace"}
	}
	create := operation{"post", "post", k, t.Name, t.Name}
	if !k.Stored() {
		return []route{{k.CollectionPath(), names, []operation{create}}}
	}
	routes := []route{
		{k.CollectionPath(), names, []operation{{"get", "list", k, t.Name + "List", ""}, create}},
		{k.ObjectPath(), append(slices.Clone(names), "name"), []operation{
			{"get", "get", k, t.Name, ""}, {"put", "put", k, t.Name, t.Name},
			{"patch", "patch", k, t.Name, t.Name}, {"delete", "delete", k, t.Name, DeleteOptions().Name},
		}},
	}
	if k.Namespaced {
		routes = append(routes, route{k.GroupPath() + "/" + k.Plural, nil, []operation{{"get", "list", k, t.Name + "List", ""}}})
	}
	if k.HasStatus {
		routes = append(routes, route{k.ObjectPath() + "/status", append(slices.Clone(names), "name"), []operation{
			{"get", "get", k, t.Name, ""}, {"put", "put", k, t.Name, t.Name}, {"patch", "patch", k, t.Name, t.Name},
		}})
	}
	return routes
}

// routes returns the API paths of a group version, or of all group versions for "", sorted.
func routes(apiVersion string) []route {
	var all []route
	for _, k := range kindsOf(apiVersion) {
		all = append(all, routesOf(k)...)
	}
	slices.SortFunc(all, func(a, b route) int { return cmp.Compare(a.path, b.path) })
	return all
}

func kindsOf(apiVersion string) []kind.Kind {
	return slices.DeleteFunc(kind.All(), func(k kind.Kind) bool { return apiVersion != "" && k.APIVersion() != apiVersion })
}

// encode encodes a document or a part of one. It cannot fail, because a node contains only JSON values.
func encode(document any) []byte {
	b, err := json.Marshal(document)
	if err != nil {
		panic("schema: " + err.Error())
	}
	return b
}

// Hint is the key of an annotation or label, with a description, for completion in an editor.
type Hint struct {
	Key   string
	Kinds []string // the kinds of objects on which it has an effect
	Label bool
	Text  string
}

// JSONSchema returns a JSON Schema (draft 7, which editors understand) for the documents in files, with the given
// annotations and labels.
func JSONSchema(hints []Hint) []byte {
	definitions := node{}
	var cases []node
	names := []string{"List"}
	for _, k := range kind.All() {
		if !k.Strategy().InFiles {
			continue
		}
		names = append(names, k.Name)
		definitions[k.Name] = documentOf(k, hints, definitions)
		is := node{"properties": node{"kind": node{"const": k.Name}}, "required": []string{"kind"}}
		cases = append(cases, node{"if": is, "then": jsonSchema.ref(k.Name)})
	}
	definitions["document"] = node{
		"type": "object", "required": []string{"apiVersion", "kind"},
		"properties": node{
			"apiVersion": node{"type": "string"},
			// Documents of other kinds may be there, and are ignored.
			"kind": node{"anyOf": []node{{"enum": names}, {"type": "string"}}},
		},
		"allOf": append(cases, node{
			"if":   node{"properties": node{"kind": node{"const": "List"}}, "required": []string{"kind"}},
			"then": node{"properties": node{"items": node{"type": "array", "items": jsonSchema.ref("document")}}},
		}),
	}
	text, err := json.MarshalIndent(node{
		"$schema": "http://json-schema.org/draft-07/schema#", "title": "Manifests of svcctl",
		"$ref": "#/definitions/document", "definitions": definitions,
	}, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("schema: encode: %v", err)) // maps and texts of our own
	}
	return append(text, '\n')
}

// documentOf returns the JSON Schema of the documents of a kind, and adds those of the structures in it to definitions.
func documentOf(k kind.Kind, hints []Hint, definitions node) node {
	t := Of(k)
	jsonSchema.add(definitions, t)
	document := maps.Clone(definitions[t.Name].(node))
	properties := maps.Clone(document["properties"].(node))
	properties["apiVersion"] = node{"enum": append([]string{k.APIVersion()}, k.Strategy().OlderVersions...)}
	properties["kind"] = node{"const": k.Name}
	offered := node{}
	for _, label := range []bool{false, true} {
		keys := node{}
		for _, h := range hints {
			if h.Label == label && slices.Contains(h.Kinds, k.Name) {
				keys[h.Key] = node{"type": "string", "description": h.Text}
			}
		}
		if len(keys) > 0 {
			offered[map[bool]string{false: "annotations", true: "labels"}[label]] = node{"properties": keys}
		}
	}
	properties["metadata"] = node{"allOf": []node{properties["metadata"].(node), {"properties": offered, "required": []string{"name"}}}}
	document["properties"], document["required"] = properties, []string{"apiVersion", "kind", "metadata"}
	return document
}

// Limits of a body.
const (
	// MaxBytes bounds the length of a body in bytes (MaxRequestBodyBytes of the API
	// server of Kubernetes).
	MaxBytes = 3 << 20
	// MaxDepth bounds the nesting of values. The deepest useful ones are field sets of
	// about 10 levels.
	MaxDepth = 64
	// maxValues bounds the number of values in a body, and so the memory for many small ones.
	maxValues = 1 << 18
	// maxStrict bounds the number of warnings about a body.
	maxStrict = 50
)

// Parse parses one JSON value (RFC 8259): objects as map[string]any, arrays as []any,
// numbers as json.Number. The last of duplicate keys counts, and duplicates names them:
// `duplicate field "spec.type"`. It refuses input that is too long, too deep, too large,
// or not UTF-8.
func Parse(body []byte) (value any, duplicates []string, err error) {
	if len(body) > MaxBytes {
		return nil, nil, fmt.Errorf("the body is %d bytes long: send at most %d", len(body), MaxBytes)
	}
	if !utf8.Valid(body) {
		return nil, nil, errors.New("the body is not valid UTF-8: send JSON in UTF-8")
	}
	read, problem := manifest.JSON(body, manifest.Limits{Depth: MaxDepth, Keys: maxValues, Nodes: maxValues})
	if problem != nil {
		return nil, nil, fmt.Errorf("line %d, column %d: %s", problem.Line, problem.Column, problem.Message)
	}
	for _, field := range read.Duplicates {
		duplicates = append(duplicates, fmt.Sprintf("duplicate field %q", field))
	}
	return read.Data, duplicates, nil
}

// ParseObject is Parse for a body that must be an object.
func ParseObject(body []byte) (o map[string]any, duplicates []string, err error) {
	value, duplicates, err := Parse(body)
	if err != nil {
		return nil, nil, err
	}
	o, ok := value.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("the body is %s: send an object", describe(value))
	}
	return o, duplicates, nil
}

// join appends a key to a field path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// describe returns the name of a value's JSON type for messages.
func describe(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case string:
		return "string"
	case bool:
		return "bool"
	}
	return "number"
}

// Clone returns a deep copy of a parsed value.
func Clone(value any) any {
	switch value := value.(type) {
	case map[string]any:
		if value == nil {
			return value
		}
		c := make(map[string]any, len(value))
		for key, inner := range value {
			c[key] = Clone(inner)
		}
		return c
	case []any:
		c := slices.Clone(value) // nil stays nil
		for i := range c {
			c[i] = Clone(c[i])
		}
		return c
	}
	return value
}
