package store

import (
	"slices"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// remarks are what the rules have to say about an object.
func (c *Config) remarks(o object.Object) []annotation.Remark {
	if c.Rules == nil {
		return nil
	}
	return c.Rules.Remarks(o)
}

// refusals are errors about annotations that can mean nothing. What the old version has too, with the same value, is let
// through, so that the rest of it can be updated; nil: there is none. Of a file what is safe is let through as well: its
// last good content may be what is to end, as a port in the clear.
func (c *Config) refusals(next, old object.Object, ofFile bool) (errs object.Errors) {
	var before []annotation.Remark
	looked := false
	for _, r := range c.remarks(next) {
		if !r.Refused || ofFile && r.Safe {
			continue
		}
		value := annotationAt(next, r.Field)
		if old != nil && annotationAt(old, r.Field) == value {
			if !looked {
				before, looked = c.remarks(old), true
			}
			if slices.ContainsFunc(before, func(b annotation.Remark) bool { return b.Refused && b.Field == r.Field }) {
				continue
			}
		}
		errs = append(errs, object.Error{Type: object.FieldValueInvalid, Field: r.Field, Value: value, Detail: r.Text})
	}
	return errs
}

// addRefusals adds the refusals about fields that no other error is about.
func (s *Store) addRefusals(errs object.Errors, next object.Object, before *record, ofFile bool) object.Errors {
	var old object.Object
	if before != nil {
		old = before.object
	}
	for _, e := range s.cfg.refusals(next, old, ofFile) {
		if !slices.ContainsFunc(errs, func(other object.Error) bool { return other.Field == e.Field }) {
			errs = append(errs, e)
		}
	}
	return errs
}

// warningsOf returns the warnings in the answer to a client about an object that it writes.
func (s *Store) warningsOf(o object.Object) []string {
	warnings := object.Warnings(o)
	foreign := annotation.Foreigners
	if s.cfg.Rules != nil {
		foreign = annotation.Unserved // the rules have the others
	}
	seen := map[string]bool{}
	for _, f := range append(foreign(o), annotation.Notes(o)...) {
		seen[f.Field] = true
		warnings = append(warnings, f.String())
	}
	for _, r := range s.cfg.remarks(o) {
		if text := r.String(); !seen[r.Field] && !slices.Contains(warnings, text) {
			warnings = append(warnings, text)
		}
	}
	return warnings
}

// annotationAt returns the value of an annotation by the path of its field.
func annotationAt(o object.Object, field string) string {
	return o.GetMeta().Annotations[strings.TrimSuffix(strings.TrimPrefix(field, "metadata.annotations["), "]")]
}
