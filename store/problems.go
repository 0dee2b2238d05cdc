package store

import (
	"cmp"
	"slices"

	"svcctl.io/svcctl/store/manifest"
)

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

// foreignProblems is one warning for each, in no order.
func (s *Store) foreignProblems() (problems []manifest.Problem) {
	for each, c := range s.table.foreign {
		p := manifest.Problem{Object: c.example, Field: each.Field, Reason: ReasonNoEffect, Message: each.Text, Warning: true}
		if r := s.table.records[c.example]; r != nil {
			p.File = r.owner.File
			p.Line, p.Column = s.position(c.example, p.File, each.Field)
		}
		if c.count > 1 {
			p.Message += "; other objects have it too"
		}
		problems = append(problems, p)
	}
	return problems
}
