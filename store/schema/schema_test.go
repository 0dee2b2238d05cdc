package schema

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"svcctl.io/svcctl/store/kind"
)

// typeOf is the type of a kind.
func typeOf(t testing.TB, apiVersion, name string) *Type {
	t.Helper()
	k, ok := kind.ByName(apiVersion, name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	return Of(k)
}

// structures are all structures that were made.
func structures() []*Type {
	var list []*Type
	for _, s := range all().structures {
		list = append(list, s)
	}
	return list
}

// Every type and every field is documented, and nothing else is.
func TestEverythingIsDocumented(t *testing.T) {
	used := map[string]bool{}
	for _, s := range structures() {
		used[s.Go] = true
		if s.Doc == "" {
			t.Errorf("store/object/fields.txt does not say what %s is", s.Go)
		}
		for _, f := range s.Fields {
			name := s.Go + "." + f.Name
			if f.Doc == "" {
				t.Errorf("store/object/fields.txt does not say what %s is", name)
			}
			used[name] = true
		}
	}
	used["TypeMeta.kind"], used["TypeMeta.apiVersion"] = true, true
	for _, name := range documented(t) {
		if !used[name] {
			t.Errorf("store/object/fields.txt documents %s, which does not exist", name)
		}
	}
}

// What the tables say is about fields that exist.
func TestTablesAreCurrent(t *testing.T) {
	exists := func(path string) bool {
		of, name, _ := strings.Cut(path, ".")
		return slices.ContainsFunc(structures(), func(s *Type) bool { _, ok := s.Field(name); return ok && s.Go == of })
	}
	for of, names := range ignored {
		for _, name := range names {
			if exists(of + "." + name) {
				t.Errorf("ignored has %s.%s, which is read", of, name)
			}
		}
	}
	for _, name := range slices.Concat(atomicTypes, metaTypes, coreTypes) {
		if !slices.ContainsFunc(structures(), func(s *Type) bool { return s.Go == name }) {
			t.Errorf("the tables have %s, which does not exist", name)
		}
	}
}

// Keys and merge keys are fields of the items.
func TestListsAreSound(t *testing.T) {
	for _, s := range structures() {
		for _, f := range s.Fields {
			list := f.Type
			if list.Form != List {
				continue
			}
			for _, key := range append(slices.Clone(list.Keys), list.MergeKey) {
				if _, ok := list.Elem.Field(key); key != "" && !ok {
					t.Errorf("%s.%s: items have no field %q", s.Go, f.Name, key)
				}
			}
			if !slices.IsSorted(list.Keys) || list.Set && list.Keys != nil || list.Atomic == (list.Set || list.Keys != nil) {
				t.Errorf("%s.%s: %+v", s.Go, f.Name, list)
			}
		}
	}
}

func TestTraits(t *testing.T) {
	service := typeOf(t, "v1", "Service")
	ports := service.Child("spec").Child("ports")
	if ports.ListType() != "map" || !reflect.DeepEqual(ports.Keys, []string{"port", "protocol"}) || !ports.Merge || ports.MergeKey != "port" {
		t.Errorf("ports: %+v", ports)
	}
	if f, _ := ports.Elem.Field("protocol"); f.Default != "TCP" {
		t.Errorf("protocol: %+v", f)
	}
	if ips := service.Child("spec").Child("clusterIPs"); ips.ListType() != "atomic" || ips.Merge {
		t.Errorf("clusterIPs: %+v", ips)
	}
	if labels := service.Child("metadata").Child("labels"); labels.Form != Map || labels.Atomic || labels.Child("any").Form != Text {
		t.Errorf("labels: %+v", labels)
	}
	if finalizers := service.Child("metadata").Child("finalizers"); finalizers.ListType() != "set" || !finalizers.Merge || finalizers.MergeKey != "" {
		t.Errorf("finalizers: %+v", finalizers)
	}
	// The two kinds of endpoint ports have one Go type and are two types.
	core, discovery := typeOf(t, "v1", "Endpoints").Child("subsets").Elem.Child("ports").Elem, typeOf(t, "discovery.k8s.io/v1", "EndpointSlice").Child("ports").Elem
	if core.Name != "io.k8s.api.core.v1.EndpointPort" || discovery.Name != "io.k8s.api.discovery.v1.EndpointPort" {
		t.Errorf("%s %s", core.Name, discovery.Name)
	}
	if event := typeOf(t, "events.k8s.io/v1", "Event"); event.Name != "io.k8s.api.events.v1.Event" || event.Child("regarding").Name != "io.k8s.api.core.v1.ObjectReference" {
		t.Errorf("%s", event.Name)
	}
}

func TestParse(t *testing.T) {
	long := strings.Repeat("[", MaxDepth+2) + strings.Repeat("]", MaxDepth+2)
	for _, test := range []struct{ body, want, err string }{
		{`{"a":[1,2.50,"x",true,null,{}]}`, `{"a":[1,2.50,"x",true,null,{}]}`, ""},
		{` "x" `, `"x"`, ""},
		{"[ -1.5e+3 ,\t{ } ,\r\n[ ] , false ]", `[-1.5e+3,{},[],false]`, ""},
		{`{"a\"\\b":"\u00e9\ud83d\ude00\n\/"}`, "{\"a\\\"\\\\b\":\"é😀\\n/\"}", ""},
		{`12345678901234567890`, `12345678901234567890`, ""},
		{strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), ""},
		{long, "", "line 1, column 66: objects and arrays more than 64 deep"},
		{``, "", "line 1, column 1: could not be parsed: the text ends where a value is expected"},
		{`{"a":`, "", "line 1, column 6: could not be parsed: the text ends where a value is expected"},
		{"{\n\"a\":1", "", "line 2, column 6: could not be parsed: the text ends where a comma or } is expected"},
		{`{"a":1} {}`, "", "there is more after the end of the value"},
		{`{"a":1}]`, "", "there is more after the end of the value"},
		{`{a:1}`, "", `column 2: could not be parsed: 'a' where a key in double quotes is expected`},
		{`{1:1}`, "", `column 2: could not be parsed: '1' where a key in double quotes is expected`},
		{`{"a":1,}`, "", `column 8: could not be parsed: '}' where a key in double quotes is expected`},
		{`[1,]`, "", `column 4: could not be parsed: ']' where a value is expected`},
		{`{"a" 1}`, "", `column 6: could not be parsed: '1' where a colon is expected`},
		{"{\"a\":\"\xff\"}", "", "the body is not valid UTF-8"},
		{`[` + strings.Repeat("1,", maxValues) + `1]`, "", "a document of more than 262144 nodes; split it"},
		{strings.Repeat(" ", MaxBytes+1), "", "the body is 3145729 bytes long: send at most 3145728"},
	} {
		value, _, err := Parse([]byte(test.body))
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%.40q: %v, want %s", test.body, err, test.err)
			}
			continue
		}
		got, _ := json.Marshal(value)
		if err != nil || string(got) != test.want {
			t.Errorf("%q: %s %v", test.body, got, err)
		}
	}
}

func TestParseTellsDuplicates(t *testing.T) {
	value, duplicates, err := ParseObject([]byte(`{"a":1,"spec":{"type":"x","ports":[{"port":1},{"port":1,"name":"a","port":2}],"type":"y"},"a":2}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`duplicate field "spec.ports[1].port"`, `duplicate field "spec.type"`, `duplicate field "a"`}
	if !slices.Equal(duplicates, want) {
		t.Errorf("%q", duplicates)
	}
	if got, _ := json.Marshal(value); string(got) != `{"a":2,"spec":{"ports":[{"port":1},{"name":"a","port":2}],"type":"y"}}` {
		t.Errorf("%s", got)
	}
	// Keys that users choose stand after dots, too, as Kubernetes writes them.
	_, duplicates, err = ParseObject([]byte(`{"metadata":{"labels":{"app":"a","app":"b"}}}`))
	if err != nil || !slices.Equal(duplicates, []string{`duplicate field "metadata.labels.app"`}) {
		t.Errorf("%q %v", duplicates, err)
	}
	if _, _, err := ParseObject([]byte(`[]`)); err == nil {
		t.Error("an array is an object")
	}
}

func TestDecode(t *testing.T) {
	for _, test := range []struct{ name, kind, body, want, warnings string }{
		{"plain", "Service", `{"kind":"Service","spec":{"ports":[{"port":80,"targetPort":"web"}]}}`, `{"kind":"Service","spec":{"ports":[{"port":80,"targetPort":"web"}]}}`, ""},
		{"unknown", "Service", `{"spec":{"bogus":1,"ports":[{"port":80},{"port":81,"wrong":{"a":1}}]},"more":[]}`, `{"spec":{"ports":[{"port":80},{"port":81}]}}`,
			`strict decoding error: unknown field "more", unknown field "spec.bogus", unknown field "spec.ports[1].wrong"`},
		{"case matters", "Service", `{"Spec":{},"metadata":{"Name":"a"}}`, `{"metadata":{}}`, `strict decoding error: unknown field "Spec", unknown field "metadata.Name"`},
		{"duplicate and unknown", "Service", `{"spec":{"type":"a","type":"b","bogus":1}}`, `{"spec":{"type":"b"}}`,
			`strict decoding error: duplicate field "spec.type", unknown field "spec.bogus"`},
		{"null is no field", "Service", `{"metadata":{"creationTimestamp":null,"labels":{"a":null}},"spec":null,"status":{"loadBalancer":{"ingress":null}}}`,
			`{"metadata":{"labels":{"a":""}},"status":{"loadBalancer":{}}}`, ""},
		{"null in lists", "Service", `{"spec":{"externalIPs":[null],"ports":[null]}}`, `{"spec":{"externalIPs":[""],"ports":[{}]}}`, ""},
		{"fields nobody reads", "Service", `{"metadata":{"selfLink":"/x","deletionGracePeriodSeconds":3}}`, `{"metadata":{}}`, ""},
		{"open kinds", "Pod", `{"spec":{"containers":[{"name":"a","env":[{"name":"A"}]}],"volumes":[]},"metadata":{"bogus":1}}`, `{"metadata":{},"spec":{"containers":[{"name":"a"}]}}`,
			`strict decoding error: unknown field "metadata.bogus"`},
		{"managed fields", "Service", `{"metadata":{"managedFields":[{"manager":"a","fieldsV1":{"f:spec":{"k:{\"port\":80}":{".":{}}}}}]}}`,
			`{"metadata":{"managedFields":[{"fieldsV1":{"f:spec":{"k:{\"port\":80}":{".":{}}}},"manager":"a"}]}}`, ""},
		{"bytes", "Secret", `{"data":{"a":"eA=="}}`, `{"data":{"a":"eA=="}}`, ""},
		{"times", "Event", `{"eventTime":"2026-01-02T03:04:05.000006Z","firstTimestamp":"2026-01-02T03:04:05Z"}`, `{"eventTime":"2026-01-02T03:04:05.000006Z","firstTimestamp":"2026-01-02T03:04:05Z"}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			o, warnings, err := Decode([]byte(test.body), typeOf(t, "v1", test.kind))
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := json.Marshal(o); string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			text := ""
			if strict := StrictError(warnings); strict != nil {
				text = strict.Error()
			}
			if text != test.warnings {
				t.Errorf("got  %s\nwant %s", text, test.warnings)
			}
		})
	}
}

func TestDecodeRefusesOtherForms(t *testing.T) {
	for _, test := range []struct{ kind, body, want string }{
		{"Service", `[]`, `json: cannot unmarshal array into Go value of type v1.Service`},
		{"Service", `null`, `json: cannot unmarshal null into Go value of type v1.Service`},
		{"Service", `{"spec":{"ports":[{"port":"x"}]}}`, `json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32`},
		{"Service", `{"spec":{"ports":[{"port":70000000000}]}}`, `json: cannot unmarshal number 70000000000 into Go struct field ServicePort.spec.ports.port of type int32`},
		{"Service", `{"spec":{"ports":[{"port":80.5}]}}`, `json: cannot unmarshal number 80.5 into Go struct field ServicePort.spec.ports.port of type int32`},
		{"Service", `{"spec":{"ports":{}}}`, `json: cannot unmarshal object into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort`},
		{"Service", `{"spec":{"ports":[{"targetPort":true}]}}`, `json: cannot unmarshal bool into Go struct field ServicePort.spec.ports.targetPort of type intstr.IntOrString`},
		{"Service", `{"spec":[]}`, `json: cannot unmarshal array into Go struct field Service.spec of type v1.ServiceSpec`},
		{"Service", `{"spec":{"publishNotReadyAddresses":"yes"}}`, `json: cannot unmarshal string into Go struct field ServiceSpec.spec.publishNotReadyAddresses of type bool`},
		{"Service", `{"metadata":{"labels":{"a":1}}}`, `metadata.labels[a]: expected a text, got the number 1; quote it: "1"`},
		{"Service", `{"metadata":{"annotations":{"b/c":true,"d":5}}}`, `metadata.annotations[b/c]: expected a text, got the bool true; quote it: "true"`},
		{"Secret", `{"stringData":{"password":12345}}`, `stringData[password]: expected a text, got the number; quote it`},
		{"Service", `{"spec":{"selector":{"app":[]}}}`, `spec.selector[app]: expected a text, got the array; quote it`},
		{"Service", `{"metadata":{"labels":[]}}`, `json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string`},
		{"Service", `{"metadata":{"creationTimestamp":"yesterday"}}`, `parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"`},
		{"Service", `{"metadata":{"managedFields":[{"fieldsV1":[]}]}}`, `json: cannot unmarshal array into Go struct field ManagedFieldsEntry.metadata.managedFields.fieldsV1 of type v1.FieldsV1`},
		{"Secret", `{"data":{"a":"%"}}`, `illegal base64 data at input byte 0`},
	} {
		_, _, err := Decode([]byte(test.body), typeOf(t, "v1", test.kind))
		if err == nil || err.Error() != test.want {
			t.Errorf("%s:\n%v\nwant %s", test.body, err, test.want)
		}
	}
}

// The fieldWarnings that are told are bounded.
func TestDoubtsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		b.WriteString(strings.Repeat("x", i+1) + `":1,"`)
	}
	_, warnings, err := Decode([]byte(`{"`+b.String()+`":1}`), typeOf(t, "v1", "Service"))
	if err != nil || len(warnings) != maxStrict {
		t.Errorf("%d fieldWarnings, %v", len(warnings), err)
	}
}

func TestClone(t *testing.T) {
	value, _, _ := Parse([]byte(`{"a":[{"b":1}],"c":{"d":[]}}`))
	c := Clone(value).(map[string]any)
	if !reflect.DeepEqual(c, value) {
		t.Errorf("%v %v", c, value)
	}
	c["a"].([]any)[0].(map[string]any)["b"] = "x"
	if got, _ := json.Marshal(value); string(got) != `{"a":[{"b":1}],"c":{"d":[]}}` {
		t.Errorf("the original is %s", got)
	}
}

// What is read is what package json reads, of what both of them take.
func FuzzParse(f *testing.F) {
	for _, body := range []string{`{"a":[1,2.50,"x",true,null,{}],"a":{"\u0041":-0}}`, ` [ "\\\"" , 1E9 ] `, `"\ud800"`, `{"a":1}{}`, `[1,]`, "\"\x7f\u2028\""} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, _, err := Parse(body)
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		var want any
		bad := !json.Valid(body) || d.Decode(&want) != nil
		if err != nil && (bad || !utf8.Valid(body) || strings.Contains(err.Error(), " deep") || strings.Contains(err.Error(), "more than")) {
			return
		}
		if bad || err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q is %#v (%v), want %#v", body, got, err, want)
		}
	})
}

// Whatever is decoded can be put into its Go type, and is what it is when it is decoded
// again.
func FuzzDecode(f *testing.F) {
	for _, body := range []string{
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","labels":{"a":null},"creationTimestamp":null,"managedFields":[{"fieldsV1":{"f:a":{}},"time":"2026-01-02T03:04:05Z"}]},"spec":{"ports":[{"port":80,"targetPort":"x"},null],"bogus":{"a":[1]}}}`,
		`{"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1",null],"conditions":{"ready":true},"hints":{"forZones":[{"name":"a"}]}}],"ports":null}`,
		`{"spec":{"containers":[{"ports":[{"containerPort":1}]}],"x":1},"status":{"podIPs":[{"ip":"a"}]}}`,
		`{"data":{"a":"eA==","a":null},"eventTime":"2026-01-02T03:04:05.1Z","series":{"count":1e3}}`,
		`{"spec":{"acquireTime":"2026-01-02T03:04:05.000006Z","leaseTransitions":-1}}`, `[`, `{"a":{"a":{"a":[[[`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, k := range kind.All() {
			o, _, err := Decode(body, Of(k))
			if err != nil {
				continue
			}
			b, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			typed, same := k.New(), k.New()
			if err := json.Unmarshal(b, typed); err != nil {
				t.Fatalf("%s: %s: %v", k.Name, b, err)
			}
			if err := Of(k).ToObject(o, same); err != nil || !reflect.DeepEqual(same, typed) {
				t.Fatalf("%s: %s is %#v, want %#v (%v)", k.Name, b, same, typed, err)
			}
			mustAgree(t, typed, k)
			again, warnings, err := Decode(b, Of(k))
			if err != nil || len(warnings) > 0 || !reflect.DeepEqual(again, o) {
				t.Fatalf("%s: %s again is %v %q %v", k.Name, b, again, warnings, err)
			}
		}
	})
}

// documented are the names that fields.txt has a text for.
func documented(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../object/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name := strings.TrimSpace(line); name != "" && !strings.HasPrefix(line, " ") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Error("fields.txt documents nothing")
	}
	return names
}
