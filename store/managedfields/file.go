package managedfields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// FileManager is the manager of what a manifest file declares.
const FileManager = "gitops"

// ApplyFile applies the document of a file to an object of kind k, as FileManager and by force.
// The status of a Service is the appliance's.
func ApplyFile(live map[string]any, document object.Object, k kind.Kind, now time.Time) (map[string]any, error) {
	applied := schema.Of(k).FromObject(document)
	if k.Name == object.KindService {
		delete(applied, "status")
	}
	by := Writer{Manager: FileManager, APIVersion: k.APIVersion(), Type: schema.Of(k), Now: now}
	merged, err := Apply(live, applied, by, true)
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
		return live.DeepCopy(), nil
	}
	return o, nil
}

// Unchanged reports whether a new version of an object differs in nothing but the times of who
// manages which field.
func Unchanged(before, o object.Object) bool {
	meta, had := o.GetMeta(), before.GetMeta().ManagedFields
	entries := meta.ManagedFields
	meta.ManagedFields = had
	same := sameText(o, before)
	meta.ManagedFields = entries
	if !same {
		return false
	}
	// To apply nothing to an unmanaged object changes nothing.
	unmanaged := len(had) == 0 && len(entries) == 1 && entries[0].Manager == firstApply
	return unmanaged || sameEntries(entries, had)
}

// sameEntries is Same, which is not asked about what is the same to the letter.
func sameEntries(a, b []object.ManagedFieldsEntry) bool {
	same := slices.EqualFunc(a, b, func(a, b object.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
			bytes.Equal(a.FieldsV1, b.FieldsV1)
	})
	return same || Same(a, b)
}

// sameText reports whether two objects have the same JSON.
func sameText(a, b object.Object) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
