package managedfields

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/schema"
)

func TestSets(t *testing.T) {
	for _, test := range []struct{ a, b, union, intersection, difference string }{
		{`{"f:a":{}}`, `{"f:b":{}}`, `{"f:a":{},"f:b":{}}`, `{}`, `{"f:a":{}}`},
		{`{"f:a":{".":{},"f:b":{}}}`, `{"f:a":{}}`, `{"f:a":{".":{},"f:b":{}}}`, `{"f:a":{}}`, `{"f:a":{"f:b":{}}}`},
		{`{"f:a":{"f:b":{},"f:c":{}}}`, `{"f:a":{"f:c":{},"f:d":{}}}`, `{"f:a":{"f:b":{},"f:c":{},"f:d":{}}}`, `{"f:a":{"f:c":{}}}`, `{"f:a":{"f:b":{}}}`},
		{`{"f:a":{}}`, `{"f:a":{}}`, `{"f:a":{}}`, `{"f:a":{}}`, `{}`},
		{`{}`, `{"f:a":{"v:\"x\"":{}}}`, `{"f:a":{"v:\"x\"":{}}}`, `{}`, `{}`},
	} {
		a, err1 := decodeSet(json.RawMessage(test.a))
		b, err2 := decodeSet(json.RawMessage(test.b))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		for name, pair := range map[string][2]string{
			"a": {string(a.encode()), test.a}, "b": {string(b.encode()), test.b},
			"union": {string(union(a, b).encode()), test.union}, "intersection": {string(intersection(a, b).encode()), test.intersection},
			"difference": {string(difference(a, b).encode()), test.difference},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s of %s and %s is %s, want %s", name, test.a, test.b, pair[0], pair[1])
			}
		}
	}
}

func TestDecodeSetRefusals(t *testing.T) {
	for body, want := range map[string]string{
		`[]`: "send an object", `{"f:a":1}`: "is no object", `{"x":{}}`: "is no element of a path", `{"q:x":{}}`: "is no element of a path",
		`{"k:{":{}}`: "the text ends where a key in double quotes is expected", `{"k:1":{}}`: "is no element of a path", `{"v:{}":{}}`: "is no element of a path",
		strings.Repeat(`{"f:a":`, 70) + `{}` + strings.Repeat(`}`, 70): "more than 64 deep",
	} {
		if s, err := decodeSet(json.RawMessage(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v, want %s", body, s, err, want)
		}
	}
}

func TestPathText(t *testing.T) {
	for path, want := range map[string]string{
		"f:spec|f:ports|k:{\"protocol\":\"TCP\",\"port\":80}|f:name": `.spec.ports[port=80,protocol="TCP"].name`,
		"f:metadata|f:finalizers|v:\"a/b\"":                          `.metadata.finalizers[="a/b"]`,
		"f:a|i:3|v:5":                                                `.a[3][=5]`,
	} {
		if got := pathText(strings.Split(path, "|")); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// The order in which a list is after it was applied to another one.
func TestMergedOrder(t *testing.T) {
	list := func(letters string) []any {
		items := []any{}
		for _, letter := range letters {
			items = append(items, string(letter))
		}
		return items
	}
	set := &schema.Type{Form: schema.List, Set: true, Elem: &schema.Type{Form: schema.Text}}
	for _, test := range []struct{ live, applied, want string }{
		{"abc", "cb", "acb"}, {"abc", "xa", "xabc"}, {"abc", "ax", "abcx"}, {"abc", "cxb", "acxb"}, {"", "ab", "ab"}, {"ab", "", "ab"},
		{"abcd", "dxb", "acdxb"}, {"axb", "ba", "xba"},
	} {
		var got strings.Builder
		for _, item := range mergeItems(list(test.live), list(test.applied), set) {
			got.WriteString(item.(string))
		}
		if got.String() != test.want {
			t.Errorf("%s applied to %s is %s, want %s", test.applied, test.live, got.String(), test.want)
		}
	}
}

// Whatever is applied to whatever by whomever: what is given does not change, what comes
// out is pruned, its entries can be read again, and applying the same again changes
// nothing.
func FuzzApply(f *testing.F) {
	managed := `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","uid":"u","finalizers":["a","b"],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"apiVersion\":\"v1\",\"spec\":{\"type\":\"x\"}}"},` +
		`"managedFields":[{"manager":"kubectl","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:type":{},"f:bogus":{"f:x":{}}},"f:metadata":{"f:finalizers":{"v:\"a\"":{}}}}}]},` +
		`"spec":{"type":"x","ports":[{"port":80},{"port":443,"protocol":"UDP"}]}}`
	f.Add([]byte(managed), []byte(web), "kubectl", true)
	f.Add([]byte(web), []byte(managed), "a", false)
	f.Add([]byte(managed), []byte(`{"spec":{"ports":[{"port":443,"protocol":"UDP","name":"x"},{"port":1}],"selector":{}},"metadata":{"labels":{},"finalizers":["c","b"]}}`), "b", true)
	f.Fuzz(func(t *testing.T, liveBody, appliedBody []byte, manager string, force bool) {
		by := writer(t, manager, clock)
		live, _, err := schema.Decode(liveBody, by.Type)
		if err != nil {
			return
		}
		applied, _, err := schema.Decode(appliedBody, by.Type)
		if err != nil {
			return
		}
		liveBefore, appliedBefore := text(t, live), text(t, applied)
		check := func(o map[string]any) {
			clone := schema.Clone(o).(map[string]any)
			if unknown, err := by.Type.Prune(clone); err != nil || len(unknown) > 0 || !reflect.DeepEqual(clone, o) {
				t.Fatalf("%s is not pruned: %q %v", text(t, o), unknown, err)
			}
			entries, _, err := entriesOf(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decode(entries); err != nil {
				t.Fatal(err)
			}
		}
		check(Update(live, applied, by))
		if merged, err := Apply(live, applied, by, force); err == nil {
			check(merged)
			again, err := Apply(merged, applied, by, false)
			if err != nil {
				t.Fatalf("applied again: %v", err)
			}
			if a, b := entriesText(t, again), entriesText(t, merged); content(t, again) != content(t, merged) || a != b {
				t.Fatalf("applied again it is\n%s\nafter\n%s", text(t, again), text(t, merged))
			}
		}
		if text(t, live) != liveBefore || text(t, applied) != appliedBefore {
			t.Fatal("what was given changed")
		}
	})
}

func entriesText(t *testing.T, o map[string]any) string {
	return strings.Join(owners(t, o), "\n")
}
