package reread

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// Header is embedded, as TypeMeta is in objects.
type Header struct {
	Kind    string `json:"kind,omitempty"`
	Version string `json:"version,omitempty"`
}

type port struct {
	Name   *string `json:"name,omitempty"`
	Number int32   `json:"number"`
	Ready  *bool   `json:"ready,omitempty"`
}

// sample has a field of every sort that objects have.
type sample struct {
	Header
	Labels   map[string]string `json:"labels,omitempty"`
	Selector map[string]string `json:"selector,omitempty"`
	Data     map[string][]byte `json:"data,omitempty"`
	Asked    map[string]uint64 `json:"asked,omitempty"`
	Created  uint64            `json:"created,omitempty"`
	Since    *time.Time        `json:"since,omitempty"`
	Until    time.Time         `json:"until,omitzero"`
	Ports    []port            `json:"ports"`
	Names    []string          `json:"names,omitempty"`
	Hash     []byte            `json:"hash,omitempty"`
	Raw      json.RawMessage   `json:"raw,omitempty"`
	Small    int8              `json:"small,omitempty"`
	Ratio    float64           `json:"ratio,omitempty"`
	Ready    bool              `json:"ready,omitempty"`
	Inner    *sample           `json:"inner,omitempty"`
	List     []sample          `json:"list,omitempty"`
}

func at1(text string) *string { return &text }

func samples() []sample {
	since := time.Date(2025, 3, 14, 9, 26, 53, 0, time.UTC)
	no := false
	full := sample{
		Header: Header{"Service", "v1"}, Labels: map[string]string{"app": "web", "tier": "back"}, Selector: map[string]string{"app": "web", "tier": "back"},
		Data: map[string][]byte{"key": []byte("\x00\xff")}, Asked: map[string]uint64{"tcp/80": 7}, Created: 1<<53 + 1, Since: &since, Until: since,
		Ports: []port{{at1("http"), 80, &no}, {nil, -1, nil}}, Names: []string{"a", "", "<&>\u2028\t\"\\\x01é世\U0001f600"},
		Hash: []byte{1, 2, 3}, Raw: json.RawMessage(`{"f:spec":{"a":[1,"]}"]}}`), Small: -128, Ratio: -1.5e-9, Ready: true,
	}
	several := make([]port, 40)
	return []sample{
		{}, full, {Inner: &full, List: []sample{full, {}, {List: []sample{{Names: []string{"deep"}}, full}}}},
		{Ports: []port{}, Labels: map[string]string{}, Names: []string{}}, {Ports: several},
		{Labels: map[string]string{"": ""}},
	}
}

// What encoding/json wrote is read here, and comes to the same.
func TestInto(t *testing.T) {
	for _, s := range samples() {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var want, got sample
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if !Into(text, &got) {
			t.Errorf("not read: %s", text)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ncomes to %+v\nwant     %+v", text, got, want)
		}
	}
}

// An interface that holds a pointer is followed.
func TestIntoInterface(t *testing.T) {
	type envelope struct {
		Owner  string `json:"owner"`
		Object any    `json:"object"`
	}
	got := envelope{Object: &Header{}}
	if !Into([]byte(`{"owner":"a","object":{"kind":"Service"}}`), &got) || got.Object.(*Header).Kind != "Service" || got.Owner != "a" {
		t.Errorf("%+v", got)
	}
	if got = (envelope{}); Into([]byte(`{"owner":"a","object":{"kind":"Service"}}`), &got) {
		t.Errorf("read into nothing: %+v", got)
	}
}

// Texts and mappings that are there again are held once, also from one value to the next.
func TestShared(t *testing.T) {
	text := []byte(`{"labels":{"app":"web"},"selector":{"app":"web"},"ports":[{"name":"http","number":1},{"name":"http","number":2}],"names":["web"]}`)
	var a, b sample
	if !Into(text, &a) {
		t.Fatal("not read")
	}
	if reflect.ValueOf(a.Labels).Pointer() != reflect.ValueOf(a.Selector).Pointer() {
		t.Error("two mappings of the same")
	}
	if a.Ports[0].Name != a.Ports[1].Name || unsafe.StringData(a.Names[0]) != unsafe.StringData(a.Labels["app"]) {
		t.Error("two texts of the same")
	}
	if !Into(text, &b) || reflect.ValueOf(a.Labels).Pointer() == reflect.ValueOf(b.Labels).Pointer() {
		t.Error("two values have one mapping")
	}
}

// What encoding/json would not have written is left to it.
func TestLeavesAlone(t *testing.T) {
	for _, text := range []string{
		``, `null`, ` {}`, `{} `, `{"kind": "a"}`, `{"kind":"a",}`, `{"version":"a","kind":"b"}`, `{"kind":"a","kind":"b"}`, `{"Kind":"a"}`, `{"unknown":1}`,
		`{"labels":{"b":"","a":""}}`, `{"labels":{"a":"","a":""}}`, `{"labels":{"a":1}}`, `{"labels":[]}`, `{"ports":{}}`, `{"ports":[1]}`, `{"ports":[{"number":1.0}]}`,
		`{"ports":[{"number":1e3}]}`, `{"ports":[{"number":01}]}`, `{"ports":[{"number":3000000000}]}`, `{"ports":[{"number":-}]}`, `{"small":128}`, `{"small":-129}`,
		`{"created":-1}`, `{"created":1000000000000000000}`, `{"kind":"\ud800"}`, `{"kind":"\x"}`, `{"kind":"` + "\x01" + `"}`, `{"kind":"` + "\xff" + `"}`, `{"kind":"a`, `{"kind":"a\`,
		`{"ready":1}`, `{"since":"yesterday"}`, `{"since":}`, `{"raw":[}`, `{"ports":[{},]}`, `{"ports":[`, `{"hash":"*"}`, `{"ratio":"1"}`,
	} {
		if got := (sample{}); Into([]byte(text), &got) {
			t.Errorf("%s comes to %+v", text, got)
		}
	}
}

// Whatever is read comes to what encoding/json makes of it.
func FuzzInto(f *testing.F) {
	for _, s := range samples() {
		text, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add([]byte(strings.ReplaceAll(string(text), `"`, `" `)))
	}
	f.Add([]byte(`{"raw":{"a":"\"}"},"ratio":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got sample
		if !Into(text, &got) {
			return
		}
		if err := json.Unmarshal(text, &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s\ncomes to %+v\nwant     %+v, %v", text, got, want, err)
		}
	})
}
