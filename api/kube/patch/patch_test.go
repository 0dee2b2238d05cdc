package patch

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/schema"
)

func parse(t testing.TB, text string) map[string]any {
	t.Helper()
	o, _, err := schema.ParseObject([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

func text(t testing.TB, o any) string {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func typeOf(t testing.TB, name string) *schema.Type {
	t.Helper()
	k, ok := kind.ByName("v1", name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	return schema.Of(k)
}

// The cases of RFC 7386 appendix A whose documents are objects.
func TestMerge(t *testing.T) {
	for _, test := range []struct{ live, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":12345678901234567890}`, `{"b":1.10}`, `{"a":12345678901234567890,"b":1.10}`},
	} {
		live, patch := parse(t, test.live), parse(t, test.patch)
		if got := text(t, Merge(live, patch)); got != test.want {
			t.Errorf("%s with %s is %s, want %s", test.live, test.patch, got, test.want)
		}
		if text(t, live) != test.live || text(t, patch) != test.patch {
			t.Errorf("%s with %s changed what it was given", test.live, test.patch)
		}
	}
}

func TestMergeSharesNothing(t *testing.T) {
	live, patch := parse(t, `{"a":{"b":["x"]}}`), parse(t, `{"c":{"d":["y"]},"e":["z"]}`)
	merged := Merge(live, patch)
	merged["a"].(map[string]any)["b"].([]any)[0] = "changed"
	merged["c"].(map[string]any)["d"].([]any)[0] = "changed"
	merged["e"].([]any)[0] = "changed"
	if text(t, live) != `{"a":{"b":["x"]}}` || text(t, patch) != `{"c":{"d":["y"]},"e":["z"]}` {
		t.Errorf("%s %s", text(t, live), text(t, patch))
	}
}

func TestJSON(t *testing.T) {
	live := `{"metadata":{"labels":{"a/b":"c"}},"spec":{"ports":[{"port":80},{"port":443}],"n":12345678901234567890}}`
	for _, test := range []struct{ patch, want string }{
		{`[{"op":"add","path":"/spec/ports/-","value":{"port":1}}]`, `{"metadata":{"labels":{"a/b":"c"}},"spec":{"n":12345678901234567890,"ports":[{"port":80},{"port":443},{"port":1}]}}`},
		{`[{"op":"add","path":"/spec/ports/0","value":{"port":1}}]`, `{"metadata":{"labels":{"a/b":"c"}},"spec":{"n":12345678901234567890,"ports":[{"port":1},{"port":80},{"port":443}]}}`},
		{`[{"op":"remove","path":"/metadata/labels/a~1b"}]`, `{"metadata":{"labels":{}},"spec":{"n":12345678901234567890,"ports":[{"port":80},{"port":443}]}}`},
		{`[{"op":"test","path":"/spec/ports/0/port","value":80},{"op":"replace","path":"/spec/ports/0/port","value":81}]`, `{"metadata":{"labels":{"a/b":"c"}},"spec":{"n":12345678901234567890,"ports":[{"port":81},{"port":443}]}}`},
		{`[{"op":"move","from":"/spec/ports/0","path":"/spec/ports/1"}]`, `{"metadata":{"labels":{"a/b":"c"}},"spec":{"n":12345678901234567890,"ports":[{"port":443},{"port":80}]}}`},
		{`[{"op":"copy","from":"/spec/n","path":"/n"}]`, `{"metadata":{"labels":{"a/b":"c"}},"n":12345678901234567890,"spec":{"n":12345678901234567890,"ports":[{"port":80},{"port":443}]}}`},
		// As Kubernetes does, and kubectl patches of many manuals rely on: what is not there is added.
		{`[{"op":"replace","path":"/metadata/managedFields","value":[{"manager":"a"}]}]`, `{"metadata":{"labels":{"a/b":"c"},"managedFields":[{"manager":"a"}]},"spec":{"n":12345678901234567890,"ports":[{"port":80},{"port":443}]}}`},
		{`[{"op":"replace","path":"/metadata/annotations/a","value":"b"}]`, ``},
		{`[{"op":"replace","path":"/spec/ports/2","value":{}}]`, ``},
		{`[{"op":"test","path":"/spec/none","value":null}]`, live},
		{`[{"op":"add","path":"/metadata/managedFields","value":[{"manager":"a"}]}]`, `{"metadata":{"labels":{"a/b":"c"},"managedFields":[{"manager":"a"}]},"spec":{"n":12345678901234567890,"ports":[{"port":80},{"port":443}]}}`},
		{`[]`, live},
	} {
		got, _, err := JSON(parse(t, live), []byte(test.patch))
		if test.want == "" {
			if !errors.Is(err, ErrNotApplicable) {
				t.Errorf("%s: %v", test.patch, err)
			}
			continue
		}
		if err != nil || text(t, got) != text(t, parse(t, test.want)) {
			t.Errorf("%s:\ngot  %s %v\nwant %s", test.patch, text(t, got), err, test.want)
		}
	}
}

func TestJSONRefusals(t *testing.T) {
	many := `[` + strings.Repeat(`{"op":"test","path":"/a","value":1},`, maxOperations) + `{"op":"test","path":"/a","value":1}]`
	big := `{"a":"` + strings.Repeat("x", 1<<20) + `"}`
	double := `[` + strings.TrimSuffix(strings.Repeat(`{"op":"copy","from":"","path":"/b"},`, 20), ",") + `]`
	for _, test := range []struct {
		live, patch string
		kind        error
		want        string
	}{
		{`{}`, `{}`, ErrMalformed, "a JSON patch is a list of operations"},
		{`{}`, `[`, ErrMalformed, "the text ends where a value or ] is expected"},
		{`{}`, `[1]`, ErrMalformed, "error decoding patch"},
		{`{"a":1}`, `[{"op":"test","path":"/a","value":2}]`, ErrNotApplicable, "testing value /a failed"},
		{`{"a":1}`, `[{"op":"remove","path":"/b"}]`, ErrNotApplicable, "/b"},
		{`{"a":1}`, `[{"op":"test","path":""}]`, ErrNotApplicable, "not complete"},
		{`{"a":1}`, `[{"op":"jump","path":"/b"}]`, ErrMalformed, "unsupported operation"},
		{`{"a":1}`, `[{"op":"add","path":"/a"}]`, ErrMalformed, `invalid operation {"op":"add","path":"/a"}: missing value field`},
		{`{"a":1}`, `[{"op":"replace","path":"/a"}]`, ErrMalformed, "missing value field"},
		{`{"a":1}`, `[{"op":"remove"}]`, ErrMalformed, "missing path field"},
		{`{"a":1}`, `[{}]`, ErrMalformed, "unsupported operation"},
		{`{"a":1}`, `[null]`, ErrMalformed, "it is no object"},
		{`{"a":1}`, `[{"op":"replace","path":"","value":[]}]`, ErrNotApplicable, "send an object"},
		{`{"a":1}`, many, ErrTooLarge, "The allowed maximum operations in a JSON patch is 10000, got 10001"},
		{big, double, ErrNotApplicable, "copy"},
	} {
		_, _, err := JSON(parse(t, test.live), []byte(test.patch))
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.60s: %v, want %v: %s", test.patch, err, test.kind, test.want)
		}
	}
	_, duplicates, err := JSON(parse(t, `{}`), []byte(`[{"op":"add","path":"/a","path":"/b","value":1}]`))
	if err != nil || len(duplicates) != 1 || duplicates[0] != `duplicate field "[0].path"` {
		t.Errorf("%q %v", duplicates, err)
	}
}

// Any patch of any of the three kinds changes nothing that it was given, costs bounded
// work, and makes something that JSON can hold.
func FuzzPatches(f *testing.F) {
	live := `{"metadata":{"finalizers":["a","b"],"labels":{"a":"b"}},"spec":{"ports":[{"port":80,"name":"x"},{"port":80,"protocol":"UDP"},{"port":443}]}}`
	for _, patch := range []string{
		`{"spec":{"ports":[{"port":80,"$patch":"delete"},{"port":1}],"$setElementOrder/ports":[{"port":443},{"port":1}]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"],"$setElementOrder/finalizers":["c","b"],"finalizers":["c"],"labels":{"$patch":"replace","c":null}}}`,
		`{"spec":{"$retainKeys":["ports"],"ports":[{"$patch":"replace"},{"port":{}}],"selector":{"$patch":"delete"}}}`,
		`{"spec":{"ports":[{"port":[]},1,null,[]]},"metadata":{"finalizers":[{}],"$setElementOrder/x":[1]}}`,
		`[{"op":"copy","from":"/spec/ports","path":"/spec/ports/-"},{"op":"move","from":"/spec","path":"/metadata/x"},{"op":"test","path":"/x","value":null}]`,
		`[{"op":"replace","path":"/spec/ports/-1/port","value":1e400},{"op":"remove","path":"/metadata/finalizers/0"}]`,
	} {
		f.Add([]byte(live), []byte(patch))
	}
	f.Fuzz(func(t *testing.T, liveText, patchText []byte) {
		live, _, err := schema.ParseObject(liveText)
		if err != nil {
			return
		}
		before := text(t, live)
		if o, _, err := JSON(live, patchText); err == nil {
			text(t, o)
		}
		if patch, _, err := schema.ParseObject(patchText); err == nil {
			patchBefore := text(t, patch)
			text(t, Merge(live, patch))
			for _, name := range []string{"Service", "Pod"} {
				merged, err := Strategic(live, patch, typeOf(t, name))
				again, err2 := Strategic(live, patch, typeOf(t, name))
				if (err == nil) != (err2 == nil) || !reflect.DeepEqual(merged, again) {
					t.Fatalf("%s with %s is %v, and %v", before, patchBefore, merged, again)
				}
				text(t, merged)
			}
			if text(t, patch) != patchBefore {
				t.Fatalf("the patch changed from %s to %s", patchBefore, text(t, patch))
			}
		}
		if text(t, live) != before {
			t.Fatalf("the object changed from %s to %s", before, text(t, live))
		}
	})
}
