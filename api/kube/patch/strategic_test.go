package patch

import (
	"errors"
	"strings"
	"testing"
)

// What comes out was compared with Kubernetes 1.36's own merge, case by case.
func TestStrategic(t *testing.T) {
	for _, test := range []struct{ name, live, patch, want string }{
		{"scalars and maps merge", `{"spec":{"type":"a","selector":{"x":"1","y":"2"}}}`, `{"spec":{"type":"b","selector":{"y":null,"z":"3"}}}`,
			`{"spec":{"selector":{"x":"1","z":"3"},"type":"b"}}`},
		{"null deletes", `{"spec":{"type":"a","ports":[{"port":1}]}}`, `{"spec":{"ports":null,"bogus":null}}`, `{"spec":{"type":"a"}}`},
		{"ports merge by port alone", `{"spec":{"ports":[{"port":53,"protocol":"UDP"},{"port":80}]}}`, `{"spec":{"ports":[{"port":53,"protocol":"TCP"}]}}`,
			`{"spec":{"ports":[{"port":53,"protocol":"TCP"},{"port":80}]}}`},
		{"new items come first", `{"spec":{"ports":[{"port":1},{"port":2}]}}`, `{"spec":{"ports":[{"port":3}]}}`, `{"spec":{"ports":[{"port":3},{"port":1},{"port":2}]}}`},
		{"known items keep their place", `{"spec":{"ports":[{"port":1},{"port":2},{"port":3}]}}`, `{"spec":{"ports":[{"port":3,"name":"c"},{"port":2,"name":"b"}]}}`,
			`{"spec":{"ports":[{"port":1},{"name":"c","port":3},{"name":"b","port":2}]}}`},
		{"the order that is set", `{"spec":{"ports":[{"port":1},{"port":2},{"port":3}]}}`, `{"spec":{"$setElementOrder/ports":[{"port":3},{"port":1}]}}`,
			`{"spec":{"ports":[{"port":2},{"port":3},{"port":1}]}}`},
		{"the order of both", `{"spec":{"ports":[{"port":1},{"port":2}]}}`, `{"spec":{"$setElementOrder/ports":[{"port":1},{"port":3},{"port":2}],"ports":[{"port":3}]}}`,
			`{"spec":{"ports":[{"port":1},{"port":3},{"port":2}]}}`},
		{"the same key twice in an order", `{"spec":{"ports":[{"port":53,"name":"u"},{"port":53,"name":"t"}]}}`,
			`{"spec":{"$setElementOrder/ports":[{"port":53},{"port":53},{"port":80}],"ports":[{"port":80}]}}`,
			`{"spec":{"ports":[{"name":"u","port":53},{"name":"t","port":53},{"port":80}]}}`},
		{"an order without a list", `{"spec":{}}`, `{"spec":{"$setElementOrder/ports":[{"port":1}]}}`, `{"spec":{}}`},
		{"an item is deleted", `{"spec":{"ports":[{"port":1},{"port":2}]}}`, `{"spec":{"ports":[{"port":1,"$patch":"delete"},{"port":9,"$patch":"delete"}]}}`, `{"spec":{"ports":[{"port":2}]}}`},
		{"a list is replaced", `{"spec":{"ports":[{"port":1},{"port":2}]}}`, `{"spec":{"ports":[{"port":3},{"$patch":"replace"}]}}`, `{"spec":{"ports":[{"port":3}]}}`},
		{"a map is replaced", `{"metadata":{"labels":{"a":"1","b":"2"}}}`, `{"metadata":{"labels":{"$patch":"replace","c":"3"}}}`, `{"metadata":{"labels":{"c":"3"}}}`},
		{"a map is deleted", `{"spec":{"selector":{"a":"1"},"type":"x"}}`, `{"spec":{"selector":{"$patch":"delete"}}}`, `{"spec":{"selector":{},"type":"x"}}`},
		{"a directive for what is not there", `{"spec":{}}`, `{"spec":{"selector":{"$patch":"delete"},"ports":[{"port":1,"$patch":"delete"},{"port":2,"name":null}]}}`, `{"spec":{"ports":[{"port":2}]}}`},
		{"atomic lists are replaced", `{"spec":{"externalIPs":["1.1.1.1","2.2.2.2"]}}`, `{"spec":{"externalIPs":["3.3.3.3"]}}`, `{"spec":{"externalIPs":["3.3.3.3"]}}`},
		{"finalizers are a set", `{"metadata":{"finalizers":["a","b"]}}`, `{"metadata":{"finalizers":["c","b"]}}`, `{"metadata":{"finalizers":["c","a","b"]}}`},
		{"members are taken out", `{"metadata":{"finalizers":["a","b","c"]}}`,
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["b","x"],"$setElementOrder/finalizers":["d","c"],"finalizers":["d"]}}`, `{"metadata":{"finalizers":["d","a","c"]}}`},
		{"members are taken out of nothing", `{"metadata":{}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["b"]}}`, `{"metadata":{}}`},
		{"keys are retained", `{"spec":{"type":"x","clusterIP":"y","ports":[{"port":1}]}}`, `{"spec":{"$retainKeys":["type","selector"],"type":"z","clusterIP":null}}`, `{"spec":{"type":"z"}}`},
		{"conditions merge by type", `{"status":{"conditions":[{"type":"A","status":"True"},{"type":"B","status":"True"}]}}`, `{"status":{"conditions":[{"type":"B","status":"False"}]}}`,
			`{"status":{"conditions":[{"status":"True","type":"A"},{"status":"False","type":"B"}]}}`},
		{"owners merge by uid", `{"metadata":{"ownerReferences":[{"uid":"1","name":"a"}]}}`, `{"metadata":{"ownerReferences":[{"uid":"1","name":"b"},{"uid":"2"}]}}`,
			`{"metadata":{"ownerReferences":[{"name":"b","uid":"1"},{"uid":"2"}]}}`},
		{"another form replaces", `{"spec":{"selector":{"a":"b"}}}`, `{"spec":{"selector":"x"}}`, `{"spec":{"selector":"x"}}`},
		{"the whole object is replaced", `{"spec":{"type":"x"}}`, `{"$patch":"replace","spec":{}}`, `{"spec":{}}`},
		{"unknown fields merge as maps", `{"x":{"a":{"b":1}}}`, `{"x":{"a":{"c":2},"d":[1]}}`, `{"x":{"a":{"b":1,"c":2},"d":[1]}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			live, patch := parse(t, test.live), parse(t, test.patch)
			liveBefore, patchBefore := text(t, live), text(t, patch)
			got, err := Strategic(live, patch, typeOf(t, "Service"))
			if err != nil || text(t, got) != text(t, parse(t, test.want)) {
				t.Errorf("got  %s %v\nwant %s", text(t, got), err, test.want)
			}
			if text(t, live) != liveBefore || text(t, patch) != patchBefore {
				t.Error("what was given changed")
			}
		})
	}
}

func TestStrategicRefusals(t *testing.T) {
	live := `{"metadata":{"finalizers":["a"]},"spec":{"ports":[{"port":1}],"type":"x"}}`
	for _, test := range []struct {
		patch string
		kind  error
		want  string
	}{
		{`{"$patch":"jump"}`, ErrMalformed, "unknown patch type: jump in map"},
		{`{"spec":{"ports":[{"port":1,"$patch":"jump"}]}}`, ErrMalformed, "unknown patch type: jump in map"},
		{`{"spec":{"ports":[{"port":1,"$patch":"merge"}]}}`, ErrMalformed, "merging lists cannot yet be specified in the patch"},
		{`{"spec":{"ports":[{"name":"a"}]}}`, ErrMalformed, "map: map[name:a] does not contain declared merge key: port"},
		{`{"spec":{"ports":[{"$patch":"delete"}]}}`, ErrMalformed, "does not contain declared merge key: port"},
		{`{"spec":{"ports":[{"port":{}}]}}`, ErrMalformed, "is no scalar"},
		{`{"spec":{"ports":[1]}}`, ErrMalformed, "expected a map, but received a scalar"},
		{`{"spec":{"ports":[[]]}}`, ErrNotApplicable, "lists of lists are not supported"},
		{`{"metadata":{"finalizers":[{}]}}`, ErrMalformed, "expected a scalar, but received a map"},
		{`{"spec":{"$setElementOrder/ports":{}}}`, ErrMalformed, "invalid patch format of setElementOrder list"},
		{`{"spec":{"$setElementOrder":[]}}`, ErrMalformed, "invalid patch format of setElementOrder list"},
		{`{"spec":{"$setElementOrder/ports":[{"port":2},{"port":1}],"ports":[{"port":1},{"port":2}]}}`, ErrMalformed, "doesn't match $setElementOrder list"},
		{`{"spec":{"$setElementOrder/ports":[{"port":2}],"ports":[{"port":3}]}}`, ErrMalformed, "doesn't match $setElementOrder list"},
		{`{"spec":{"$setElementOrder/type":["a"]}}`, ErrMalformed, "expected a slice for type"},
		{`{"metadata":{"$deleteFromPrimitiveList/finalizers":"a"}}`, ErrMalformed, "invalid patch format of primitive list"},
		{`{"metadata":{"$deleteFromPrimitiveList":[]}}`, ErrMalformed, "invalid patch format of primitive list"},
		{`{"spec":{"$retainKeys":["ports"],"type":"y"}}`, ErrMalformed, "invalid patch format of retainKeys"},
		{`{"spec":{"$retainKeys":"ports"}}`, ErrMalformed, "invalid patch format of retainKeys"},
	} {
		_, err := Strategic(parse(t, live), parse(t, test.patch), typeOf(t, "Service"))
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %v: %s", test.patch, err, test.kind, test.want)
		}
	}
}
