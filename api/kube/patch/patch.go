package patch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	// The version that the API server of Kubernetes has: in later ones "replace" wants a key that is there.
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"svcctl.io/svcctl/store/schema"
)

// The kinds of errors, for errors.Is.
var (
	// ErrMalformed: the body is not a valid patch (HTTP 400).
	ErrMalformed = errors.New("malformed patch")
	// ErrNotApplicable: the patch is valid but cannot be applied to this object (HTTP
	// 422).
	ErrNotApplicable = errors.New("the patch does not fit the object")
	// ErrTooLarge: the patch exceeds a limit (HTTP 413).
	ErrTooLarge = errors.New("the patch is too large")
)

const (
	// maxOperations bounds the operations of one JSON patch (maxJSONPatchOperations of
	// the API server of Kubernetes).
	maxOperations = 10000
	// maxCopied bounds the bytes that the copy operations of one JSON patch add.
	maxCopied = schema.MaxBytes
)

// The jsonpatch library reads its limit from a global variable. No other package here uses the library.
func init() { jsonpatch.AccumulatedCopySizeLimit = maxCopied }

// refusal is an error of the kind ErrMalformed, ErrNotApplicable or ErrTooLarge, with the text that Kubernetes uses.
type refusal struct {
	kind error
	text string
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.kind }

func malformed(format string, args ...any) error {
	return &refusal{ErrMalformed, fmt.Sprintf(format, args...)}
}

// Merge applies a merge patch (RFC 7386): it merges objects, deletes fields for null, and
// replaces other values.
func Merge(live, patch map[string]any) map[string]any {
	merged := maps.Clone(live)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range merged {
		merged[key] = schema.Clone(value)
	}
	mergeInto(merged, patch)
	return merged
}

// mergeInto merges a patch into an object in place.
func mergeInto(o, patch map[string]any) {
	for key, value := range patch {
		switch inner, isObject := value.(map[string]any); {
		case value == nil:
			delete(o, key)
		case isObject:
			// A value that is no object counts as an empty one, so that nulls in the patch go.
			under, ok := o[key].(map[string]any)
			if !ok {
				under = map[string]any{}
				o[key] = under
			}
			mergeInto(under, inner)
		default:
			o[key] = schema.Clone(value)
		}
	}
}

// JSON applies a JSON patch (RFC 6902). duplicates are warnings about duplicate fields, as returned by schema.Parse.
func JSON(live map[string]any, patch []byte) (patched map[string]any, duplicates []string, err error) {
	parsed, duplicates, err := schema.Parse(patch)
	if err != nil {
		return nil, nil, malformed("%v", err)
	}
	list, ok := parsed.([]any)
	if !ok {
		return nil, nil, malformed("a JSON patch is a list of operations")
	}
	if len(list) > maxOperations {
		return nil, nil, &refusal{ErrTooLarge, fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(list))}
	}
	for _, operation := range list {
		if err := checkOperation(operation); err != nil {
			return nil, nil, err
		}
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, nil, malformed("error decoding patch: %v", err)
	}
	before, err := json.Marshal(live)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the object that is patched: %w", err)
	}
	after, err := applyTo(before, operations)
	if err != nil {
		return nil, nil, &refusal{ErrNotApplicable, err.Error()}
	}
	patched, _, err = schema.ParseObject(after)
	if err != nil {
		return nil, nil, &refusal{ErrNotApplicable, err.Error()}
	}
	return patched, duplicates, nil
}

// checkOperation returns an error for an operation that is invalid but that the jsonpatch library would accept. For example, it treats an add without
// a value as null, which removes the field.
func checkOperation(operation any) error {
	fields, isObject := operation.(map[string]any)
	named, _ := fields["op"].(string)
	_, hasValue := fields["value"]
	_, hasPath := fields["path"].(string)
	why := ""
	switch {
	case !isObject:
		why = "it is no object with fields"
	case !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, named):
		why = "unsupported operation"
	case !hasPath:
		why = "missing path field"
	case !hasValue && (named == "add" || named == "replace"):
		why = "missing value field"
	default:
		return nil
	}
	const shown = 256
	text, err := json.Marshal(operation)
	if err != nil {
		return malformed("error decoding patch: %v", err)
	}
	return malformed("error decoding patch: invalid operation %s: %s", text[:min(len(text), shown)], why)
}

// applyTo applies operations. The library panics on some incomplete ones, such as a test
// of the whole object without a value.
func applyTo(before []byte, operations jsonpatch.Patch) (after []byte, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("an operation is not complete: %v", cause)
		}
	}()
	return operations.Apply(before)
}

// The directives of a strategic merge patch: keys that are not fields.
const (
	directive       = "$patch" // how to treat the object that contains it
	directiveDelete = "delete"
	directiveMerge  = "merge"
	directiveSwap   = "replace"

	retainKeys = "$retainKeys"               // names the only fields to keep
	setOrder   = "$setElementOrder/"         // prefix of a list's name; holds the order of its elements
	deleteFrom = "$deleteFromPrimitiveList/" // prefix of a list's name; holds the values to delete
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

// refuse makes Strategic return an ErrMalformed error. It panics, so that no part of the patch is applied.
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
			mergeOrdered(live, patch, name, t.Child(name))
		}
	}
	for _, key := range keys {
		switch value, ok := patch[key]; {
		case !ok: // it went with the order of its list
		case isDirective(key):
			checkDirective(key)
		default:
			mergeField(live, key, value, t.Child(key))
		}
	}
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, deleteFrom); ok {
			deleteItems(live, name, patch[key])
		}
	}
	return live
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

// retain applies $retainKeys: it deletes all fields of live that the directive does not list. It refuses a patch that sets a field that the directive
// does not list.
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

// mergeField merges the value of one field of a patch into live; null deletes the field.
func mergeField(live map[string]any, key string, value any, t *schema.Type) {
	if value == nil {
		delete(live, key)
		return
	}
	object, isObject := value.(map[string]any)
	list, isList := value.([]any)
	beforeObject, wasObject := live[key].(map[string]any)
	switch beforeList, wasList := live[key].([]any); {
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

// strip removes directives and nulls from a new value that has nothing to merge with. Objects with the directive $patch are removed as a whole; keep
// is false if value is one.
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

// isScalar reports whether a value is a scalar, and so can be a map key.
func isScalar(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// identity returns the key of an item of a merged list: the item itself, or the value of
// its merge key.
func identity(item any, mergeKey string) any {
	o, isObject := item.(map[string]any)
	switch {
	case mergeKey == "" && isScalar(item):
		return item
	case mergeKey == "" && isObject:
		refuse("expected a scalar, but received a map")
	case !isObject && isScalar(item):
		refuse("expected a map, but received a scalar")
	case !isObject:
		panic(&refusal{ErrNotApplicable, "lists of lists are not supported"})
	}
	id, ok := o[mergeKey]
	if !ok {
		refuse("map: %v does not contain declared merge key: %s", o, mergeKey)
	}
	if !isScalar(id) {
		refuse("the merge key %s of map: %v is no scalar", mergeKey, o)
	}
	return id
}

// places maps the identities of the items of a list to their indexes, the first one of duplicates.
func places(list []any, mergeKey string) map[any]int {
	at := make(map[any]int, len(list))
	for i, item := range list {
		id := identity(item, mergeKey)
		if _, twice := at[id]; !twice {
			at[id] = i
		}
	}
	return at
}

// mergeList merges the items of a patch into a list and orders the result.
func mergeList(live, patch []any, t *schema.Type) []any {
	if len(live) == 0 && len(patch) == 0 {
		return live
	}
	left, plain, swapped := followDirectives(live, patch, t.MergeKey)
	if swapped {
		places(plain, t.MergeKey) // each has the key
		return plain
	}
	return order(mergeItems(left, plain, t), plain, left, t.MergeKey)
}

// mergeItems merges the items of a patch, none of which is a directive, into a live list. An item with the identity of a live one is merged into it
// if it is an object; items with a new identity are appended.
func mergeItems(live, patch []any, t *schema.Type) []any {
	merged := slices.Clone(live)
	at := places(merged, t.MergeKey)
	for _, item := range patch {
		id := identity(item, t.MergeKey)
		i, known := at[id]
		if !known {
			at[id] = len(merged)
			added, _ := strip(item)
			merged = append(merged, added)
			continue
		}
		if before, isObject := merged[i].(map[string]any); isObject {
			merged[i] = mergeObject(before, item.(map[string]any), t.Elem)
		}
	}
	return merged
}

// followDirectives splits a list patch. left is live without the items that the patch deletes, plain the items of the patch without a directive.
// swapped reports whether the patch replaces the list.
func followDirectives(live, patch []any, mergeKey string) (left, plain []any, swapped bool) {
	left, plain = []any{}, []any{}
	gone := map[any]bool{}
	for _, item := range patch {
		o, _ := item.(map[string]any)
		switch what, ok := o[directive]; {
		case !ok:
			plain = append(plain, item)
		case what == directiveDelete:
			id := identity(item, mergeKey)
			gone[id] = true
		case what == directiveSwap:
			swapped = true
		case what == directiveMerge:
			refuse("merging lists cannot yet be specified in the patch")
		default:
			refuse("unknown patch type: %v in map: %v", what, o)
		}
	}
	for _, item := range live {
		if id := identity(item, mergeKey); !gone[id] {
			left = append(left, item)
		}
	}
	return left, plain, swapped
}

// mergeOrdered merges a list field for which the patch sets the element order.
func mergeOrdered(live, patch map[string]any, name string, t *schema.Type) {
	wanted, ok := patch[setOrder+name].([]any)
	if !ok {
		refuse("invalid patch format of setElementOrder list")
	}
	before, isThere := live[name]
	change, isPatched := patch[name]
	if !isThere && !isPatched || isPatched && change == nil {
		return
	}
	beforeList, ok1 := before.([]any)
	changeList, ok2 := change.([]any)
	if isThere && !ok1 || isPatched && !ok2 {
		refuse("expected a slice for %s", name)
	}
	if t == nil || t.Form != schema.List {
		refuse("unable to find a list for the json field %q", name)
	}
	checkOrder(changeList, wanted, t.MergeKey)
	merged := beforeList
	switch {
	case isPatched && !isThere:
		plain, _ := strip(changeList)
		merged = plain.([]any)
	case isPatched && !t.Merge:
		merged = changeList
	case isPatched:
		left, plain, swapped := followDirectives(beforeList, changeList, t.MergeKey)
		if merged = plain; !swapped {
			merged = mergeItems(left, plain, t)
		}
	}
	live[name] = order(merged, wanted, beforeList, t.MergeKey)
	delete(patch, name)
}

// checkOrder refuses a patch with items that its $setElementOrder does not list, or lists in another order.
func checkOrder(patch, wanted []any, mergeKey string) {
	if len(patch) == 0 || len(wanted) == 0 {
		return
	}
	next := 0
	for _, item := range patch {
		if o, ok := item.(map[string]any); ok && o[directive] != nil {
			continue
		}
		id := identity(item, mergeKey)
		found := false
		for ; next < len(wanted) && !found; next++ {
			found = id == identity(wanted[next], mergeKey)
		}
		if !found {
			refuse("The order in patch list:\n%v\n doesn't match %s list:\n%v\n", patch, strings.TrimSuffix(setOrder, "/"), wanted)
		}
	}
}

// order sorts a merged list. The items in wanted get the order of wanted. All others keep the order of before; items that are in neither come last.
// The two sequences are then merged: the next of the others precedes the next item of wanted if it did so in before.
func order(merged, wanted, before []any, mergeKey string) []any {
	rank, old := places(wanted, mergeKey), places(before, mergeKey)
	type entry struct {
		item any
		id   any
	}
	var named, others []entry
	for _, item := range merged {
		id := identity(item, mergeKey)
		if _, ok := rank[id]; ok {
			named = append(named, entry{item, id})
			continue
		}
		others = append(others, entry{item, id})
		if _, ok := old[id]; !ok {
			old[id] = len(before) // new, and without a place: behind all others
		}
	}
	slices.SortStableFunc(named, func(a, b entry) int { return cmp.Compare(rank[a.id], rank[b.id]) })
	slices.SortStableFunc(others, func(a, b entry) int { return cmp.Compare(old[a.id], old[b.id]) })
	ordered := make([]any, 0, len(merged))
	for len(named) > 0 && len(others) > 0 {
		if was, known := old[named[0].id]; known && old[others[0].id] < was {
			ordered, others = append(ordered, others[0].item), others[1:]
		} else {
			ordered, named = append(ordered, named[0].item), named[1:]
		}
	}
	for _, e := range slices.Concat(named, others) {
		ordered = append(ordered, e.item)
	}
	return ordered
}
