package patch

import (
	"cmp"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

// isScalar reports whether a value is comparable.
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

// places returns the indexes of the items of a list by identity, the first one of
// duplicates.
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
	merged := mergeItems(left, plain, t)
	return order(merged, plain, left, t.MergeKey)
}

// mergeItems merges the items of a list and of a patch without directives by identity.
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

// followDirectives removes the items with a directive from a patch, and the items that
// they delete from the list.
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
		id := identity(item, mergeKey)
		if !gone[id] {
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

// checkOrder refuses a patch if its items of a patch are missing from its element order
// or contradict it.
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

// order sorts a merged list: items in wanted in that order, others in their old order.
// Each of the others goes before the first item after its predecessors that it preceded
// before.
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
