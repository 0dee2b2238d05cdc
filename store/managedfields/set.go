package managedfields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

// A set is a set of field paths, as a tree: self is set if the field itself is in it,
// and children has the sets below it by path elements in the notation of FieldsV1. Sets
// are immutable and share parts. No child is empty; nil is an empty set.
type set struct {
	self     bool
	children map[string]*set
}

// leaf is the set with the field itself and nothing below it.
var leaf = &set{self: true}

// The prefixes of path elements in FieldsV1.
const (
	elementField = "f:" // followed by a field name
	elementKeys  = "k:" // followed by the keys of a list item, as a JSON object
	elementValue = "v:" // followed by the value of an item in a list of type set, as JSON
	elementIndex = "i:" // followed by the index of a list item; accepted but never written
	elementSelf  = "."
)

func (s *set) empty() bool { return s == nil || !s.self && len(s.children) == 0 }

// child returns the set below a path element, nil if it is empty.
func (s *set) child(element string) *set {
	if s == nil {
		return nil
	}
	return s.children[element]
}

func (s *set) isMember() bool { return s != nil && s.self }

// combine combines two sets element by element with a boolean function.
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

// without returns a set without the branches of some top-level elements.
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

// withNamed returns the set with those struct fields added that have descendants in the set.
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

// typeAt returns the type of the value at a path element below t; nil if there is none.
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

// paths calls the function each for every path of a set, parents first. The path is valid until each returns.
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

// encode encodes a set as FieldsV1.
func (s *set) encode() json.RawMessage { return s.append(nil) }

// append appends the children of a set as JSON, sorted by element.
func (s *set) append(b []byte) []byte {
	b = append(b, '{')
	if s == nil {
		return append(b, '}')
	}
	if s.self && len(s.children) > 0 {
		b = append(b, `".":{},`...)
	}
	for _, element := range slices.Sorted(maps.Keys(s.children)) {
		b = append(append(b, compact(element)...), ':')
		b = append(s.children[element].append(b), ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}')
}

// decodeSet decodes FieldsV1.
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

// canonical returns a path element whose JSON part is in canonical form.
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

// compact returns a value as JSON with sorted keys and no blanks.
func compact(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic("store/managedfields: " + err.Error()) // it was JSON before
	}
	return string(text)
}

// merge returns the result of a server-side apply: the value live, with the fields of the value applied added to it or replaced in it. nil stands for
// an absent value.
func merge(live, applied any, t *schema.Type) any {
	switch {
	case applied == nil:
		return live
	case live == nil || isLeaf(t) || size(live) == 0 && size(applied) == 0:
		return applied
	case t.Form == schema.List:
		return mergeItems(live.([]any), applied.([]any), t)
	}
	before, fields := live.(map[string]any), applied.(map[string]any)
	merged := maps.Clone(before)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range fields {
		if child := t.Child(name); child != nil {
			merged[name] = merge(before[name], value, child)
		}
	}
	return merged
}

// mergeItems merges an applied list into a live one, item by item. Applied items keep the order of the applied list. Each other live item stays in
// front of the next item that is in both lists.
func mergeItems(live, applied []any, t *schema.Type) []any {
	appliedOrder, fromApplied := items(applied, t)
	_, fromLive := items(live, t)
	merged := make([]any, 0, len(live)+len(applied))
	next := 0 // in appliedOrder
	take := func() {
		element := appliedOrder[next]
		merged = append(merged, merge(fromLive[element], fromApplied[element], t.Elem))
		next++
	}
	// shared is the first item of both lists that is not taken yet, in the applied order.
	shared := func() int {
		for i := next; i < len(appliedOrder); i++ {
			if _, ok := fromLive[appliedOrder[i]]; ok {
				return i
			}
		}
		return -1
	}
	upcoming := shared()
	for _, item := range live {
		element, err := elementOf(item, t)
		if _, isShared := fromApplied[element]; err != nil || !isShared {
			merged = append(merged, item)
			continue
		}
		if upcoming < 0 || appliedOrder[upcoming] != element {
			continue // taken already, or it will be when the applied order comes to it
		}
		for next <= upcoming {
			take()
		}
		upcoming = shared()
	}
	for next < len(appliedOrder) {
		take()
	}
	return merged
}

// remove returns a value without the fields in a set. An object or list that becomes empty
// is replaced by a nil one of its type, as a placeholder that dropEmptied removes.
func remove(value any, s *set, t *schema.Type) any {
	if s == nil || len(s.children) == 0 || t == nil {
		return value
	}
	switch value := value.(type) {
	case []any:
		return removeItems(value, s, t)
	case map[string]any:
		if t.Atomic {
			return map[string]any(nil)
		}
		var left map[string]any
		for name, inner := range value {
			children := s.child(elementField + name)
			if children.isMember() {
				continue
			}
			if left == nil {
				left = make(map[string]any, len(value))
			}
			left[name] = remove(inner, children, t.Child(name))
		}
		return left
	}
	return value
}

func removeItems(list []any, s *set, t *schema.Type) any {
	var left []any
	if t.Atomic {
		return left
	}
	for _, item := range list {
		element, err := elementOf(item, t)
		switch inner := s.child(element); {
		case err != nil || inner == nil:
			left = append(left, item)
		case !inner.self:
			if rest := remove(item, inner, t.Elem); !isEmptied(rest) {
				left = append(left, rest)
			}
		}
	}
	return left
}

// isEmptied reports whether a value is a placeholder for an object or list that remove has emptied.
func isEmptied(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return value == nil
	case []any:
		return value == nil
	}
	return false
}

// dropEmptied removes the placeholders of emptied objects and lists from an object, in place.
func dropEmptied(o map[string]any) {
	for name, value := range o {
		switch inner := value.(type) {
		case map[string]any:
			dropEmptied(inner)
		case []any:
			for _, item := range inner {
				if item, ok := item.(map[string]any); ok {
					dropEmptied(item)
				}
			}
		}
		if isEmptied(value) {
			delete(o, name)
		}
	}
}

// A Conflict is a field that another manager owns with a value different from the applied one.
type Conflict struct {
	// Manager is the owner in the form used in messages: such as "gitops" if it applied the field, or with its API version if it updated the field:
	// "kubectl-edit" using v1.
	Manager string
	// Name is the name of the owner alone.
	Name string
	// Field is the path of the field, such as .spec.ports[port=80,protocol="TCP"].targetPort.
	Field string

	path []string
}

// Message returns the message of the conflict as a cause in a Kubernetes Status. The reason of such a cause is FieldManagerConflict.
func (c Conflict) Message() string { return "conflict with " + c.Manager }

// A ConflictError lists the conflicts because of which an apply was refused (HTTP 409).
type ConflictError struct{ Conflicts []Conflict }

// Error returns the message of the Status.
func (e *ConflictError) Error() string {
	if len(e.Conflicts) == 1 {
		c := e.Conflicts[0]
		return fmt.Sprintf("Apply failed with 1 conflict: %s: %s", c.Message(), c.Field)
	}
	var lines []string
	for i, c := range e.Conflicts { // they are sorted by their owners
		if i == 0 || e.Conflicts[i-1].Manager != c.Manager {
			lines = append(lines, fmt.Sprintf("conflicts with %s:", c.Manager))
		}
		lines = append(lines, "- "+c.Field)
	}
	return fmt.Sprintf("Apply failed with %d conflicts: %s", len(e.Conflicts), strings.Join(lines, "\n"))
}

func conflictsOf(o owner, h ownership, contested *set) []Conflict {
	name := strconv.Quote(o.manager)
	if o.subresource != "" {
		name += " with subresource " + strconv.Quote(o.subresource)
	}
	if o.operation == operationUpdate {
		name += " using " + h.apiVersion
	}
	var conflicts []Conflict
	contested.paths(nil, func(path []string) {
		path = append([]string(nil), path...)
		conflicts = append(conflicts, Conflict{Manager: name, Name: o.manager, Field: pathText(path), path: path})
	})
	return conflicts
}

// Taken returns the fields that a manager owns by apply and that a write would change or
// remove. It serves to protect managers whose fields no other one may change.
func Taken(live, written map[string]any, by Writer, manager string) []Conflict {
	all, _, err := managersOf(live)
	if err != nil {
		return nil
	}
	change := compare(withoutEntries(live), withoutEntries(written), by.Type).without(by.ignored())
	touched := union(union(change.added, change.changed), change.removed)
	var taken []Conflict
	for o, h := range all {
		if o.manager == manager && o.operation == operationApply && o.subresource == "" {
			taken = append(taken, conflictsOf(o, h, intersection(h.fields, touched))...)
		}
	}
	return taken
}
