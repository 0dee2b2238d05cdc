package jsonpath_test

import (
	"encoding/json"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/jsonpath"
)

const list = `{
  "kind": "List",
  "items": [
    {"metadata": {"name": "web", "labels": {"app.kubernetes.io/name": "shop", "tier": "front"}},
     "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]},
     "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Synced", "status": "False"}]}},
    {"metadata": {"name": "db"},
     "spec": {"clusterIP": "None", "ports": [{"port": 5432}], "publish": true, "nothing": null}}
  ]
}`

func parse(t testing.TB, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestExecute(t *testing.T) {
	v := parse(t, list)
	for template, want := range map[string]string{
		`{.kind}`:                   "List",
		`.kind`:                     "List",
		`kind`:                      "List",
		`$.kind`:                    "List",
		`{@.kind}`:                  "List",
		`{ .kind }`:                 "List",
		`{.items[*].metadata.name}`: "web db",
		`{.items.*.metadata.name}`:  "web db",
		`{..name}`:                  "web http https db",
		`{range .items[*]}{.metadata.name}{"\n"}{end}`:                                     "web\ndb\n",
		`{range .items[*]}{.metadata.name}{"\t"}{range .spec.ports[*]}{.port},{end};{end}`: "web\t80,443,;db\t5432,;",
		`{range .items[*]}{.metadata.name}={.spec.clusterIP} in {$.kind}{'\n'}{end}`:       "web=10.96.0.10 in List\ndb=None in List\n",
		`{.items[0].spec.ports[1].port}`:                                                   "443",
		`{.items[-1].metadata.name}`:                                                       "db",
		`{.items[-1:].metadata.name}`:                                                      "db",
		`{.items[0:1].metadata.name}`:                                                      "web",
		`{.items[::2].metadata.name}`:                                                      "web",
		`{.items[0,1].metadata.name}`:                                                      "web db",
		`{.items[7].metadata.name}`:                                                        "",
		`{.items[0]['metadata','spec']['name','clusterIP']}`:                               "web 10.96.0.10",
		`{.items[0].metadata.labels.app\.kubernetes\.io/name}`:                             "shop",
		`{.items[0].metadata.labels['app.kubernetes.io/name']}`:                            "shop",
		`{.items[0].metadata.labels["app.kubernetes.io/name"]}`:                            "shop",
		`{.items[0].metadata.labels['app\.kubernetes\.io/name']}`:                          "shop",
		`{.items[0].metadata.labels["app\.kubernetes\.io/name"]}`:                          "shop",
		// A list of names or indexes is taken one after the other, each of all items, as by kubectl.
		`{.items[*]['metadata.name', 'spec.clusterIP']}`:                                     "web db 10.96.0.10 None",
		`{.items[*].spec.ports[0,-1].port}`:                                                  "80 5432 443 5432",
		`{range .items[*]}{['metadata.name', 'spec.clusterIP']};{end}`:                       "web 10.96.0.10;db None;",
		`{.items[*]['metadata.name']}`:                                                       "web db",
		`{.items[1]['metadata.name', 'spec.clusterIP']}`:                                     "db None",
		`{'it\'s "a\\.b"\t\"'}`:                                                              "it's \"a\\.b\"\t\"",
		`{.items[1:2:9223372036854775807].metadata.name}`:                                    "db",
		`{.items[?(@.metadata.name=="db")].spec.clusterIP}`:                                  "None",
		`{.items[?(@.metadata.name!='db')].spec.clusterIP}`:                                  "10.96.0.10",
		`{.items[?(@.status)].metadata.name}`:                                                "web",
		`{.items[?(@.spec.publish==true)].metadata.name}`:                                    "db",
		`{.items[*].spec.ports[?(@.port > 400)].port}`:                                       "443 5432",
		`{.items[*].spec.ports[?(@.port <= 80)].name}`:                                       "http",
		`{.items[0].status.conditions[?(@.type=="Ready")].status}`:                           "True",
		`{.items[?(@.spec.ports[0].port==$.items[1].spec.ports[0].port)].metadata.name}`:     "db",
		`{.items[1].spec.ports}`:                                                             `[{"port":5432}]`,
		`{.items[1].spec.nothing}{.nowhere.at.all}`:                                          "",
		`text {.kind} more`:                                                                  "text List more",
		`{.kind}{.items[0].kind}`:                                                            "List",
		`{.kind .items[0].metadata.name}`:                                                    "Listweb",
		`{"a\tb"}{'it\'s "x"'}`:                                                              "a\tbit's \"x\"",
		`{range .items[?(@.metadata.name=="web")]}{range .spec.ports[*]}{@.name} {end}{end}`: "http https ",
		`{.items[0].metadata}`:                                                               `{"labels":{"app.kubernetes.io/name":"shop","tier":"front"},"name":"web"}`,
	} {
		tmpl, err := jsonpath.Parse(template)
		if err != nil {
			t.Errorf("%s: %v", template, err)
			continue
		}
		if got := tmpl.Execute(v); got != want {
			t.Errorf("%s\ngot  %q\nwant %q", template, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for template, want := range map[string]string{
		`{.a`:                           "at character 4: a } is missing",
		`{range .items[*]}{.x}`:         "at character 22: {range} without {end}",
		`{end}`:                         "{end} without {range}",
		`{.items[}`:                     "a ] is missing",
		`{.items[x]}`:                   "[x] is no index: want a number, first:last:step, *, or a name in quotes",
		`{.items[]}`:                    "[] is no index",
		`{.items[1:2:3:4]}`:             "is no index",
		`{.items[::0]}`:                 "the step must be greater than 0",
		`{.items[?(@.a==b)]}`:           `"b" is neither a path, a text in quotes nor a number`,
		`{.items[?(@.a=="b"]}`:          "a ) is missing",
		`{.items[?(@.a=="b")}`:          "a ] is missing",
		`{"abc}`:                        `a closing " is missing`,
		`{..}`:                          "the name of a field is missing",
		`{foo}`:                         "want a path that begins with . or [",
		`{.a{.b}}`:                      "at character 4: ",
		strings.Repeat("{range .}", 40): "ranges more than 32 deep",
		strings.Repeat("x", 70000):      "a template of 70000 bytes",
	} {
		if _, err := jsonpath.Parse(template); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v, want %s", template, err, want)
		}
	}
	for _, template := range []string{"a {.b}", "{range .x}{end}", "{.a}{.b}"} {
		if _, err := jsonpath.ParseExpression(template); err == nil {
			t.Errorf("%s is taken for an expression", template)
		}
	}
}

func TestFind(t *testing.T) {
	e, err := jsonpath.ParseExpression("{.items[*].spec.ports[*].port}")
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Find(parse(t, list)); len(got) != 3 || got[2] != json.Number("5432") {
		t.Errorf("%v", got)
	}
}

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		a, b       any
		c          int
		comparable bool
	}{
		{json.Number("9"), 10.0, -1, true}, {"b", "a", 1, true}, {true, true, 0, true}, {false, true, -1, true},
		{nil, nil, 0, true}, {nil, "x", 0, false}, {"1", 1, 0, false}, {map[string]any{}, map[string]any{}, 0, false},
	} {
		if c, comparable := jsonpath.Compare(tt.a, tt.b); comparable != tt.comparable || comparable && c != tt.c {
			t.Errorf("%v, %v: %d, %v", tt.a, tt.b, c, comparable)
		}
	}
}

// FuzzParse: whatever is taken can be written, twice the same.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"{.a}", "{range .items[*]}{.x}{end}", `{.items[?(@.a=="b")].c}`, "{..x}", `{"\n"}`, "{.a[0:2:1]['x',1]}", "{"} {
		f.Add(seed)
	}
	v := parse(f, list)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 || strings.Count(text, "..") > 3 {
			return
		}
		tmpl, err := jsonpath.Parse(text)
		if err != nil {
			return
		}
		if a, b := tmpl.Execute(v), tmpl.Execute(v); a != b {
			t.Errorf("%q: %q and %q", text, a, b)
		}
	})
}
