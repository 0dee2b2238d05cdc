package manifest_test

import (
	"testing"
	"unsafe"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// TestTextsAreHeldOnce: a text that several documents have is in memory once.
func TestTextsAreHeldOnce(t *testing.T) {
	const one = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: of-all}\nspec: {ports: [{name: of-both, port: 80}]}\n"
	f := manifest.Decode("two.yaml", []byte(one+"---\n"+one), manifest.DefaultLimits())
	if len(f.Documents) != 2 {
		t.Fatalf("%d documents: %v", len(f.Documents), f.Err)
	}
	var texts [2]string
	for i := range texts {
		texts[i] = f.Documents[i].Object.(*object.Service).Spec.Ports[0].Name
	}
	if texts[0] != "of-both" || unsafe.StringData(texts[0]) != unsafe.StringData(texts[1]) {
		t.Errorf("the names of the ports are %q, in two places", texts)
	}
}
