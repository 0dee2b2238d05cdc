package resource

import (
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
)

// Form is the output format of -o.
type Form struct {
	Name     string
	template *jsonpath.Template // of jsonpath
	columns  []customColumn     // of custom-columns
}

// customColumn is a column of the user's own.
type customColumn struct {
	header string
	path   *jsonpath.Template
}

// FormOption is the -o of verbs that print objects in some of the forms.
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

// FormOf reads -o. The error is a usageError.
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

// parseColumns reads HEADER:PATH,HEADER:PATH.
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

// IsTable reports whether the server renders the output, as a Table.
func (f Form) IsTable() bool { return f.Name == cli.FormTable || f.Name == cli.FormWide }

// Row is an object in the columns of the user.
func (f Form) Row(o any) []string {
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

// Headers returns the headers of the user's columns.
func (f Form) Headers() []string {
	var row []string
	for _, c := range f.columns {
		row = append(row, c.header)
	}
	return row
}

// Printer prints objects one after the other in a form that is not the server's table.
// Of a list only jsonpath needs all at once.
type Printer struct {
	Env     *cli.Env
	Form    Form
	Managed bool // with managedFields
	Headers bool // of custom-columns
	// list is set when the objects are one document, a List.
	List bool
	// single is set when the input is a List once there is more than one object.
	Single bool
	held   client.Object // the first one, until that is known

	Count int
	kept  []any      // for jsonpath
	rows  [][]string // for custom-columns
}

// Object prints an object of a kind. It may change it.
func (w *Printer) Object(k kind.Kind, o client.Object) error {
	if o["kind"] == nil { // items of lists do not say it
		o["kind"], o["apiVersion"] = k.Name, k.APIVersion()
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
		if err := w.write(k, w.held); err != nil {
			return err
		}
	}
	return w.write(k, o)
}

// write prints an object that is complete.
func (w *Printer) write(k kind.Kind, o client.Object) error {
	w.Count++
	switch w.Form.Name {
	case cli.FormName:
		return w.Env.Print(FullName(k, NameOf(o)) + "\n")
	case cli.FormColumns:
		w.rows = append(w.rows, w.Form.Row(o))
		return nil
	case cli.FormJSONPath:
		if w.List {
			w.kept = append(w.kept, o)
			return nil
		}
		return w.Template(o)
	case cli.FormJSON:
		return w.json(o)
	}
	return w.yaml(o)
}

func (w *Printer) Template(o any) error {
	var b strings.Builder
	if err := w.Form.template.Execute(&b, o); err != nil {
		return fmt.Errorf("-o jsonpath: %w", err)
	}
	return w.Env.Print(b.String())
}

func (w *Printer) json(o client.Object) error {
	if !w.List {
		body, err := encodeJSON(o, "")
		if err != nil {
			return err
		}
		return w.Env.Print(body + "\n")
	}
	const indent = "        "
	body, err := encodeJSON(o, indent)
	if err != nil {
		return err
	}
	before := ",\n"
	if w.Count == 1 {
		before = "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n"
	}
	return w.Env.Print(before + indent + body)
}

func (w *Printer) yaml(o client.Object) error {
	text, err := manifest.YAML(o)
	if err != nil {
		return err
	}
	body := string(text)
	if !w.List {
		if w.Count > 1 {
			body = "---\n" + body
		}
		return w.Env.Print(body)
	}
	// An item of a list in the style of YAML's encoder: every line two further in.
	body = "- " + output.Indent(body, "  ")[len("  "):]
	if w.Count == 1 {
		body = "apiVersion: v1\nitems:\n" + body
	}
	return w.Env.Print(body)
}

// End finishes what was begun.
func (w *Printer) End() error {
	switch {
	case w.Single && w.held != nil:
		return w.write(kind.Kind{}, w.held)
	case w.Single:
		return nil
	case w.Form.Name == cli.FormColumns:
		rows := w.rows
		if w.Headers {
			rows = append([][]string{w.Form.Headers()}, rows...)
		}
		var g output.Grid
		return w.Env.Print(g.Text(rows...))
	case !w.List:
		return nil
	case w.Form.Name == cli.FormJSONPath:
		if w.kept == nil {
			w.kept = []any{}
		}
		return w.Template(map[string]any{"apiVersion": "v1", "kind": "List", "items": w.kept, "metadata": map[string]any{"resourceVersion": ""}})
	case w.Form.Name == cli.FormJSON && w.Count == 0:
		return w.Env.Print("{\n    \"apiVersion\": \"v1\",\n    \"items\": [],\n" + listEndJSON)
	case w.Form.Name == cli.FormJSON:
		return w.Env.Print("\n    ],\n" + listEndJSON)
	case w.Form.Name == cli.FormYAML && w.Count == 0:
		return w.Env.Print("apiVersion: v1\nitems: []\n" + listEndYAML)
	case w.Form.Name == cli.FormYAML:
		return w.Env.Print(listEndYAML)
	}
	return nil
}

// How a List ends.
const (
	listEndJSON = "    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n"
	listEndYAML = "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
)
