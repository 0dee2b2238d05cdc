package object

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// ErrorType is the kind of an Error, and at the same time the reason of a cause in
// a Kubernetes Status (metav1.CauseType).
type ErrorType string

// The kinds of errors.
const (
	FieldValueInvalid      ErrorType = "FieldValueInvalid"
	FieldValueRequired     ErrorType = "FieldValueRequired"
	FieldValueDuplicate    ErrorType = "FieldValueDuplicate"
	FieldValueNotSupported ErrorType = "FieldValueNotSupported"
	FieldValueForbidden    ErrorType = "FieldValueForbidden"
	FieldValueTooLong      ErrorType = "FieldValueTooLong"
	FieldValueTooMany      ErrorType = "FieldValueTooMany"
)

// title returns the beginning of an Error's text.
func (t ErrorType) title() string {
	switch t {
	case FieldValueInvalid:
		return "Invalid value"
	case FieldValueRequired:
		return "Required value"
	case FieldValueDuplicate:
		return "Duplicate value"
	case FieldValueNotSupported:
		return "Unsupported value"
	case FieldValueForbidden:
		return "Forbidden"
	case FieldValueTooLong:
		return "Too long"
	case FieldValueTooMany:
		return "Too many"
	}
	return string(t)
}

// Error is one problem of one field. Its text is that of apimachinery's field.Error.
type Error struct {
	Type ErrorType
	// Field is the JSON path, as spec.ports[0].port.
	Field string
	// Value is the refused value; not shown for Required, Forbidden and TooLong.
	Value any
	// Detail describes the values that are accepted.
	Detail string
}

// Error is "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive".
func (e Error) Error() string { return e.Field + ": " + e.Body() }

// Body is Error without the field: the message of a cause in a Status.
func (e Error) Body() string {
	s := e.Type.title()
	switch e.Type {
	case FieldValueRequired, FieldValueForbidden, FieldValueTooLong:
	default:
		if e.Value != (omitted{}) {
			s += ": " + valueText(e.Value)
		}
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// omitted is the Value of an error whose text has none (field.OmitValueType).
type omitted struct{}

// valueText prints a value as field.Error does: text quoted, numbers bare, all else JSON.
func valueText(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%#v", v)
	}
	return string(b)
}

// Errors is every problem of one object.
type Errors []Error

// Error is the text of the only error, or "[first, second]"; a text that comes twice
// is shown once.
func (e Errors) Error() string {
	unique := Join(e)
	if len(unique) == 1 {
		return unique[0].Error()
	}
	texts := make([]string, len(unique))
	for i := range unique {
		texts[i] = unique[i].Error()
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// Join returns all errors of the lists in order, without repetitions: DefaultFamilies and Validate
// may see the same problem.
func Join(lists ...Errors) Errors {
	var all Errors
	seen := set{}
	for _, list := range lists {
		for _, e := range list {
			if text := e.Error(); !seen[text] {
				seen[text] = true
				all = append(all, e)
			}
		}
	}
	return all
}

// A path is the place of a field in its object. It is put into words when there is something
// to say about the field, which is seldom.
type path struct {
	base  string
	steps [4]step // behind base
	n     int     // how many of them there are
}

// A step is a field, an index, or a key of a mapping.
type step struct {
	name  string // "" of an index
	index int
	key   bool
}

// root is the path of a field of the object itself, or of one further down.
func root(name string) path { return path{base: name} }

func (p path) child(name string) path { return p.with(step{name: name}) }
func (p path) index(i int) path       { return p.with(step{index: i}) }
func (p path) key(key string) path    { return p.with(step{name: key, key: true}) }

func (p path) with(s step) path {
	if p.n == len(p.steps) {
		p = root(p.String())
	}
	p.steps[p.n] = s
	p.n++
	return p
}

// String is the path as Kubernetes writes it.
func (p path) String() string {
	text := p.base
	for _, s := range p.steps[:p.n] {
		switch {
		case s.key:
			text += "[" + s.name + "]"
		case s.name != "":
			text += "." + s.name
		default:
			text += "[" + strconv.Itoa(s.index) + "]"
		}
	}
	return text
}

func required(p path, detail string) Errors {
	return Errors{{Type: FieldValueRequired, Field: p.String(), Value: "", Detail: detail}}
}

func forbidden(p path, detail string) Errors {
	return Errors{{Type: FieldValueForbidden, Field: p.String(), Value: "", Detail: detail}}
}

func duplicate(p path, value any) Errors {
	return Errors{{Type: FieldValueDuplicate, Field: p.String(), Value: value}}
}

func invalid(p path, value any, detail string) Errors {
	return Errors{{Type: FieldValueInvalid, Field: p.String(), Value: value, Detail: detail}}
}

// invalidFor is one invalid for each of the problems.
func invalidFor[T any](p path, value T, problems []string) Errors {
	var errs Errors
	for _, problem := range problems {
		errs = append(errs, invalid(p, value, problem)...)
	}
	return errs
}

func notSupported(p path, value string, supported []string) Errors {
	quoted := make([]string, len(supported))
	for i, s := range supported {
		quoted[i] = strconv.Quote(s)
	}
	return Errors{{
		Type: FieldValueNotSupported, Field: p.String(), Value: value,
		Detail: "supported values: " + strings.Join(quoted, ", "),
	}}
}

func tooLong(p path, maxBytes int) Errors {
	return Errors{{
		Type: FieldValueTooLong, Field: p.String(), Value: "<value omitted>",
		Detail: fmt.Sprintf("may not be more than %d bytes", maxBytes),
	}}
}

func tooMany(p path, actual, most int) Errors {
	return Errors{{
		Type: FieldValueTooMany, Field: p.String(), Value: actual,
		Detail: strings.TrimSuffix(fmt.Sprintf("must have at most %d items", most), map[bool]string{true: "s"}[most == 1]),
	}}
}
