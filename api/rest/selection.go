package rest

import (
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/store/object"
)

// fieldName is the field that every object can be selected by.
const fieldName = "metadata.name"

// selection is which objects of a collection a request is about.
type selection struct {
	labels selector.Labels
	fields selector.Fields
	name   string // "": any
}

// selectionOf reads the selectors of a request. A name in the path of a watch is as a
// selector of that name.
func selectionOf(r *request) (selection, error) {
	labels, err := selector.ParseLabels(r.query.Get("labelSelector"))
	if err != nil {
		return selection{}, badRequest("unable to parse %q as a label selector: %v", r.query.Get("labelSelector"), err)
	}
	text := r.query.Get("fieldSelector")
	fields, err := selector.ParseFields(r.kind, text)
	if err != nil {
		return selection{}, badRequest("unable to parse %q as a field selector: %v", text, err)
	}
	s := selection{labels, fields, r.name}
	if r.name == "" {
		s.name, _ = fields.Exact(fieldName)
		return s, nil
	}
	if named, ok := fields.Exact(fieldName); ok && named != r.name || !ok && !fields.Empty() {
		return selection{}, badRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return s, nil
}

// everything reports whether nothing is left out.
func (s selection) everything() bool { return s.labels.Empty() && s.fields.Empty() && s.name == "" }

// selects reports whether an object is among them; nil is not.
func (s selection) selects(o object.Object) bool {
	return o != nil && (s.name == "" || s.name == o.GetMeta().Name) && s.labels.Matches(o.GetMeta().Labels) && s.fields.Matches(o)
}
