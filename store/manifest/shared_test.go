package manifest_test

import (
	"strings"
	"testing"
	"unsafe"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// TestTextsAreHeldOnce: a text that several documents have is in memory once. A long one is not: it would stay in memory after them.
func TestTextsAreHeldOnce(t *testing.T) {
	one := "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: of-all, annotations: {long: '" + strings.Repeat("a", 254) + "'}}\n" +
		"spec: {ports: [{name: of-both, port: 80}]}\n"
	f := manifest.Decode("two.yaml", []byte(one+"---\n"+strings.Replace(one, "name: a", "name: b", 1)), manifest.DefaultLimits())
	if len(f.Documents) != 2 {
		t.Fatalf("%d documents: %v", len(f.Documents), f.Err)
	}
	var texts, long [2]string
	for i := range texts {
		svc := f.Documents[i].Object.(*object.Service)
		texts[i], long[i] = svc.Spec.Ports[0].Name, svc.Metadata.Annotations["long"]
	}
	if len(long[0]) != 254 || unsafe.StringData(long[0]) == unsafe.StringData(long[1]) {
		t.Errorf("a text of %d bytes is held once", len(long[0]))
	}
	if texts[0] != "of-both" || unsafe.StringData(texts[0]) != unsafe.StringData(texts[1]) {
		t.Errorf("the names of the ports are %q, in two places", texts)
	}
}
