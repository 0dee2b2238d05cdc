package managedfields

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// asObject is the object of a document in JSON.
func asObject(t *testing.T, name, body string) object.Object {
	t.Helper()
	k, ok := kind.ByName("v1", name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	content, fieldWarnings, err := schema.Decode([]byte(body), schema.Of(k))
	if err != nil || len(fieldWarnings) > 0 {
		t.Fatalf("%s: %q %v", body, fieldWarnings, err)
	}
	o := k.New()
	if err := schema.Of(k).ToObject(content, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// The status of a Service belongs to the appliance, that of a Pod to its file.
func TestStatusInAFile(t *testing.T) {
	const status = `{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}`
	live := asObject(t, object.KindService, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},"spec":{"ports":[{"port":80}]},"status":`+status+`}`)
	document := asObject(t, object.KindService, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},"spec":{"ports":[{"port":80}]},
		"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}}`)
	merged, err := MergeFile(live, document, clock)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, merged.(*object.Service).Status); got != status {
		t.Errorf("the status of the Service is %s, want %s", got, status)
	}
	entries := merged.GetMeta().ManagedFields
	if len(entries) == 0 || entries[0].Manager != FileManager || !strings.Contains(string(entries[0].FieldsV1), "f:spec") {
		t.Fatalf("the file does not manage the spec: %s", text(t, entries))
	}
	for _, e := range entries {
		if e.Manager == FileManager && strings.Contains(string(e.FieldsV1), "f:status") {
			t.Errorf("the file manages the status: %s", e.FieldsV1)
		}
	}

	live = asObject(t, object.KindPod, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"status":{"podIP":"192.0.2.1"}}`)
	document = asObject(t, object.KindPod, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"status":{"podIP":"192.0.2.2"}}`)
	if merged, err = MergeFile(live, document, clock); err != nil {
		t.Fatal(err)
	}
	if got := merged.(*object.Pod).Status.PodIP; got != "192.0.2.2" {
		t.Errorf("the Pod has address %s, its file says 192.0.2.2", got)
	}
}
