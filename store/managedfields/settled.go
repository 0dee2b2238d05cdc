package managedfields

import (
	"bytes"
	"encoding/json"

	"svcctl.io/svcctl/store/schema"
)

// Settled reports whether a manager applies what it owns already, with the values of the object: the
// usual case, in which nothing changes. It may miss one; Apply then comes to the same.
func Settled(live, applied map[string]any, by Writer) bool {
	last := lastAppliedFields(live, by)
	if last == nil || hasEntries(applied) || by.Manager == kubectl && annotationsOf(live)[lastApplied] != nil {
		return false
	}
	mine := difference(without(setOf(applied, by.Type), by.ignored()), unmanaged)
	return bytes.Equal(mine.encode(), last) && unchangedBy(live, applied, by.Type)
}

// lastAppliedFields returns the fields that a writer owns by what it applied last; nil when it has not, or in another
// version.
func lastAppliedFields(live map[string]any, by Writer) json.RawMessage {
	metadata, _ := live["metadata"].(map[string]any)
	list, _ := metadata["managedFields"].([]any)
	self := by.owner(operationApply)
	for _, item := range list {
		e, _ := item.(map[string]any)
		subresource, _ := e["subresource"].(string)
		if e["manager"] == self.manager && e["operation"] == self.operation && subresource == self.subresource && e["apiVersion"] == by.APIVersion {
			last, _ := e["fieldsV1"].(json.RawMessage)
			return last
		}
	}
	return nil
}

func hasEntries(o map[string]any) bool {
	metadata, _ := o["metadata"].(map[string]any)
	_, contains := metadata["managedFields"]
	return contains
}

// unchangedBy reports whether a value stays as it is when another one is applied to it.
func unchangedBy(live, applied any, t *schema.Type) bool {
	switch {
	case applied == nil:
		return true
	case live == nil || isLeaf(t) || size(live) == 0 || size(applied) == 0:
		return equal(live, applied, t)
	case t.Form == schema.List:
		return itemsUnchangedBy(live.([]any), applied.([]any), t)
	}
	had, _ := live.(map[string]any)
	fields, _ := applied.(map[string]any)
	for name, value := range fields {
		if child := t.Child(name); child != nil && !unchangedBy(had[name], value, child) {
			return false
		}
	}
	return true
}

// itemsUnchangedBy is holds for lists: the items that are applied are there, in the same order.
func itemsUnchangedBy(live, applied []any, t *schema.Type) bool {
	next := 0 // in live
	for _, item := range applied {
		for next < len(live) && !sameItem(live[next], item, t) {
			next++
		}
		if next == len(live) || !unchangedBy(live[next], item, t.Elem) {
			return false
		}
		next++
	}
	return true
}

// sameItem reports whether two items of a list are one, in two versions.
func sameItem(a, b any, list *schema.Type) bool {
	if list.Set {
		return equal(a, b, list.Elem)
	}
	x, _ := a.(map[string]any)
	y, _ := b.(map[string]any)
	for _, key := range list.Keys {
		if keyOf(x, key, list) != keyOf(y, key, list) {
			return false
		}
	}
	return x != nil && y != nil
}

// keyOf is the value of a key of an item; one that it does not have counts as its default.
func keyOf(item map[string]any, key string, list *schema.Type) any {
	if value, ok := item[key]; ok {
		return value
	}
	if f, ok := list.Elem.Field(key); ok {
		return f.Default
	}
	return nil
}
