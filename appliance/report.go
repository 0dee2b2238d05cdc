package appliance

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// reporter turns problems of all origins into one list, and logs each of them once
// when it comes up and once when it is over.
type reporter struct {
	log    *slog.Logger
	where  func(object.Ref) (file string, line int) // where an object was declared
	before map[wire.Problem]bool
}

// report gives the list for the status and logs what is new in it and what is gone.
func (r *reporter) report(files, objects []manifest.Problem, services []resolve.Problem) []wire.Problem {
	list := []wire.Problem{}
	for _, p := range slices.Concat(files, objects) {
		list = append(list, wireProblem(p))
	}
	for _, p := range services {
		list = append(list, wireProblem(r.inFile(p)))
	}
	slices.SortFunc(list, compareProblems)
	list = slices.Compact(list)
	r.tell(list)
	return list
}

// tell logs the difference to the list before.
func (r *reporter) tell(list []wire.Problem) {
	now := make(map[wire.Problem]bool, len(list))
	for _, p := range list {
		now[p] = true
		if !r.before[p] {
			level := slog.LevelError
			if p.Severity == wire.SeverityWarning {
				level = slog.LevelWarn
			}
			r.log.Log(context.Background(), level, "problem", problemAttrs(p)...)
		}
	}
	for _, p := range sortedProblems(r.before) {
		if !now[p] {
			r.log.Info("problem is over", problemAttrs(p)...)
		}
	}
	r.before = now
}

func problemAttrs(p wire.Problem) []any {
	var attrs []any
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, key, value)
		}
	}
	add("file", p.File)
	if p.Line > 0 {
		attrs = append(attrs, "line", p.Line)
	}
	add("object", p.Object)
	add("field", p.Field)
	return append(attrs, "reason", p.Reason, "message", p.Message)
}

func sortedProblems(set map[wire.Problem]bool) []wire.Problem {
	list := make([]wire.Problem, 0, len(set))
	for p := range set {
		list = append(list, p)
	}
	slices.SortFunc(list, compareProblems)
	return list
}

func compareProblems(a, b wire.Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Message, b.Message), cmp.Compare(a.Severity, b.Severity),
	)
}

func severity(warning bool) string {
	if warning {
		return wire.SeverityWarning
	}
	return wire.SeverityError
}

func wireProblem(p manifest.Problem) wire.Problem {
	w := wire.Problem{
		File: p.File, Line: p.Line, Column: p.Column,
		Field: p.Field, Reason: p.Reason, Message: p.Message, Severity: severity(p.Warning),
	}
	if p.Object != (object.Ref{}) {
		w.Object = p.Object.String()
	}
	return w
}

// inFile adds where the object of a problem was declared.
func (r *reporter) inFile(p resolve.Problem) manifest.Problem {
	file, line := r.where(p.Object)
	return manifest.Problem{
		File: file, Line: line, Object: p.Object,
		Field: p.Field, Reason: p.Reason, Message: p.Message, Warning: p.Warning,
	}
}
