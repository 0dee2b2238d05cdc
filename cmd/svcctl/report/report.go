package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

// Report has the findings of validate.
type Report struct {
	Files    []string  `json:"files"` // the files that were read, sorted
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Problems []Finding `json:"problems"`
}

// Finding is a problem in a manifest. Line and Column begin at 1; 0 means unknown.
type Finding struct {
	Level   string `json:"level"` // levelError or levelWarning
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"` // in characters
	Object  string `json:"object,omitempty"` // kind and name: "Service shop/web"
	Field   string `json:"field,omitempty"`  // path: spec.ports[0].port
	Reason  string `json:"reason"`           // a word that never changes
	Message string `json:"message"`
	text    string // the problem in one line
}

const (
	levelError   = "error"
	levelWarning = "warning"
)

// Of returns a report of problems in files, sorted by file and position.
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

// Lines formats the report with one line for each problem, in the format that editors parse (FILE:LINE:COLUMN: MESSAGE).
func (r *Report) Lines() string {
	var b strings.Builder
	for _, f := range r.Problems {
		b.WriteString(f.text + "\n")
	}
	return b.String()
}

// Verdict returns an error if the report has errors or, if strict is set, warnings.
func (r *Report) Verdict(strict bool) error {
	if r.Errors > 0 || strict && r.Warnings > 0 {
		return fmt.Errorf("%s and %s in %s", output.Count(r.Errors, "error"), output.Count(r.Warnings, "warning"), output.Count(len(r.Files), "file"))
	}
	return nil
}

// The elements of a JUnit report that CI systems read: testsuites, testsuite, testcase, failure.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitFailure `xml:"failure"`
		Out     string        `xml:"system-out,omitempty"` // warnings
	}
	junitFailure struct {
		Message string `xml:"message,attr"` // the first error
		Text    string `xml:",chardata"`    // all errors, one a line
	}
)

// JUnit returns the report as JUnit XML. Each file is a test case, which fails if the file has an error.
func (r *Report) JUnit() (string, error) {
	suite := junitSuite{Name: "svcctl validate"}
	problems := r.Problems // by file, as the names are
	for _, name := range r.places() {
		c := junitCase{Class: "manifests", Name: name}
		var errors, warnings strings.Builder
		for ; len(problems) > 0 && problems[0].File == name; problems = problems[1:] {
			f := &problems[0]
			if f.Level == levelWarning {
				warnings.WriteString(f.text + "\n")
				continue
			}
			if c.Failure == nil {
				c.Failure = &junitFailure{Message: f.text}
				suite.Failures++
			}
			errors.WriteString(f.text + "\n")
		}
		if c.Out = warnings.String(); c.Failure != nil {
			c.Failure.Text = errors.String()
		}
		suite.Cases = append(suite.Cases, c)
	}
	suite.Tests = len(suite.Cases)
	body, err := xml.MarshalIndent(junitSuites{Suites: []junitSuite{suite}}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode as XML: %w", err)
	}
	return xml.Header + string(body) + "\n", nil
}

// places returns the files of the report and all other sources of problems, such as --source-set, sorted.
func (r *Report) places() []string {
	names := slices.Clone(r.Files)
	for _, f := range r.Problems {
		names = append(names, f.File)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// node is a JSON object of SARIF 2.1.0 (OASIS).
type node map[string]any

// SARIF returns the report in SARIF format, which code hosting sites display. Each reason is a rule. A problem with a setting has no location.
func (r *Report) SARIF(version string) (string, error) {
	rules, results := []node{}, []node{}
	for i := range r.Problems {
		f := &r.Problems[i]
		if !slices.ContainsFunc(rules, func(rule node) bool { return rule["id"] == f.Reason }) {
			rules = append(rules, node{"id": f.Reason})
		}
		result := node{"ruleId": f.Reason, "level": f.Level, "message": node{"text": f.said()}}
		if _, is := slices.BinarySearch(r.Files, f.File); is {
			place := node{"artifactLocation": node{"uri": fileURI(f.File)}}
			if f.Line > 0 {
				region := node{"startLine": f.Line}
				if f.Column > 0 {
					region["startColumn"] = f.Column
				}
				place["region"] = region
			}
			result["locations"] = []node{{"physicalLocation": place}}
		}
		results = append(results, result)
	}
	driver := node{"name": "svcctl", "version": version, "rules": rules}
	return output.JSON(node{"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []node{{"tool": node{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}}})
}

// said returns the text of a problem without its place: "Service shop/web: spec.ports[0].port: ...".
func (f *Finding) said() string {
	text := strings.TrimPrefix(f.text, f.File)
	if i := strings.Index(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return strings.TrimPrefix(text, levelWarning+": ")
}

// fileURI returns a path as a URI: relative if the path is relative, otherwise with the scheme file.
func fileURI(path string) string {
	u := url.URL{Path: filepath.ToSlash(filepath.Clean(path))}
	if filepath.IsAbs(path) {
		u.Scheme = "file"
	}
	return u.String()
}
