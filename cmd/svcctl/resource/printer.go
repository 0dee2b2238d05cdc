package resource

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

// Form is the parsed value of -o, the output format.
type Form struct {
	Name     string
	template *jsonpath.Template // for -o jsonpath
	columns  []customColumn     // for -o custom-columns
}

// customColumn is a column of -o custom-columns.
type customColumn struct {
	header string
	path   *jsonpath.Template
}

// FormOption returns the option -o. forms are the formats that it accepts, def is the default.
func FormOption(def string, forms ...string) *cli.Option {
	var words []string
	shown := make([]string, len(forms))
	for i, f := range forms {
		switch shown[i] = f; f {
		case cli.FormJSONPath:
			shown[i] += "=TEMPLATE"
		case cli.FormColumns:
			shown[i] += "=HEADER:PATH,..."
		default:
			words = append(words, f)
		}
	}
	return &cli.Option{Name: "output", Letter: "o", Arg: "FORM", Def: def, Words: words, Group: cli.GroupOutput,
		Usage: "form of the output: " + strings.Join(shown, ", ")}
}

// FormOf parses the value of -o. The error is a cli.UsageError.
func FormOf(v *cli.Verb) (Form, error) {
	o := v.Option("output")
	text := o.Text()
	name, value, given := strings.Cut(text, "=")
	f := Form{Name: name}
	var err error
	switch takes := strings.Contains(o.Usage, name+"="); {
	case slices.Contains(o.Words, text):
	case name == cli.FormJSONPath && takes:
		if value == "" {
			return f, cli.Usagef("-o jsonpath wants a template, as in -o jsonpath='{.metadata.name}'")
		}
		if f.template, err = jsonpath.Parse(value); err != nil {
			return f, cli.Usagef("-o %s: %v", text, err)
		}
	case name == cli.FormColumns && takes:
		return f, f.parseColumns(value)
	default:
		if given {
			text = name
		}
		return f, cli.Usagef("-o %q: want one of %s", text, strings.TrimPrefix(o.Usage, "form of the output: "))
	}
	return f, nil
}

// parseColumns parses the columns of -o custom-columns: HEADER:PATH,HEADER:PATH.
func (f *Form) parseColumns(text string) error {
	if text == "" {
		return cli.Usagef("-o custom-columns wants columns, as in -o custom-columns=NAME:.metadata.name,IP:.spec.clusterIP")
	}
	for part := range strings.SplitSeq(text, ",") {
		header, path, ok := strings.Cut(part, ":")
		if !ok || header == "" || path == "" {
			return cli.Usagef("-o custom-columns: %q is not of the form HEADER:PATH", part)
		}
		expression, err := jsonpath.ParseExpression(path)
		if err != nil {
			return cli.Usagef("-o custom-columns: %s: %v", part, err)
		}
		f.columns = append(f.columns, customColumn{header, expression})
	}
	return nil
}

// IsTable reports whether the format is a Table, which the server renders.
func (f Form) IsTable() bool { return f.Name == cli.FormTable || f.Name == cli.FormWide }

// Row returns an object's cells for -o custom-columns.
func (f Form) Row(o any) []string {
	var row []string
	for _, c := range f.columns {
		var texts []string
		for _, value := range c.path.Find(o) {
			text := "<none>"
			if value != nil {
				text = output.CellText(jsonpath.Text(value))
			}
			texts = append(texts, text)
		}
		if texts == nil {
			texts = []string{"<none>"}
		}
		row = append(row, strings.Join(texts, ","))
	}
	return row
}

// Template returns the text of -o jsonpath for an object or a list.
func (f Form) Template(o any) string { return f.template.Execute(o) }

// Printer prints objects one after the other, in any format except Tables, which the server renders. For a List only jsonpath needs all objects in
// memory.
type Printer struct {
	Env     *cli.Env
	Form    Form
	Managed bool // print managedFields too
	Headers bool // print the headers of custom-columns
	// Live is set if rows of custom-columns must be printed at once, not aligned with later ones.
	Live bool
	// List is set when the objects are one document, a List.
	List bool
	// Single is set if a single object is printed as it is, but several objects as a List.
	Single bool
	held   client.Object // if Single: the first object, not yet printed, until there is a second

	Count int
	kept  []any      // objects for jsonpath
	rows  [][]string // rows for custom-columns
	grid  output.Grid
}

// Object prints an object, or keeps it for End. It may modify the object.
func (w *Printer) Object(t Target, o client.Object) error {
	if o["kind"] == nil && t.Kind.Stored() && t.Kind.Version != "" { // items of lists do not have it
		o["kind"], o["apiVersion"] = t.Kind.Name, t.Kind.APIVersion()
	}
	// An expression may ask for fields that are left out for readers.
	shows := w.Managed || w.Form.Name == cli.FormJSONPath || w.Form.Name == cli.FormColumns
	if meta, is := o["metadata"].(map[string]any); is && !shows {
		delete(meta, "managedFields")
	}
	if w.Single && w.Form.Name != cli.FormName && w.Form.Name != cli.FormColumns {
		if w.held == nil && !w.List {
			w.held = o
			return nil
		}
		w.List, w.Single = true, false
		if err := w.write(t, w.held); err != nil {
			return err
		}
	}
	return w.write(t, o)
}

// listTexts holds the text before, between and after the items of a List, by output format. empty is the text of a List without items.
var listTexts = map[string]struct{ begin, between, end, empty string }{
	cli.FormJSON: {"{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n", ",\n", "\n    ],\n" + listEndJSON, "{\n    \"apiVersion\": \"v1\",\n    \"items\": [],\n" + listEndJSON},
	cli.FormYAML: {"apiVersion: v1\nitems:\n", "", listEndYAML, "apiVersion: v1\nitems: []\n" + listEndYAML},
}

// The text after the items of a List.
const (
	listEndJSON = "    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n"
	listEndYAML = "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
)

// write prints an object, or keeps it until a List or table is complete.
func (w *Printer) write(t Target, o client.Object) error {
	w.Count++
	switch w.Form.Name {
	case cli.FormName:
		return w.Env.Print(t.String() + "\n")
	case cli.FormColumns:
		if w.rows = append(w.rows, w.Form.Row(o)); w.Live {
			return w.columns()
		}
		return nil
	case cli.FormJSONPath:
		if w.List {
			w.kept = append(w.kept, o)
			return nil
		}
		return w.Env.Print(w.Form.Template(o))
	}
	text, err := w.encoded(o)
	switch {
	case w.List && w.Count == 1:
		text = listTexts[w.Form.Name].begin + text
	case w.List:
		text = listTexts[w.Form.Name].between + text
	case w.Count > 1 && w.Form.Name == cli.FormYAML:
		text = "---\n" + text
	}
	if err != nil {
		return err
	}
	return w.Env.Print(text)
}

// encoded returns an object in JSON or YAML, indented if it is an item of a List.
func (w *Printer) encoded(o client.Object) (string, error) {
	if w.Form.Name == cli.FormJSON {
		indent := ""
		if w.List {
			indent = "        "
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent(indent, "    ")
		if err := e.Encode(o); err != nil {
			return "", fmt.Errorf("encode as JSON: %w", err)
		}
		if w.List {
			return indent + strings.TrimSuffix(b.String(), "\n"), nil
		}
		return b.String(), nil
	}
	text, err := manifest.YAML(o)
	if w.List { // in the style of YAML's encoder: every line two further in
		return "- " + strings.TrimPrefix(output.Indent(string(text), "  "), "  "), err
	}
	return string(text), err
}

// columns prints the custom-columns rows that were collected since the last call.
func (w *Printer) columns() error {
	rows := w.rows
	if w.Headers {
		var heads []string
		for _, c := range w.Form.columns {
			heads = append(heads, c.header)
		}
		rows = append([][]string{heads}, rows...)
	}
	w.rows, w.Headers = nil, false
	return w.Env.Print(w.grid.Text(rows...))
}

// End prints the end of a List, and the objects and rows that were kept.
func (w *Printer) End() error {
	switch texts := listTexts[w.Form.Name]; {
	case w.Single && w.held != nil:
		return w.write(Target{}, w.held)
	case w.Single:
		return nil
	case w.Form.Name == cli.FormColumns:
		return w.columns()
	case !w.List:
		return nil
	case w.Form.Name == cli.FormJSONPath:
		if w.kept == nil {
			w.kept = []any{}
		}
		return w.Env.Print(w.Form.Template(map[string]any{"apiVersion": "v1", "kind": "List", "items": w.kept, "metadata": map[string]any{"resourceVersion": ""}}))
	case w.Count == 0:
		return w.Env.Print(texts.empty)
	default:
		return w.Env.Print(texts.end)
	}
}
