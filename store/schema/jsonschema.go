package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/kind"
)

// Hint is a key of annotations or labels that an editor offers.
type Hint struct {
	Key   string
	Kinds []string // of objects on which it means something
	Label bool
	Text  string
}

// JSONSchema is a JSON Schema (draft 7, which editors understand) of the documents in files, with the keys of
// annotations and labels that mean something.
func JSONSchema(hints []Hint) []byte {
	w := &jsonSchema{definitions: node{}}
	var cases []node
	names := []string{"List"}
	for _, k := range kind.All() {
		if !k.Strategy().InFiles {
			continue
		}
		names = append(names, k.Name)
		name := w.object(k, hints)
		is := node{"properties": node{"kind": node{"const": k.Name}}, "required": []string{"kind"}}
		cases = append(cases, node{"if": is, "then": node{"$ref": name}})
	}
	w.definitions["document"] = node{
		"type": "object", "required": []string{"apiVersion", "kind"},
		"properties": node{
			"apiVersion": node{"type": "string"},
			// Documents of other kinds may be there, and are ignored.
			"kind": node{"anyOf": []node{{"enum": names}, {"type": "string"}}},
		},
		"allOf": append(cases, node{
			"if":   node{"properties": node{"kind": node{"const": "List"}}, "required": []string{"kind"}},
			"then": node{"properties": node{"items": node{"type": "array", "items": node{"$ref": "#/definitions/document"}}}},
		}),
	}
	text, err := json.MarshalIndent(node{
		"$schema": "http://json-schema.org/draft-07/schema#", "title": "Manifests of svcctl",
		"$ref": "#/definitions/document", "definitions": w.definitions,
	}, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("schema: encode: %v", err)) // maps and texts of our own
	}
	return append(text, '\n')
}

// jsonSchema collects definitions.
type jsonSchema struct{ definitions node }

// object defines a kind, and gives the reference to it.
func (w *jsonSchema) object(k kind.Kind, hints []Hint) string {
	t := Of(k)
	w.structure(t)
	definition := w.definitions[t.Name].(node)
	properties := node{}
	maps.Copy(properties, definition["properties"].(node))
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
	whole := node{"type": "object", "properties": properties, "required": []string{"apiVersion", "kind", "metadata"}}
	if t.Doc != "" {
		whole["description"] = t.Doc
	}
	if !t.Open {
		whole["additionalProperties"] = false
	}
	w.definitions[k.Name] = whole
	return "#/definitions/" + k.Name
}

// structure defines the fields of a Structure, once.
func (w *jsonSchema) structure(t *Type) node {
	ref := node{"$ref": "#/definitions/" + t.Name}
	if _, has := w.definitions[t.Name]; has {
		return ref
	}
	definition := node{"type": "object"}
	w.definitions[t.Name] = definition // before its fields: a type may contain itself
	properties, required := node{}, []string{}
	for _, f := range t.Fields {
		of := w.value(f.Type)
		if f.Doc != "" {
			if _, isRef := of["$ref"]; isRef { // what stands beside $ref is not read in draft 7
				of = node{"allOf": []node{of}}
			}
			of["description"] = f.Doc
		}
		properties[f.Name] = of
		if f.Required {
			required = append(required, f.Name)
		}
	}
	definition["properties"] = properties
	if len(required) > 0 {
		definition["required"] = required
	}
	if !t.Open {
		definition["additionalProperties"] = false
	}
	return ref
}

// value is the schema of the values of a type.
func (w *jsonSchema) value(t *Type) node {
	switch t.Form {
	case Structure:
		return w.structure(t)
	case Map:
		return node{"type": "object", "additionalProperties": w.value(t.Elem)}
	case List:
		return node{"type": "array", "items": w.value(t.Elem)}
	case Integer:
		return node{"type": "integer"}
	case Boolean:
		return node{"type": "boolean"}
	case IntOrString:
		return node{"type": []string{"integer", "string"}}
	case FieldSet:
		return node{"type": "object"}
	case Text:
		if t.Enum != nil {
			return node{"type": "string", "enum": t.Enum}
		}
	}
	return node{"type": "string"}
}
