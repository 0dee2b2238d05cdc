package protobuf

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// A sample is an object that Kubernetes' own serializers (v0.36) wrote in both forms.
type sample struct {
	kind string
	body []byte // in protobuf
	json []byte
}

func samples(t testing.TB) []sample {
	t.Helper()
	content, err := os.ReadFile("testdata/objects.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []sample
	for line := range strings.Lines(string(content)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 4)
		body, err := hex.DecodeString(parts[2])
		if err != nil || len(parts) != 4 {
			t.Fatalf("%.60s: %v", line, err)
		}
		all = append(all, sample{parts[1], body, []byte(parts[3])})
	}
	return all
}

// typeOf is the type of what is in an envelope, and an empty value of its Go type.
func typeOf(e Envelope) (*schema.Type, any) {
	if e.Kind == "DeleteOptions" {
		return schema.DeleteOptions(), new(object.DeleteOptions)
	}
	k, ok := kind.ByName(e.APIVersion, e.Kind)
	if !ok {
		return nil, nil
	}
	return schema.Of(k), k.New()
}

// An object is the same in protobuf and in JSON.
func TestSamples(t *testing.T) {
	seen := map[*schema.Type]bool{}
	for _, s := range samples(t) {
		e, err := Open(s.body)
		if err != nil {
			t.Fatal(err)
		}
		of, got := typeOf(e)
		_, want := typeOf(e)
		if of == nil {
			t.Fatalf("%s of %s is no kind", e.Kind, e.APIVersion)
		}
		seen[of] = true
		o, err := e.Object(of)
		if err != nil {
			t.Fatalf("%s: %v", s.json, err)
		}
		fromJSON, _, err := schema.Decode(s.json, of)
		if err != nil {
			t.Fatal(err)
		}
		for value, into := range map[any]map[string]any{got: o, want: fromJSON} {
			b, _ := json.Marshal(into)
			if err := json.Unmarshal(b, value); err != nil {
				t.Fatalf("%s: %v", b, err)
			}
		}
		if !reflect.DeepEqual(got, want) {
			a, _ := json.Marshal(got)
			b, _ := json.Marshal(want)
			t.Errorf("%s:\nprotobuf %s\nJSON     %s", s.kind, a, b)
		}
	}
	for _, k := range kind.All() {
		if !k.Custom && !seen[schema.Of(k)] {
			t.Errorf("there is no sample of %s %s", k.APIVersion(), k.Name)
		}
	}
}

// Every field of every kind has a number.
func TestNumbersAreComplete(t *testing.T) {
	used := map[string]bool{}
	var walk func(of *schema.Type)
	walk = func(of *schema.Type) {
		name := messageName(of)
		if used[name] {
			return
		}
		used[name] = true
		numbered := map[string]bool{}
		number := func(name string) {
			for _, field := range numbers()[name] {
				numbered[field] = true
				if _, ok := of.Field(field); !ok {
					t.Errorf("%s has no field %s", name, field)
				}
			}
		}
		number(name)
		for _, inner := range inline[name] {
			used[inner] = true
			number(inner)
		}
		for _, f := range of.Fields {
			isTypeMeta := f.Name == "kind" || f.Name == "apiVersion"
			if !numbered[f.Name] && !isTypeMeta {
				t.Errorf("%s.%s has no number", name, f.Name)
			}
			for inner := f.Type; inner != nil; inner = inner.Elem {
				if inner.Form == schema.Structure {
					walk(inner)
				}
			}
		}
	}
	for _, k := range kind.All() {
		if !k.Custom {
			walk(schema.Of(k))
		}
	}
	walk(schema.DeleteOptions())
	for name := range numbers() {
		if !used[name] {
			t.Errorf("%s is numbered and not there", name)
		}
	}
}

// envelope puts a message into one.
func envelope(apiVersion, kind string, raw []byte) []byte {
	var meta, b []byte
	meta = protowire.AppendString(protowire.AppendTag(meta, typeMetaAPIVersion, protowire.BytesType), apiVersion)
	meta = protowire.AppendString(protowire.AppendTag(meta, typeMetaKind, protowire.BytesType), kind)
	b = protowire.AppendBytes(protowire.AppendTag(b, unknownTypeMeta, protowire.BytesType), meta)
	b = protowire.AppendBytes(protowire.AppendTag(b, unknownRaw, protowire.BytesType), raw)
	return append(bytes.Clone(magic), b...)
}

// field is one field of a message that holds another one, or text.
func field(n protowire.Number, content ...byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), content)
}

func number(n protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), value)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestObject(t *testing.T) {
	const spec, status = 2, 3
	for _, test := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"nothing", nil, `{"apiVersion":"v1","kind":"Service"}`},
		{"zero values are no fields", field(spec, join(field(4), field(3), number(13, 0), number(12, 0), field(1, join(number(3, 0), number(5, 0), field(4, number(2, 0)...))...))...),
			`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":0}]}}`},
		{"pointers to zero are", field(spec, join(field(17), number(20, 0))...), `{"apiVersion":"v1","kind":"Service","spec":{"allocateLoadBalancerNodePorts":false,"ipFamilyPolicy":""}}`},
		{"a zero time is none", field(1, join(field(8), field(9, number(1, 1)...))...), `{"apiVersion":"v1","kind":"Service","metadata":{"deletionTimestamp":"1970-01-01T00:00:01Z"}}`},
		{"maps", field(spec, join(field(2, join(field(1, 'a'), field(2, 'b'))...), field(2, field(1, 'c')...), field(2, field(2, 'd')...))...),
			`{"apiVersion":"v1","kind":"Service","spec":{"selector":{"":"d","a":"b","c":""}}}`},
		{"numbers and names", field(spec, join(field(1, field(4, join(number(1, 1), field(3, 'w'))...)...), field(1, field(4, number(2, 81)...)...))...),
			`{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"targetPort":"w"},{"targetPort":81}]}}`},
		{"an empty name is not 0", field(spec, field(1, field(4, number(1, 1)...)...)...), `{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"targetPort":""}]}}`},
		{"numbers of 32 bits", field(spec, join(field(1, number(3, 0xffffffff)...), field(1, number(3, 1<<32+80)...))...), `{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":-1},{"port":80}]}}`},
		{"negative numbers", field(spec, field(1, number(3, 0xffffffffffffffff)...)...), `{"apiVersion":"v1","kind":"Service","spec":{"ports":[{"port":-1}]}}`},
		{"a message in parts", join(field(spec, field(4, 'x')...), field(spec, field(3, 'y')...)), `{"apiVersion":"v1","kind":"Service","spec":{"clusterIP":"y","type":"x"}}`},
		{"unknown fields", join(number(1000, 1), field(spec, join(field(999, 1, 2, 3), protowire.AppendFixed32(protowire.AppendTag(nil, 7000, protowire.Fixed32Type), 1))...), field(status)),
			`{"apiVersion":"v1","kind":"Service","spec":{},"status":{}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, err := Open(envelope("v1", "Service", test.raw))
			if err != nil {
				t.Fatal(err)
			}
			of, _ := typeOf(e)
			o, err := e.Object(of)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := json.Marshal(o); string(got) != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	const spec, metadata = 2, 1
	for _, test := range []struct {
		name string
		body []byte
		want string
	}{
		{"JSON", []byte(`{"kind":"Service"}`), "expected prefix [107 56 115 0]"},
		{"nothing", nil, "expected prefix [107 56 115 0]"},
		{"too long", make([]byte, schema.MaxBytes+1), "send at most 3145728"},
		{"an envelope that is cut off", envelope("v1", "Service", []byte("abc"))[:20], "protobuf envelope: malformed"},
		{"an encoding", append(envelope("v1", "Service", nil), field(unknownEncoding, 'g')...), `content encoding "g" is not read`},
		{"a message that is cut off", envelope("v1", "Service", []byte{0x12, 0x7f}), "protobuf of Service: malformed"},
		{"a group", envelope("v1", "Service", []byte{0x0b, 0x0c}), "is a group"},
		{"text that is none", envelope("v1", "Service", field(spec, field(4, 0xff)...)), "spec: type: not valid UTF-8"},
		{"another wire type", envelope("v1", "Service", field(spec, field(13, 1)...)), "spec: publishNotReadyAddresses: malformed: wire type 2, expected 0"},
		{"a number for a message", envelope("v1", "Service", number(spec, 1)), "spec: malformed: wire type 0, expected 2"},
		{"a time that cannot be written", envelope("v1", "Service", field(metadata, field(8, number(1, 1<<62)...)...)), "cannot be written"},
		{"managed fields that are no JSON", envelope("v1", "Service", field(metadata, field(17, field(7, field(1, '{')...)...)...)), "the text ends where a key in double quotes is expected"},
		{"too many values", envelope("v1", "Service", field(spec, bytes.Repeat(field(9), maxValues+1)...)), "more than 262144 values"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, err := Open(test.body)
			if err == nil {
				of, _ := typeOf(e)
				_, err = e.Object(of)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

// Whatever is read is pruned and can be put into its Go type.
func FuzzObject(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s.body)
	}
	f.Add(envelope("v1", "Service", []byte{0x12, 0x7f}))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Open(body)
		if err != nil {
			return
		}
		of, value := typeOf(e)
		if of == nil {
			return
		}
		o, err := e.Object(of)
		if err != nil {
			return
		}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, value); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if unknown, err := of.Prune(o); err != nil || len(unknown) > 0 {
			t.Fatalf("%s: %q %v", b, unknown, err)
		}
		if again, _ := json.Marshal(o); !bytes.Equal(again, b) {
			t.Fatalf("%s was not pruned: %s", b, again)
		}
	})
}
