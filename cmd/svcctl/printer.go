package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
)

// printer prints objects one after the other in a form that is not the server's table.
// Of a list only jsonpath needs all at once.
type printer struct {
	p       *program
	form    form
	managed bool // with managedFields
	headers bool // of custom-columns
	// list is set when the objects are one document, a List.
	list bool
	// single is set when the input is a List once there is more than one object.
	single bool
	held   client.Object // the first one, until that is known

	count int
	kept  []any      // for jsonpath
	rows  [][]string // for custom-columns
}

// object prints an object of a kind. It may change it.
func (w *printer) object(k kind.Kind, o client.Object) error {
	if o["kind"] == nil { // items of lists do not say it
		o["kind"], o["apiVersion"] = k.Name, k.APIVersion()
	}
	// An expression may ask for fields that are left out for readers.
	shows := w.managed || w.form.name == formJSONPath || w.form.name == formColumns
	if meta, is := o["metadata"].(map[string]any); is && !shows {
		delete(meta, "managedFields")
	}
	if w.single && w.form.name != formName && w.form.name != formColumns {
		if w.held == nil && !w.list {
			w.held = o
			return nil
		}
		w.list, w.single = true, false
		if err := w.write(k, w.held); err != nil {
			return err
		}
	}
	return w.write(k, o)
}

// write prints an object that is complete.
func (w *printer) write(k kind.Kind, o client.Object) error {
	w.count++
	switch w.form.name {
	case formName:
		return w.p.print(fullName(k, nameOf(o)) + "\n")
	case formColumns:
		w.rows = append(w.rows, w.form.row(o))
		return nil
	case formJSONPath:
		if w.list {
			w.kept = append(w.kept, o)
			return nil
		}
		return w.template(o)
	case formJSON:
		return w.json(o)
	}
	return w.yaml(o)
}

func (w *printer) template(o any) error {
	var b strings.Builder
	if err := w.form.template.Execute(&b, o); err != nil {
		return fmt.Errorf("-o jsonpath: %w", err)
	}
	return w.p.print(b.String())
}

func (w *printer) json(o client.Object) error {
	if !w.list {
		body, err := encodeJSON(o, "")
		if err != nil {
			return err
		}
		return w.p.print(body + "\n")
	}
	const indent = "        "
	body, err := encodeJSON(o, indent)
	if err != nil {
		return err
	}
	before := ",\n"
	if w.count == 1 {
		before = "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n"
	}
	return w.p.print(before + indent + body)
}

func (w *printer) yaml(o client.Object) error {
	text, err := manifest.YAML(o)
	if err != nil {
		return err
	}
	body := string(text)
	if !w.list {
		if w.count > 1 {
			body = "---\n" + body
		}
		return w.p.print(body)
	}
	// An item of a list in the style of YAML's encoder: every line two further in.
	body = "- " + output.Indent(body, "  ")[len("  "):]
	if w.count == 1 {
		body = "apiVersion: v1\nitems:\n" + body
	}
	return w.p.print(body)
}

// end finishes what was begun.
func (w *printer) end() error {
	switch {
	case w.single && w.held != nil:
		return w.write(kind.Kind{}, w.held)
	case w.single:
		return nil
	case w.form.name == formColumns:
		rows := w.rows
		if w.headers {
			rows = append([][]string{w.form.headers()}, rows...)
		}
		var g output.Grid
		return w.p.print(g.Text(rows...))
	case !w.list:
		return nil
	case w.form.name == formJSONPath:
		if w.kept == nil {
			w.kept = []any{}
		}
		return w.template(map[string]any{"apiVersion": "v1", "kind": "List", "items": w.kept, "metadata": map[string]any{"resourceVersion": ""}})
	case w.form.name == formJSON && w.count == 0:
		return w.p.print("{\n    \"apiVersion\": \"v1\",\n    \"items\": [],\n" + listEndJSON)
	case w.form.name == formJSON:
		return w.p.print("\n    ],\n" + listEndJSON)
	case w.form.name == formYAML && w.count == 0:
		return w.p.print("apiVersion: v1\nitems: []\n" + listEndYAML)
	case w.form.name == formYAML:
		return w.p.print(listEndYAML)
	}
	return nil
}

// How a List ends.
const (
	listEndJSON = "    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n"
	listEndYAML = "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
)

// encodeJSON is JSON for people; the first line is not indented.
func encodeJSON(o any, indent string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(indent, "    ")
	if err := e.Encode(o); err != nil {
		return "", fmt.Errorf("encode as JSON: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// field follows names into an object; nil when there is nothing.
func field(o any, names ...string) any {
	for _, name := range names {
		m, is := o.(map[string]any)
		if !is {
			return nil
		}
		o = m[name]
	}
	return o
}

// textField is field for texts and numbers; "" when there is none.
func textField(o any, names ...string) string {
	switch v := field(o, names...).(type) {
	case nil, map[string]any, []any:
		return ""
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

func nameOf(o client.Object) string      { return textField(o, "metadata", "name") }
func namespaceOf(o client.Object) string { return textField(o, "metadata", "namespace") }
func versionOf(o client.Object) string   { return textField(o, "metadata", "resourceVersion") }

// decodeObject reads an object, numbers as they are written.
func decodeObject(raw []byte) (client.Object, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var o client.Object
	return o, d.Decode(&o)
}
