package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// EncodeYAML writes an object as a YAML document: apiVersion, kind and metadata first,
// the rest in the order of Kubernetes' types. It ends with a newline and has no ---
// line.
func EncodeYAML(o object.Object) ([]byte, error) {
	root, err := nodeOf(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s as YAML: %w", refOf(o), err)
	}
	first := []string{"apiVersion", "kind", "metadata"}
	rank := func(f field) int {
		if i := slices.Index(first, f.key); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(root.fields, func(a, b field) int { return rank(a) - rank(b) })
	return writeYAML(root)
}

// YAML writes a value with the names and the order of its JSON form, in which the keys of
// maps are sorted. It ends with a newline.
func YAML(v any) ([]byte, error) {
	root, err := nodeOf(v)
	if err != nil {
		return nil, fmt.Errorf("encode as YAML: %w", err)
	}
	return writeYAML(root)
}

// unlimited are the limits of what the program itself writes.
var unlimited = Limits{Bytes: math.MaxInt, Documents: math.MaxInt, Depth: math.MaxInt, Keys: math.MaxInt, Nodes: math.MaxInt}

// nodeOf is the JSON form of a value.
func nodeOf(v any) (*node, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	docs, refused := parseJSON(b.Bytes(), 1, unlimited)
	if refused != nil {
		return nil, refused
	}
	return docs[0].root, nil
}
