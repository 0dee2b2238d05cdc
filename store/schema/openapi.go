package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/kind"
)

// node is an object of an OpenAPI document. Its keys are written sorted, so that equal
// types make equal documents.
type node map[string]any

// dialect is a version of OpenAPI.
type dialect struct {
	refs string // prefix of references
	// wrapped means that a reference with a description is wrapped in allOf. Otherwise
	// the description is left out.
	wrapped bool
}

var (
	dialect2 = dialect{refs: "#/definitions/"}
	dialect3 = dialect{refs: "#/components/schemas/", wrapped: true}
)

// The names of the extensions of Kubernetes.
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

func gvkOf(k kind.Kind, name string) node {
	return node{"group": k.Group, "version": k.Version, "kind": name}
}

// add adds the schema of a structure and of those in it.
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
		if !f.Type.needs() {
			s["default"] = node{}
		}
	}
	s["description"] = f.Doc
	if f.Default != nil {
		s["default"] = f.Default
	}
	return s
}

// needs reports whether a structure has required fields, so that an empty one is invalid.
func (t *Type) needs() bool {
	return slices.ContainsFunc(t.Fields, func(f *Field) bool { return f.Required })
}

// value is the schema of a value.
func (d dialect) value(t *Type) node {
	switch t.Form {
	case Structure:
		return node{"$ref": d.refs + t.Name}
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
	if t.Enum != nil && d == dialect3 { // as in Kubernetes: the other one is for older clients
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

// parameter is a query parameter.
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

// operation is a method of a path.
type operation struct {
	method, action string
	kind           kind.Kind
	answer         string // the name of the response schema
	body           string // the name of the body schema; "" without a body
}

// route is a path and its operations.
type route struct {
	path       string
	names      []string // path parameters
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

// routes returns the sorted paths of a group version, or of all with "".
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

// encode encodes a document. It cannot fail, because a node contains only JSON values.
func encode(document node) []byte {
	b, err := json.Marshal(document)
	if err != nil {
		panic("schema: " + err.Error())
	}
	return b
}
