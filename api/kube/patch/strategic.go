package patch

import (
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

// The directives of a strategic merge patch: keys that are not fields.
const (
	directive       = "$patch" // how to treat the object that contains it
	directiveDelete = "delete"
	directiveMerge  = "merge"
	directiveSwap   = "replace"

	retainKeys = "$retainKeys"               // the only fields to keep
	setOrder   = "$setElementOrder/"         // followed by the name of a list: its element order
	deleteFrom = "$deleteFromPrimitiveList/" // followed by the name of a list: the values to delete
)

// Strategic applies a strategic merge patch: like Merge, but lists with a merge strategy
// are merged item by item by their merge key, and directives delete, replace or order.
//
// In a merged list without an element order, the items of the patch come first, then the
// others. Items that existed before keep their order.
func Strategic(live, patch map[string]any, t *schema.Type) (map[string]any, error) {
	o, _ := schema.Clone(live).(map[string]any)
	p, _ := schema.Clone(patch).(map[string]any)
	return mergeObject(o, p, t)
}

// mergeObject merges a patch into an object; it may modify both. The type is nil if it is
// unknown.
func mergeObject(live, patch map[string]any, t *schema.Type) (map[string]any, error) {
	if what, ok := patch[directive]; ok {
		switch what {
		case directiveSwap:
			delete(patch, directive)
			return patch, nil
		case directiveDelete:
			return map[string]any{}, nil
		}
		return nil, malformed("unknown patch type: %v in map: %v", what, patch)
	}
	if live == nil {
		live = map[string]any{}
	}
	if err := retain(live, patch); err != nil {
		return nil, err
	}
	keys := slices.Sorted(maps.Keys(patch))
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, setOrder); ok {
			if err := mergeOrdered(live, patch, name, childOf(t, name)); err != nil {
				return nil, err
			}
		}
	}
	for _, key := range keys {
		switch value, ok := patch[key]; {
		case !ok: // it went with the order of its list
		case isDirective(key):
			if err := checkDirective(key); err != nil {
				return nil, err
			}
		default:
			if err := mergeField(live, key, value, childOf(t, key)); err != nil {
				return nil, err
			}
		}
	}
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, deleteFrom); ok {
			if err := deleteItems(live, name, patch[key]); err != nil {
				return nil, err
			}
		}
	}
	return live, nil
}

func childOf(t *schema.Type, name string) *schema.Type {
	if t == nil {
		return nil
	}
	return t.Child(name)
}

// isDirective reports whether a key is a directive.
func isDirective(key string) bool {
	return key == directive || key == retainKeys ||
		strings.HasPrefix(key, strings.TrimSuffix(setOrder, "/")) || strings.HasPrefix(key, strings.TrimSuffix(deleteFrom, "/"))
}

// checkDirective returns an error for a list directive without the name of a list.
func checkDirective(key string) error {
	switch key {
	case strings.TrimSuffix(setOrder, "/"):
		return malformed("invalid patch format of setElementOrder list")
	case strings.TrimSuffix(deleteFrom, "/"):
		return malformed("invalid patch format of primitive list")
	}
	return nil
}

// retain follows $retainKeys: it deletes all other fields. The patch may set only fields
// that it names.
func retain(live, patch map[string]any) error {
	value, ok := patch[retainKeys]
	if !ok {
		return nil
	}
	delete(patch, retainKeys)
	list, ok := value.([]any)
	if !ok {
		return malformed("invalid patch format of retainKeys")
	}
	keep := map[string]bool{}
	for _, name := range list {
		if name, ok := name.(string); ok {
			keep[name] = true
		}
	}
	for key, value := range patch {
		if value != nil && !isDirective(key) && !keep[key] {
			return malformed("invalid patch format of retainKeys")
		}
	}
	maps.DeleteFunc(live, func(key string, _ any) bool { return !keep[key] })
	return nil
}

// mergeField merges the patch's value of a field.
func mergeField(live map[string]any, key string, value any, t *schema.Type) error {
	if value == nil {
		delete(live, key)
		return nil
	}
	var merged any
	var err error
	switch value := value.(type) {
	case map[string]any:
		before, ok := live[key].(map[string]any)
		if !ok {
			return setField(live, key, value)
		}
		merged, err = mergeObject(before, value, t)
	case []any:
		before, ok := live[key].([]any)
		if !ok {
			return setField(live, key, value)
		}
		if t == nil || !t.Merge {
			live[key] = value
			return nil
		}
		merged, err = mergeList(before, value, t)
	default:
		merged = value
	}
	if err != nil {
		return err
	}
	live[key] = merged
	return nil
}

// setField sets a field that has no value of the same form to merge with.
func setField(live map[string]any, key string, value any) error {
	if plain, keep := strip(value); keep {
		live[key] = plain
	} else {
		delete(live, key)
	}
	return nil
}

// strip removes directives and nulls from a value that becomes part of the object, and
// objects with a $patch directive as a whole.
func strip(value any) (plain any, keep bool) {
	switch value := value.(type) {
	case map[string]any:
		if _, ok := value[directive]; ok {
			return nil, false
		}
		for key, inner := range value {
			if value[key], keep = strip(inner); !keep || inner == nil || isDirective(key) {
				delete(value, key)
			}
		}
		return value, true
	case []any:
		kept := value[:0]
		for _, item := range value {
			if plain, keep := strip(item); keep {
				kept = append(kept, plain)
			}
		}
		return kept, true
	}
	return value, true
}

// deleteItems removes values from a list of scalars.
func deleteItems(live map[string]any, name string, values any) error {
	out, ok := values.([]any)
	if !ok {
		return malformed("invalid patch format of primitive list")
	}
	before, ok := live[name].([]any)
	if !ok {
		return nil
	}
	gone := map[any]bool{}
	for _, value := range out {
		if isScalar(value) {
			gone[value] = true
		}
	}
	live[name] = slices.DeleteFunc(before, func(item any) bool { return isScalar(item) && gone[item] })
	return nil
}
