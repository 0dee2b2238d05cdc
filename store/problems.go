package store

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// The reasons of Problems, beside those of package manifest and the types of
// object.Error.
const (
	ReasonConflict = "Conflict"     // another owner has the object, or another object one of its values
	ReasonFull     = "RangeFull"    // no free value is left
	ReasonPending  = "Pending"      // warning: a load balancer waits for an IP
	ReasonOutside  = "OutsideRange" // no range has the value; a warning when it is kept all the same
	ReasonUnusual  = "Unusual"      // warning: accepted, but strange
	ReasonUnmerged = "Unmerged"     // the document cannot be joined with what the API has added
)

// note is a Problem of an object, without the place, which is looked up when it is
// read: documents move.
type note struct {
	path    string // of the file whose document it is about; "" for the API's
	field   string
	reason  string
	message string
	warning bool
}

func (c *change) note(path, field, reason, message string, warning bool) {
	c.notes = append(c.notes, note{path, field, reason, message, warning})
}

// notesOf returns why a version of an object is not accepted, a note for each field. The reason
// is for errors that are not about a field.
func (c *change) notesOf(err error, reason string) []note {
	var fields object.Errors
	if !errors.As(err, &fields) {
		return []note{{path: c.owner.File, reason: reason, message: err.Error()}}
	}
	notes := make([]note, len(fields))
	for i, e := range fields {
		notes[i] = note{path: c.owner.File, field: e.Field, reason: cmp.Or(reason, string(e.Type)), message: e.Body()}
	}
	return notes
}

// Problems returns the problems of files and objects, sorted by file, line and object.
func (s *Store) Problems() []manifest.Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	problems := s.declared.problems()
	for ref, notes := range s.outcomes.notes {
		for _, n := range notes {
			p := manifest.Problem{File: n.path, Object: ref, Field: n.field, Reason: n.reason, Message: n.message, Warning: n.warning}
			p.Line, p.Column = s.position(ref, n.path, n.field)
			problems = append(problems, p)
		}
	}
	problems = append(problems, s.foreignProblems()...)
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems)
}

func compareProblems(a, b manifest.Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Key(), b.Object.Key()),
		cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message),
	)
}

// fieldInFile is the field of a document that a field of the object comes from.
func fieldInFile(o object.Object, field string) string {
	svc, ok := o.(*object.Service)
	if ok && len(svc.Spec.ClusterIPs) == 0 && strings.HasPrefix(field, "spec.clusterIPs") {
		return "spec.clusterIP"
	}
	return field
}
