package endpoints

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// Behavior 109.
func TestWhichPodsAreEndpoints(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	w.pod("web", 1)
	w.pod("web", 2, unready)
	w.pod("web", 3, phase(object.PodSucceeded))
	w.pod("web", 4, noAddress)
	w.pod("web", 5, ending)
	w.pod("web", 6, phase(object.PodFailed))
	w.pod("other", 7)
	w.pod("web", 8, unready, ending)
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2 10.0.0.3! 10.0.0.6~ 10.0.0.9!")
	_, _, endpoints := w.Service("default/web")
	if len(endpoints.Subsets) != 1 || len(endpoints.Subsets[0].Addresses) != 1 || len(endpoints.Subsets[0].NotReadyAddresses) != 1 {
		t.Errorf("Endpoints %+v", endpoints.Subsets)
	}
	w.problems()
	w.restart()

	// Behavior 67.
	w.service("web", func(svc *object.Service) { svc.Spec.PublishNotReadyAddresses = true })
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2 10.0.0.3 10.0.0.6 10.0.0.9")
	if _, _, e := w.Service("default/web"); len(e.Subsets[0].Addresses) != 4 {
		t.Errorf("Endpoints %+v", e.Subsets)
	}
}

func TestWhatAnEndpointSays(t *testing.T) {
	w := newWorld(t)
	w.service("web", func(svc *object.Service) { svc.Spec.Ports[0].AppProtocol = new("kubernetes.io/h2c") })
	w.pod("web", 1, on("gw1"), func(p *object.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "one", "web" })
	w.pod("web", 2, on("other"), func(p *object.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "two", "db" })
	w.pod("web", 3, label(labelZone, "zone-b"))
	w.update()
	_, parts, _ := w.Service("default/web")
	e := parts[0].Endpoints
	if object.Deref(e[0].Hostname) != "one" || object.Deref(e[0].NodeName) != "gw1" || object.Deref(e[0].Zone) != "zone-a" {
		t.Errorf("%+v", e[0])
	}
	if e[1].Hostname != nil || object.Deref(e[1].NodeName) != "other" || e[1].Zone != nil {
		t.Errorf("%+v", e[1])
	}
	if e[2].NodeName != nil || object.Deref(e[2].Zone) != "zone-b" {
		t.Errorf("%+v", e[2])
	}
	if want := (object.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-00001", UID: "pod-web-00001"}); *e[0].TargetRef != want {
		t.Errorf("%+v", e[0].TargetRef)
	}
	if p := parts[0].Ports[0]; object.Deref(p.Name) != "p80" || object.Deref(p.Port) != 8080 || object.Deref(p.AppProtocol) != "kubernetes.io/h2c" {
		t.Errorf("%+v", p)
	}
}

// Behavior 110.
func TestNamedPorts(t *testing.T) {
	w := newWorld(t)
	w.service("web", target("http"))
	w.pod("web", 1, port("http", 80, "TCP"))
	w.pod("web", 2, port("http", 8080, ""))
	w.pod("web", 3, port("http", 80, ""))
	w.pod("web", 4, port("http", 80, "UDP"))
	w.pod("web", 5)
	w.update()
	w.want("web", "IPv4 : 10.0.0.5 10.0.0.6", "IPv4 p80/TCP/8080: 10.0.0.3", "IPv4 p80/TCP/80: 10.0.0.2 10.0.0.4")
	w.problems("Service default/web: NoSuchPort: 2 of its Pods have no container port for a targetPort, and get no connections to it; the first is web-00004, which lacks http/TCP")
	if _, _, e := w.Service("default/web"); len(e.Subsets) != 2 {
		t.Errorf("Endpoints %+v", e.Subsets)
	}
	w.restart()
	w.pod("web", 4, port("http", 80, "TCP"))
	w.pod("web", 5, port("http", 8080, "TCP"))
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.3 10.0.0.6", "IPv4 p80/TCP/80: 10.0.0.2 10.0.0.4 10.0.0.5")
	w.problems()
}

// Behavior 111.
func TestSlicesAreFilled(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	for i := range 100 {
		w.pod("web", i)
		w.update()
		if got := w.sizes("web"); !slices.Equal(got, []int{i + 1}) {
			t.Fatalf("%d Pods: %v", i+1, got)
		}
	}
	w.pod("web", 100)
	if b := w.update(); len(b.Puts) != 2 || !slices.Equal(w.sizes("web"), []int{100, 1}) {
		t.Fatalf("with the 101st Pod: %v, %s", w.sizes("web"), describe(b))
	}
	before := w.placesOf("web")
	for i := range 50 {
		w.removePod("web", i)
	}
	w.update()
	for address, place := range w.placesOf("web") {
		if before[address] != place {
			t.Errorf("%s has moved from %s to %s", address, before[address], place)
		}
	}
	// The fullest slice that has room comes first.
	w.pod("web", 200)
	w.update()
	if got := w.sizes("web"); !slices.Equal(got, []int{51, 1}) {
		t.Errorf("one more: %v", got)
	}
	for i := range 230 {
		w.pod("web", 300+i)
	}
	w.update()
	if got := w.sizes("web"); !slices.Equal(got, []int{100, 100, 81, 1}) {
		t.Errorf("230 more: %v", got)
	}
	w.restart()
}

func TestArrivalsFillSlicesThatChangeAnyway(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	for i := range 250 {
		w.pod("web", i)
	}
	w.update()
	places := w.placesOf("web")
	for i := range 60 {
		w.removePod("web", i) // all of one slice
	}
	w.pod("web", 300)
	w.update()
	if got := w.sizes("web"); !slices.Equal(got, []int{100, 50, 41}) || w.placesOf("web")[podIP(300)] != places[podIP(0)] {
		t.Errorf("%v: the new one is in %s, want the slice that others left, %s", got, w.placesOf("web")[podIP(300)], places[podIP(0)])
	}
	if n := len(w.last.Puts); n != 2 { // the slice, and the Endpoints
		t.Errorf("%d objects are written, want 2", n)
	}
}

// What was read, and what was given away, is nobody's to change any more.
func TestObjectsAreNotChanged(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	for i := range 3 {
		w.pod("web", i)
	}
	w.update()
	w.restart()
	_, stored, _ := w.Service("default/web")
	read := object.DeepCopy(stored[0])
	w.pod("web", 1, unready)
	given := w.c.Update(w, w.take())
	copied := object.DeepCopy(given.Puts[0])
	w.write(given)
	w.removePod("web", 0)
	w.pod("web", 2, unready)
	w.update()
	if !reflect.DeepEqual(stored[0], read) {
		t.Error("a stored object has changed")
	}
	if !reflect.DeepEqual(given.Puts[0], copied) {
		t.Error("an object that was given away has changed")
	}
}

// Behaviors 112 and 113.
func TestMetadata(t *testing.T) {
	w := newWorld(t)
	w.service("web", headless, func(svc *object.Service) {
		maps.Copy(svc.Metadata.Labels, map[string]string{object.LabelServiceName: "x", object.LabelManagedBy: "x", labelManagedEndpoints: "x"})
	})
	w.update()
	w.want("web", "IPv4 :") // the placeholder
	_, parts, endpoints := w.Service("default/web")
	if want := map[string]string{"team": "blue", object.LabelServiceName: "web", object.LabelManagedBy: managedBySelector, labelHeadless: ""}; !maps.Equal(parts[0].Metadata.Labels, want) {
		t.Errorf("labels %v", parts[0].Metadata.Labels)
	}
	if want := map[string]string{"team": "blue", labelManagedEndpoints: managedEndpoints, labelHeadless: ""}; !maps.Equal(endpoints.Metadata.Labels, want) {
		t.Errorf("labels of Endpoints %v", endpoints.Metadata.Labels)
	}
	owner := parts[0].Metadata.OwnerReferences[0]
	if owner.Kind != "Service" || owner.APIVersion != "v1" || owner.Name != "web" || owner.UID != "service-web" || !*owner.Controller || !*owner.BlockOwnerDeletion {
		t.Errorf("owner %+v", owner)
	}
	w.pod("web", 1)
	w.update()
	name := w.placesOf("web")["10.0.0.2"]
	if !strings.HasPrefix(name, "web-") || len(name) != len("web-")+8 {
		t.Errorf("name %q", name)
	}
	w.service("web", func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"team": "red"} })
	w.update()
	_, parts, endpoints = w.Service("default/web")
	if len(parts) != 1 || parts[0].Metadata.Name != name || parts[0].Metadata.Labels["team"] != "red" || endpoints.Metadata.Labels["team"] != "red" {
		t.Errorf("other labels: %+v, %+v", parts[0].Metadata, endpoints.Metadata)
	}
	if _, has := parts[0].Metadata.Labels[labelHeadless]; has {
		t.Error("the label of headless Services stays")
	}
	w.remove(object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"})
	w.update()
	if _, parts, endpoints := w.Service("default/web"); len(parts) > 0 || endpoints != nil {
		t.Errorf("left of a deleted Service: %v, %v", parts, endpoints)
	}
}

func TestServicesWithoutEndpointsOfOurs(t *testing.T) {
	for name, change := range map[string]func(*object.Service){
		"without a selector": selectorless,
		"ExternalName":       func(svc *object.Service) { svc.Spec.Type = object.TypeExternalName },
	} {
		w := newWorld(t)
		w.pod("web", 1)
		w.service("web", change)
		if b := w.update(); !b.Empty() {
			t.Errorf("%s: %s", name, describe(b))
		}
		w.service("web")
		w.update()
		w.service("web", change)
		w.update()
		if _, parts, endpoints := w.Service("default/web"); len(parts) > 0 || endpoints != nil {
			t.Errorf("%s, after it had a selector: %v, %v", name, parts, endpoints)
		}
		w.pod("web", 1, unready)
		if b := w.update(); !b.Empty() {
			t.Errorf("%s: %s", name, describe(b))
		}
	}
}

func TestFamilies(t *testing.T) {
	w := newWorld(t)
	w.service("web", dual)
	w.pod("web", 1)
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2", "IPv6 :")
	w.pod("web", 1, ips("10.0.0.2", "fd00::2"))
	w.pod("web", 2, ips("fd00::3"))
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2", "IPv6 p80/TCP/8080: fd00::2 fd00::3")
	if _, _, e := w.Service("default/web"); len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != 1 {
		t.Errorf("Endpoints have one family: %+v", e.Subsets)
	}
	w.restart()
	w.service("web")
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2")
	w.service("web", func(svc *object.Service) { svc.Spec.IPFamilies = []string{object.IPv6} })
	w.update()
	w.want("web", "IPv6 p80/TCP/8080: fd00::2 fd00::3")
}

func TestHeadlessWithoutPorts(t *testing.T) {
	w := newWorld(t)
	w.service("db", headless, func(svc *object.Service) { svc.Spec.Ports = nil })
	w.pod("db", 1)
	w.update()
	w.want("db", "IPv4 : 10.0.0.2")
	if _, _, e := w.Service("default/db"); len(e.Subsets) != 1 || len(e.Subsets[0].Addresses) != 1 || len(e.Subsets[0].Ports) != 0 {
		t.Errorf("Endpoints %+v", e.Subsets)
	}
}

// Behavior 75.
func TestHints(t *testing.T) {
	w := newWorld(t)
	w.pod("web", 1, on("gw1"))
	w.pod("web", 2, on("other"), label(labelZone, "zone-b"))
	w.pod("web", 3, on("gw1"), unready)
	w.pod("web", 4)
	for _, tc := range []struct {
		how  string
		want string
	}{
		{object.PreferSameZone, "zone-a/ zone-b/ - -"},
		{object.PreferClose, "zone-a/ zone-b/ - -"},
		{object.PreferSameNode, "zone-a/gw1 zone-b/other - -"},
		{"", "- - - -"},
	} {
		if tc.how == "" {
			w.service("web")
		} else {
			w.service("web", distribute(tc.how))
		}
		w.update()
		_, parts, _ := w.Service("default/web")
		var got []string
		for _, e := range parts[0].Endpoints {
			text := "-"
			if h := e.Hints; h != nil {
				text = h.ForZones[0].Name + "/"
				for _, node := range h.ForNodes {
					text += node.Name
				}
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%q: %s, want %s", tc.how, got, tc.want)
		}
		w.restart()
	}
}

// Behavior 112: what belongs to others stays as it is.
func TestForeignObjects(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	w.pod("web", 1)
	w.update()
	name := w.placesOf("web")["10.0.0.2"]
	foreign := &object.EndpointSlice{
		TypeMeta:    object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata:    object.ObjectMeta{Name: "mine", Namespace: "default", Labels: map[string]string{object.LabelServiceName: "web", object.LabelManagedBy: managedBySelector}},
		AddressType: object.IPv4,
		Endpoints:   []object.Endpoint{{Addresses: []string{"10.9.9.9"}}},
	}
	w.put(object.DeepCopy(foreign), false)
	if b := w.update(); !b.Empty() {
		t.Errorf("a foreign slice: %s", describe(b))
	}
	// A file takes the name of a slice that was generated: that one gets another name.
	taken := object.DeepCopy(foreign)
	taken.GetMeta().Name = name
	w.put(taken, false)
	w.update()
	place := w.placesOf("web")["10.0.0.2"]
	if place == name || place == "" {
		t.Errorf("the Pod is in slice %q, whose name is taken", place)
	}
	w.restart()
	w.remove(object.RefOf(foreign))
	w.remove(object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: name})
	if b := w.update(); !b.Empty() || w.placesOf("web")["10.0.0.2"] != place {
		t.Errorf("when the name is free again: %s", describe(b))
	}
	// Somebody changes or removes what is ours.
	ref := object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: place}
	before := w.parts("web")
	edited := object.DeepCopy(w.objects[ref]).(*object.EndpointSlice)
	edited.Endpoints = append(edited.Endpoints, edited.Endpoints[0], object.Endpoint{Addresses: []string{"10.8.8.8"}})
	w.put(edited, true)
	w.update()
	w.want("web", before...)
	w.remove(ref)
	w.update()
	w.want("web", before...)
	_, _, endpoints := w.Service("default/web")
	w.remove(object.RefOf(endpoints))
	w.update()
	if _, _, again := w.Service("default/web"); !sameEndpoints(endpoints, again) {
		t.Errorf("removed Endpoints: %+v", again)
	}
}

// The slices of others say what backs a Service whose selector matches no Pod: an empty slice
// beside them, and an empty Endpoints object, would say that it has no endpoints.
func TestNothingIsGeneratedBesideOthersSlices(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	foreign := &object.EndpointSlice{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata: object.ObjectMeta{Name: "web-abcde", Namespace: "default", Labels: map[string]string{
			object.LabelServiceName: "web", object.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: object.IPv4,
		Endpoints:   []object.Endpoint{{Addresses: []string{"10.9.9.9"}}},
	}
	nothing := func(when string) {
		t.Helper()
		w.want("web", "IPv4 : 10.9.9.9!")
		if _, _, endpoints := w.Service("default/web"); endpoints != nil {
			t.Errorf("%s: Endpoints %+v", when, endpoints)
		}
	}
	w.put(foreign, false)
	if b := w.update(); !b.Empty() {
		t.Errorf("both are new: %s", describe(b))
	}
	nothing("both are new")
	w.problems()
	w.pod("web", 1)
	w.update()
	w.want("web", "IPv4 : 10.9.9.9!", "IPv4 p80/TCP/8080: 10.0.0.2")
	w.restart()
	w.removePod("web", 1)
	w.update()
	nothing("the Pod is gone")
	w.restart()
	w.remove(object.RefOf(foreign))
	w.update()
	w.want("web", "IPv4 :")
	if _, _, endpoints := w.Service("default/web"); endpoints == nil || len(endpoints.Subsets) != 0 {
		t.Errorf("the slice is gone: Endpoints %+v", endpoints)
	}
	w.put(foreign, false)
	w.update()
	nothing("the slice is there again")
}

func TestForeignEndpointsOfASelector(t *testing.T) {
	w := newWorld(t)
	w.handmade("web", []string{"10.7.7.7"}, nil)
	w.service("web")
	w.pod("web", 1)
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2")
	w.problems("Endpoints default/web: ServiceHasSelector: Endpoints are only used for a Service without a selector")
	w.remove(object.Ref{Kind: object.KindEndpoints, Namespace: "default", Name: "web"})
	w.update()
	if _, _, e := w.Service("default/web"); e == nil || e.Subsets[0].Addresses[0].IP != "10.0.0.2" {
		t.Errorf("Endpoints %+v", e)
	}
	w.problems()
}
