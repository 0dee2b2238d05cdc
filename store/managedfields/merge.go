package managedfields

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

// merge is a value with another one applied to it. nil is no value.
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

// mergeItems merges two lists item by item. The items that are applied stand in the order
// in which they are applied; the others keep their places before those of them that come
// next in both lists.
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

// remove is a value without what a set names. An object or list of which nothing is left
// is a nil one: it is still there, as the place where something was, until tidy.
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

// isEmptied reports whether nothing is left of an object or list.
func isEmptied(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return value == nil
	case []any:
		return value == nil
	}
	return false
}

// dropEmptied takes the places where something was out of an object, in place.
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

// A Conflict is a field with another value that another manager owns.
type Conflict struct {
	// Manager is its owner, as messages name it: "gitops", or with how it came to it:
	// "kubectl-edit" using v1.
	Manager string
	// Name is the name of the owner alone.
	Name string
	// Field is the path of the field: .spec.ports[port=80,protocol="TCP"].targetPort
	Field string

	path []string
}

// Message is the message of the cause in a Status; its reason is FieldManagerConflict.
func (c Conflict) Message() string { return "conflict with " + c.Manager }

// A ConflictError is a refusal to take fields from their owners (HTTP 409).
type ConflictError struct{ Conflicts []Conflict }

// Error is the message of the Status.
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

// Taken returns the fields that a write would take from a manager that applied them: those
// whose values it changes or removes. It is for managers whose fields only they may change.
func Taken(live, written map[string]any, by Writer, manager string) []Conflict {
	entries, _, err := entriesOf(live)
	all, bad := decode(entries)
	if err != nil || bad != nil {
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
