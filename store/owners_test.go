package store

import (
	"encoding/json"
	"errors"
	"testing"

	"svcctl.io/svcctl/store/object"
)

func TestOwners(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: NodePort}")
	if _, err := b.s.Generate(NamespacesController, []object.Object{made(t, object.KindNamespace, "", "shop")}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.s.Generate("endpoints", []object.Object{made(t, object.KindEndpointSlice, "default", "web-1")}, nil); err != nil {
		t.Fatal(err)
	}
	label := func(o object.Object) { o.GetMeta().Labels = map[string]string{"a": "b"} }
	slice := object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: "web-1"}
	for _, w := range []Write{
		{Ref: ref("web"), Delete: true}, {Ref: slice, Delete: true}, changed(b, slice, label),
	} {
		var owned *OwnedError
		if got := b.ask(w); !errors.As(got.Err, &owned) {
			t.Errorf("%s: %v", w.Ref, got.Err)
		}
	}
	b.must(changed(b, ref("web"), label))
	if o, owner := b.s.Get(ref("web")); owner.File != "a.yaml" || o.GetMeta().Labels["a"] != "b" {
		t.Errorf("%s, %v", owner, o)
	}
	shop := namespaceRef("shop")
	same := changed(b, shop, func(object.Object) {})
	uid := same.Object.GetMeta().UID
	b.must(same)
	if _, owner := b.s.Get(shop); owner.Controller == "" {
		t.Error("a write of nothing new has taken a Namespace over")
	}
	b.must(changed(b, shop, label))
	if o, owner := b.s.Get(shop); owner != (Owner{}) || o.GetMeta().UID != uid {
		t.Errorf("%s, %+v", owner, o)
	}
}

func TestFilesAndTheAPI(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: LoadBalancer}")
	b.must(changed(b, ref("web"), func(o object.Object) {
		o.GetMeta().Labels = map[string]string{"a": "b"}
		o.GetMeta().ManagedFields = []object.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: json.RawMessage(`{"f:metadata":{"f:labels":{"f:a":{}}}}`)}}
	}))
	b.apply("a.yaml", "# the file is a manager, too, from now on\n"+yamlOf("web {type: LoadBalancer}"))
	version, port := b.service("web").Metadata.ResourceVersion, b.nodePort("web")
	b.restart()
	b.sync()
	if b.service("web").Metadata.ResourceVersion != version {
		t.Error("a restart has changed it")
	}
	b.apply("a.yaml", "web {type: LoadBalancer, sessionAffinity: ClientIP}")
	b.wantProblems()
	if svc := b.service("web"); svc.Metadata.Labels["a"] != "b" || svc.Spec.SessionAffinity != "ClientIP" || b.nodePort("web") != port {
		t.Errorf("%+v", svc)
	}
	b.apply("a.yaml", "web {ports: [{port: 80}, {port: 80}]}")
	b.wantProblems("a.yaml:2:1: Service default/web: join the document with what the API has added to the object: apply the document of Service default/web: .spec.ports: duplicate entries for key [port=80,protocol=\"TCP\"]")
	if b.service("web").Spec.SessionAffinity != "ClientIP" {
		t.Errorf("%+v", b.service("web").Spec)
	}
	b.apply("a.yaml", "")
	if b.has("web") {
		t.Error("it outlived its file")
	}
}

func TestDocument(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "# a comment\n"+yamlOf("web {}"))
	b.must(write(refine(document(t, "api {}"))))
	if o, path, line := b.s.Document(ref("web")); o == nil || o.GetMeta().UID != "" || path != "a.yaml" || line != 3 {
		t.Errorf("%v, %s:%d", o, path, line)
	}
	for _, name := range []string{"api", "nothing"} {
		if o, path, line := b.s.Document(ref(name)); o != nil || path != "" || line != 0 {
			t.Errorf("%s: %v, %s:%d", name, o, path, line)
		}
	}
	b.restart()
	if o, path, line := b.s.Document(ref("web")); o != nil || path != "a.yaml" || line != 0 {
		t.Errorf("before the files are read: %v, %s:%d", o, path, line)
	}
	b.sync()
	b.apply("a.yaml", "{")
	if o, path, _ := b.s.Document(ref("web")); o != nil || path != "a.yaml" {
		t.Errorf("of a broken file: %v, %s", o, path)
	}
}

func TestProblemsOfFilesStay(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {}\nother {clusterIP: 172.30.0.5}")
	b.apply("b.yaml", "web {}")
	b.apply("a.yaml", "web {type: x}\nother {clusterIP: 172.30.0.5}")
	b.apply("a.yaml", "web {type: NodePort, clusterIP: 172.30.0.5}\nother {clusterIP: 172.30.0.5}")
	problems := b.problems()
	b.must(changed(b, ref("web"), func(o object.Object) { o.GetMeta().Labels = map[string]string{"a": "b"} }))
	if b.problems() != problems {
		t.Errorf("%s\nbefore:\n%s", b.problems(), problems)
	}
}
