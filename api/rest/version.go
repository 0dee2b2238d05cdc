package rest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// A version is an object that is to be changed, as clients see it. Nothing of it may be
// changed.
type version struct {
	object  object.Object
	content map[string]any
	file    fileDeclaration
}

// before is the version that a live object is.
func (s *Server) before(r *request, live object.Object, owner store.Owner) (version, error) {
	v := version{object: live, content: untyped(live, r.kind)}
	var err error
	if v.file, err = s.fileOf(r, owner, live); err == nil && v.file.addEntries(v.content) {
		v.object, err = typed(v.content, r.kind)
	}
	return v, err
}

// storable refuses an object that could not be changed any more once it is stored.
func storable(o object.Object, k kind.Kind) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode %s: %w", object.RefOf(o), err)
	}
	// A shorter text cannot exceed the number of values of a body.
	const checkFrom = schema.MaxBytes / 8
	if len(text) > checkFrom {
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
