package managedfields

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// isLeaf reports whether values of a type are owned as a whole: scalars, and atomic objects and lists.
func isLeaf(t *schema.Type) bool {
	switch t.Form {
	case schema.Structure, schema.Map, schema.List:
		return t.Atomic
	}
	return true
}

// setOf returns the set of all fields in a value, which a manager that applies it owns.
func setOf(value any, t *schema.Type) *set {
	if value == nil {
		return nil
	}
	if isLeaf(t) {
		return leaf
	}
	s := &set{children: map[string]*set{}}
	if t.Form == schema.List {
		for _, item := range value.([]any) {
			if element, err := elementOf(item, t); err == nil && s.children[element] == nil {
				s.children[element] = withSelf(setOf(item, t.Elem))
			}
		}
		return s
	}
	for name, inner := range value.(map[string]any) {
		child := t.Child(name)
		if child == nil {
			continue
		}
		children := setOf(inner, child)
		if empty, ok := inner.(map[string]any); t.Form == schema.Map || ok && len(empty) == 0 || isEmptied(inner) {
			children = withSelf(children)
		}
		if !children.empty() {
			s.children[elementField+name] = children
		}
	}
	return s
}

// withSelf adds the field itself to a new set and returns it.
func withSelf(s *set) *set {
	if s == nil || s == leaf {
		return leaf
	}
	s.self = true
	return s
}

// A comparison has the fields that differ between two values.
type comparison struct{ added, changed, removed *set }

func (c comparison) without(elements []string) comparison {
	return comparison{without(c.added, elements), without(c.changed, elements), without(c.removed, elements)}
}

// compare returns the fields to add, change and remove to turn one value into another. nil is
// an absent value.
func compare(before, after any, t *schema.Type) comparison {
	if isLeaf(t) || size(before) == 0 && size(after) == 0 {
		switch {
		case before == nil && after == nil:
		case before == nil:
			return comparison{added: leaf}
		case after == nil:
			return comparison{removed: leaf}
		case !equal(before, after, t):
			return comparison{changed: leaf}
		}
		return comparison{}
	}
	added, changed, removed := &set{children: map[string]*set{}}, &set{children: map[string]*set{}}, &set{children: map[string]*set{}}
	each := func(element string, before, after any, t *schema.Type) {
		inner := compare(before, after, t)
		for _, part := range []struct{ to, from *set }{{added, inner.added}, {changed, inner.changed}, {removed, inner.removed}} {
			if !part.from.empty() {
				part.to.children[element] = part.from
			}
		}
	}
	if t.Form == schema.List {
		compareItems(before, after, t, each)
	} else {
		compareFields(before, after, t, each)
	}
	added.self, removed.self = before == nil, after == nil
	return comparison{added, changed, removed}
}

func compareItems(before, after any, t *schema.Type, each func(string, any, any, *schema.Type)) {
	listBefore, _ := before.([]any)
	listAfter, _ := after.([]any)
	_, from := items(listBefore, t)
	_, to := items(listAfter, t)
	for element := range from {
		each(element, from[element], to[element], t.Elem)
	}
	for element := range to {
		if _, done := from[element]; !done {
			each(element, nil, to[element], t.Elem)
		}
	}
}

func compareFields(before, after any, t *schema.Type, each func(string, any, any, *schema.Type)) {
	from, _ := before.(map[string]any)
	to, _ := after.(map[string]any)
	names := maps.Clone(from)
	if names == nil {
		names = map[string]any{}
	}
	maps.Copy(names, to)
	for name := range names {
		if child := t.Child(name); child != nil {
			each(elementField+name, fieldOf(from, name, t), fieldOf(to, name, t), child)
		}
	}
}

// fieldOf returns the value of a field. An absent field counts as zero if the type always
// encodes it, unless the whole object is absent.
func fieldOf(o map[string]any, name string, t *schema.Type) any {
	if value, ok := o[name]; ok || o == nil {
		return value
	}
	if f, known := t.Field(name); known && f.Always {
		return zero(f.Type)
	}
	return nil
}

func zero(t *schema.Type) any {
	switch t.Form {
	case schema.Structure:
		return map[string]any{}
	case schema.List:
		return []any(nil)
	case schema.Text:
		return ""
	case schema.Integer, schema.IntOrString:
		return json.Number("0")
	case schema.Boolean:
		return false
	}
	return nil
}

// size returns the number of items in a list or fields in an object; 0 for nil, -1 for a scalar.
func size(value any) int {
	switch value := value.(type) {
	case nil:
		return 0
	case map[string]any:
		return len(value)
	case []any:
		return len(value)
	}
	return -1
}

// equal reports whether two values are equal; nil is an absent value.
func equal(a, b any, t *schema.Type) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return false
		}
		for _, o := range []map[string]any{a, b} {
			for name := range o {
				if child := t.Child(name); child == nil || !equal(fieldOf(a, name, t), fieldOf(b, name, t), child) {
					return false
				}
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, func(a, b any) bool { return equal(a, b, t.Elem) })
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}

// elementOf returns the path element of a list item: its value if the list has type set, otherwise its keys. An absent key counts as having its
// default value.
func elementOf(item any, list *schema.Type) (string, error) {
	if list.Set {
		switch item.(type) {
		case map[string]any, []any:
			return "", fmt.Errorf("a set holds scalars only")
		}
		return elementValue + compact(item), nil
	}
	o, ok := item.(map[string]any)
	if !ok {
		return "", fmt.Errorf("associative list with keys may not have non-map elements")
	}
	keys := map[string]any{}
	for _, key := range list.Keys {
		if value := keyOf(o, key, list); value != nil {
			keys[key] = value
		}
	}
	if len(keys) == 0 {
		return "", fmt.Errorf("associative list with keys has an element that omits all key fields %q (and doesn't have default values for any key fields)", list.Keys)
	}
	return elementKeys + compact(keys), nil
}

// items returns the items of a list by path element, and the elements in order. It skips
// items without an element and duplicates, which validated objects do not have.
func items(list []any, t *schema.Type) (order []string, by map[string]any) {
	by = make(map[string]any, len(list))
	for _, item := range list {
		element, err := elementOf(item, t)
		if err != nil {
			continue
		}
		if _, twice := by[element]; !twice {
			order = append(order, element)
			by[element] = item
		}
	}
	return order, by
}

// checkLists returns an error if a list in an object has two items with the same key.
func checkLists(value any, t *schema.Type, path []string) error {
	switch content := value.(type) {
	case map[string]any:
		for _, f := range t.Fields {
			if inner, ok := content[f.Name]; ok {
				if err := checkLists(inner, f.Type, append(path, elementField+f.Name)); err != nil {
					return err
				}
			}
		}
	case []any:
		if t.Form == schema.List && !t.Atomic {
			return checkItems(content, t, path)
		}
	}
	return nil
}

func checkItems(list []any, t *schema.Type, path []string) error {
	seen := make(map[string]bool, len(list))
	for i, item := range list {
		element, err := elementOf(item, t)
		switch {
		case err != nil:
			return &InvalidError{fmt.Sprintf("%s: element %d: %v", pathText(path), i, err)}
		case seen[element]:
			return &InvalidError{fmt.Sprintf("%s: duplicate entries for key %s", pathText(path), elementText(element))}
		}
		seen[element] = true
		if err := checkLists(item, t.Elem, append(path, element)); err != nil {
			return err
		}
	}
	return nil
}

// pathText formats a path for messages: .spec.ports[port=80,protocol="TCP"].targetPort.
func pathText(path []string) string {
	var b strings.Builder
	for _, element := range path {
		b.WriteString(elementText(element))
	}
	return b.String()
}

func elementText(element string) string {
	kind, content := element[:2], element[2:]
	switch kind {
	case elementField:
		return "." + content
	case elementValue:
		return "[=" + content + "]"
	case elementKeys:
		keys, _, err := schema.ParseObject([]byte(content))
		if err != nil {
			return "[" + content + "]"
		}
		texts := object.Texts(slices.Sorted(maps.Keys(keys)), func(name string) string { return name + "=" + scalarText(keys[name]) })
		return "[" + strings.Join(texts, ",") + "]"
	}
	return "[" + content + "]"
}

func scalarText(value any) string {
	if text, ok := value.(string); ok {
		return strconv.Quote(text)
	}
	return fmt.Sprint(value)
}
