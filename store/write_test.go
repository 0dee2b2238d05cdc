package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// made is an object of a kind with a name, as small as it may be.

func made(t testing.TB, kind, namespace, name string) object.Object {
	t.Helper()
	o, known := record.New(kind)
	if !known {
		t.Fatalf("kind %s", kind)
	}
	o.GetMeta().Namespace, o.GetMeta().Name = namespace, name
	switch o := o.(type) {
	case *object.Service:
		o.Spec.Ports = []object.ServicePort{{Port: 80}}
	case *object.EndpointSlice:
		o.AddressType = object.IPv4
		o.Endpoints = []object.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	case *object.ServiceCIDR:
		o.Spec.CIDRs = []string{"10.96.0.0/16"}
	case *object.Event:
		o.InvolvedObject.Namespace = namespace
	}
	return o
}

// write is a Write of an object under its own name.

func write(o object.Object) Write { return Write{Ref: object.RefOf(o), Object: o} }

// must writes one thing, which is accepted.

func (b *box) must(w Write) Written {
	b.t.Helper()
	written := b.ask(w)
	if written.Err != nil {
		b.t.Fatalf("%s: %v", w.Ref, written.Err)
	}
	b.check()
	return written
}

// changed is a copy of a stored object with a change, to be written.

func changed[T object.Object](b *box, ref object.Ref, change func(T)) Write {
	b.t.Helper()
	o, _ := b.s.Get(ref)
	if o == nil {
		b.t.Fatalf("there is no %s", ref)
	}
	next := object.DeepCopy(o).(T)
	change(next)
	return Write{Ref: ref, Object: next, Version: next.GetMeta().ResourceVersion}
}

var storedKinds = map[string]bool{ // whether they are in a namespace
	object.KindService: true, object.KindEndpoints: true, object.KindEndpointSlice: true, object.KindPod: true,
	object.KindNamespace: false, object.KindNode: false, object.KindEvent: true, object.KindServiceCIDR: false,
	object.KindLease: true, object.KindConfigMap: true, object.KindSecret: true,
}

func TestEveryKindIsKept(t *testing.T) {
	b := newBox(t)
	for kind, namespaced := range storedKinds {
		namespace := ""
		if namespaced {
			namespace = "shop"
		}
		o := made(t, kind, namespace, "one")
		bare := object.DeepCopy(o)
		*bare.GetTypeMeta() = object.TypeMeta{}
		b.must(Write{Ref: object.RefOf(o), Object: bare, Create: true})
		if again := b.ask(Write{Ref: object.RefOf(o), Object: o, Create: true}); !errors.Is(again.Err, ErrExists) {
			t.Errorf("%s: created again: %v", kind, again.Err)
		}
		bad := made(t, kind, namespace, "Not A Name")
		var fields object.Errors
		if got := b.ask(write(bad)); !errors.As(got.Err, &fields) {
			t.Errorf("%s with a bad name: %v", kind, got.Err)
		}
	}
	b.restart()
	for kind, namespaced := range storedKinds {
		list, _, err := b.s.List(kind, "", 0)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v, %v", kind, list, err)
		}
		meta := list[0].GetMeta()
		if meta.UID == "" || meta.CreationTimestamp == nil || meta.ResourceVersion == "" || namespaced != (meta.Namespace == "shop") {
			t.Errorf("%s: %+v", kind, meta)
		}
		if written := b.must(Write{Ref: object.RefOf(list[0]), Delete: true, UID: meta.UID}); !written.Removed || written.Object.GetMeta().UID != meta.UID {
			t.Errorf("%s: deleted: %+v", kind, written)
		}
	}
	if len(b.s.table.records) != 0 || len(b.s.table.namespaces.keeping) != 0 {
		t.Errorf("left: %v, %v", b.s.table.records, b.s.table.namespaces.keeping)
	}
}

func TestKindsThatAreNotKept(t *testing.T) {
	b := newBox(t)
	address := &object.IPAddress{TypeMeta: object.TypeMeta{Kind: object.KindIPAddress, APIVersion: object.APIVersionNetworking}}
	address.Metadata.Name = "10.0.0.1"
	if got := b.ask(write(address)); got.Err == nil {
		t.Error("an IPAddress is kept")
	}
	if got := b.ask(Write{Ref: ref("web"), Object: made(t, object.KindPod, "default", "web")}); got.Err == nil {
		t.Error("a Pod is kept as a Service")
	}
}

func TestNamespaces(t *testing.T) {
	b := newBox(t)
	b.must(Write{Ref: object.Ref{Kind: object.KindConfigMap, Name: "a"}, Object: configMap("a", "1")})
	node := made(t, object.KindNode, "", "a")
	if got := b.ask(Write{Ref: object.Ref{Kind: object.KindNode, Namespace: "x", Name: "a"}, Object: node}); got.Err == nil {
		t.Error("a Node is in a namespace")
	}
	b.restart()
	if o, _ := b.s.Get(object.RefOf(configMap("a", ""))); o == nil {
		t.Error("no namespace is not the default one")
	}
}

// Writes of one call see those before them, are refused one by one, and are one commit.

func TestWritesOfOneCall(t *testing.T) {
	b := newBox(t, smallPool)
	commits, revision := b.engine.Commits(), b.s.Revision()
	asks := func(name, spec string) object.Object { return document(t, name+" {"+spec+"}") }
	results, err := b.s.Write(
		write(refine(asks("a", "type: NodePort, clusterIP: 172.30.0.5, ports: [{port: 80, nodePort: 30007}]"))),
		write(refine(asks("b", "clusterIP: 172.30.0.5"))),
		Write{Ref: ref("a"), Delete: true},
		write(refine(asks("b", "clusterIP: 172.30.0.5"))),
		write(refine(asks("c", "type: NodePort, ports: [{port: 80, nodePort: 30007}]"))),
		Write{Ref: ref("c"), Object: refine(asks("c", "type: NodePort, sessionAffinity: ClientIP"))},
		write(refine(asks("d", "sessionAffinity: x"))),
		Write{Ref: ref("e"), Delete: true},
		write(refine(asks("f", ""))),
		Write{Ref: ref("f"), Delete: true},
	)
	if err != nil {
		t.Fatal(err)
	}
	b.check()
	var got []string
	for _, r := range results {
		text := "ok"
		if r.Err != nil {
			text = r.Err.Error()
		}
		if r.Removed {
			text = "removed"
		}
		got = append(got, text)
	}
	want := []string{"ok", "provided IP is already allocated", "removed", "ok", "ok", "ok", "Unsupported value", "not found", "ok", "removed"}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("write %d: %s, want %s", i, got[i], want[i])
		}
	}
	if b.engine.Commits() != commits+1 {
		t.Errorf("%d commits", b.engine.Commits()-commits)
	}
	events, err := b.s.Events(revision, 0)
	if err != nil || len(events) != 7 || b.s.Revision() != events[6].Revision {
		t.Errorf("%d events, %v; revision %d", len(events), err, b.s.Revision())
	}
	if b.nodePort("c") != 30007 || b.service("c").Metadata.Generation != 2 || b.has("f") || b.has("a") || b.ip("b") != "172.30.0.5" {
		t.Errorf("c: %+v", b.service("c"))
	}
	state := objects(b.s)
	b.restart()
	if objects(b.s) != state {
		t.Errorf("after a restart:\n%s\nbefore\n%s", objects(b.s), state)
	}
	b.check()
}

// refine gives a document its namespace.

func refine(o object.Object) object.Object {
	object.Default(o)
	return o
}

// What is released later in a call goes to those who wait, also to one that came in it.

func TestReleaseInACallServesThoseWhoWait(t *testing.T) {
	b := newBox(t, smallPool)
	balancer := func(name string) Write { return write(refine(document(t, name+" {type: LoadBalancer}"))) }
	for name := range strings.FieldsSeq("a b") {
		b.must(balancer(name))
	}
	results, err := b.s.Write(balancer("c"), Write{Ref: ref("a"), Delete: true})
	if err != nil {
		t.Fatal(err)
	}
	b.check()
	if b.ingress("c") == "" || results[0].Object != object.Object(b.service("c")) {
		t.Errorf("c has %q, and the answer is %+v", b.ingress("c"), results[0].Object)
	}
	if len(results[0].Warnings) != 1 || !strings.Contains(results[0].Warnings[0], "waits") {
		t.Errorf("warnings %q", results[0].Warnings)
	}
	b.wantProblems()
}

func TestPreconditions(t *testing.T) {
	b := newBox(t)
	stored := b.must(write(refine(document(t, "web {}")))).Object.GetMeta()
	for name, test := range map[string]struct {
		write Write
		want  error
		text  string
	}{
		"version":           {Write{Ref: ref("web"), Object: made(t, object.KindService, "default", "web"), Version: "1"}, ErrStale, "the object has been modified"},
		"version of delete": {Write{Ref: ref("web"), Delete: true, Version: "1"}, ErrStale, "Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: " + stored.ResourceVersion},
		"uid":               {Write{Ref: ref("web"), Delete: true, UID: "x"}, ErrStale, "Precondition failed: UID in precondition: x, UID in object meta: " + stored.UID},
		"uid of nothing":    {Write{Ref: ref("no"), Object: made(t, object.KindService, "default", "no"), UID: "x"}, ErrNotFound, ""},
		"status of nothing": {Write{Ref: ref("no"), Object: made(t, object.KindService, "default", "no"), Status: true}, ErrNotFound, ""},
		"nothing":           {Write{Ref: ref("no"), Delete: true}, ErrNotFound, ""},
	} {
		for _, test.write.DryRun = range []bool{true, false} {
			got := b.ask(test.write)
			if !errors.Is(got.Err, test.want) || !strings.Contains(got.Err.Error(), test.text) {
				t.Errorf("%s: %v", name, got.Err)
			}
		}
	}
	if b.s.Revision() != b.must(Write{Ref: ref("web"), Object: made(t, object.KindService, "default", "web"), UID: stored.UID, Version: stored.ResourceVersion}).revision(t) {
		t.Error("a write of nothing new has a revision")
	}
}

func (w Written) revision(t *testing.T) (revision uint64) {
	t.Helper()
	if _, err := fmt.Sscan(w.Object.GetMeta().ResourceVersion, &revision); err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestServersMetadata(t *testing.T) {
	b := newBox(t)
	past := time.Unix(1, 0)
	lie := func(o object.Object) object.Object {
		m := o.GetMeta()
		m.UID, m.CreationTimestamp, m.DeletionTimestamp, m.Generation, m.ResourceVersion = "mine", &past, &past, 77, "5"
		return o
	}
	for _, kind := range []string{object.KindService, object.KindPod, object.KindConfigMap} {
		o := lie(made(t, kind, "default", "web"))
		first := b.must(write(o)).Object.GetMeta()
		if first.UID == "mine" || first.CreationTimestamp.Equal(past) || first.DeletionTimestamp != nil || first.Generation > 1 || first.ResourceVersion == "5" {
			t.Errorf("%s: created as %+v", kind, first)
		}
		o.GetMeta().Labels = map[string]string{"a": "b"}
		second := b.must(write(o)).Object.GetMeta()
		if second.UID != first.UID || !second.CreationTimestamp.Equal(*first.CreationTimestamp) || second.DeletionTimestamp != nil || second.Generation != first.Generation {
			t.Errorf("%s: updated to %+v", kind, second)
		}
	}
}

// Dry runs show what the next write gets, and change nothing.

// textOf is an object without what differs between a dry run and the next write.

// What a file does not say about its object is the API's, as long as the file is there.

// What a file's document has to say stays said when a client writes to the object.
