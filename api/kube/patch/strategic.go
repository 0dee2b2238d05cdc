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
func Strategic(live, patch map[string]any, t *schema.Type) (merged map[string]any, err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case *refusal:
			merged, err = nil, cause
		default:
			panic(cause)
		}
	}()
	o, _ := schema.Clone(live).(map[string]any)
	p, _ := schema.Clone(patch).(map[string]any)
	return mergeObject(o, p, t), nil
}

// refuse ends Strategic with an error: a patch is applied as a whole or not at all.
func refuse(format string, args ...any) { panic(malformed(format, args...)) }

// mergeObject merges a patch into an object; it may modify both. The type is nil if it is
// unknown.
func mergeObject(live, patch map[string]any, t *schema.Type) map[string]any {
	if what, ok := patch[directive]; ok {
		switch what {
		case directiveSwap:
			delete(patch, directive)
			return patch
		case directiveDelete:
			return map[string]any{}
		}
		refuse("unknown patch type: %v in map: %v", what, patch)
	}
	if live == nil {
		live = map[string]any{}
	}
	retain(live, patch)
	keys := slices.Sorted(maps.Keys(patch))
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, setOrder); ok {
			mergeOrdered(live, patch, name, childOf(t, name))
		}
	}
	for _, key := range keys {
		switch value, ok := patch[key]; {
		case !ok: // it went with the order of its list
		case isDirective(key):
			checkDirective(key)
		default:
			mergeField(live, key, value, childOf(t, key))
		}
	}
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, deleteFrom); ok {
			deleteItems(live, name, patch[key])
		}
	}
	return live
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

// checkDirective refuses a list directive without the name of a list.
func checkDirective(key string) {
	switch key {
	case strings.TrimSuffix(setOrder, "/"):
		refuse("invalid patch format of setElementOrder list")
	case strings.TrimSuffix(deleteFrom, "/"):
		refuse("invalid patch format of primitive list")
	}
}

// retain follows $retainKeys: it deletes all other fields. The patch may set only fields
// that it names.
func retain(live, patch map[string]any) {
	value, ok := patch[retainKeys]
	if !ok {
		return
	}
	delete(patch, retainKeys)
	list, ok := value.([]any)
	if !ok {
		refuse("invalid patch format of retainKeys")
	}
	keep := map[string]bool{}
	for _, name := range list {
		if name, ok := name.(string); ok {
			keep[name] = true
		}
	}
	for key, value := range patch {
		if value != nil && !isDirective(key) && !keep[key] {
			refuse("invalid patch format of retainKeys")
		}
	}
	maps.DeleteFunc(live, func(key string, _ any) bool { return !keep[key] })
}

// mergeField merges the patch's value of a field.
func mergeField(live map[string]any, key string, value any, t *schema.Type) {
	if value == nil {
		delete(live, key)
		return
	}
	object, isObject := value.(map[string]any)
	list, isList := value.([]any)
	beforeObject, wasObject := live[key].(map[string]any)
	beforeList, wasList := live[key].([]any)
	switch {
	case isObject && wasObject:
		live[key] = mergeObject(beforeObject, object, t)
	case isList && wasList && t != nil && t.Merge:
		live[key] = mergeList(beforeList, list, t)
	case isList && wasList:
		live[key] = value
	default: // it has no value of the same form to merge with
		if plain, keep := strip(value); keep {
			live[key] = plain
		} else {
			delete(live, key)
		}
	}
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
func deleteItems(live map[string]any, name string, values any) {
	out, ok := values.([]any)
	if !ok {
		refuse("invalid patch format of primitive list")
	}
	before, ok := live[name].([]any)
	if !ok {
		return
	}
	gone := map[any]bool{}
	for _, value := range out {
		if isScalar(value) {
			gone[value] = true
		}
	}
	live[name] = slices.DeleteFunc(before, func(item any) bool { return isScalar(item) && gone[item] })
}
