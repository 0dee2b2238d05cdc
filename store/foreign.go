package store

import (
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// ReasonNoEffect is the reason of a warning about a label or annotation that asks for what does
// not happen here.
const ReasonNoEffect = "NoEffect"

// foreigners counts the objects with each label or annotation that asks for what does not happen
// here. Manifests that were exported from a cluster have some on every object, and one line about
// all of them says as much as ten thousand.
type foreigners map[annotation.Foreign]*foreigner

type foreigner struct {
	count   int
	example object.Ref // the zero Ref when that one has gone
}

// move counts an object that becomes another one; either may be nil. What the appliance has made
// itself means what it says.
func (f foreigners) move(ref object.Ref, before, after *record) {
	if before != nil && before.owner.Controller == "" {
		for _, each := range annotation.Unserved(before.object) {
			c := f[each]
			if c == nil {
				continue
			}
			if c.count--; c.count == 0 {
				delete(f, each)
			} else if c.example == ref {
				c.example = object.Ref{}
			}
		}
	}
	if after != nil && after.owner.Controller == "" {
		for _, each := range annotation.Unserved(after.object) {
			c := f[each]
			if c == nil {
				c = &foreigner{}
				f[each] = c
			}
			if c.count++; c.example == (object.Ref{}) {
				c.example = ref
			}
		}
	}
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
