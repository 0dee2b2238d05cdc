package manifest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/store/object"
)

func TestEncodeYAML(t *testing.T) {
	got, err := EncodeYAML(web())
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: v1
kind: Service
metadata:
  name: web
  labels:
    app: web
spec:
  ports:
  - name: http
    port: 80
    targetPort: 8080
  selector:
    app: web
status:
  loadBalancer: {}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// encodeJSON writes an object as indented JSON.
func encodeJSON(o object.Object) ([]byte, error) { return json.MarshalIndent(o, "", "  ") }

// TestEncodedTextStaysText sees that no text changes its type on the way through YAML,
// whichever of its versions the reader speaks.
func TestEncodedTextStaysText(t *testing.T) {
	texts := []string{"", " ", "yes", "No", "on", "y", "N", "true", "null", "~", "1", "010", "0x1", "1e3", "1_000", ".5", "+1", ".inf",
		"2001-01-01", "12:30:45", "a: b", "#a", "a #b", "- a", "<<", "*a", "&a", "!a", "%a", "@a", "`a", "{a", "[a", "\"", "'", "a\nb\n",
		"\t", "a\x00b", "é", "\u2028", "---", "...", "a,b", "<&>", strings.Repeat("long ", 100)}
	s := web()
	for i, text := range texts {
		s.Metadata.Labels[text] = text
		s.Metadata.Finalizers = append(s.Metadata.Finalizers, texts[len(texts)-1-i])
	}
	delete(s.Metadata.Labels, "") // not a key that any reader agrees about
	for name, encode := range map[string]func(object.Object) ([]byte, error){"a.yaml": EncodeYAML, "a.json": encodeJSON} {
		data, err := encode(s)
		if err != nil {
			t.Fatal(err)
		}
		f := Decode(name, data, Limits{})
		if len(messages(f)) > 0 {
			t.Errorf("%q in\n%s", messages(f), data)
		} else if diff := cmp.Diff(object.Object(s), f.Documents[0].Object); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	data, _ := EncodeYAML(s)
	for _, plain := range []string{": yes\n", ": on\n", "\n    yes:", "- y\n", ": 010\n", ": 2001-01-01\n", ": 12:30:45\n"} {
		if strings.Contains(string(data), plain) {
			t.Errorf("%q is not quoted", plain)
		}
	}
}

// TestEncodeSamples writes every sample and every kind, and reads it back.
func TestEncodeSamples(t *testing.T) {
	created, port, ready, zone := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC), int32(8080), true, "zone-a"
	all := []object.Object{
		&object.EndpointSlice{
			TypeMeta: object.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
			Metadata: object.ObjectMeta{Name: "web-1", CreationTimestamp: &created}, AddressType: "IPv4",
			Endpoints: []object.Endpoint{{Addresses: []string{"10.0.0.1"}, Zone: &zone, Conditions: object.EndpointConditions{Ready: &ready},
				Hints: &object.EndpointHints{ForZones: []object.ForZone{{Name: zone}}}}},
			Ports: []object.EndpointPort{{Port: &port}},
		},
		&object.Endpoints{
			TypeMeta: object.TypeMeta{Kind: "Endpoints", APIVersion: "v1"}, Metadata: object.ObjectMeta{Name: "web"},
			Subsets: []object.EndpointSubset{{Addresses: []object.EndpointAddress{{IP: "10.0.0.1", TargetRef: &object.ObjectReference{Kind: "Pod"}}},
				Ports: []object.EndpointPort{{Port: &port}}}},
		},
	}
	eachFile(t, func(path string, data []byte) { all = append(all, objects(t, path, string(data))...) }, "testdata/samples/*")
	for _, o := range all {
		for name, encode := range map[string]func(object.Object) ([]byte, error){"a.yaml": EncodeYAML, "a.json": encodeJSON} {
			data, err := encode(o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]object.Object{o}, objects(t, name, string(data))); diff != "" {
				t.Errorf("%s: -want +got:\n%s\n%s", name, diff, data)
			}
		}
	}
}
