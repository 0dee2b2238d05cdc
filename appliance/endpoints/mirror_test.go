package endpoints

import (
	"fmt"
	"slices"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// handmade makes an Endpoints object with one port, 9376.
func (w *world) handmade(name string, ready, unready []string, changes ...func(*object.Endpoints)) {
	w.t.Helper()
	o := &object.Endpoints{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpoints, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: name, Namespace: "default"},
	}
	subset := object.EndpointSubset{Ports: []object.EndpointPort{{Port: new(int32(9376))}}}
	for _, ip := range ready {
		subset.Addresses = append(subset.Addresses, object.EndpointAddress{IP: ip})
	}
	for _, ip := range unready {
		subset.NotReadyAddresses = append(subset.NotReadyAddresses, object.EndpointAddress{IP: ip})
	}
	o.Subsets = []object.EndpointSubset{subset}
	for _, change := range changes {
		change(o)
	}
	w.put(o, false)
}

// Behavior 116.
func TestMirror(t *testing.T) {
	w := newWorld(t)
	w.service("web", selectorless)
	w.handmade("web", []string{"1.2.3.4", "fd00::1"}, []string{"1.2.3.5"}, func(o *object.Endpoints) {
		o.Metadata.Labels = map[string]string{"team": "blue", object.LabelManagedBy: "x"}
		o.Metadata.Annotations = map[string]string{"note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
		o.Subsets[0].Addresses[0].NodeName, o.Subsets[0].Addresses[0].Hostname = new("gw1"), "one"
	})
	w.update()
	w.want("web", "IPv4 /TCP/9376: 1.2.3.4 1.2.3.5!", "IPv6 /TCP/9376: fd00::1")
	_, parts, _ := w.Service("default/web")
	part := parts[slices.IndexFunc(parts, func(p *object.EndpointSlice) bool { return p.AddressType == object.IPv4 })]
	meta := part.Metadata
	if meta.Labels[object.LabelManagedBy] != managedByMirror || meta.Labels[object.LabelServiceName] != "web" || meta.Labels["team"] != "blue" ||
		len(meta.Annotations) != 1 || meta.Annotations["note"] != "x" {
		t.Errorf("%+v", meta)
	}
	if owner := meta.OwnerReferences[0]; owner.Kind != object.KindEndpoints || owner.Name != "web" || owner.UID != "endpoints-web" {
		t.Errorf("%+v", owner)
	}
	e := part.Endpoints[0]
	if object.Deref(e.NodeName) != "gw1" || object.Deref(e.Hostname) != "one" || e.Conditions.Serving != nil || e.Conditions.Terminating != nil {
		t.Errorf("%+v", e)
	}
	w.restart()
	w.handmade("web", []string{"1.2.3.5"}, nil)
	w.update()
	w.want("web", "IPv4 /TCP/9376: 1.2.3.5")
	w.problems()

	for _, way := range []struct {
		name      string
		off, back func()
	}{
		{"skip-mirror", func() {
			w.handmade("web", []string{"1.2.3.5"}, nil, func(o *object.Endpoints) { o.Metadata.Labels = map[string]string{labelSkipMirror: "true"} })
		}, func() { w.handmade("web", []string{"1.2.3.5"}, nil) }},
		{"no Service", func() { w.remove(object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"}) },
			func() { w.service("web", selectorless) }},
		{"no Endpoints", func() { w.remove(object.Ref{Kind: object.KindEndpoints, Namespace: "default", Name: "web"}) },
			func() { w.handmade("web", []string{"1.2.3.5"}, nil) }},
	} {
		way.off()
		w.update()
		if got := w.parts("web"); len(got) > 0 {
			t.Errorf("%s: %s", way.name, got)
		}
		w.restart()
		way.back()
		w.update()
		w.want("web", "IPv4 /TCP/9376: 1.2.3.5")
	}
	w.service("web")
	w.update()
	w.want("web", "IPv4 :")
	w.service("web", selectorless)
	w.update()
	w.want("web", "IPv4 /TCP/9376: 1.2.3.5")
	w.restart()
}

func TestMirrorOfSubsets(t *testing.T) {
	w := newWorld(t)
	w.service("web", selectorless)
	w.handmade("web", []string{"1.2.3.4"}, []string{"1.2.3.4"}, func(o *object.Endpoints) {
		same, other := o.Subsets[0], o.Subsets[0]
		same.Addresses, same.NotReadyAddresses = []object.EndpointAddress{{IP: "1.2.3.6"}}, nil
		other.Ports = []object.EndpointPort{{Name: new("b"), Port: new(int32(2))}, {Name: new("a"), Port: new(int32(1)), Protocol: new("UDP")}}
		o.Subsets = append(o.Subsets, same, other)
	})
	w.update()
	w.want("web", "IPv4 /TCP/9376: 1.2.3.4 1.2.3.6", "IPv4 a/UDP/1 b/TCP/2: 1.2.3.4")
	w.restart()
}

// One that is ready in any of the subsets is ready.
func TestMirrorOfContradictions(t *testing.T) {
	w := newWorld(t)
	w.service("web", selectorless)
	w.handmade("web", []string{"1.2.3.4"}, []string{"1.2.3.5"}, func(o *object.Endpoints) {
		other := o.Subsets[0]
		other.Addresses, other.NotReadyAddresses = []object.EndpointAddress{{IP: "1.2.3.5"}}, []object.EndpointAddress{{IP: "1.2.3.4"}}
		o.Subsets = append(o.Subsets, other)
	})
	w.update()
	w.want("web", "IPv4 /TCP/9376: 1.2.3.4 1.2.3.5")
}

func TestMirrorOfMany(t *testing.T) {
	w := newWorld(t)
	w.service("web", selectorless)
	var all []string
	for i := range 1000 {
		all = append(all, podIP(i))
	}
	w.handmade("web", all, nil)
	w.update()
	if got := w.sizes("web"); len(got) != 10 || got[9] != 100 {
		t.Errorf("1000 addresses: %v", got)
	}
	// More than validation lets in today.
	ref := object.Ref{Kind: object.KindEndpoints, Namespace: "default", Name: "web"}
	o := object.DeepCopy(w.objects[ref]).(*object.Endpoints)
	o.Subsets[0].Addresses = append(o.Subsets[0].Addresses, object.EndpointAddress{IP: podIP(1000)})
	w.objects[ref] = o
	w.changed(o)
	w.update()
	if got := w.placesOf("web"); len(got) != 1000 {
		t.Errorf("%d are mirrored", len(got))
	}
	w.problems("Endpoints default/web: NotMirrored: subsets[0] has 1001 addresses, of which the first 1000 are used")
}

func TestMirrorLeavesOutWhatLoops(t *testing.T) {
	w := newWorld(t)
	w.service("web", selectorless)
	w.handmade("web", []string{"1.2.3.4", "172.30.0.7"}, nil)
	w.update()
	w.want("web", "IPv4 /TCP/9376: 1.2.3.4")
	w.problems("Endpoints default/web: NotMirrored: endpoint 172.30.0.7 is left out: it lies in the service range")
}

// Behavior 114.
func TestOverCapacity(t *testing.T) {
	for _, tc := range []struct {
		ready, unready         int
		wantReady, wantUnready int
		truncated              bool
	}{
		{1000, 0, 1000, 0, false},
		{1001, 0, 1000, 0, true},
		{1500, 0, 1000, 0, true},
		{900, 300, 900, 100, true},
		{1000, 1, 1000, 0, true},
		{600, 400, 600, 400, false},
	} {
		t.Run(fmt.Sprint(tc.ready, " ready ", tc.unready, " not"), func(t *testing.T) {
			w := newWorld(t)
			w.service("web", target("http"))
			for i := range tc.ready + tc.unready {
				number := int32(80 + i%3) // several port sets
				if i < tc.ready {
					w.pod("web", i, port("http", number, ""))
				} else {
					w.pod("web", i, port("http", number, ""), unready)
				}
			}
			w.update()
			_, _, e := w.Service("default/web")
			ready, unready := 0, 0
			for _, subset := range e.Subsets {
				ready += len(subset.Addresses)
				unready += len(subset.NotReadyAddresses)
			}
			if ready != tc.wantReady || unready != tc.wantUnready || (e.Metadata.Annotations[object.AnnotationOverCapacity] == "truncated") != tc.truncated {
				t.Errorf("%d ready, %d not, annotations %v", ready, unready, e.Metadata.Annotations)
			}
			in := 0
			for _, size := range w.sizes("web") {
				in += size
			}
			if in != tc.ready+tc.unready {
				t.Errorf("the slices have %d endpoints", in)
			}
			for i := range tc.ready + tc.unready - 1000 {
				w.removePod("web", i)
			}
			w.update()
			if _, _, e := w.Service("default/web"); len(e.Metadata.Annotations) > 0 {
				t.Errorf("with 1000 Pods: %v", e.Metadata.Annotations)
			}
		})
	}
}
