package store

import (
	"errors"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// A cluster IP or load balancer IP of somebody is as taken as an external IP.
func TestExternalIPsThatAreAllocated(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {clusterIP: 172.30.0.9}\nlb {type: LoadBalancer, loadBalancerIP: 198.51.100.4}")
	for spec, want := range map[string]string{
		"externalIPs: [172.30.0.9]":                        `spec.externalIPs[0]: Invalid value: "172.30.0.9": TCP port 80 on it is already served by Service default/web`,
		"externalIPs: [198.51.100.4]":                      `spec.externalIPs[0]: Invalid value: "198.51.100.4": TCP port 80 on it is already served by Service default/lb`,
		"externalIPs: [172.30.0.9], ports: [{port: 81}]":   "",
		"externalIPs: [198.51.100.4], ports: [{port: 81}]": "",
		"externalIPs: [172.30.0.10]":                       "",
	} {
		got := b.ask(write(refine(document(t, "other {"+spec+"}"))))
		if got.Err == nil && want != "" || got.Err != nil && got.Err.Error() != want {
			t.Errorf("%s: %v, want %q", spec, got.Err, want)
		}
		b.check()
		if got.Err == nil {
			b.must(Write{Ref: ref("other"), Delete: true})
		}
	}
}

// A client cannot have a cluster IP that is an external IP of somebody for the same port.
func TestClusterIPsThatAreExternal(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {externalIPs: [172.30.0.9]}")
	want := `spec.clusterIPs[0]: Invalid value: "172.30.0.9": TCP port 80 on it is already served by Service default/web`
	if got := b.ask(write(refine(document(t, "other {clusterIP: 172.30.0.9}")))); got.Err == nil || got.Err.Error() != want {
		t.Errorf("%v, want %s", got.Err, want)
	}
	b.must(write(refine(document(t, "other {clusterIP: 172.30.0.9, ports: [{port: 81}]}"))))
	// Who has it may be edited.
	b.apply("b.yaml", "more {externalIPs: [172.30.0.9], ports: [{port: 81}]}")
	b.must(changed(b, ref("other"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
	b.check()
}

// Node ports that a client asks for are asked about, and those that it has, or is given, are not.
func TestNodePortsThatAreRefused(t *testing.T) {
	asked := 0
	b := newBox(t, func(c *Config) {
		c.NodePort = func(protocol string, port uint16) error {
			if asked++; protocol == "TCP" && port == 30001 {
				return errors.New("nginx listens there")
			}
			return nil
		}
	})
	service := func(spec string) Write { return write(refine(document(t, "web {type: NodePort, "+spec+"}"))) }
	want := "spec.ports[1].nodePort: Invalid value: 30001: nginx listens there"
	if got := b.ask(service("ports: [{name: a, port: 1, nodePort: 30002}, {name: b, port: 2, nodePort: 30001}]")); got.Err == nil || got.Err.Error() != want {
		t.Errorf("%v, want %s", got.Err, want)
	}
	b.check()
	asked = 0
	b.must(service("ports: [{name: a, port: 1, nodePort: 30002}, {name: b, port: 2}]"))
	b.must(changed(b, ref("web"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	b.apply("a.yaml", "file {type: NodePort, ports: [{port: 1, nodePort: 30001}]}")
	b.wantProblems()
	b.must(changed(b, ref("file"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
}

// A client that asks for a port on an external IP that somebody has is told who has it; a
// file's Service is for those to sort out who serve it.
func TestExternalIPsOfTwoServices(t *testing.T) {
	b := newBox(t)
	service := func(name, spec string) Write {
		return write(refine(document(t, name+" {externalIPs: [198.51.100.99, 198.51.100.98], "+spec+"}")))
	}
	refused := func(w Write, want ...string) {
		t.Helper()
		var errs object.Errors
		if got := b.ask(w); len(want) > 0 && !errors.As(got.Err, &errs) || len(want) == 0 && got.Err != nil {
			t.Errorf("%s: %v", w.Ref, got.Err)
		}
		for i, e := range errs {
			if len(errs) != len(want) || e.Error() != want[i] {
				t.Errorf("%s: %v, want %q", w.Ref, errs, want)
				return
			}
		}
		b.check()
	}
	refused(service("shop/first", ""))
	taken := []string{
		`spec.externalIPs[0]: Invalid value: "198.51.100.99": TCP port 80 on it is already served by Service shop/first`,
		`spec.externalIPs[1]: Invalid value: "198.51.100.98": TCP port 80 on it is already served by Service shop/first`,
	}
	refused(service("second", ""), taken...)
	refused(service("second", "ports: [{port: 81}]"))
	refused(service("third", "ports: [{port: 80, protocol: UDP}]"))
	refused(service("second", "ports: [{port: 80}]"), taken...)
	refused(service("headless", "clusterIP: None"))
	// Who has it may change in other ways, also beside somebody whom a file has put there.
	b.apply("a.yaml", "old {externalIPs: [198.51.100.99]}")
	refused(changed(b, ref("old"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
	refused(changed(b, object.Ref{Kind: object.KindService, Namespace: "shop", Name: "first"}, func(svc *object.Service) { svc.Spec.SessionAffinity = "ClientIP" }))

	b.restart()
	b.sync()
	refused(service("second", ""), `spec.externalIPs[0]: Invalid value: "198.51.100.99": TCP port 80 on it is already served by Service default/old`, taken[1])
	b.apply("a.yaml", "")
	// What a call gives up and takes counts for those behind it.
	results, err := b.s.Write(
		Write{Ref: object.Ref{Kind: object.KindService, Namespace: "shop", Name: "first"}, Delete: true},
		service("second", ""), service("fourth", ""), service("second", "ports: [{port: 90}]"), service("fourth", ""))
	if err != nil {
		t.Fatal(err)
	}
	for i, refused := range []bool{false, false, true, false, false} {
		if got := results[i].Err; (got != nil) != refused {
			t.Errorf("write %d: %v", i, got)
		}
	}
	b.check()
}
