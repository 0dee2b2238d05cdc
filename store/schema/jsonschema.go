package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
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

// Limits of a body.
const (
	// MaxBytes bounds the length of a body in bytes (MaxRequestBodyBytes of the API
	// server of Kubernetes).
	MaxBytes = 3 << 20
	// MaxDepth bounds the nesting of values. The deepest useful ones are field sets of
	// about 10 levels.
	MaxDepth = 64
	// maxValues bounds the values of a body, and so the memory of many small values.
	maxValues = 1 << 18
	// maxStrict bounds the reported warnings of a body.
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

// join appends a key to the path of a field.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// describe names the JSON type of a value.
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
