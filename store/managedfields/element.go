package managedfields

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

// elementOf returns the path element of a list item: its value in a set, else its keys. A key that
// the item does not have counts as its default.
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

// items are the items of a list by their elements, and the elements in order. What has
// none, or one that was there before, is left out: live objects were validated.
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

// checkLists refuses an object with lists whose items cannot be told apart.
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

// pathText is a path as messages show it: .spec.ports[port=80,protocol="TCP"].targetPort.
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
		var texts []string
		for _, name := range slices.Sorted(maps.Keys(keys)) {
			texts = append(texts, name+"="+scalarText(keys[name]))
		}
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
