package manifest_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

func TestValues(t *testing.T) {
	cases := map[string]struct {
		text string
		want []any
	}{
		"plain":       {"a: 1\nb: [x, true, null]\n", []any{map[string]any{"a": json.Number("1"), "b": []any{"x", true, nil}}}},
		"two":         {"a: x\n---\n- 1\n", []any{map[string]any{"a": "x"}, []any{json.Number("1")}}},
		"json":        {`{"a":{"b":"c"}}`, []any{map[string]any{"a": map[string]any{"b": "c"}}}},
		"numbers":     {"[0x10, 1_000, 1e3, 1.5, -7, +3]", []any{[]any{json.Number("16"), json.Number("1000"), json.Number("1000"), json.Number("1.5"), json.Number("-7"), json.Number("3")}}},
		"merge":       {"base: &b {x: 1}\nt: {<<: *b, y: 2}\n", []any{map[string]any{"base": map[string]any{"x": json.Number("1")}, "t": map[string]any{"x": json.Number("1"), "y": json.Number("2")}}}},
		"empty":       {"# nothing\n---\n", nil},
		"date, old":   {"a: 2001-01-01\nb: yes\n", []any{map[string]any{"a": "2001-01-01", "b": "yes"}}},
		"empty texts": {"a: \"\"\nb: ''\n", []any{map[string]any{"a": "", "b": ""}}},
	}
	for name, c := range cases {
		values, problem := manifest.Values([]byte(c.text), manifest.Limits{})
		if problem != nil {
			t.Errorf("%s: %v", name, problem)
			continue
		}
		var got []any
		for _, v := range values {
			got = append(got, v.Data)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %#v, want %#v", name, got, c.want)
		}
	}
}

func TestValuesTellDuplicates(t *testing.T) {
	values, problem := manifest.Values([]byte("spec:\n  type: A\n  type: B\n"), manifest.Limits{})
	if problem != nil || len(values) != 1 {
		t.Fatal(values, problem)
	}
	if got := values[0].Duplicates; len(got) != 1 || got[0] != "spec.type" {
		t.Errorf("duplicates %q", got)
	}
	// The last one counts, as in JSON, and as for the API server of Kubernetes.
	if got := fmt.Sprint(values[0].Data); got != "map[spec:map[type:B]]" {
		t.Error(got)
	}
}

func TestValuesRefuse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"syntax":      {"a: [1", "could not be parsed"},
		"not UTF-8":   {"a: \xff", "not UTF-8"},
		"octal":       {"a: 010", "leading zero"},
		"infinite":    {"a: .inf", "no number in JSON"},
		"deep":        {strings.Repeat("[", 100) + strings.Repeat("]", 100), "deep"},
		"large":       {"a: 99999999999999999999", "too large"},
		"self":        {"&a [*a]", "contains itself"},
		"key no text": {"? [a]\n: b\n", "a key must be text"},
	} {
		if _, problem := manifest.Values([]byte(c.text), manifest.Limits{}); problem == nil || !strings.Contains(problem.Message, c.want) {
			t.Errorf("%s: %v, want %q", name, problem, c.want)
		}
	}
}
