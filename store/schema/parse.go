package schema

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"svcctl.io/svcctl/store/manifest"
)

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
