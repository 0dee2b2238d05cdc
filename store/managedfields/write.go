package managedfields

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// A Writer describes a write of an object: its manager, version and subresource.
type Writer struct {
	// Manager is the name of the manager; "" is taken as "unknown".
	Manager string
	// APIVersion is the version in which the object is written.
	APIVersion string
	// Subresource is the subresource through which the object is written: "status", or "" for the object itself.
	Subresource string
	// Ignored are the top-level fields that the write does not change: "status" if the object itself is written, all others if its status is written.
	Ignored []string
	// Type is the type of the object.
	Type *schema.Type
	// Now is the time of the write.
	Now time.Time
}

func (w Writer) owner(operation string) owner {
	// A name that is not UTF-8 would change when it is written as JSON and read back.
	o := owner{cmp.Or(strings.ToValidUTF8(w.Manager, "?"), unknown), operation, w.APIVersion, w.Subresource}
	if operation == operationApply {
		o.apiVersion = ""
	}
	return o
}

func (w Writer) now() *time.Time {
	return new(w.Now.UTC().Truncate(time.Second))
}

func (w Writer) ignored() []string {
	return object.Texts(w.Ignored, func(name string) string { return elementField + name })
}

// unmanaged is the set of fields that no manager owns: those that identify an object.
var unmanaged = func() *set {
	metadata := &set{self: true, children: map[string]*set{}}
	for _, name := range []string{"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
		metadata.children[elementField+name] = leaf
	}
	return &set{children: map[string]*set{
		elementField + "apiVersion": leaf, elementField + "kind": leaf, elementField + "metadata": metadata,
	}}
}()

// Update returns a written object with updated metadata.managedFields, for any write but server-side apply. The writer owns the fields that differ
// from live, the object before the write, which is nil for a new object. The written object may replace the managedFields by its own, unless it is
// written through a subresource: an empty list removes all entries, an invalid list is ignored.
func Update(live, written map[string]any, by Writer) map[string]any {
	all := managersBefore(live, written, by.Subresource != "")
	o := withoutEntries(written)
	if uid, _ := metadataOf(live)["uid"].(string); len(all) > 0 || uid == "" {
		all = update(withoutEntries(live), o, all, by, by.owner(operationUpdate))
		all.cap()
	}
	return withEntries(o, all.encode())
}

// managersBefore returns the managers before a write. These are the managers in the managedFields of written, if it sets them and keep is not set,
// otherwise those of live.
func managersBefore(live, written map[string]any, keep bool) managers {
	if !keep {
		if all, reset, err := managersOf(written); reset || err == nil && len(all) > 0 {
			return all
		}
	}
	if all, _, err := managersOf(live); err == nil {
		return all
	}
	return managers{}
}

// update makes the writer the owner of the fields that a write changes.
func update(live, written map[string]any, all managers, by Writer, self owner) managers {
	change := compare(orEmpty(live), written, by.Type).without(by.ignored())
	lost := union(union(change.added, change.changed), change.removed)
	left := managers{}
	for o, h := range all {
		if h.fields = difference(h.fields, lost); !h.fields.empty() {
			left[o] = h
		}
	}
	if mine := difference(union(change.added, change.changed), unmanaged); !mine.empty() {
		left[self] = ownership{union(left[self].fields, mine), by.APIVersion, by.now()}
	}
	return left
}

// orEmpty returns live, or an empty object if it is nil.
func orEmpty(live map[string]any) map[string]any {
	if live == nil {
		return map[string]any{}
	}
	return live
}

// An InvalidError is the reason that an object cannot be applied (HTTP 400).
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

// Apply returns live with another object applied to it (server-side apply), with updated
// metadata.managedFields. It returns a *ConflictError if a value differs from that of another
// owner and force is not set, and an *InvalidError for an object that cannot be applied at all. It
// sets no defaults. A result that differs from live only in the times of managedFields is no
// change (see Same); Settled detects most of these cases faster.
func Apply(live, applied map[string]any, by Writer, force bool) (map[string]any, error) {
	if entries, empty, err := entriesOf(applied); len(entries) > 0 || empty || err != nil {
		return nil, &InvalidError{"metadata.managedFields must be nil"}
	}
	if err := checkLists(applied, by.Type, nil); err != nil {
		return nil, err
	}
	if len(live) == 0 {
		return created(applied, by), nil
	}
	all, _, err := managersOf(live)
	if err != nil {
		return nil, fmt.Errorf("failed to decode managed fields: %w", err)
	}
	before := withoutEntries(live)
	if len(all) == 0 {
		all = update(nil, before, all, by, owner{firstApply, operationUpdate, by.APIVersion, by.Subresource})
		all.cap()
	}
	merged, all, err := applyAs(before, applied, all, by, force)
	if err != nil {
		return nil, err
	}
	if by.Manager == kubectl {
		merged = renewLastApplied(merged, applied)
	}
	clone, _ := schema.Clone(withEntries(merged, all.encode())).(map[string]any)
	dropEmptied(clone)
	return clone, nil
}

// created returns the result of applying an object that does not exist: the writer owns all of its fields.
func created(applied map[string]any, by Writer) map[string]any {
	all := managers{}
	if mine := difference(without(setOf(applied, by.Type), by.ignored()), unmanaged); !mine.empty() {
		all[by.owner(operationApply)] = ownership{mine, by.APIVersion, by.now()}
	}
	if by.Manager == kubectl {
		applied = renewLastApplied(applied, applied)
	}
	return withEntries(applied, all.encode())
}

// applyAs is like apply, but if the writer is `kubectl apply --server-side`, it overrides conflicts with client-side `kubectl apply`.
func applyAs(live, applied map[string]any, all managers, by Writer, force bool) (map[string]any, managers, error) {
	merged, after, conflicts := apply(live, applied, maps.Clone(all), by, force)
	if len(conflicts) > 0 && by.Manager == kubectl {
		conflicts = slices.DeleteFunc(conflicts, unchangedSinceLastApplied(live, by))
		if len(conflicts) == 0 {
			merged, after, _ = apply(live, applied, maps.Clone(all), by, true)
		}
	}
	if len(conflicts) > 0 {
		return nil, nil, &ConflictError{conflicts}
	}
	return merged, after, nil
}

// apply merges the object applied into live, and returns the result, the updated managers, and the conflicts. If there are conflicts and force is not
// set, it returns only these. It modifies the map all.
func apply(live, applied map[string]any, all managers, by Writer, force bool) (map[string]any, managers, []Conflict) {
	self := by.owner(operationApply)
	last := all[self]
	all[self] = ownership{without(setOf(applied, by.Type), by.ignored()), by.APIVersion, last.time}

	combined, _ := merge(orEmpty(live), applied, by.Type).(map[string]any)
	merged := prune(combined, all, last.fields, by.Type)

	conflicts, all := takeFields(all, self, compare(orEmpty(live), merged, by.Type).without(by.ignored()))
	if len(conflicts) > 0 && !force {
		return nil, nil, conflicts
	}
	if fields := difference(all[self].fields, unmanaged); fields.empty() {
		delete(all, self)
	} else {
		h := all[self]
		if h.fields = fields; !equal(orEmpty(live), merged, by.Type) {
			h.time = by.now()
		}
		all[self] = h
	}
	return merged, all, nil
}

// takeFields removes the fields of a change from all owners except self. It returns a Conflict for each of them that the change adds or modifies, but
// none for a field that the change removes.
func takeFields(all managers, self owner, change comparison) ([]Conflict, managers) {
	var conflicts []Conflict
	left := managers{}
	touched := union(change.added, change.changed)
	for _, o := range slices.SortedFunc(maps.Keys(all), compareOwners) {
		h := all[o]
		if o != self {
			contested := intersection(h.fields, touched)
			conflicts = append(conflicts, conflictsOf(o, h, contested)...)
			h.fields = difference(difference(h.fields, contested), change.removed)
		}
		if o == self || !h.fields.empty() {
			left[o] = h
		}
	}
	return conflicts, left
}

// prune removes from a merged object the fields that its writer applied last time and does not apply
// now, unless another manager owns them.
func prune(merged map[string]any, all managers, last *set, t *schema.Type) map[string]any {
	if last.empty() {
		return merged
	}
	last = withNamed(last, t)
	whole := withNamed(setOf(merged, t), t)
	object := func(s *set) map[string]any {
		left, _ := remove(merged, s, t).(map[string]any)
		return orEmpty(left)
	}
	var owned *set
	for _, h := range all {
		owned = union(owned, h.fields)
	}
	kept := withNamed(setOf(object(last), t), t)
	// What others own comes back, with what it stands in.
	kept = withNamed(setOf(object(difference(whole, union(kept, withNamed(owned, t)))), t), t)
	// What goes with it, and was not the writer's, stays.
	return object(intersection(difference(whole, kept), last))
}

// Settled reports whether an apply would change nothing: the manager owns exactly the applied fields, and the object has the applied values. It may
// return false although nothing would change; Apply then finds that out.
func Settled(live, applied map[string]any, by Writer) bool {
	last := lastAppliedFields(live, by)
	_, hasEntries := metadataOf(applied)["managedFields"]
	if last == nil || hasEntries || by.Manager == kubectl && annotationsOf(live)[object.AnnotationLastApplied] != nil {
		return false
	}
	mine := difference(without(setOf(applied, by.Type), by.ignored()), unmanaged)
	return bytes.Equal(mine.encode(), last) && unchangedBy(live, applied, by.Type)
}

// lastAppliedFields returns the fields that a writer applied last; nil if it never did, or did in another API version.
func lastAppliedFields(live map[string]any, by Writer) json.RawMessage {
	list, _ := metadataOf(live)["managedFields"].([]any)
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

// unchangedBy reports whether live stays unchanged when the value applied is merged into it.
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

// itemsUnchangedBy is unchangedBy for lists: the applied items are in the list, unchanged and in the same order.
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

// sameItem reports whether two list items have the same key.
func sameItem(a, b any, list *schema.Type) bool {
	if list.Set {
		return equal(a, b, list.Elem)
	}
	x, _ := a.(map[string]any)
	y, _ := b.(map[string]any)
	return x != nil && y != nil && !slices.ContainsFunc(list.Keys, func(key string) bool { return keyOf(x, key, list) != keyOf(y, key, list) })
}

// keyOf returns the value of a key field of a list item, the default if it is absent.
func keyOf(item map[string]any, key string, list *schema.Type) any {
	if value, ok := item[key]; ok {
		return value
	}
	if f, ok := list.Elem.Field(key); ok {
		return f.Default
	}
	return nil
}
