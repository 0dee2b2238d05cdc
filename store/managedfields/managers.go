package managedfields

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// The operations of a ManagedFieldsEntry.
const (
	operationApply  = "Apply"
	operationUpdate = "Update"
)

const (
	// fieldsType is the only supported fieldsType of a ManagedFieldsEntry.
	fieldsType = "FieldsV1"
	// maxUpdaters is the maximum number of managers with operation Update. If there are more, the oldest ones are merged into one
	// (DefaultMaxUpdateManagers of apimachinery).
	maxUpdaters = 10
	// ancient is the name of the manager that the oldest ones are merged into.
	ancient = "ancient-changes"
	// firstApply is the manager that owns, from the first apply on, the fields that the object had before it.
	firstApply = "before-first-apply"
	// unknown is the manager name of clients that give none.
	unknown = "unknown"
)

// An owner identifies a manager as in a ManagedFieldsEntry.
type owner struct {
	manager, operation, apiVersion, subresource string
}

// compareOwners orders owners by name, operation and version; the owner of an object itself comes
// after the owners of its subresources, as in Kubernetes.
func compareOwners(a, b owner) int {
	last := func(o owner) string { return cmp.Or(o.subresource, "~") }
	return cmp.Or(cmp.Compare(a.manager, b.manager), cmp.Compare(a.operation, b.operation),
		cmp.Compare(a.apiVersion, b.apiVersion), cmp.Compare(last(a), last(b)))
}

// An ownership is the set of fields that one owner has, with the time of its last write.
type ownership struct {
	fields     *set
	apiVersion string
	time       *time.Time
}

// managers maps the owners of an object to their fields. A manager with operation Apply is one owner for all API versions.
type managers map[owner]ownership

func ownerOf(e object.ManagedFieldsEntry) owner {
	o := owner{e.Manager, e.Operation, e.APIVersion, e.Subresource}
	if e.Operation == operationApply {
		o.apiVersion = ""
	}
	return o
}

// decode decodes the entries of metadata.managedFields.
func decode(entries []object.ManagedFieldsEntry) (managers, error) {
	all := managers{}
	for i, e := range entries {
		switch {
		case e.Operation != operationApply && e.Operation != operationUpdate:
			return nil, fmt.Errorf("metadata.managedFields[%d]: operation must be `Apply` or `Update`", i)
		case e.APIVersion == "":
			return nil, fmt.Errorf("metadata.managedFields[%d]: apiVersion must not be empty", i)
		case e.FieldsType == "":
			return nil, fmt.Errorf("metadata.managedFields[%d]: missing fieldsType", i)
		case e.FieldsType != fieldsType:
			return nil, fmt.Errorf("metadata.managedFields[%d]: invalid fieldsType %q", i, e.FieldsType)
		}
		s, err := decodeSet(e.FieldsV1)
		if err != nil {
			return nil, fmt.Errorf("metadata.managedFields[%d]: %w", i, err)
		}
		all[ownerOf(e)] = ownership{s, e.APIVersion, e.Time}
	}
	return all, nil
}

// encode returns the entries for metadata.managedFields: appliers first, then by time, then by name.
func (m managers) encode() []object.ManagedFieldsEntry {
	var entries []object.ManagedFieldsEntry
	for o, h := range m {
		entries = append(entries, object.ManagedFieldsEntry{
			Manager: o.manager, Operation: o.operation, APIVersion: h.apiVersion, Time: h.time,
			FieldsType: fieldsType, FieldsV1: h.fields.encode(), Subresource: o.subresource,
		})
	}
	slices.SortFunc(entries, func(a, b object.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a.Time), seconds(b.Time)),
			cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
	return entries
}

func seconds(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.Unix()
}

// cap merges the oldest managers with operation Update into one until at most maxUpdaters
// are left. Managers of different API versions are not merged.
func (m managers) cap() {
	var updaters []owner
	for o := range m {
		if o.operation == operationUpdate {
			updaters = append(updaters, o)
		}
	}
	slices.SortFunc(updaters, func(a, b owner) int {
		return cmp.Or(cmp.Compare(seconds(m[a].time), seconds(m[b].time)), compareOwners(a, b))
	})
	left := len(updaters)
	first := map[string]owner{} // by version
	for _, o := range updaters {
		if left <= maxUpdaters {
			return
		}
		version := m[o].apiVersion
		oldest, seen := first[version]
		if !seen {
			first[version] = o
			continue
		}
		bucket := owner{ancient, operationUpdate, version, ""}
		if _, there := m[bucket]; !there {
			m[bucket] = m[oldest]
			delete(m, oldest)
		}
		m[bucket] = ownership{union(m[bucket].fields, m[o].fields), version, m[o].time}
		delete(m, o)
		left--
	}
}

// entriesOf returns the managedFields of an object. empty is set if the object has the field
// without managers in it: an empty list, or one empty entry.
func entriesOf(o map[string]any) (entries []object.ManagedFieldsEntry, empty bool, err error) {
	list, ok := metadataOf(o)["managedFields"].([]any)
	if !ok {
		return nil, false, nil
	}
	if len(list) == 0 || len(list) == 1 && size(list[0]) == 0 {
		return nil, true, nil
	}
	if entries, err = schema.ToEntries(list); err != nil {
		return nil, false, fmt.Errorf("metadata.managedFields: %w", err)
	}
	return entries, false, nil
}

// managersOf returns the managers in the managedFields of an object; see entriesOf for empty.
func managersOf(o map[string]any) (all managers, empty bool, err error) {
	entries, empty, err := entriesOf(o)
	if err == nil {
		all, err = decode(entries)
	}
	return all, empty, err
}

// metadataOf returns the metadata of an object, nil if it has none.
func metadataOf(o map[string]any) map[string]any {
	metadata, _ := o["metadata"].(map[string]any)
	return metadata
}

// withMetadata returns a copy of an object with a field of its metadata set, or removed if value is nil. All else is shared with the object.
func withMetadata(o map[string]any, field string, value any) map[string]any {
	metadata := maps.Clone(metadataOf(o))
	switch {
	case value == nil:
		delete(metadata, field)
	case metadata == nil:
		metadata = map[string]any{field: value}
	default:
		metadata[field] = value
	}
	if o = maps.Clone(o); metadata != nil {
		o["metadata"] = metadata
	}
	return o
}

// withEntries returns a copy of an object with the given managedFields.
func withEntries(o map[string]any, entries []object.ManagedFieldsEntry) map[string]any {
	length := 0
	for _, e := range entries {
		length += len(e.FieldsV1)
	}
	if len(entries) == 0 || length > schema.MaxBytes {
		return withoutEntries(o) // more than an object may hold: it goes on without
	}
	return withMetadata(o, "managedFields", schema.FromEntries(entries))
}

// withoutEntries returns a copy of an object without managedFields.
func withoutEntries(o map[string]any) map[string]any { return withMetadata(o, "managedFields", nil) }

// Same reports whether two lists of managedFields differ only in their times. If the objects are equal otherwise, the write is dropped and the old
// times are kept.
func Same(a, b []object.ManagedFieldsEntry) bool {
	return slices.EqualFunc(sorted(a), sorted(b), func(a, b object.ManagedFieldsEntry) bool {
		if ownerOf(a) != ownerOf(b) || a.APIVersion != b.APIVersion {
			return false
		}
		if bytes.Equal(a.FieldsV1, b.FieldsV1) {
			return true
		}
		x, err1 := decodeSet(a.FieldsV1)
		y, err2 := decodeSet(b.FieldsV1)
		return err1 == nil && err2 == nil && difference(x, y).empty() && difference(y, x).empty()
	})
}

func sorted(entries []object.ManagedFieldsEntry) []object.ManagedFieldsEntry {
	return slices.SortedFunc(slices.Values(entries), func(a, b object.ManagedFieldsEntry) int {
		return compareOwners(ownerOf(a), ownerOf(b))
	})
}

// FileManager is the manager name that owns the fields which a manifest file declares.
const FileManager = "gitops"

// ApplyFile applies the document of a file to an object of kind k by server-side apply, as
// FileManager and with force. It ignores the status of a Service, which the appliance sets.
func ApplyFile(live map[string]any, document object.Object, k kind.Kind, now time.Time) (map[string]any, error) {
	applied := schema.Of(k).FromObject(document)
	if k.Name == object.KindService {
		delete(applied, "status")
	}
	merged, err := Apply(live, applied, Writer{Manager: FileManager, APIVersion: k.APIVersion(), Type: schema.Of(k), Now: now}, true)
	if err != nil {
		return nil, fmt.Errorf("apply the document of %s: %w", object.RefOf(document), err)
	}
	return merged, nil
}

// MergeFile returns an object that other managers have written to, with a new document of its file applied. The file's values override theirs, fields
// that are no longer in the document are removed, and fields that others added are kept.
func MergeFile(live, document object.Object, now time.Time) (object.Object, error) {
	k, ok := kind.ByName(live.GetTypeMeta().APIVersion, live.GetTypeMeta().Kind)
	if !ok {
		return nil, fmt.Errorf("merge %s with its file: no such kind", object.RefOf(live))
	}
	merged, err := ApplyFile(schema.Of(k).FromObject(live), document, k, now)
	if err != nil {
		return nil, err
	}
	o := k.New()
	if err := schema.Of(k).ToObject(merged, o); err != nil {
		return nil, fmt.Errorf("merge %s with its file: %w", object.RefOf(live), err)
	}
	object.Default(o)
	if Unchanged(live, o) {
		return object.DeepCopy(live), nil
	}
	return o, nil
}

// Unchanged reports whether a new version of an object differs in nothing but the times of its
// managedFields.
func Unchanged(before, o object.Object) bool {
	meta, had := o.GetMeta(), before.GetMeta().ManagedFields
	entries := meta.ManagedFields
	meta.ManagedFields = had
	same := SameText(o, before)
	meta.ManagedFields = entries
	if !same {
		return false
	}
	// To apply nothing to an unmanaged object changes nothing.
	unmanaged := len(had) == 0 && len(entries) == 1 && entries[0].Manager == firstApply
	return unmanaged || Same(entries, had)
}

// SameText reports whether two objects encode to the same JSON.
func SameText(a, b object.Object) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

const (
	// kubectl is the manager name of `kubectl apply --server-side`. Only under this name does it take over fields from client-side `kubectl apply`
	// without conflicts.
	kubectl = "kubectl"
	// maxAnnotations is the greatest total size of an object's annotations, in
	// bytes (TotalAnnotationSizeLimitB of apimachinery).
	maxAnnotations = 256 << 10
)

func annotationsOf(o map[string]any) map[string]any {
	annotations, _ := metadataOf(o)["annotations"].(map[string]any)
	return annotations
}

// unchangedSinceLastApplied returns a function that reports whether the field of a conflict
// still has the value of the last client-side `kubectl apply`: then `kubectl apply
// --server-side` may take it over.
func unchangedSinceLastApplied(live map[string]any, by Writer) func(Conflict) bool {
	none := func(Conflict) bool { return false }
	text, _ := annotationsOf(live)[object.AnnotationLastApplied].(string)
	last, _, err := schema.Decode([]byte(text), by.Type)
	if err != nil || last["apiVersion"] != by.APIVersion {
		return none
	}
	if checkLists(last, by.Type, nil) != nil {
		return none
	}
	change := compare(last, live, by.Type)
	same := difference(setOf(last, by.Type), union(union(change.added, change.changed), change.removed))
	return func(c Conflict) bool { return same.contains(c.path) }
}

// renewLastApplied returns an object with its last-applied annotation, if it has one, updated to the object that is being applied, so that
// client-side and server-side apply can alternate. An annotation that would be too large is removed.
func renewLastApplied(merged, applied map[string]any) map[string]any {
	before := annotationsOf(merged)
	if text, _ := before[object.AnnotationLastApplied].(string); text == "" {
		return merged
	}
	annotations := maps.Clone(before)
	annotations[object.AnnotationLastApplied] = recordOf(applied)
	size := 0
	for key, value := range annotations {
		text, _ := value.(string)
		size += len(key) + len(text)
	}
	if size > maxAnnotations {
		delete(annotations, object.AnnotationLastApplied)
	}
	return withMetadata(merged, "annotations", annotations)
}

// recordOf returns an applied object in the form of kubectl's last-applied annotation: JSON without
// that annotation, and a newline.
func recordOf(applied map[string]any) string {
	if annotations := maps.Clone(annotationsOf(applied)); annotations != nil {
		delete(annotations, object.AnnotationLastApplied)
		applied = withMetadata(applied, "annotations", annotations)
	}
	b, err := json.Marshal(applied)
	if err != nil {
		panic("store/managedfields: " + err.Error()) // it was JSON before
	}
	return string(b) + "\n"
}
