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

// The operations of an entry.
const (
	operationApply  = "Apply"
	operationUpdate = "Update"
)

const (
	// fieldsType is the only form of a set of fields.
	fieldsType = "FieldsV1"
	// maxUpdaters bounds the managers that did not apply and are kept apart
	// (DefaultMaxUpdateManagers of apimachinery).
	maxUpdaters = 10
	// ancient is the manager that stands for the oldest when there are more.
	ancient = "ancient-changes"
	// firstApply is the manager of the fields that an object had before its first apply.
	firstApply = "before-first-apply"
	// unknown is the manager of clients that name none.
	unknown = "unknown"
)

// An owner is a manager as it appears in entries.
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

// An ownership has the fields that a manager owns.
type ownership struct {
	fields     *set
	apiVersion string
	time       *time.Time
}

// managers has the fields of all owners of an object. An applier is one owner whatever version it
// applied in.
type managers map[owner]ownership

func ownerOf(e object.ManagedFieldsEntry) owner {
	o := owner{e.Manager, e.Operation, e.APIVersion, e.Subresource}
	if e.Operation == operationApply {
		o.apiVersion = ""
	}
	return o
}

// decode reads entries.
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

// encode writes the entries: appliers first, then by time, then by names.
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

// cap joins the oldest managers that did not apply, until there are few enough. Those of
// different versions are not joined.
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

// entriesOf returns the entries of an object. Empty is set when it has the field without
// managers: no entries, or one empty entry.
func entriesOf(o map[string]any) (entries []object.ManagedFieldsEntry, empty bool, err error) {
	metadata, _ := o["metadata"].(map[string]any)
	list, ok := metadata["managedFields"].([]any)
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

// withEntries returns a copy of an object with other entries.
func withEntries(o map[string]any, entries []object.ManagedFieldsEntry) map[string]any {
	o = withoutEntries(o)
	length := 0
	for _, e := range entries {
		length += len(e.FieldsV1)
	}
	if len(entries) == 0 || length > schema.MaxBytes {
		return o // more than an object may hold: it goes on without
	}
	metadata, _ := o["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["managedFields"] = schema.FromEntries(entries)
	o["metadata"] = metadata
	return o
}

// withoutEntries returns a copy of an object without managedFields. It shares the
// rest with the object.
func withoutEntries(o map[string]any) map[string]any {
	o = maps.Clone(o)
	if metadata, ok := o["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		delete(metadata, "managedFields")
		o["metadata"] = metadata
	}
	return o
}

// Same reports whether two objects have the same entries but for the times: a write that
// changes nothing else either is none, and keeps the old times.
func Same(a, b []object.ManagedFieldsEntry) bool {
	return slices.EqualFunc(sorted(a), sorted(b), func(a, b object.ManagedFieldsEntry) bool {
		if ownerOf(a) != ownerOf(b) || a.APIVersion != b.APIVersion {
			return false
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

// FileManager is the manager of what a manifest file declares.
const FileManager = "gitops"

// ApplyFile applies the document of a file to an object of kind k, as FileManager and by force.
// The status of a Service is the appliance's.
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

// MergeFile returns an object after the file that it belongs to has changed, when others have
// written to it, too: the file wins, what it does not say any more goes, and what others
// have added stays.
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
	return unmanaged || sameEntries(entries, had)
}

// sameEntries is Same, with a shortcut for entries that are equal.
func sameEntries(a, b []object.ManagedFieldsEntry) bool {
	same := slices.EqualFunc(a, b, func(a, b object.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
			bytes.Equal(a.FieldsV1, b.FieldsV1)
	})
	return same || Same(a, b)
}

// SameText reports whether two objects have the same JSON.
func SameText(a, b object.Object) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

const (
	// kubectl is the manager of `kubectl apply --server-side`, which takes over from
	// `kubectl apply` without conflicts: any other name opts out.
	kubectl = "kubectl"
	// maxAnnotations is the size of all annotations of an object, in bytes
	// (TotalAnnotationSizeLimitB of apimachinery).
	maxAnnotations = 256 << 10
)

func annotationsOf(o map[string]any) map[string]any {
	metadata, _ := o["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	return annotations
}

// unchangedSinceLastApplied returns a function that reports whether the field of a conflict
// still is as kubectl's client-side apply left it: then kubectl may take it over.
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

// renewLastApplied returns an object whose record of what kubectl applied, if it has one, has
// what was applied now, so that both ways to apply can take turns. A record that would be
// too large goes.
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
	return withAnnotations(merged, annotations)
}

// recordOf returns an applied object as kubectl writes it down: JSON without the record itself,
// and a newline.
func recordOf(applied map[string]any) string {
	if annotations := maps.Clone(annotationsOf(applied)); annotations != nil {
		delete(annotations, object.AnnotationLastApplied)
		applied = withAnnotations(applied, annotations)
	}
	b, err := json.Marshal(applied)
	if err != nil {
		panic("store/managedfields: " + err.Error()) // it was JSON before
	}
	return string(b) + "\n"
}

func withAnnotations(o, annotations map[string]any) map[string]any {
	o = maps.Clone(o)
	metadata, _ := o["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	metadata["annotations"] = annotations
	o["metadata"] = metadata
	return o
}
