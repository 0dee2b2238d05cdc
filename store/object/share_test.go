package object

import (
	"maps"
	"reflect"
	"testing"
	"unsafe"
)

const kubectlSlice = `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"web-1","namespace":"shop",
"labels":{"kubernetes.io/service-name":"web","app":"web"},"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"web","uid":"1"}]},
"addressType":"IPv4","ports":[{"name":"http","protocol":"TCP","port":9376}],"endpoints":[
{"addresses":["10.4.5.6"],"nodeName":"worker-1","zone":"a","targetRef":{"kind":"Pod","namespace":"shop","name":"web-a","uid":"2"}},
{"addresses":["10.4.5.7"],"nodeName":"worker-1","zone":"a","targetRef":{"kind":"Pod","namespace":"shop","name":"web-b","uid":"3"}},
{"addresses":["10.4.5.8"],"conditions":{"ready":false}},{"addresses":["10.4.5.9"]},{"addresses":["10.4.5.10"]}]}`

// isOne reports whether two texts are held once.
func isOne(a, b string) bool { return a == b && unsafe.StringData(a) == unsafe.StringData(b) }

// Sharing texts changes nothing about an object.
func TestShareKeepsWhatIsSaid(t *testing.T) {
	for _, document := range append(documents(), kubectlSlice) {
		o, want := decodeDocument(t, document), decodeDocument(t, document)
		Share(o)
		if !reflect.DeepEqual(o, want) {
			t.Errorf("%s\nwas: %s", toJSON(t, o), toJSON(t, want))
		}
	}
}

func TestShare(t *testing.T) {
	a, b := decodeDocument(t, kubectlSlice).(*EndpointSlice), decodeDocument(t, kubectlSlice).(*EndpointSlice)
	Share(a)
	Share(b)
	for name, texts := range map[string][2]string{
		"namespace": {a.Metadata.Namespace, b.Metadata.Namespace},
		"of a Pod":  {a.Metadata.Namespace, b.Endpoints[1].TargetRef.Namespace},
		"kind":      {a.Endpoints[0].TargetRef.Kind, b.Endpoints[1].TargetRef.Kind},
		"node":      {*a.Endpoints[0].NodeName, *b.Endpoints[1].NodeName},
		"protocol":  {*a.Ports[0].Protocol, *b.Ports[0].Protocol},
		"own name":  {a.Metadata.Labels["app"], a.Metadata.Labels[LabelServiceName]},
	} {
		if !isOne(texts[0], texts[1]) {
			t.Errorf("%s: %q and %q are held apart", name, texts[0], texts[1])
		}
	}
	for key := range a.Metadata.Labels {
		for other := range b.Metadata.Labels {
			if key == other && !isOne(key, other) {
				t.Errorf("the key %s is held twice", key)
			}
		}
	}
	if len(a.Endpoints) != 5 || cap(a.Endpoints) != 5 {
		t.Errorf("%d endpoints, and room for %d", len(a.Endpoints), cap(a.Endpoints))
	}
	svc := decodeDocument(t, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"selector":{"app":"web"}}}`).(*Service)
	Share(svc)
	if reflect.ValueOf(svc.Metadata.Labels).Pointer() != reflect.ValueOf(svc.Spec.Selector).Pointer() {
		t.Errorf("labels %v and the selector %v are two maps", svc.Metadata.Labels, svc.Spec.Selector)
	}
	// A copy is still one of its own.
	c := DeepCopy(svc)
	if delete(c.Spec.Selector, "app"); !maps.Equal(svc.Metadata.Labels, map[string]string{"app": "web"}) || len(c.Metadata.Labels) != 1 {
		t.Errorf("labels %v, of the copy %v", svc.Metadata.Labels, c.Metadata.Labels)
	}
}
