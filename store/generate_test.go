package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// controller is the manager that generates in these tests.
const controller = "endpoints"

func generated(t testing.TB, name, address string) object.Object {
	t.Helper()
	family := object.IPv4
	if strings.Contains(address, ":") {
		family = object.IPv6
	}
	text := fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: web}}
addressType: %s
endpoints: [{addresses: [%q]}]
ports: [{port: 8080}]
`, name, family, address)
	file := manifest.Decode("test", []byte(text), manifest.DefaultLimits())
	if len(file.Documents) != 1 {
		t.Fatal(file.Err, file.Problems)
	}
	return file.Documents[0].Object
}

func sliceRef(name string) object.Ref {
	return object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: name}
}

func (b *box) generate(puts []object.Object, deletes ...object.Ref) SyncResult {
	b.t.Helper()
	result, err := b.s.Generate(controller, puts, deletes)
	if err != nil {
		b.t.Fatal(err)
	}
	b.check()
	return result
}

func (b *box) slices() string {
	_, slices, _ := b.s.Service("default/web")
	var names []string
	for _, slice := range slices {
		names = append(names, slice.Metadata.Name+"="+slice.Endpoints[0].Addresses[0])
	}
	return strings.Join(names, " ")
}

func TestGenerateIsOneCommit(t *testing.T) {
	b := newBox(t)
	b.apply("web.yaml", "web {}")
	commits, revision := b.engine.Commits(), b.s.Revision()
	puts := []object.Object{generated(t, "web-a", "10.0.0.1"), generated(t, "web-b", "10.0.0.2")}
	if result := b.generate(puts); result != (SyncResult{Revision: revision + 2, Changes: 2}) || b.engine.Commits() != commits+1 {
		t.Errorf("%+v, %d commits", result, b.engine.Commits()-commits)
	}
	if set := b.s.Changes(revision); fmt.Sprint(set.Services) != "[default/web]" || b.slices() != "web-a=10.0.0.1 web-b=10.0.0.2" {
		t.Errorf("changes %+v, slices %s", set, b.slices())
	}
	// The same once more, and the removal of what is not there, are no change.
	if result := b.generate(puts, sliceRef("web-z")); result.Revision != revision+2 || b.engine.Commits() != commits+1 {
		t.Errorf("again: %+v, %d commits", result, b.engine.Commits()-commits)
	}
	if result := b.generate(puts[:1], sliceRef("web-b")); result.Changes != 1 || b.slices() != "web-a=10.0.0.1" {
		t.Errorf("deleted: %+v, %s", result, b.slices())
	}
	// Files know nothing of it, and a restart keeps it.
	b.restart()
	b.apply("web.yaml", "web {}")
	if _, owner := b.s.Get(sliceRef("web-a")); owner.Controller != controller || owner.String() != "the endpoints controller" {
		t.Errorf("after a restart it belongs to %s", owner)
	}
	b.apply("web.yaml", "")
	if _, owner := b.s.Get(sliceRef("web-a")); owner.Controller != controller {
		t.Error("a file took what is not its own")
	}
}

func TestGenerateIsAllOrNothing(t *testing.T) {
	b := newBox(t)
	b.apply("mine.yaml", encode(t, generated(t, "web-mine", "10.0.0.9")))
	if _, err := b.put(generated(t, "web-api", "10.0.0.8")); err != nil {
		t.Fatal(err)
	}
	b.generate([]object.Object{generated(t, "web-a", "10.0.0.1")})
	before := objects(b.s)
	var owned *OwnedError
	for name, foreign := range map[string]string{"a file": "web-mine", "the API": "web-api"} {
		_, err := b.s.Generate(controller, []object.Object{generated(t, "web-b", "10.0.0.2"), generated(t, foreign, "10.0.0.3")}, nil)
		if !errors.As(err, &owned) {
			t.Errorf("replace an object of %s: %v", name, err)
		}
		if _, err := b.s.Generate(controller, nil, []object.Ref{sliceRef("web-a"), sliceRef(foreign)}); !errors.As(err, &owned) {
			t.Errorf("remove an object of %s: %v", name, err)
		}
	}
	var invalid object.Errors
	if _, err := b.s.Generate(controller, []object.Object{generated(t, "web-b", "10.0.0.2"), generated(t, "web-c", "127.0.0.1")}, nil); !errors.As(err, &invalid) {
		t.Errorf("an invalid object: %v", err)
	}
	if _, err := b.put(generated(t, "web-a", "10.0.0.7")); !errors.As(err, &owned) || !strings.Contains(err.Error(), "belongs to the endpoints controller") {
		t.Errorf("the API replaces what is generated: %v", err)
	}
	b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	if _, err := b.s.Generate(controller, nil, []object.Ref{sliceRef("web-a")}); !errors.Is(err, faulty.ErrInjected) {
		t.Errorf("a commit that fails: %v", err)
	}
	b.engine.Inject(nil)
	if after := objects(b.s); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

func encode(t testing.TB, o object.Object) string {
	t.Helper()
	text, err := manifest.EncodeYAML(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFilesTakeTheNamesOfGeneratedObjects(t *testing.T) {
	b := newBox(t)
	b.apply("web.yaml", "web {}")
	b.generate([]object.Object{generated(t, "web-a", "10.0.0.1")})
	made, _ := b.s.Get(sliceRef("web-a"))
	revision := b.s.Revision()
	// Another address type, which no update may have: it is another object.
	b.now = b.now.Add(1e10)
	b.apply("slice.yaml", encode(t, generated(t, "web-a", "fd00::1")))
	b.wantProblems("slice.yaml:1:1: warning: EndpointSlice default/web-a: the endpoints controller had made an object of this name, whose place this document takes")
	taken, owner := b.s.Get(sliceRef("web-a"))
	if owner.File != "slice.yaml" || taken.GetMeta().UID == made.GetMeta().UID || !taken.GetMeta().CreationTimestamp.Equal(b.now) {
		t.Errorf("%+v of %s", taken.GetMeta(), owner)
	}
	if set := b.s.Changes(revision); fmt.Sprint(set.Services) != "[default/web]" {
		t.Errorf("nobody hears of it: %+v", set)
	}
	var owned *OwnedError
	if _, err := b.s.Generate(controller, []object.Object{generated(t, "web-a", "10.0.0.1")}, nil); !errors.As(err, &owned) {
		t.Errorf("the controller takes it back: %v", err)
	}
	b.restart()
	b.sync()
	if _, owner := b.s.Get(sliceRef("web-a")); owner.File != "slice.yaml" {
		t.Errorf("after a restart it belongs to %s", owner)
	}
	b.apply("slice.yaml", "")
	if o, _ := b.s.Get(sliceRef("web-a")); o != nil {
		t.Error("it outlives its file")
	}
	// A document that is no good takes nothing.
	b.generate([]object.Object{generated(t, "web-a", "10.0.0.1")})
	b.apply("slice.yaml", encode(t, generated(t, "web-a", "127.0.0.1")))
	if _, owner := b.s.Get(sliceRef("web-a")); owner.Controller != controller {
		t.Errorf("an invalid document gives it to %s", owner)
	}
}

// A controller may store a status long after it read the object: once the dataplane has what it generates.
func TestGenerateStoresNoStatusOfAnEarlierVersion(t *testing.T) {
	b := newBox(t)
	condition := func(o object.Object, name string) object.Object {
		next := object.DeepCopy(o)
		next.(*object.Service).Status.Conditions = []object.Condition{{Type: name, Status: "True", LastTransitionTime: b.now, Reason: "Good"}}
		return next
	}
	read := b.must(write(refine(document(t, "web {}")))).Object
	w := changed(b, ref("web"), func(svc *object.Service) {
		svc.Metadata.ManagedFields = []object.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Apply", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: []byte(`{"f:spec":{}}`)}}
		svc.Metadata.Labels = map[string]string{"a": "b"}
	})
	applied := b.must(w).Object
	if _, err := b.s.Generate(controller, nil, nil, condition(read, "Early")); err != nil || b.service("web") != applied {
		t.Errorf("after the status of an earlier version: %+v, %v", b.service("web"), err)
	}
	if _, err := b.s.Generate(controller, nil, nil, condition(applied, "New")); err != nil {
		t.Fatal(err)
	}
	if now := b.service("web"); len(now.Status.Conditions) != 1 || now.Status.Conditions[0].Type != "New" || len(now.Metadata.ManagedFields) != 1 {
		t.Errorf("after the status of the stored version: %+v", now)
	}
	b.check()
}
