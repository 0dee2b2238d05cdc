package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// Problems returns the problems of files and objects, sorted by file, line and object. They are collected once for each change.
func (s *Store) Problems() []manifest.Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if known := s.problems.Load(); known != nil {
		return slices.Clone(*known)
	}
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
	problems = slices.Compact(problems)
	s.problems.Store(&problems)
	return slices.Clone(problems)
}

// ProblemsOf returns the problems of one object, without places.
func (s *Store) ProblemsOf(ref object.Ref) (problems []manifest.Problem) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.outcomes.notes[ref] {
		problems = append(problems, manifest.Problem{Object: ref, Field: n.field, Reason: n.reason, Message: n.message, Warning: n.warning})
	}
	return problems
}

func compareProblems(a, b manifest.Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Key(), b.Object.Key()),
		cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message),
	)
}

// foreignProblems is one warning for each, in no order.
func (s *Store) foreignProblems() (problems []manifest.Problem) {
	for each, c := range s.table.foreign {
		p := manifest.Problem{Object: c.example, Field: each.Field, Reason: ReasonNoEffect, Message: each.Text, Warning: true}
		if r := s.table.records[c.example]; r != nil {
			p.File = r.Owner.File
			p.Line, p.Column = s.position(c.example, p.File, each.Field)
		}
		if c.count > 1 {
			p.Message += "; other objects have it too"
		}
		problems = append(problems, p)
	}
	return problems
}

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

// fieldInFile is the field of a document that a field of the object comes from.
func fieldInFile(o object.Object, field string) string {
	if svc, ok := o.(*object.Service); ok && len(svc.Spec.ClusterIPs) == 0 && strings.HasPrefix(field, "spec.clusterIPs") {
		return "spec.clusterIP"
	}
	return field
}

// withheldNote is the note about a stored object that is withheld from the dataplane.
func withheldNote(r *record.Record, err error) note {
	return note{path: r.Owner.File, reason: ReasonConflict, message: fmt.Sprintf(
		"%v, which is older; nothing is programmed for this one: delete one of the two", err)}
}
