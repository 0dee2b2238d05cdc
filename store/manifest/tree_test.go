package manifest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

// trees reads a text and gives a line for each document, and one for each problem.
func trees(t *testing.T, path, text string) []string {
	t.Helper()
	var lines []string
	err := manifest.Trees(path, []byte(text), manifest.Limits{}, func(tree *manifest.Tree) error {
		o, problems := tree.Object(map[string]bool{"spec.enabled": true})
		for _, p := range problems {
			lines = append(lines, p.String())
		}
		if o != nil {
			body, _ := json.Marshal(o)
			lines = append(lines, fmt.Sprintf("%d %s", tree.Line, body))
		}
		return nil
	})
	if err != nil {
		lines = append(lines, err.Error())
	}
	return lines
}

func TestTrees(t *testing.T) {
	for name, tt := range map[string]struct {
		path, text string
		want       []string
	}{
		"several": {"a.yaml", "# first\nkind: A\n---\n---\nkind: B\nmetadata: {name: x}\n", []string{
			`2 {"kind":"A"}`, `5 {"kind":"B","metadata":{"name":"x"}}`,
		}},
		"scalars": {"a.yaml", "a: 1_000\nb: 1.50\nc: ~\nd: true\ne: 2020-01-01\nf: \"1\"\ng: 0x10\nspec: {enabled: yes, name: no}\n", []string{
			"a.yaml:8:17: warning: spec.enabled: the unquoted yes is read as true, as kubectl does; write true",
			`a.yaml:8:28: warning: spec.name: kubectl reads the unquoted no as a bool; write "no"`,
			`1 {"a":1000,"b":1.5,"c":null,"d":true,"e":"2020-01-01","f":"1","g":16,"spec":{"enabled":true,"name":"no"}}`,
		}},
		// The API server takes neither 80.0 nor 8e1 for a whole number; the file that says so is served.
		"whole numbers":   {"a.yaml", "a: 80.0\nb: 8e1\nc: 1e-1\nd: -0.0\n", []string{`1 {"a":80,"b":80,"c":0.1,"d":0}`}},
		"whole in JSON":   {"a.json", `{"a":80.0}`, []string{`1 {"a":80}`}},
		"bools of Secret": {"a.yaml", "kind: Secret\nstringData: {a: yes}\n", []string{`1 {"kind":"Secret","stringData":{"a":"yes"}}`}},
		"list of nothing": {"a.yaml", "kind: List\nitems:\n---\nkind: List\n---\nkind: List\nitems: []\n", nil},
		"no list":         {"a.yaml", "kind: A\n---\nkind: List\nitems: {a: b}\n", []string{`1 {"kind":"A"}`, "a.yaml:4:8: items: expected a list, got a mapping"}},
		"list in YAML": {"a.yaml", "kind: List\napiVersion: v1\nitems:\n- kind: A\n- kind: B\n", []string{
			`4 {"kind":"A"}`, `5 {"kind":"B"}`,
		}},
		"typed list": {"a.yaml", "kind: ConfigMapList\napiVersion: v1\nitems:\n- metadata: {name: x}\n", []string{
			`4 {"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`,
		}},
		"list in JSON": {"a.json", "{\"kind\":\"ServiceList\",\"apiVersion\":\"v1\",\"items\":[{\"a\":1},\n{\"b\":[]}]}", []string{
			`1 {"a":1,"apiVersion":"v1","kind":"Service"}`, `2 {"apiVersion":"v1","b":[],"kind":"Service"}`,
		}},
		"flaw in a list": {"a.yaml", "kind: List\nitems:\n- {a: 1}\n- {b: 1, b: 2}\n- {c: 1}\n", []string{
			`3 {"a":1}`, "a.yaml:4:10: items[1].b: duplicate key \"b\"; remove one of them", `5 {"c":1}`,
		}},
		"merge keys": {"a.yaml", "a: &x {k: v}\nb: {<<: *x, l: w}\n", []string{`1 {"a":{"k":"v"},"b":{"k":"v","l":"w"}}`}},
		"duplicate":  {"a.yaml", "a: 1\n---\nb: {c: 1, c: 2}\n", []string{`1 {"a":1}`, "a.yaml:3:11: b.c: duplicate key \"c\"; remove one of them"}},
		"octal":      {"a.yaml", "a:\n- 010\n", []string{"a.yaml:2:3: a: the leading zero of 010 makes it an octal number to some readers; write it without"}},
		"scalar":     {"a.yaml", "hello\n", []string{"a.yaml:1:1: expected an object, got the text \"hello\""}},
		"syntax":     {"a.yaml", "a: 1\n---\nb: [\n", []string{`1 {"a":1}`, "a.yaml:3:4: could not be parsed: did not find expected node content"}},
		"version":    {"a.yaml", "%YAML 1.2\n---\na: 1\n", []string{"a.yaml:1:1: could not be parsed: found incompatible YAML document; leave out the line that begins with %YAML, or write %YAML 1.1"}},
		"template":   {"a.yaml", "kind: A\n---\n{{- if .Values.b }}\nkind: B\n{{- end }}\n", []string{`1 {"kind":"A"}`, "a.yaml:3:1: could not be parsed: did not find expected node content; this looks like a template: render it first, as with `helm template`"}},
		"flow":       {"a.yaml", "{a: 1}\n", []string{`1 {"a":1}`}},
		"empty":      {"a.yaml", "# nothing\n", nil},
	} {
		got := trees(t, tt.path, tt.text)
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, tt.want)
		}
	}
}

// TestTreePosition: places are known also when the next documents are read already.
func TestTreePosition(t *testing.T) {
	text := "kind: A\nspec:\n  ports:\n  - port: 80\n  - port: 81\n---\nkind: B\nmetadata:\n  labels:\n    a.b/c: d\n"
	var kept []*manifest.Tree
	err := manifest.Trees("a.yaml", []byte(text), manifest.Limits{}, func(tree *manifest.Tree) error {
		kept = append(kept, tree)
		return nil
	})
	if err != nil || len(kept) != 2 {
		t.Fatal(err, len(kept))
	}
	for _, tt := range []struct {
		tree         int
		field        string
		line, column int
	}{
		{0, "spec.ports[1].port", 5, 5}, {0, "spec.ports[1].targetPort", 5, 5}, {0, "", 1, 1}, {0, "status", 1, 1},
		{1, "metadata.labels[a.b/c]", 10, 5}, {1, "kind", 7, 1},
	} {
		if line, column := kept[tt.tree].Position(tt.field); line != tt.line || column != tt.column {
			t.Errorf("%d %s: %d:%d, want %d:%d", tt.tree, tt.field, line, column, tt.line, tt.column)
		}
	}
}

func TestTreesEnd(t *testing.T) {
	stop := errors.New("enough")
	n := 0
	err := manifest.Trees("a.yaml", []byte("a: 1\n---\nb: 2\n"), manifest.Limits{}, func(*manifest.Tree) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
}

// FuzzTrees: whatever is read can be written as JSON, and every field has a place.
func FuzzTrees(f *testing.F) {
	for _, text := range []string{
		"a: 1\n---\nb: [x, {c: yes}]\n", "kind: List\nitems:\n- a: 1\n- 2\n", "{\"kind\":\"XList\",\"items\":[{},[]]}", "a: &x {b: 1}\nc: {<<: *x}\n",
		"a: .inf\n", "a: 0o17\nb: 1e400\n", "- a\n- b\n", "? [a]\n: b\n", "%YAML 1.2\n---\na: 1\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range []string{"a.yaml", "a.json"} {
			_ = manifest.Trees(path, []byte(text), manifest.Limits{Depth: 20, Nodes: 5000, Documents: 100, Aliases: 500}, func(tree *manifest.Tree) error {
				o, problems := tree.Object(map[string]bool{"a": true})
				if body, err := json.Marshal(o); err != nil {
					t.Errorf("%q became %v: %v (%s)", text, o, err, body)
				} else if o == nil && len(problems) == 0 {
					t.Errorf("%q: neither an object nor a problem", text)
				}
				if line, column := tree.Position("a.b[0].c"); line < 1 || column < 1 {
					t.Errorf("%q: a field at %d:%d", text, line, column)
				}
				return nil
			})
		}
	})
}
