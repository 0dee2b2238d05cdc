package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Value is the content of one document of any kind, in the types of JSON.
type Value struct {
	// Data is made of map[string]any, []any, string, bool, json.Number and nil.
	Data any
	// Line is its first line, from 1.
	Line int
	// Duplicates lists the fields that are there twice, of which the last counts, as for kubectl: "spec.type".
	Duplicates []string
}

// Values reads all documents of a text of YAML, or one value of JSON, which is YAML too.
// It is for callers that need the content and no objects: limits and meaning
// of YAML are those of Decode.
func Values(text []byte, limits Limits) ([]Value, *Problem) {
	limits = limits.orDefaults()
	text, err := checkText(text)
	if err == nil && len(text) > limits.Bytes {
		err = refuse(0, 0, ReasonLimit, "the text has %d bytes, more than the limit of %d; split it", len(text), limits.Bytes)
	}
	var docs []parsed
	if err == nil {
		docs, err = (&reading{limits: limits, workspace: new(workspace)}).parseYAML(text, 1)
	}
	var values []Value
	for i := 0; i < len(docs) && err == nil; i++ {
		var value Value
		if value, err = valueOf(docs[i]); value.Data != nil {
			values = append(values, value)
		}
	}
	if err != nil {
		return nil, &Problem{Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	return values, nil
}

func valueOf(doc parsed) (Value, *refusal) {
	value := Value{Line: doc.root.line}
	for _, f := range doc.flaws {
		switch {
		case f.reason == ReasonDuplicateKey:
			value.Duplicates = append(value.Duplicates, f.path.String())
		case !f.warning:
			return value, &refusal{line: f.line, column: f.column, reason: f.reason, message: f.message}
		}
	}
	r := &treeReader{tree: new(Tree)}
	value.Data = r.value(doc.root)
	if r.failed {
		p := r.problems[0]
		return value, &refusal{line: p.Line, column: p.Column, reason: p.Reason, message: p.Message}
	}
	return value, nil
}

// jsonNumber is a number of YAML as JSON writes it, whole ones without fraction or
// exponent: 0x10 is 16, 1_000 and 1e3 are 1000.
func jsonNumber(text string) (json.Number, error) {
	plain := strings.TrimPrefix(strings.ReplaceAll(text, "_", ""), "+")
	if digits := strings.TrimLeft(plain, "-"); len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		return "", fmt.Errorf("the leading zero of %s makes it an octal number to some readers; write it without", text)
	}
	whole, err := strconv.ParseInt(plain, 0, 64)
	switch {
	case err == nil:
		return json.Number(strconv.FormatInt(whole, 10)), nil
	case errors.Is(err, strconv.ErrRange):
		return "", fmt.Errorf("%s is too large", text)
	}
	float, err := strconv.ParseFloat(plain, 64)
	switch {
	case err != nil || math.IsNaN(float) || math.IsInf(float, 0):
		return "", fmt.Errorf("%s is no number in JSON", text)
	case float == math.Trunc(float) && math.Abs(float) <= 1<<53:
		return json.Number(strconv.FormatInt(int64(float), 10)), nil
	}
	return json.Number(strconv.FormatFloat(float, 'g', -1, 64)), nil
}

// JSON reads a text that is one value of JSON (RFC 8259). Of keys that are there twice the last
// one counts, as for the API server of Kubernetes, and Duplicates names them in its way:
// "metadata.labels.app". The text is UTF-8.
func JSON(text []byte, limits Limits) (Value, *Problem) {
	r := &jsonReader{jsonScanner: jsonScanner{text: text, line: 1, limits: limits.orDefaults()}}
	data, err := r.document()
	if err != nil {
		return Value{}, &Problem{Line: err.line, Column: err.column, Reason: err.reason, Message: err.message}
	}
	return Value{Data: data, Line: 1, Duplicates: r.duplicates}, nil
}

// A jsonReader reads values without their places.
type jsonReader struct {
	jsonScanner
	duplicates []string
}

func (r *jsonReader) document() (any, *refusal) {
	r.space()
	if r.at == len(r.text) {
		return nil, r.bad("a value")
	}
	data, err := r.data(0)
	if err != nil {
		return nil, err
	}
	if r.space(); r.at < len(r.text) {
		return nil, r.fail(ReasonSyntax, "could not be parsed: there is more after the end of the value; send one value")
	}
	return data, nil
}

// data reads the next value: map[string]any, []any, string, bool, json.Number or nil.
func (r *jsonReader) data(depth int) (any, *refusal) {
	if err := r.count(depth); err != nil {
		return nil, err
	}
	switch r.text[r.at] {
	case '{':
		out := map[string]any{}
		err := r.members(func(raw []byte, _, _ int) (err *refusal) {
			key := sharedText(raw)
			r.path.pushKey(key)
			if _, twice := out[key]; twice && len(r.duplicates) < maxProblems {
				r.duplicates = append(r.duplicates, r.path.dotted())
			}
			if out[key], err = r.data(depth + 1); err == nil {
				r.path.pop()
			}
			return err
		})
		return out, err
	case '[':
		out := []any{}
		err := r.elements(func(i int) *refusal {
			r.path.pushIndex(i)
			item, err := r.data(depth + 1)
			if err == nil {
				r.path.pop()
				out = append(out, item)
			}
			return err
		})
		return out, err
	case '"':
		raw, err := r.quoted()
		if err != nil {
			return nil, err
		}
		return sharedText(raw), nil
	}
	raw, err := r.word()
	if err != nil {
		return nil, err
	}
	switch raw[0] {
	case 'n':
		return nil, nil
	case 't':
		return true, nil
	case 'f':
		return false, nil
	}
	return json.Number(raw), nil
}

// sharedText is the text of a string in quotes, held once if it is frequent.
func sharedText(raw []byte) string {
	if s, ok := frequent[string(raw[1:len(raw)-1])]; ok {
		return s
	}
	return unquote(raw)
}
