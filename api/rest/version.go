package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"svcctl.io/svcctl/api/fields"
	"svcctl.io/svcctl/api/kind"
	"svcctl.io/svcctl/api/schema"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// firstApply is the manager of what an object had before anybody applied to it, if nobody
// was known to manage it.
const firstApply = "before-first-apply"

// A version is an object that is to be changed, as clients see it. Nothing of it may be
// changed.
type version struct {
	object  object.Object
	content map[string]any
	text    []byte // of the object in JSON
	file    fileClaim
}

// before is the version that a live object is.
func (s *Server) before(r *request, live object.Object, owner store.Owner) (version, error) {
	v := version{object: live}
	var err error
	if v.file, err = s.fileOf(r, owner, live); err != nil {
		return version{}, err
	}
	if v.text, err = json.Marshal(live); err != nil {
		return version{}, fmt.Errorf("encode %s: %w", r.ref(), err)
	}
	if v.content, err = apart(v.text, r.ref(), r.kind); err != nil {
		return version{}, err
	}
	if !v.file.claim(v.content) {
		return v, nil
	}
	if v.object, err = typed(v.content, r.kind); err != nil {
		return version{}, err
	}
	v.text, err = json.Marshal(v.object)
	return v, err
}

// same tells whether a new version differs in nothing but the times of who manages which
// field.
func (v version) same(o object.Object) (bool, error) {
	meta := o.GetMeta()
	entries := meta.ManagedFields
	had := v.object.GetMeta().ManagedFields
	meta.ManagedFields = had
	text, err := json.Marshal(o)
	meta.ManagedFields = entries
	if err != nil || !bytes.Equal(text, v.text) {
		return false, err
	}
	// To apply nothing to what nobody manages changes nothing.
	nobodys := len(had) == 0 && len(entries) == 1 && entries[0].Manager == firstApply
	return nobodys || sameEntries(entries, had), nil
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
		_, err = apart(text, object.RefOf(o), k)
	}
	return err
}

// sameObject tells whether two objects are the same in every way.
func sameObject(a, b object.Object) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
