package schema

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Decode parses an object of a type and prunes it (see Parse and Prune). It returns the warnings of both.
func Decode(body []byte, t *Type) (o map[string]any, warnings []string, err error) {
	value, duplicates, err := Parse(body)
	if err != nil {
		return nil, nil, err
	}
	o, ok := value.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("json: cannot unmarshal %s into Go value of type %s", describe(value), t.goName())
	}
	unknown, err := t.Prune(o)
	if err != nil {
		return nil, nil, err
	}
	return o, append(duplicates, unknown...), nil
}

// StrictError returns the error for warnings under strict field validation; nil if
// there are none.
func StrictError(warnings []string) error {
	if len(warnings) == 0 {
		return nil
	}
	return fmt.Errorf("strict decoding error: %s", strings.Join(warnings, ", "))
}

// Prune deletes unknown fields and nulls from an object, in place. unknown has a text for
// each field that should not be there: `unknown field "spec.ports[0].bogus"`. It fails
// with Kubernetes' error text if a value does not have the form of its type; the object
// is then unusable.
func (t *Type) Prune(o map[string]any) (unknown []string, err error) {
	p := &pruner{}
	if _, err := p.structure(o, t); err != nil {
		return nil, err
	}
	return p.unknown, nil
}

// A TypeError means that a value does not have the JSON form of its type.
type TypeError struct {
	Field string // path of the field, such as spec.ports[0].port
	Text  string
}

func (e *TypeError) Error() string { return e.Text }

type pruner struct {
	place   []part // the path of the value that is being pruned
	unknown []string
}

// write appends the step to a path.
func (p part) write(b *strings.Builder) {
	switch {
	case p.index >= 0:
		b.WriteString("[" + strconv.Itoa(p.index) + "]")
	case p.in != nil && p.in.Form == Map:
		b.WriteString("[" + p.key + "]")
	default:
		b.WriteString("." + p.key)
	}
}

// A part is one step of a path: a key or an index, and the type of the structure, map or list that contains it.
type part struct {
	in    *Type
	key   string
	index int // -1 if the step is a key
}

// into appends a step to the current path.
func (p *pruner) into(step part) { p.place = append(p.place, step) }

// back removes the last step from the current path.
func (p *pruner) back() { p.place = p.place[:len(p.place)-1] }

// path returns the current path with indexes: spec.ports[0].port
func (p *pruner) path() string {
	var b strings.Builder
	for _, at := range p.place {
		at.write(&b)
	}
	return strings.TrimPrefix(b.String(), ".")
}

// fieldOf returns the structure that contains the current field, and the path of the
// field without indexes: spec.ports.port.
func (p *pruner) fieldOf() (of, dotted string) {
	var names []string
	for _, at := range p.place {
		if at.in.Form == Structure {
			of, names = at.in.Short, append(names, at.key)
		}
	}
	return of, strings.Join(names, ".")
}

// mismatch returns the error of encoding/json for a value that is not of type t. what names the type of the value.
func (p *pruner) mismatch(what string, t *Type) error {
	if len(p.place) == 0 {
		return fmt.Errorf("json: cannot unmarshal %s into Go value of type %s", what, t.goName())
	}
	of, dotted := p.fieldOf()
	return &TypeError{p.path(), fmt.Sprintf("json: cannot unmarshal %s into Go struct field %s.%s of type %s", what, of, dotted, t.goName())}
}

// noText returns the error for a value in a map of strings that is not a string. Its text is the same as for manifest files. Values of a Secret are
// not shown.
func (p *pruner) noText(v any) error {
	got, quoted := "the "+describe(v), ""
	if in := p.place[0].key; in != "data" && in != "stringData" {
		switch v.(type) {
		case bool, json.Number:
			got, quoted = fmt.Sprintf("the %s %v", describe(v), v), fmt.Sprintf(": \"%v\"", v)
		}
	}
	return &TypeError{p.path(), fmt.Sprintf("%s: expected a text, got %s; quote it%s", p.path(), got, quoted)}
}

// value prunes a value of type t, and returns it. It returns what null stands for if the value is null.
func (p *pruner) value(v any, t *Type) (any, error) {
	switch t.Form {
	case Structure:
		return p.structure(v, t)
	case Map:
		return p.textMap(v, t)
	case List:
		return p.list(v, t)
	}
	if v == nil {
		return t.zero(), nil
	}
	return v, p.scalar(v, t)
}

func (p *pruner) structure(v any, t *Type) (any, error) {
	if v == nil {
		return map[string]any{}, nil
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, p.mismatch(describe(v), t)
	}
	for _, name := range slices.Sorted(maps.Keys(o)) { // the order of warnings
		if f, known := t.fields[name]; known {
			if err := p.field(o, t, f, o[name]); err != nil {
				return nil, err
			}
			continue
		}
		delete(o, name)
		if !t.Open && !slices.Contains(t.ignored, name) && len(p.unknown) < maxStrict {
			p.unknown = append(p.unknown, fmt.Sprintf("unknown field %q%s", join(p.path(), name), object.Experimental(t.Go, name)))
		}
	}
	return o, nil
}

// field prunes the value of a field.
func (p *pruner) field(o map[string]any, t *Type, f *Field, value any) error {
	if value == nil {
		delete(o, f.Name)
		return nil
	}
	p.into(part{t, f.Name, -1})
	pruned, err := p.value(value, f.Type)
	if err != nil {
		return err
	}
	p.back()
	o[f.Name] = pruned
	return nil
}

func (p *pruner) textMap(v any, t *Type) (any, error) {
	o, ok := v.(map[string]any)
	if !ok {
		return nil, p.mismatch(describe(v), t)
	}
	var wrong error
	first := "" // key that is wrong
	for key, value := range o {
		depth := len(p.place)
		p.into(part{t, key, -1})
		pruned, err := p.value(value, t.Elem)
		p.place = p.place[:depth]
		switch {
		case err != nil && (wrong == nil || key < first):
			wrong, first = err, key
		case value == nil:
			o[key] = pruned // other values stay as they are
		}
	}
	return o, wrong
}

// list prunes the items of a list, in place.
func (p *pruner) list(v any, t *Type) (any, error) {
	items, ok := v.([]any)
	if !ok {
		return nil, p.mismatch(describe(v), t)
	}
	for i := range items {
		p.into(part{t, "", i})
		pruned, err := p.value(items[i], t.Elem)
		if err != nil {
			return nil, err
		}
		p.back()
		items[i] = pruned
	}
	return items, nil
}

// zero returns the value that null stands for in a list or a map.
func (t *Type) zero() any {
	switch t.Form {
	case Integer, IntOrString:
		return json.Number("0")
	case Boolean:
		return false
	case FieldSet:
		return map[string]any{}
	}
	return ""
}

// scalar returns an error if a scalar value does not have its type.
func (p *pruner) scalar(v any, t *Type) error {
	text, isText := v.(string)
	switch number, isNumber := v.(json.Number); t.Form {
	case Boolean:
		if _, ok := v.(bool); ok {
			return nil
		}
	case Integer:
		if isNumber {
			return p.integer(number, t)
		}
	case IntOrString:
		if isNumber {
			return p.integer(number, int32Type)
		}
		if isText {
			return nil
		}
	case FieldSet:
		switch v.(type) {
		case map[string]any, json.RawMessage:
			return nil
		}
	case Time, MicroTime:
		if isText {
			_, err := time.Parse(time.RFC3339, text)
			return err
		}
	case Bytes:
		if isText {
			_, err := base64.StdEncoding.DecodeString(text)
			return err
		}
	default:
		if isText {
			return nil
		}
		if last := p.place[len(p.place)-1]; last.in != nil && last.in.Form == Map {
			return p.noText(v)
		}
	}
	return p.mismatch(describe(v), t)
}

// int32Type is the number type of an IntOrString.
var int32Type = &Type{Form: Integer, Bits: 32}

func (p *pruner) integer(n json.Number, t *Type) error {
	if _, err := strconv.ParseInt(n.String(), 10, t.Bits); err != nil {
		return p.mismatch("number "+n.String(), t)
	}
	return nil
}

// goName returns the name of a type in Kubernetes' error messages.
func (t *Type) goName() string {
	switch t.Form {
	case Structure:
		return "v1." + t.Short
	case Map:
		return "map[string]" + t.Elem.goName()
	case List:
		return "[]" + t.Elem.goName()
	case Integer:
		return "int" + strconv.Itoa(t.Bits)
	case Boolean:
		return "bool"
	case Time:
		return "v1.Time"
	case MicroTime:
		return "v1.MicroTime"
	case IntOrString:
		return "intstr.IntOrString"
	case Bytes:
		return "[]uint8"
	case FieldSet:
		return "v1.FieldsV1"
	}
	return "string"
}
