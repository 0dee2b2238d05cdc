package manifest

import (
	"testing"

	"svcctl.io/svcctl/store/object"
)

// Pointers to the same small values are one, also in different files; those of Secrets and to others are not.
func TestPointersAreShared(t *testing.T) {
	const text = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}, addressType: IPv4, ports: [{name: http, port: 1}],
endpoints: [{addresses: [10.0.0.1], nodeName: worker-1, conditions: {ready: true, serving: true}}, {addresses: [10.0.0.2], nodeName: worker-2, conditions: {ready: false}}]}`
	slice := func() *object.EndpointSlice {
		f := Decode("a.yaml", []byte(text), DefaultLimits())
		if len(f.Documents) != 1 || len(f.Problems) > 0 {
			t.Fatalf("%+v", f)
		}
		return f.Documents[0].Object.(*object.EndpointSlice)
	}
	a := slice()
	one, two := a.Endpoints[0], a.Endpoints[1]
	if *one.NodeName != "worker-1" || *two.NodeName != "worker-2" || !*one.Conditions.Ready || *two.Conditions.Ready || two.Conditions.Serving != nil || *a.Ports[0].Name != "http" {
		t.Errorf("decoded: %+v", a)
	}
	if one.Conditions.Ready != one.Conditions.Serving || one.Conditions.Ready == two.Conditions.Ready {
		t.Error("a bool is held twice, or two are one")
	}
	b := object.DeepCopy(a)
	if *b.Endpoints[0].NodeName = "other"; *one.NodeName != "worker-1" {
		t.Error("a copy shares a pointer")
	}
}
