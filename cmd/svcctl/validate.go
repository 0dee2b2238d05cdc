package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/manifest"
)

// The forms that validate prints in besides text and json.
const (
	formJUnit = "junit"
	formSARIF = "sarif"
)

func (p *program) validateVerb() *verb {
	return &verb{
		name:    "validate",
		summary: "judge manifests as serve would, for CI and hooks",
		args:    "FILE|DIR|-... [FLAGS]",
		about: `Reads manifests as ` + "`svcctl serve`" + ` would, starting from nothing, and prints every
problem as FILE:LINE:COLUMN: what is wrong, sorted by place. It needs no privilege and no
appliance, and changes nothing. Errors are what would be refused; warnings are what deserves a
look. What depends on the box, as its addresses, is not known here.

` + settingsAbout,
		options: append([]*option{
			outputOption(formText, formJSON, formJUnit, formSARIF),
			{name: "strict", group: groupOutput, usage: "exit with 1 for warnings too"},
		}, settingOptions(true)...),
		examples: []example{
			{"A directory, as a hook of git does it: silent when all is well.", "svcctl validate manifests/"},
			{"With the settings of the real appliance, for a report in CI.", "svcctl validate --config svcctl.yaml -o junit manifests/ > report.xml"},
			{"What a generator makes.", "kustomize build | svcctl validate --strict -"},
		},
		exits: `  0  no error
  1  there are errors (with --strict: or warnings), or a file cannot be read
  2  wrong usage or configuration`,
		run: p.runValidate,
	}
}

// report has the findings of validate.
type report struct {
	Files    []string  `json:"files"` // that were read, sorted
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Problems []finding `json:"problems"`
}

// finding is a problem of a manifest. Line and Column count from 1; 0 is unknown and left out.
type finding struct {
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

// runValidate prints the problems of manifests.
func (p *program) runValidate(_ context.Context, v *verb, args []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	cfg, err := p.config(v)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = cfg.ManifestDirs()
	}
	if len(args) == 0 {
		return usagef("validate what? Give files or directories, or - for stdin")
	}
	if twice := slices.Index(args, "-"); twice >= 0 && slices.Contains(args[twice+1:], "-") {
		return usagef("stdin can be read once, and - is given twice")
	}
	planned, err := p.plan(cfg, args, p.stdin, io.Discard)
	if err != nil {
		return err
	}
	found := reportOf(planned.Files, planned.Problems)
	text := found.lines()
	switch v.option("output").text() {
	case formJSON:
		text, err = asJSON(found)
	case formJUnit:
		text, err = found.junit()
	case formSARIF:
		text, err = found.sarif(p.version)
	}
	if err != nil {
		return err
	}
	if err := p.print(text); err != nil {
		return err
	}
	return found.verdict(v.option("strict").on())
}

// reportOf sorts problems by their place.
func reportOf(files []string, problems []manifest.Problem) report {
	r := report{Files: append([]string{}, files...), Problems: []finding{}}
	slices.SortStableFunc(problems, func(a, b manifest.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Message, b.Message))
	})
	for _, q := range problems {
		f := finding{Level: levelError, File: q.File, Line: q.Line, Column: q.Column, Field: q.Field, Reason: q.Reason, Message: q.Message, text: q.String()}
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

// lines is the report for people and editors: one line a problem.
func (r *report) lines() string {
	var b strings.Builder
	for _, f := range r.Problems {
		b.WriteString(f.text + "\n")
	}
	return b.String()
}

// verdict is the error of a report that is not clean.
func (r *report) verdict(strict bool) error {
	if r.Errors > 0 || strict && r.Warnings > 0 {
		return fmt.Errorf("%s and %s in %s", count(r.Errors, "error"), count(r.Warnings, "warning"), count(len(r.Files), "file"))
	}
	return nil
}
