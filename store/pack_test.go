package store

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

func init() { keepWhole, packs = 1, true } // so that all tests find packed objects

// Test1118_EndpointSlices_are_packed writes 2,000 slices of five endpoints with Pods. They are as they were after they were packed, also
// for those that list them page by page, and take less than a third of the memory.
func Test1118_EndpointSlices_are_packed(t *testing.T) {
	const many = 2000
	b := newBox(t)
	var docs strings.Builder
	for i := range many {
		fmt.Fprintf(&docs, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%04d-x\n  namespace: default\n"+
			"  labels: {app: s%04d, kubernetes.io/service-name: s%04d}\n  annotations: {endpoints.kubernetes.io/last-change-trigger-time: \"2026-01-01T00:00:%02dZ\"}\n"+
			"addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n", i, i, i, i%60)
		for e := range 5 {
			fmt.Fprintf(&docs, "- addresses: [10.%d.%d.%d]\n  conditions: {ready: true, serving: true, terminating: false}\n  nodeName: node-%d\n"+
				"  targetRef: {kind: Pod, namespace: default, name: s%04d-%d-abcde, uid: 8d2b1c3e-0000-4000-8000-%012d}\n", i>>8, i&255, e+1, e, i, e, i*5+e)
		}
	}
	b.apply("all.yaml", docs.String())
	before := map[object.Ref]string{}
	for ref, o := range b.s.table.records {
		before[ref] = jsonOf(record.Whole(o.Object))
	}
	whole, packed := make([]object.Object, 0, many), make([]*record.Record, 0, many)
	took := func(make func()) int {
		var m [2]runtime.MemStats
		runtime.GC()
		runtime.GC() // what sync.Pools had is freed by the second one
		runtime.ReadMemStats(&m[0])
		make()
		runtime.GC()
		runtime.ReadMemStats(&m[1])
		return int(m[1].HeapAlloc) - int(m[0].HeapAlloc)
	}
	b.s.Pack()
	ofWhole := took(func() {
		for ref := range before {
			if ref.Kind == object.KindEndpointSlice {
				whole = append(whole, b.s.table.get(ref).Object)
			}
		}
	})
	ofPacked := took(func() {
		for _, o := range whole {
			packed = append(packed, (&record.Record{Object: o}).Packed(object.RefOf(o)))
		}
	})
	if ofPacked*3 > ofWhole {
		t.Errorf("%d objects take %d bytes packed and %d whole", len(packed), ofPacked, ofWhole)
	}
	runtime.KeepAlive(whole)
	n := 0
	for ref, r := range b.s.table.records {
		if _, is := r.Object.(*record.Packed); is {
			n++
		}
		if o, _ := b.s.Get(ref); jsonOf(o) != before[ref] {
			t.Fatalf("%s is\n%s\nand was\n%s", ref, jsonOf(o), before[ref])
		}
	}
	if n != many-keepWhole {
		t.Errorf("%d objects are packed", n)
	}
	list, _, err := b.s.List(object.KindEndpointSlice, "", 0)
	if err != nil || len(list) != many {
		t.Fatalf("%d objects: %v", len(list), err)
	}
	for _, o := range list {
		if jsonOf(o) != before[object.RefOf(o)] {
			t.Fatalf("listed as %s", jsonOf(o))
		}
	}
	if _, slices, _ := b.s.Service("default/s0007"); len(slices) != 1 || slices[0].Endpoints[4].TargetRef.Name != "s0007-4-abcde" {
		t.Errorf("of s0007: %v", slices)
	}
}

// TestStartPacksNothing writes 20 slices in as many changes. Before Pack is called all of them are whole, and afterwards those that
// changed last, while changes go on.
func TestStartPacksNothing(t *testing.T) {
	packs = false
	defer func() { packs = true }()
	b := newBox(t)
	packed := func() (n int) {
		for _, r := range b.s.table.records {
			if _, is := r.Object.(*record.Packed); is {
				n++
			}
		}
		return n
	}
	change := func(i int) {
		b.apply(fmt.Sprintf("%d.yaml", i), fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%d, labels: {kubernetes.io/service-name: s}}\n"+
			"addressType: IPv4\nendpoints: [{addresses: [10.0.0.%d]}]\n", i, i))
	}
	for i := range 20 {
		change(i)
	}
	if n := packed(); n != 0 {
		t.Errorf("%d slices are packed during the start", n)
	}
	changes, since := len(b.s.feed.log.entries), b.s.Revision()
	b.s.Pack()
	if n := len(b.s.feed.log.entries); n != keepWhole || changes <= n || !b.s.Changes(1).All {
		t.Errorf("%d of %d changes are kept", n, changes)
	}
	change(20)
	if set := b.s.Changes(since); set.All || len(set.Services) != 1 || set.Services[0] != "default/s" {
		t.Errorf("changed since the start: %+v", set)
	}
	if n := packed(); n != 21-keepWhole {
		t.Errorf("%d slices are packed after the start", n)
	}
	if _, list, _ := b.s.Service("default/s"); len(list) != 21 || list[3].Metadata.Name != "s11" || list[3].Endpoints[0].Addresses[0] != "10.0.0.11" {
		t.Errorf("the Service has %d slices, the fourth one of them %v", len(list), list[3])
	}
}

// Test1113_others_slices_stay_packed: a controller gets its own EndpointSlices of a Service without a selector, and all of one with a selector.
func Test1113_others_slices_stay_packed(t *testing.T) {
	b := newBox(t)
	slice := "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: NAME-x, labels: {kubernetes.io/service-name: NAME}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]\n"
	docs := ""
	for name, selector := range map[string]string{"plain": "", "choosing": "selector: {app: a}, "} {
		docs += "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {" + selector + "ports: [{port: 80}]}\n" + strings.ReplaceAll(slice, "NAME", name)
	}
	b.apply("all.yaml", docs)
	own := &object.EndpointSlice{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: "discovery.k8s.io/v1"}, AddressType: object.IPv4,
		Metadata: object.ObjectMeta{Namespace: "default", Name: "plain-own", Labels: map[string]string{object.LabelServiceName: "plain"}},
	}
	if _, err := b.s.Generate("endpoints", []object.Object{own}, nil); err != nil {
		t.Fatal(err)
	}
	b.s.Pack()
	for key, want := range map[string]string{"default/plain": "[plain-own]", "default/choosing": "[choosing-x]", "default/none": "[]"} {
		svc, list, _ := b.s.ServiceBy(key, "endpoints")
		var names []string
		for _, o := range list {
			names = append(names, o.Metadata.Name)
		}
		if got := fmt.Sprint(names); got != want || (svc == nil) != (key == "default/none") {
			t.Errorf("%s: %v with %s, want %s", key, svc, got, want)
		}
	}
}

// TestServicesArePacked: Services are as they were after they were packed, for those that read one, list all or look for selectors, labels and
// addresses, and a fork holds their values.
func TestServicesArePacked(t *testing.T) {
	b := newBox(t)
	var docs strings.Builder
	for i := range 40 {
		fmt.Fprintf(&docs, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: s%02d\n  labels: {app: a%d, kubernetes.io/service-name: x}\n  annotations: {note: \"<%d> & more\"}\n"+
			"spec:\n  type: %s\n  selector: {app: a%d, tier: t%d}\n  externalIPs: [203.0.113.%d]\n  ports: [{name: http, port: 80, targetPort: web}, {name: dns, port: 53, protocol: UDP, targetPort: 5353}]\n",
			i, i, i, []string{"ClusterIP", "NodePort", "LoadBalancer"}[i%3], i, i%2, i+1)
	}
	b.apply("all.yaml", docs.String())
	before := map[string]string{}
	for _, key := range b.s.Services() {
		svc, _, _ := b.s.Service(key)
		before[key] = jsonOf(svc)
	}
	b.s.Pack()
	packed := 0
	for ref, r := range b.s.table.records {
		if _, is := r.Object.(*record.Packed); is && ref.Kind == object.KindService {
			packed++
		}
	}
	if packed != 40-keepWhole || len(before) != 40 || b.s.table.served != 40 {
		t.Errorf("%d of %d Services are packed, %d count", packed, len(before), b.s.table.served)
	}
	all, _, err := b.s.List(object.KindService, "", 0)
	if err != nil || len(all) != 40 {
		t.Fatalf("%d Services: %v", len(all), err)
	}
	for _, o := range all {
		key := object.RefOf(o).Key()
		if svc, _, _ := b.s.Service(key); jsonOf(svc) != before[key] || jsonOf(o) != before[key] {
			t.Errorf("%s is\n%s\nlisted as\n%s\nand was\n%s", key, jsonOf(svc), jsonOf(o), before[key])
		}
	}
	list, _, _ := b.s.ListPacked(object.KindService, "", 0)
	for text, want := range map[string]int{`"app":"a7"`: 1, `"203.0.113.8"`: 1, `"` + object.LabelServiceName + `":"x"`: 40, `"` + object.LabelServiceName + `":"y"`: keepWhole} {
		found := 0
		for _, o := range list {
			if Selected(o, "", text) != nil {
				found++
			}
		}
		if found < want || found > want+keepWhole {
			t.Errorf("%d Services with %s, want %d", found, text, want)
		}
	}
	if got := b.s.Selecting("default", map[string]string{"app": "a7", "tier": "t1"}); len(got) != 1 || got[0] != "default/s07" {
		t.Errorf("selected by %v", got)
	}
	if got := b.s.Selecting("default", map[string]string{"app": "a7", "tier": "t0"}); len(got) != 0 {
		t.Errorf("selected by %v", got)
	}
	if found := b.s.CheckPools(false); len(found) > 0 {
		t.Errorf("the allocator disagrees: %v", found)
	}
	fork, _, err := b.s.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if found := fork.CheckPools(false); len(found) > 0 || fork.allocator.sum() != b.s.allocator.sum() {
		t.Errorf("a fork holds values of the sum %d, want %d, and disagrees: %v", fork.allocator.sum(), b.s.allocator.sum(), found)
	}
	b.apply("all.yaml", strings.Replace(docs.String(), "selector: {app: a7,", "selector: {app: other,", 1))
	if got := b.s.Selecting("default", map[string]string{"app": "a7", "tier": "t1"}); len(got) != 0 {
		t.Errorf("still selected by %v", got)
	}
	if got := b.s.Selecting("default", map[string]string{"app": "other", "tier": "t1"}); len(got) != 1 {
		t.Errorf("selected by %v", got)
	}
}

// TestPackedNamesakes packs a Service and an EndpointSlice of the same name, in both orders.
func TestPackedNamesakes(t *testing.T) {
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\n"
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"
	for _, order := range [][]string{{service, slice}, {slice, service}} {
		b := newBox(t)
		for i, text := range order {
			b.apply(fmt.Sprintf("%d.yaml", i), text)
		}
		b.apply("other.yaml", strings.ReplaceAll(service, "web", "other"))
		b.s.Pack()
		svc, list, _ := b.s.Service("default/web")
		if svc == nil || svc.Spec.Ports[0].Port != 80 || len(list) != 1 || list[0].Endpoints[0].Addresses[0] != "10.0.0.1" {
			t.Errorf("%v %v", svc, list)
		}
	}
}

// TestMentions: an address of a Service or of one of its endpoints is found in any spelling, whether they are packed or not, and no other one.
func TestMentions(t *testing.T) {
	b := newBox(t)
	b.apply("all.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {note: \"10.0.0.9:80 and 10.0.0.8\"}}\n"+
		"spec: {clusterIP: 172.30.0.7, externalIPs: [\"2001:DB8:0:0::5\", 203.0.113.7], ports: [{port: 80}]}\n"+
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-x, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n"+
		"ports: [{port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.11]}]\n---\napiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {clusterIP: 172.30.0.8, ports: [{port: 80}]}\n")
	for _, packed := range []bool{false, true} {
		if packed {
			for ref, r := range b.s.table.records {
				b.s.table.records[ref] = r.Whole().Packed(ref)
			}
		} else {
			for ref, r := range b.s.table.records {
				b.s.table.records[ref] = r.Whole()
			}
		}
		for text, want := range map[string]bool{
			"172.30.0.7": true, "203.0.113.7": true, "2001:db8::5": true, "10.0.0.1": true, "10.0.0.11": true,
			"172.30.0.8": false, "10.0.0.9": false, "10.0.0.8": false, "10.0.0.111": false, "10.0.0.2": false, "2001:db8::": false,
		} {
			if got := b.s.InForce().Mentions("default/web", map[netip.Addr]bool{netip.MustParseAddr(text): true}); got != want {
				t.Errorf("packed %t: %s: %t, want %t", packed, text, got, want)
			}
		}
	}
	if b.s.InForce().Mentions("default/none", map[netip.Addr]bool{netip.MustParseAddr("10.0.0.1"): true}) {
		t.Error("what does not exist mentions an address")
	}
}
