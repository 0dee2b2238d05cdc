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
)

// Decode reads an object of a type from JSON: Parse, then Prune. The texts in doubts are
// those of both.
func Decode(body []byte, t *Type) (o map[string]any, doubts []string, err error) {
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

// StrictError is the refusal of an object for the doubts about it, under the strict field
// validation; nil when there are none.
func StrictError(doubts []string) error {
	if len(doubts) == 0 {
		return nil
	}
	return fmt.Errorf("strict decoding error: %s", strings.Join(doubts, ", "))
}

// Prune takes out of an object what its type does not have, in place: fields that do not
// exist, and nulls, which are the same as no field. A text in unknown says where a field
// was that should not be there: `unknown field "spec.ports[0].bogus"`. It fails with the
// text that Kubernetes has for it when a value is of another form than its type; the
// object is then of no use.
func (t *Type) Prune(o map[string]any) (unknown []string, err error) {
	p := &pruner{}
	if _, err := p.structure(o, t, place{}); err != nil {
		return nil, err
	}
	return p.unknown, nil
}

type pruner struct{ unknown []string }

// A place is where a value stands.
type place struct {
	path   string // with indexes: spec.ports[0].port
	dotted string // without: spec.ports.port
	of     string // the structure it is a field of
}

func (at place) field(of, name string) place {
	return place{path: join(at.path, name), dotted: join(at.dotted, name), of: of}
}

// mismatch is the error of encoding/json for a value that does not fit.
func mismatch(what string, t *Type, at place) error {
	if at.of == "" {
		return fmt.Errorf("json: cannot unmarshal %s into Go value of type %s", what, t.goName())
	}
	return fmt.Errorf("json: cannot unmarshal %s into Go struct field %s.%s of type %s", what, at.of, at.dotted, t.goName())
}

// value is a value as its type has it.
func (p *pruner) value(v any, t *Type, at place) (any, error) {
	switch t.Form {
	case Structure:
		return p.structure(v, t, at)
	case Map:
		return p.textMap(v, t, at)
	case List:
		return p.list(v, t, at)
	}
	if v == nil {
		return t.zero(), nil
	}
	return v, t.scalar(v, at)
}

func (p *pruner) structure(v any, t *Type, at place) (any, error) {
	if v == nil {
		return map[string]any{}, nil
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, mismatch(describe(v), t, at)
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		in := at.field(t.Short, name)
		f, known := t.fields[name]
		switch {
		case known && o[name] != nil:
			pruned, err := p.value(o[name], f.Type, in)
			if err != nil {
				return nil, err
			}
			o[name] = pruned
			continue
		case !known && !t.Open && !slices.Contains(t.ignored, name) && len(p.unknown) < maxStrict:
			p.unknown = append(p.unknown, fmt.Sprintf("unknown field %q", in.path))
		}
		delete(o, name)
	}
	return o, nil
}

func (p *pruner) textMap(v any, t *Type, at place) (any, error) {
	o, ok := v.(map[string]any)
	if !ok {
		return nil, mismatch(describe(v), t, at)
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		pruned, err := p.value(o[key], t.Elem, place{path: join(at.path, key), dotted: at.dotted, of: at.of})
		if err != nil {
			return nil, err
		}
		o[key] = pruned
	}
	return o, nil
}

func (p *pruner) list(v any, t *Type, at place) (any, error) {
	items, ok := v.([]any)
	if !ok {
		return nil, mismatch(describe(v), t, at)
	}
	for i := range items {
		pruned, err := p.value(items[i], t.Elem, place{path: at.path + "[" + strconv.Itoa(i) + "]", dotted: at.dotted, of: at.of})
		if err != nil {
			return nil, err
		}
		items[i] = pruned
	}
	return items, nil
}

// zero is what null means in a list or a map.
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

// scalar tells what is wrong with a value of a type without parts.
func (t *Type) scalar(v any, at place) error {
	text, isText := v.(string)
	number, isNumber := v.(json.Number)
	switch t.Form {
	case Boolean:
		if _, ok := v.(bool); ok {
			return nil
		}
	case Integer:
		if isNumber {
			return integer(number, t.Bits, t, at)
		}
	case IntOrString:
		if isNumber {
			return integer(number, 32, &Type{Form: Integer, Bits: 32}, at)
		}
		if isText {
			return nil
		}
	case FieldSet:
		if _, ok := v.(map[string]any); ok {
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
	}
	return mismatch(describe(v), t, at)
}

func integer(n json.Number, bits int, t *Type, at place) error {
	if _, err := strconv.ParseInt(n.String(), 10, bits); err != nil {
		return mismatch("number "+n.String(), t, at)
	}
	return nil
}

// goName is what Kubernetes' messages call a type.
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
