package store

import (
	"errors"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

func TestPutAndDelete(t *testing.T) {
	b := newBox(t)
	input := document(t, "web {type: NodePort}")
	made, err := b.put(input)
	if err != nil {
		t.Fatal(err)
	}
	if input.GetMeta().UID != "" {
		t.Error("the caller's object was changed")
	}
	svc := made.(*object.Service)
	if svc.Spec.ClusterIP == "" || svc.Spec.Ports[0].NodePort == 0 || svc != b.service("web") {
		t.Errorf("got %+v", svc)
	}
	commits := b.engine.Commits()
	again, err := b.put(input)
	if err != nil || again != made || b.engine.Commits() != commits {
		t.Errorf("put again: %v, %d commits", err, b.engine.Commits()-commits)
	}
	b.sync()
	b.restart()
	b.sync()
	if b.ip("web") != svc.Spec.ClusterIP {
		t.Errorf("after a restart and a sync of no files: %s, was %s", b.ip("web"), svc.Spec.ClusterIP)
	}
	if err := b.remove("web"); err != nil || b.has("web") {
		t.Errorf("delete: %v", err)
	}
	if err := b.remove("web"); !errors.Is(err, ErrNotFound) {
		t.Errorf("delete again: %v", err)
	}
	b.check()
}

func TestPutRefusals(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "a {type: NodePort, ports: [{port: 80, nodePort: 30007}]}")
	stored, err := b.put(document(t, "web {clusterIP: 172.30.0.5}"))
	if err != nil {
		t.Fatal(err)
	}
	state, problems, revision := objects(b.s), b.problems(), b.s.Revision()

	var owned *OwnedError
	if err := b.remove("a"); !errors.As(err, &owned) {
		t.Errorf("delete an object of a file: %v", err)
	}
	stale := document(t, "web {}")
	stale.GetMeta().ResourceVersion = "1"
	if _, err := b.put(stale); !errors.Is(err, ErrStale) {
		t.Errorf("stale: %v", err)
	}
	unknown := document(t, "unknown {}")
	unknown.GetMeta().ResourceVersion = "1"
	if _, err := b.put(unknown); !errors.Is(err, ErrNotFound) {
		t.Errorf("a version of nothing: %v", err)
	}
	var fields object.Errors
	for text, want := range map[string]string{
		"web {clusterIP: 172.30.0.6}":                                  "spec.clusterIPs[0]: Invalid value",
		"web {type: NodePort, ports: [{port: 80, nodePort: 30007}]}":   "provided port is already allocated to Service default/a",
		"new {clusterIP: 172.30.0.5}":                                  "provided IP is already allocated to Service default/web",
		"new {type: NodePort, ports: [{port: 80, nodePort: 30007}]}":   "provided port is already allocated to Service default/a",
		"new {ports: [{port: 0}], sessionAffinity: x, type: NodePort}": "sessionAffinity",
	} {
		if _, err := b.put(document(t, text)); !errors.As(err, &fields) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", text, err, want)
		}
	}
	b.check()
	if objects(b.s) != state || b.problems() != problems || b.s.Revision() != revision || len(b.s.outcomes.waiting) != 0 {
		t.Error("a refusal has changed something")
	}
	current := document(t, "web {type: NodePort}")
	current.GetMeta().ResourceVersion = stored.GetMeta().ResourceVersion
	if _, err := b.put(current); err != nil {
		t.Errorf("the current version: %v", err)
	}
}

func TestPutIntoFullRange(t *testing.T) {
	b := newBox(t, func(c *Config) { c.NodePorts = PortRange{30000, 30000} })
	if _, err := b.put(document(t, "a {type: NodePort}")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.put(document(t, "b {type: NodePort}")); !errors.Is(err, alloc.ErrFull) {
		t.Errorf("got %v", err)
	}
	b.check()
	if err := b.remove("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.put(document(t, "b {type: NodePort}")); err != nil {
		t.Errorf("when the port is free: %v", err)
	}
}

func TestFileAndAPIClaimOneObject(t *testing.T) {
	b := newBox(t)
	if _, err := b.put(document(t, "web {type: NodePort}")); err != nil {
		t.Fatal(err)
	}
	b.apply("a.yaml", "web {}")
	want := "a.yaml:2:1: Service default/web: it comes from the API, which keeps it"
	b.wantProblems(want)
	// The next version of it is still in conflict.
	if _, err := b.put(document(t, "web {type: NodePort, sessionAffinity: ClientIP}")); err != nil {
		t.Fatal(err)
	}
	b.wantProblems(want)
	if err := b.remove("web"); err != nil {
		t.Fatal(err)
	}
	b.wantProblems()
	if _, owner := b.s.Get(ref("web")); owner.File != "a.yaml" || b.service("web").Spec.Type != "ClusterIP" {
		t.Errorf("it belongs to %s", owner)
	}
}

func TestReleaseThroughTheAPIServesThoseWhoWait(t *testing.T) {
	b := newBox(t, smallPool)
	for _, name := range []string{"a", "b"} {
		if _, err := b.put(document(t, name+" {type: LoadBalancer}")); err != nil {
			t.Fatal(err)
		}
	}
	b.apply("c.yaml", "c {type: LoadBalancer}")
	if _, err := b.put(document(t, "d {type: LoadBalancer}")); err != nil {
		t.Fatal(err)
	}
	if b.ingress("c") != "" || b.ingress("d") != "" {
		t.Fatalf("c %q, d %q", b.ingress("c"), b.ingress("d"))
	}
	if err := b.remove("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.put(document(t, "b {type: ClusterIP}")); err != nil {
		t.Fatal(err)
	}
	if b.ingress("c") == "" || b.ingress("d") == "" {
		t.Errorf("c %q, d %q", b.ingress("c"), b.ingress("d"))
	}
	b.check()
}

func TestPutWithAFailingEngine(t *testing.T) {
	b := newBox(t)
	if _, err := b.put(document(t, "b {}")); err != nil {
		t.Fatal(err)
	}
	state := objects(b.s)
	b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	if _, err := b.put(document(t, "web {type: NodePort}")); !errors.Is(err, faulty.ErrInjected) {
		t.Errorf("put: %v", err)
	}
	if err := b.remove("b"); !errors.Is(err, faulty.ErrInjected) {
		t.Errorf("delete: %v", err)
	}
	b.check()
	if objects(b.s) != state {
		t.Error("something has changed")
	}
}
