package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

// Report has the findings of validate.
type Report struct {
	Files    []string  `json:"files"` // that were read, sorted
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Problems []Finding `json:"problems"`
}

// Finding is a problem of a manifest. Line and Column count from 1; 0 is unknown and left out.
type Finding struct {
	Level   string `json:"level"` // error or warning
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"` // in characters
	Object  string `json:"object,omitempty"` // Service shop/web
	Field   string `json:"field,omitempty"`  // spec.ports[0].port
	Reason  string `json:"reason"`           // one word, stable
	Message string `json:"message"`
	text    string // all of it in one line
}

const (
	levelError   = "error"
	levelWarning = "warning"
)

// Of returns the report of problems in files, sorted by place.
func Of(files []string, problems []manifest.Problem) *Report {
	r := &Report{Files: append([]string{}, files...), Problems: []Finding{}}
	slices.SortStableFunc(problems, func(a, b manifest.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Message, b.Message))
	})
	for _, q := range problems {
		f := Finding{Level: levelError, File: q.File, Line: q.Line, Column: q.Column, Field: q.Field, Reason: q.Reason, Message: q.Message, text: q.String()}
		if q.Object.Kind != "" {
			f.Object = q.Object.String()
		}
		if q.Warning {
			f.Level = levelWarning
			r.Warnings++
		} else {
			r.Errors++
		}
		r.Problems = append(r.Problems, f)
	}
	return r
}

// Lines is the report for people and editors: one line a problem.
func (r *Report) Lines() string {
	var b strings.Builder
	for _, f := range r.Problems {
		b.WriteString(f.text + "\n")
	}
	return b.String()
}

// Verdict is the error of a report that is not clean.
func (r *Report) Verdict(strict bool) error {
	if r.Errors > 0 || strict && r.Warnings > 0 {
		return fmt.Errorf("%s and %s in %s", output.Count(r.Errors, "error"), output.Count(r.Warnings, "warning"), output.Count(len(r.Files), "file"))
	}
	return nil
}
