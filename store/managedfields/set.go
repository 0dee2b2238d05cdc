package managedfields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

// A set is a set of fields: the field itself, if self, and those under it, by
// elements as FieldsV1 writes them. Sets do not change once they are made, and share
// parts. No set under another one is empty; nil is an empty set.
type set struct {
	self     bool
	children map[string]*set
}

// leaf is the set of the thing itself.
var leaf = &set{self: true}

// The kinds of elements.
const (
	elementField = "f:" // the field of a name
	elementKeys  = "k:" // the item of a list with these keys, an object in JSON
	elementValue = "v:" // the member of a set, in JSON
	elementIndex = "i:" // the item of a list at an index; only read
	elementSelf  = "."
)

func (s *set) empty() bool { return s == nil || !s.self && len(s.children) == 0 }

// child returns the set below an element, nil if there is none.
func (s *set) child(element string) *set {
	if s == nil {
		return nil
	}
	return s.children[element]
}

func (s *set) isMember() bool { return s != nil && s.self }

// combine makes a set of two, element by element.
func combine(a, b *set, self func(a, b bool) bool) *set {
	switch {
	case b.empty():
		return onlyIf(self(true, false), a)
	case a.empty():
		return onlyIf(self(false, true), b)
	}
	c := &set{self: self(a.isMember(), b.isMember())}
	add := func(elements map[string]*set) {
		for element := range elements {
			if _, done := c.children[element]; done {
				continue
			}
			if inner := combine(a.child(element), b.child(element), self); !inner.empty() {
				if c.children == nil {
					c.children = map[string]*set{}
				}
				c.children[element] = inner
			}
		}
	}
	if a != nil {
		add(a.children)
	}
	if b != nil {
		add(b.children)
	}
	if c.empty() {
		return nil
	}
	return c
}

func onlyIf(taken bool, s *set) *set {
	if !taken || s.empty() {
		return nil
	}
	return s
}

func union(a, b *set) *set        { return combine(a, b, func(a, b bool) bool { return a || b }) }
func intersection(a, b *set) *set { return combine(a, b, func(a, b bool) bool { return a && b }) }
func difference(a, b *set) *set   { return combine(a, b, func(a, b bool) bool { return a && !b }) }

// without is a set without whole branches at its top.
func without(s *set, elements []string) *set {
	if s == nil || len(elements) == 0 {
		return s
	}
	left := &set{self: s.self, children: maps.Clone(s.children)}
	for _, element := range elements {
		delete(left.children, element)
	}
	return left
}

// withNamed is a set with every field of a structure that has something under it: a field
// with a fixed name is there when anything in it is.
func withNamed(s *set, t *schema.Type) *set {
	if s == nil || len(s.children) == 0 {
		return s
	}
	named := &set{self: s.self, children: make(map[string]*set, len(s.children))}
	for element, inner := range s.children {
		made := withNamed(inner, typeAt(t, element))
		if name, ok := strings.CutPrefix(element, elementField); ok && t != nil && t.Form == schema.Structure && !made.self {
			if _, ok := t.Field(name); ok {
				made = &set{self: true, children: made.children}
			}
		}
		named.children[element] = made
	}
	return named
}

// typeAt returns the type of the value under an element; nil when there is none.
func typeAt(t *schema.Type, element string) *schema.Type {
	if t == nil {
		return nil
	}
	if name, ok := strings.CutPrefix(element, elementField); ok {
		return t.Child(name)
	}
	if t.Form == schema.List {
		return t.Elem
	}
	return nil
}

// paths calls each for every path of a set, parents first.
func (s *set) paths(above []string, each func(path []string)) {
	if s == nil {
		return
	}
	elements := slices.Sorted(maps.Keys(s.children))
	for _, element := range elements {
		if s.children[element].self {
			each(append(above, element))
		}
	}
	for _, element := range elements {
		s.children[element].paths(append(above, element), each)
	}
}

// contains reports whether a path is in a set.
func (s *set) contains(path []string) bool {
	for _, element := range path {
		s = s.child(element)
	}
	return s.isMember()
}

// encode writes a set as FieldsV1.
func (s *set) encode() json.RawMessage { return s.append(nil) }

// append appends the fields under a set in JSON, its elements sorted.
func (s *set) append(b []byte) []byte {
	b = append(b, '{')
	if s == nil {
		return append(b, '}')
	}
	if s.self && len(s.children) > 0 {
		b = append(b, `".":{},`...)
	}
	for _, element := range sortedKeys(s.children) {
		b = append(appendText(b, element), ':')
		b = append(s.children[element].append(b), ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}')
}

// sortedKeys are the keys of a map, in a slice that is made once.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// appendText appends a text in JSON, as package json writes it.
func appendText(b []byte, text string) []byte {
	from := len(b)
	b = append(b, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == '<' || c == '>' || c == '&' || c >= 0x7f:
			quoted, _ := json.Marshal(text) // of a text it cannot fail
			return append(b[:from], quoted...)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// decodeSet reads FieldsV1.
func decodeSet(b json.RawMessage) (*set, error) {
	if len(b) == 0 {
		return nil, nil
	}
	tree, _, err := schema.ParseObject(b)
	if err != nil {
		return nil, fmt.Errorf("fieldsV1: %w", err)
	}
	s, err := setOfTree(tree)
	if err != nil {
		return nil, fmt.Errorf("fieldsV1: %w", err)
	}
	if s.self = false; s.empty() {
		return nil, nil
	}
	return s, nil
}

func setOfTree(tree map[string]any) (*set, error) {
	s := &set{self: len(tree) == 0}
	for key, value := range tree {
		inner, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%q is no object", key)
		}
		if key == elementSelf {
			s.self = true
			continue
		}
		element, err := canonical(key)
		if err != nil {
			return nil, err
		}
		children, err := setOfTree(inner)
		if err != nil {
			return nil, err
		}
		if s.children == nil {
			s.children = map[string]*set{}
		}
		s.children[element] = union(s.children[element], children)
	}
	return s, nil
}

// canonical is an element with its JSON in the one form that is written here.
func canonical(element string) (string, error) {
	if len(element) < 2 {
		return "", fmt.Errorf("%q is no element of a path", element)
	}
	switch kind, content := element[:2], element[2:]; kind {
	case elementField, elementIndex:
		return element, nil
	case elementKeys, elementValue:
		value, _, err := schema.Parse([]byte(content))
		if err != nil {
			return "", fmt.Errorf("%q: %w", element, err)
		}
		if _, ok := value.(map[string]any); ok != (kind == elementKeys) {
			return "", fmt.Errorf("%q is no element of a path", element)
		}
		return kind + compact(value), nil
	}
	return "", fmt.Errorf("%q is no element of a path", element)
}

// compact is a value in JSON, its keys sorted.
func compact(value any) string { return string(appendCompact(nil, value)) }

func appendCompact(b []byte, value any) []byte {
	switch value := value.(type) {
	case string:
		return appendText(b, value)
	case json.Number:
		return append(b, value...)
	case map[string]any:
		b = append(b, '{')
		for _, key := range sortedKeys(value) {
			b = append(appendText(b, key), ':')
			b = append(appendCompact(b, value[key]), ',')
		}
		return append(bytes.TrimSuffix(b, []byte{','}), '}')
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic("store/managedfields: " + err.Error()) // it was JSON before
	}
	return append(b, text...)
}
