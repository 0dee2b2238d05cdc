package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	fields "svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// firstApply is the manager of what an object had before anybody applied to it, if nobody
// was known to manage it.
const firstApply = "before-first-apply"

// A version is an object that is to be changed, as clients see it. Nothing of it may be
// changed.
type version struct {
	object  object.Object
	content map[string]any
	file    fileClaim
}

// before is the version that a live object is.
func (s *Server) before(r *request, live object.Object, owner store.Owner) (version, error) {
	v := version{object: live, content: untyped(live, r.kind)}
	var err error
	if v.file, err = s.fileOf(r, owner, live); err == nil && v.file.claim(v.content) {
		v.object, err = typed(v.content, r.kind)
	}
	return v, err
}

// same reports whether a new version differs in nothing but the times of who manages which
// field.
func (v version) same(o object.Object) bool {
	meta := o.GetMeta()
	entries := meta.ManagedFields
	had := v.object.GetMeta().ManagedFields
	meta.ManagedFields = had
	same := sameObject(o, v.object)
	meta.ManagedFields = entries
	if !same {
		return false
	}
	// To apply nothing to what nobody manages changes nothing.
	nobodys := len(had) == 0 && len(entries) == 1 && entries[0].Manager == firstApply
	return nobodys || sameEntries(entries, had)
}

// sameEntries is fields.Same, which is not asked about what is the same to the letter.
func sameEntries(a, b []object.ManagedFieldsEntry) bool {
	same := slices.EqualFunc(a, b, func(a, b object.ManagedFieldsEntry) bool {
		return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
			bytes.Equal(a.FieldsV1, b.FieldsV1)
	})
	return same || fields.Same(a, b)
}

// storable refuses an object that could not be changed any more once it is stored.
func storable(o object.Object, k kind.Kind) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode %s: %w", object.RefOf(o), err)
	}
	// Shorter ones have not as many values as a body may have.
	const doubtful = schema.MaxBytes / 8
	if len(text) > doubtful {
		if _, _, err := schema.Decode(text, schema.Of(k)); err != nil {
			return tooLarge(fmt.Sprintf("%s cannot be written as a whole: %v", object.RefOf(o), err))
		}
	}
	return nil
}

// sameObject reports whether two objects are the same in every way.
func sameObject(a, b object.Object) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
