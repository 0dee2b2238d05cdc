package jsonpath

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Execute writes the template for an object.
func (t *Template) Execute(w io.Writer, object any) error {
	e := &evaluation{root: object}
	var b strings.Builder
	if err := e.write(&b, t.nodes, object); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Find returns the values that the template's expressions find in an object.
func (t *Template) Find(object any) []any {
	e := &evaluation{root: object}
	var found []any
	for _, n := range t.nodes {
		if path, is := n.(pathNode); is {
			found = append(found, e.find(path, object)...)
		}
	}
	return found
}

// evaluation evaluates paths in one object.
type evaluation struct{ root any }

func (e *evaluation) write(b *strings.Builder, nodes []node, here any) error {
	for _, n := range nodes {
		switch n := n.(type) {
		case textNode:
			b.WriteString(string(n))
		case pathNode:
			for i, value := range e.find(n, here) {
				if i > 0 {
					b.WriteByte(' ')
				}
				text, err := Text(value)
				if err != nil {
					return err
				}
				b.WriteString(text)
			}
		case rangeNode:
			for _, value := range e.find(n.path, here) {
				if err := e.write(b, n.body, value); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Text formats a value: scalars as text, others as JSON.
func Text(value any) (string, error) {
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case map[string]any, []any:
		body, err := json.Marshal(v)
		if err != nil {
			return "", fmt.Errorf("encode as JSON: %w", err)
		}
		return string(body), nil
	}
	return fmt.Sprint(value), nil
}

// find evaluates a path.
func (e *evaluation) find(path pathNode, here any) []any {
	found := []any{here}
	for _, s := range path {
		found = e.step(s, found)
	}
	return found
}

func (e *evaluation) step(s step, from []any) []any {
	var to []any
	switch s := s.(type) {
	case rootStep:
		return []any{e.root}
	case fieldStep:
		for _, v := range from {
			if m, is := v.(map[string]any); is {
				if child, there := m[string(s)]; there {
					to = append(to, child)
				}
			}
		}
	case wildcardStep:
		for _, v := range from {
			to = append(to, children(v)...)
		}
	case recursiveStep:
		for _, v := range from {
			to = below(to, v)
		}
	case unionStep:
		for _, v := range from {
			for _, part := range s {
				to = append(to, e.step(part, []any{v})...)
			}
		}
	case sliceStep:
		for _, v := range from {
			if list, is := v.([]any); is {
				to = append(to, s.of(list)...)
			}
		}
	case filterStep:
		for _, v := range from {
			for _, child := range items(v) {
				if e.passes(s, child) {
					to = append(to, child)
				}
			}
		}
	}
	return to
}

// children returns the items of a list, or the values of a mapping in the order of its
// keys.
func children(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case map[string]any:
		all := make([]any, 0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, v[key])
		}
		return all
	}
	return nil
}

// items returns the candidates of a filter: the items of a list, or a single value.
func items(v any) []any {
	if list, is := v.([]any); is {
		return list
	}
	return []any{v}
}

// below appends a value and all its descendants.
func below(to []any, v any) []any {
	to = append(to, v)
	for _, child := range children(v) {
		to = below(to, child)
	}
	return to
}

// of returns the items of a list that a slice or an index selects; negative numbers count
// from the end.
func (s sliceStep) of(list []any) []any {
	from := func(n int) int {
		if n < 0 {
			n += len(list)
		}
		return n
	}
	if s.index {
		if i := from(*s.first); i >= 0 && i < len(list) {
			return list[i : i+1]
		}
		return nil
	}
	first, last, stride := 0, len(list), 1
	if s.first != nil {
		first = max(0, from(*s.first))
	}
	if s.last != nil {
		last = min(len(list), from(*s.last))
	}
	if s.stride != nil {
		stride = *s.stride
	}
	var to []any
	for i := first; i < last; i += stride {
		to = append(to, list[i])
	}
	return to
}

// passes reports whether a value passes a filter. Without an operator the left side must
// exist; otherwise any value on the left must compare with any on the right.
func (e *evaluation) passes(f filterStep, here any) bool {
	left := e.values(f.left, here)
	if f.op == "" {
		return len(left) > 0
	}
	for _, l := range left {
		for _, r := range e.values(f.right, here) {
			if compares(l, f.op, r) {
				return true
			}
		}
	}
	return false
}

func (e *evaluation) values(o operand, here any) []any {
	if o.path != nil {
		return e.find(o.path, here)
	}
	return []any{o.value}
}

func compares(left any, op string, right any) bool {
	c, comparable := Compare(left, right)
	switch op {
	case "==":
		return comparable && c == 0
	case "!=":
		return !comparable || c != 0
	case "<":
		return comparable && c < 0
	case "<=":
		return comparable && c <= 0
	case ">":
		return comparable && c > 0
	}
	return comparable && c >= 0 // >=
}

// Compare compares two scalars: numbers by value, strings by their bytes, false before
// true. Values of different types are not comparable.
func Compare(a, b any) (c int, comparable bool) {
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return cmp.Compare(x, y), true
		}
		return 0, false
	}
	switch x := a.(type) {
	case string:
		if y, is := b.(string); is {
			return strings.Compare(x, y), true
		}
	case bool:
		if y, is := b.(bool); is {
			return strings.Compare(strconv.FormatBool(x), strconv.FormatBool(y)), true
		}
	case nil:
		return 0, b == nil
	}
	return 0, false
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	}
	return 0, false
}
