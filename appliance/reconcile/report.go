package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Reporter turns problems of all origins into one list, and logs each of them once
// when it comes up and once when it is over.
type Reporter struct {
	Log *slog.Logger
	// Where gives the file and line that declare an object (store.Location).
	Where func(object.Ref) (file string, line int)
	// Events takes the problems that are over and those that came up; nil: no Events are made.
	Events interface {
		Report(over, new []manifest.Problem)
	}

	before map[wire.Problem]manifest.Problem
	since  map[wire.Problem]time.Time
}

// report gives the list for the status and tells what is new in it and what is gone.
func (r *Reporter) report(files, objects []manifest.Problem, services []resolve.Problem, at time.Time) []wire.Problem {
	now := make(map[wire.Problem]manifest.Problem, len(r.before))
	list := []wire.Problem{}
	add := func(p manifest.Problem) {
		w := wireProblem(p)
		if _, twice := now[w]; !twice {
			list = append(list, w)
		}
		now[w] = p
	}
	for _, p := range slices.Concat(files, objects) {
		add(p)
	}
	for _, p := range services {
		add(r.InFile(p))
	}
	slices.SortFunc(list, compareProblems)
	r.tell(list, now, at)
	return list
}

// tell logs the difference to the problems before, and has Events made of it.
func (r *Reporter) tell(list []wire.Problem, now map[wire.Problem]manifest.Problem, at time.Time) {
	if r.since == nil {
		r.since = map[wire.Problem]time.Time{}
	}
	var over, new []manifest.Problem
	for _, p := range list {
		if _, known := r.before[p]; !known {
			new = append(new, now[p])
			r.since[p] = at
			if p.Reason == resolve.ReasonEndpointDown {
				continue // each endpoint that goes down has a line of its own
			}
			level := slog.LevelError
			if p.Severity == wire.SeverityWarning {
				level = slog.LevelWarn
			}
			r.Log.Log(context.Background(), level, "problem", problemAttrs(p)...)
		}
	}
	var gone []wire.Problem
	for p, problem := range r.before {
		if _, still := now[p]; !still {
			gone = append(gone, p)
			delete(r.since, p)
			over = append(over, problem)
		}
	}
	slices.SortFunc(gone, compareProblems)
	for _, p := range gone {
		if p.Reason == resolve.ReasonEndpointDown {
			continue
		}
		r.Log.Info("problem is over", problemAttrs(p)...)
	}
	r.before = now
	if r.Events != nil {
		r.Events.Report(over, new)
	}
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
		Field: p.Field, Reason: p.Reason, Message: p.Message, Severity: verdict.Severity(p.Reason, severity(p.Warning)), Cause: p.Cause,
	}
	if p.Object != (object.Ref{}) {
		w.Object = p.Object.String()
	}
	return w
}

// InFile adds where the object of a problem was declared.
func (r *Reporter) InFile(p resolve.Problem) manifest.Problem {
	file, line := r.Where(p.Object)
	return manifest.Problem{
		File: file, Line: line, Object: p.Object,
		Field: p.Field, Reason: p.Reason, Message: p.Message, Warning: p.Warning, Cause: p.Cause,
	}
}
