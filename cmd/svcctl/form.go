package main

import (
	"slices"
	"strings"

	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// The forms that objects are printed in.
const (
	formTable    = "table"
	formWide     = "wide"
	formYAML     = "yaml"
	formJSON     = "json"
	formName     = "name"
	formJSONPath = "jsonpath"
	formColumns  = "custom-columns"
)

// form is the output format of -o.
type form struct {
	name     string
	template *jsonpath.Template // of jsonpath
	columns  []customColumn     // of custom-columns
}

// customColumn is a column of the user's own.
type customColumn struct {
	header string
	path   *jsonpath.Template
}

// formOption is the -o of verbs that print objects in some of the forms.
func formOption(def string, forms ...string) *option {
	var words []string
	shown := make([]string, len(forms))
	for i, f := range forms {
		switch shown[i] = f; f {
		case formJSONPath:
			shown[i] += "=TEMPLATE"
		case formColumns:
			shown[i] += "=HEADER:PATH,..."
		default:
			words = append(words, f)
		}
	}
	return &option{name: "output", letter: "o", arg: "FORM", def: def, words: words, group: groupOutput,
		usage: "form of the output: " + strings.Join(shown, ", ")}
}

// form reads -o. The error is a usageError.
func (v *verb) form() (form, error) {
	o := v.option("output")
	text := o.text()
	name, value, given := strings.Cut(text, "=")
	f := form{name: name}
	var err error
	switch takes := strings.Contains(o.usage, name+"="); {
	case slices.Contains(o.words, text):
	case name == formJSONPath && takes:
		if value == "" {
			return f, usagef("-o jsonpath wants a template, as in -o jsonpath='{.metadata.name}'")
		}
		if f.template, err = jsonpath.Parse(value); err != nil {
			return f, usagef("-o %s: %v", text, err)
		}
	case name == formColumns && takes:
		return f, f.parseColumns(value)
	default:
		if given {
			text = name
		}
		return f, usagef("-o %q: want one of %s", text, strings.TrimPrefix(o.usage, "form of the output: "))
	}
	return f, nil
}

// parseColumns reads HEADER:PATH,HEADER:PATH.
func (f *form) parseColumns(text string) error {
	if text == "" {
		return usagef("-o custom-columns wants columns, as in -o custom-columns=NAME:.metadata.name,IP:.spec.clusterIP")
	}
	for part := range strings.SplitSeq(text, ",") {
		header, path, ok := strings.Cut(part, ":")
		if !ok || header == "" || path == "" {
			return usagef("-o custom-columns: %q is not of the form HEADER:PATH", part)
		}
		expression, err := jsonpath.ParseExpression(path)
		if err != nil {
			return usagef("-o custom-columns: %s: %v", part, err)
		}
		f.columns = append(f.columns, customColumn{header, expression})
	}
	return nil
}

// isTable reports whether the server lays out what is printed.
func (f form) isTable() bool { return f.name == formTable || f.name == formWide }

// row is an object in the columns of the user.
func (f form) row(o any) []string {
	var row []string
	for _, c := range f.columns {
		var texts []string
		for _, value := range c.path.Find(o) {
			text, err := jsonpath.Text(value)
			if err != nil || value == nil {
				text = "<none>"
			}
			texts = append(texts, output.CellText(text))
		}
		if texts == nil {
			texts = []string{"<none>"}
		}
		row = append(row, strings.Join(texts, ","))
	}
	return row
}

// headers returns the headers of the user's columns.
func (f form) headers() []string {
	var row []string
	for _, c := range f.columns {
		row = append(row, c.header)
	}
	return row
}
