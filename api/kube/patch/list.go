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
func identity(item any, mergeKey string) (any, error) {
	o, isObject := item.(map[string]any)
	switch {
	case mergeKey == "" && isScalar(item):
		return item, nil
	case mergeKey == "" && isObject:
		return nil, malformed("expected a scalar, but received a map")
	case !isObject && isScalar(item):
		return nil, malformed("expected a map, but received a scalar")
	case !isObject:
		return nil, &refusal{ErrNotApplicable, "lists of lists are not supported"}
	}
	id, ok := o[mergeKey]
	if !ok {
		return nil, malformed("map: %v does not contain declared merge key: %s", o, mergeKey)
	}
	if !isScalar(id) {
		return nil, malformed("the merge key %s of map: %v is no scalar", mergeKey, o)
	}
	return id, nil
}

// places returns the indexes of the items of a list by identity, the first one of
// duplicates.
func places(list []any, mergeKey string) (map[any]int, error) {
	at := make(map[any]int, len(list))
	for i, item := range list {
		id, err := identity(item, mergeKey)
		if err != nil {
			return nil, err
		}
		if _, twice := at[id]; !twice {
			at[id] = i
		}
	}
	return at, nil
}

// mergeList merges the items of a patch into a list and orders the result.
func mergeList(live, patch []any, t *schema.Type) ([]any, error) {
	if len(live) == 0 && len(patch) == 0 {
		return live, nil
	}
	left, plain, swapped, err := followDirectives(live, patch, t.MergeKey)
	if err != nil {
		return nil, err
	}
	if swapped {
		_, err = places(plain, t.MergeKey)
		return plain, err
	}
	merged, err := mergeItems(left, plain, t)
	if err != nil {
		return nil, err
	}
	return order(merged, plain, left, t.MergeKey)
}

// mergeItems merges the items of a list and of a patch without directives by identity.
func mergeItems(live, patch []any, t *schema.Type) ([]any, error) {
	merged := slices.Clone(live)
	at, err := places(merged, t.MergeKey)
	if err != nil {
		return nil, err
	}
	for _, item := range patch {
		id, err := identity(item, t.MergeKey)
		if err != nil {
			return nil, err
		}
		i, known := at[id]
		if !known {
			at[id] = len(merged)
			added, _ := strip(item)
			merged = append(merged, added)
			continue
		}
		before, isObject := merged[i].(map[string]any)
		if !isObject {
			continue
		}
		if merged[i], err = mergeObject(before, item.(map[string]any), t.Elem); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// followDirectives removes the items with a directive from a patch, and the items that
// they delete from the list.
func followDirectives(live, patch []any, mergeKey string) (left, plain []any, swapped bool, err error) {
	left, plain = []any{}, []any{}
	gone := map[any]bool{}
	for _, item := range patch {
		o, _ := item.(map[string]any)
		switch what, ok := o[directive]; {
		case !ok:
			plain = append(plain, item)
		case what == directiveDelete:
			id, err := identity(item, mergeKey)
			if err != nil {
				return nil, nil, false, err
			}
			gone[id] = true
		case what == directiveSwap:
			swapped = true
		case what == directiveMerge:
			return nil, nil, false, malformed("merging lists cannot yet be specified in the patch")
		default:
			return nil, nil, false, malformed("unknown patch type: %v in map: %v", what, o)
		}
	}
	for _, item := range live {
		id, err := identity(item, mergeKey)
		if err != nil {
			return nil, nil, false, err
		}
		if !gone[id] {
			left = append(left, item)
		}
	}
	return left, plain, swapped, nil
}

// mergeOrdered merges a list field for which the patch sets the element order.
func mergeOrdered(live, patch map[string]any, name string, t *schema.Type) error {
	wanted, ok := patch[setOrder+name].([]any)
	if !ok {
		return malformed("invalid patch format of setElementOrder list")
	}
	before, isThere := live[name]
	change, isPatched := patch[name]
	if !isThere && !isPatched || isPatched && change == nil {
		return nil
	}
	beforeList, ok1 := before.([]any)
	changeList, ok2 := change.([]any)
	if isThere && !ok1 || isPatched && !ok2 {
		return malformed("expected a slice for %s", name)
	}
	if t == nil || t.Form != schema.List {
		return malformed("unable to find a list for the json field %q", name)
	}
	if err := checkOrder(changeList, wanted, t.MergeKey); err != nil {
		return err
	}
	merged := beforeList
	switch {
	case isPatched && !isThere:
		plain, _ := strip(changeList)
		merged = plain.([]any)
	case isPatched && !t.Merge:
		merged = changeList
	case isPatched:
		left, plain, swapped, err := followDirectives(beforeList, changeList, t.MergeKey)
		if err != nil {
			return err
		}
		if merged = plain; !swapped {
			if merged, err = mergeItems(left, plain, t); err != nil {
				return err
			}
		}
	}
	ordered, err := order(merged, wanted, beforeList, t.MergeKey)
	if err != nil {
		return err
	}
	live[name] = ordered
	delete(patch, name)
	return nil
}

// checkOrder returns an error if the items of a patch are missing from its element order
// or contradict it.
func checkOrder(patch, wanted []any, mergeKey string) error {
	if len(patch) == 0 || len(wanted) == 0 {
		return nil
	}
	next := 0
	for _, item := range patch {
		if o, ok := item.(map[string]any); ok && o[directive] != nil {
			continue
		}
		id, err := identity(item, mergeKey)
		if err != nil {
			return err
		}
		found := false
		for ; next < len(wanted) && !found; next++ {
			other, err := identity(wanted[next], mergeKey)
			if err != nil {
				return err
			}
			found = id == other
		}
		if !found {
			return malformed("The order in patch list:\n%v\n doesn't match %s list:\n%v\n", patch, strings.TrimSuffix(setOrder, "/"), wanted)
		}
	}
	return nil
}

// order sorts a merged list: items in wanted in that order, others in their old order.
// Each of the others goes before the first item after its predecessors that it preceded
// before.
func order(merged, wanted, before []any, mergeKey string) ([]any, error) {
	rank, err := places(wanted, mergeKey)
	if err != nil {
		return nil, err
	}
	old, err := places(before, mergeKey)
	if err != nil {
		return nil, err
	}
	type entry struct {
		item any
		id   any
	}
	var named, others []entry
	for _, item := range merged {
		id, err := identity(item, mergeKey)
		if err != nil {
			return nil, err
		}
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
	return ordered, nil
}
