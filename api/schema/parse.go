package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of one body.
const (
	// MaxBytes is the longest body that is read (MaxRequestBodyBytes of the API server
	// of Kubernetes).
	MaxBytes = 3 << 20
	// MaxDepth is how deep a value may be nested; the deepest that means anything are
	// trees of field names, of about 10.
	MaxDepth = 64
	// maxValues is how many values a body may hold: it bounds the memory that a small
	// body of many small values costs.
	maxValues = 1 << 18
	// maxStrict is how many doubts of one body are told.
	maxStrict = 50
)

// Parse reads one JSON value (RFC 8259) of any shape: objects as map[string]any, arrays
// as []any, numbers as json.Number. Of a key that occurs twice the last one counts, and a
// text in duplicates says where: `duplicate field "spec.type"`. It refuses what is too
// long, too deep, too large, or not UTF-8.
func Parse(body []byte) (value any, duplicates []string, err error) {
	if len(body) > MaxBytes {
		return nil, nil, fmt.Errorf("the body is %d bytes long: send at most %d", len(body), MaxBytes)
	}
	if !utf8.Valid(body) {
		return nil, nil, errors.New("the body is not valid UTF-8: send JSON in UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	p := &parser{decoder: decoder}
	token, err := decoder.Token()
	if err == nil {
		value, err = p.value(token, 1)
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("there is more after the end of the value, at byte %d: send one value", decoder.InputOffset())
	}
	return value, p.duplicates, nil
}

// ParseObject is Parse for a body that has to be an object.
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

type parser struct {
	decoder    *json.Decoder
	values     int
	path       []string // as it is printed: ".ports", "[0]", ".name"
	duplicates []string
}

// in reads a value that stands at a step below the one that is being read.
func (p *parser) in(step string, depth int) (any, error) {
	p.path = append(p.path, step)
	token, err := p.decoder.Token()
	if err != nil {
		return nil, err
	}
	value, err := p.value(token, depth)
	p.path = p.path[:len(p.path)-1]
	return value, err
}

// value is the value that begins with a token.
func (p *parser) value(token json.Token, depth int) (any, error) {
	if p.values++; p.values > maxValues {
		return nil, fmt.Errorf("the body holds more than %d values: send less at once", maxValues)
	}
	delimiter, compound := token.(json.Delim)
	if !compound {
		return token, nil
	}
	if depth > MaxDepth {
		return nil, fmt.Errorf("the body is nested deeper than %d levels, at byte %d", MaxDepth, p.decoder.InputOffset())
	}
	if delimiter == '[' {
		return p.array(depth)
	}
	return p.object(depth)
}

func (p *parser) array(depth int) (any, error) {
	items := []any{}
	for p.decoder.More() {
		item, err := p.in("["+strconv.Itoa(len(items))+"]", depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	_, err := p.decoder.Token()
	return items, err
}

func (p *parser) object(depth int) (any, error) {
	o := map[string]any{}
	for p.decoder.More() {
		token, err := p.decoder.Token()
		if err != nil {
			return nil, err
		}
		key, ok := token.(string)
		if !ok {
			return nil, fmt.Errorf("%v where a key is expected, at byte %d", token, p.decoder.InputOffset())
		}
		if _, twice := o[key]; twice && len(p.duplicates) < maxStrict {
			at := strings.TrimPrefix(strings.Join(p.path, "")+"."+key, ".")
			p.duplicates = append(p.duplicates, fmt.Sprintf("duplicate field %q", at))
		}
		if o[key], err = p.in("."+key, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := p.decoder.Token()
	return o, err
}

// join is the path of a field.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// describe is what a value is, in words of JSON.
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

// Clone is a copy of a value as Parse makes them that shares nothing with it.
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
