package store

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// A cluster IP of a Service is as taken as an external IP, a load balancer IP with all its ports.
func TestExternalIPsThatAreAllocated(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {clusterIP: 172.30.0.9}\nlb {type: LoadBalancer, loadBalancerIP: 198.51.100.4}")
	for spec, want := range map[string]string{
		"externalIPs: [172.30.0.9]":                        `spec.externalIPs[0]: Invalid value: "172.30.0.9": TCP port 80 on it is already served by Service default/web`,
		"externalIPs: [198.51.100.4]":                      `spec.externalIPs[0]: Invalid value: "198.51.100.4": it is a load balancer IP of Service default/lb, which stays: choose another one`,
		"externalIPs: [198.51.100.4], ports: [{port: 81}]": `spec.externalIPs[0]: Invalid value: "198.51.100.4": it is a load balancer IP of Service default/lb, which stays: choose another one`,
		"externalIPs: [172.30.0.9], ports: [{port: 81}]":   "",
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

// A client cannot have a cluster IP that is an external IP of another for the same port.
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
	b := newBox(t)
	b.s.SetHost(hostOf{nodePort: func(protocol string, port uint16) error {
		if asked++; protocol == "TCP" && port == 30001 {
			return errors.New("nginx listens there")
		}
		return nil
	}})
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

// A client that asks for a port on an external IP that another Service has gets its name; a
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
	refused(service("second", ""), taken...) // who asked for it first has it
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

// endpointOf is a slice of a Service with one endpoint, from its address on.
func endpointOf(service, rest string) string {
	return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s1, labels: {kubernetes.io/service-name: " + service + "}}\n" +
		"addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [" + rest + "}]\n"
}

// An endpoint is not cut off by a client that asks for its address; nor is what the client
// changes in a Service that has the address refused.
func TestExternalIPsThatAreEndpoints(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", endpointOf("multi", "10.180.0.1], conditions: {ready: false}"))
	want := `spec.externalIPs[0]: Invalid value: "10.180.0.1": it is an endpoint of Service default/multi, which stays: choose another one`
	take := write(refine(document(t, "taker {externalIPs: [10.180.0.1], ports: [{port: 12345}]}")))
	for range 2 {
		if got := b.ask(take); got.Err == nil || got.Err.Error() != want {
			t.Errorf("%v, want %s", got.Err, want)
		}
		b.restart()
		b.sync()
	}
	b.apply("a.yaml", "")
	b.must(take)
	b.apply("a.yaml", endpointOf("multi", "10.180.0.1]"))
	b.must(changed(b, ref("taker"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
	b.check()
}

// The pool passes over an external IP with a port that is needed, an endpoint,
// or the host's; who waits gets an address as soon as one is left.
func TestPoolPassesOverAddressesInUse(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.Pools = []alloc.Pool{{First: netip.MustParseAddr("198.51.100.8"), Last: netip.MustParseAddr("198.51.100.12")}}
	})
	b.s.SetHost(hostOf{reserved: func(_ *object.Service, addr netip.Addr) string {
		if addr == netip.MustParseAddr("198.51.100.10") {
			return "a gateway of this host"
		}
		return ""
	}})
	b.apply("s.yaml", endpointOf("multi", "198.51.100.11]"))
	const lbs = "a {type: LoadBalancer}\nb {type: LoadBalancer}\nc {type: LoadBalancer}"
	// All in one snapshot, the holder last by its name.
	b.apply("a.yaml", lbs+"\nholder {externalIPs: [198.51.100.8]}")
	got := []string{b.ingress("a"), b.ingress("b"), b.ingress("c")}
	slices.Sort(got)
	if want := []string{"", "198.51.100.12", "198.51.100.9"}; !slices.Equal(got, want) {
		t.Errorf("given %q, want %q", got, want)
	}
	b.apply("n.yaml", "named {type: LoadBalancer, loadBalancerIP: 198.51.100.10}")
	if problems := b.problems(); !strings.Contains(problems, "198.51.100.10 cannot be given: it is a gateway of this host") {
		t.Errorf("problems:\n%s", problems)
	}
	b.apply("n.yaml", "")
	b.apply("a.yaml", lbs+"\nholder {}")
	got = []string{b.ingress("a"), b.ingress("b"), b.ingress("c")}
	slices.Sort(got)
	if want := []string{"198.51.100.12", "198.51.100.8", "198.51.100.9"}; !slices.Equal(got, want) {
		t.Errorf("given %q, want %q", got, want)
	}
	// Another port of the address does not conflict.
	b.apply("h.yaml", "other {externalIPs: [198.51.100.8], ports: [{port: 443}]}")
	b.check()
}

// What an older version gave away although it was another's external IP is exchanged.
func TestPoolAddressThatIsNotServedIsExchanged(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.Pools = []alloc.Pool{{First: netip.MustParseAddr("198.51.100.8"), Last: netip.MustParseAddr("198.51.100.9")}}
	})
	b.apply("a.yaml", "holder {externalIPs: [198.51.100.20]}\nlb {type: LoadBalancer}")
	given := b.ingress("lb")
	pairs, err := b.engine.Load(record.ObjectPrefix)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pairs {
		pairs[i].Value = []byte(strings.Replace(string(pairs[i].Value), "198.51.100.20", given, 1))
	}
	if err := b.engine.Commit(engine.Transaction{CompareKey: headKey, CompareRevision: b.s.Revision(), Puts: pairs}); err != nil {
		t.Fatal(err)
	}
	b.write("a.yaml", "holder {externalIPs: ["+given+"]}\nlb {type: LoadBalancer}")
	b.restart()
	b.sync()
	if got := b.ingress("lb"); got == "" || got == given {
		t.Errorf("had %s, has %q", given, got)
	}
	b.check()
}

// Test1127_port_that_comes_to_a_pool_address: a Service that gets a port which another one has, by an external IP, at its address of a
// pool has another address at once, not after a restart alone.
func Test1127_port_that_comes_to_a_pool_address(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.Pools = []alloc.Pool{{First: netip.MustParseAddr("198.51.100.8"), Last: netip.MustParseAddr("198.51.100.9")}}
	})
	b.apply("a.yaml", "lb {type: LoadBalancer}")
	given := b.ingress("lb")
	b.apply("b.yaml", "holder {externalIPs: ["+given+"], ports: [{port: 81}]}")
	b.apply("a.yaml", "lb {type: LoadBalancer, ports: [{name: a, port: 80}, {name: b, port: 81}]}")
	if got := b.ingress("lb"); got == "" || got == given {
		t.Errorf("had %s, has %q", given, got)
	}
	b.check()
}

// Who asked first is told by revisions: within one second, over restarts, and for each port
// alone.
func TestSince(t *testing.T) {
	b := newBox(t)
	at := netip.MustParseAddrPort("203.0.113.1:80")
	first := func(at netip.AddrPort, a, b record.Since) bool { return a.Of("TCP", at) < b.Of("TCP", at) }
	b.apply("1.yaml", "zz1 {externalIPs: [203.0.113.1]}\nmm1 {}")
	b.apply("2.yaml", "aa1 {externalIPs: [203.0.113.1]}")
	b.apply("1.yaml", "zz1 {externalIPs: [203.0.113.1], ports: [{name: a, port: 80}, {name: b, port: 81}]}\nmm1 {externalIPs: [203.0.113.1]}")
	b.apply("2.yaml", "aa1 {externalIPs: [203.0.113.1], ports: [{name: a, port: 80}, {name: b, port: 81}]}")
	check := func() {
		t.Helper()
		zz, aa, mm := b.s.InForce().Since("default/zz1"), b.s.InForce().Since("default/aa1"), b.s.InForce().Since("default/mm1")
		if !first(at, zz, aa) || !first(at, aa, mm) {
			t.Errorf("port 80: zz1 %v, aa1 %v, mm1 %v", zz, aa, mm)
		}
		if at := netip.MustParseAddrPort("203.0.113.1:81"); !first(at, zz, aa) {
			t.Errorf("port 81: zz1 %v, aa1 %v", zz, aa)
		}
		if node := (netip.AddrPort{}); !first(node, mm, aa) || mm.Of("TCP", node) == 0 {
			t.Errorf("created: mm1 %v, aa1 %v", mm, aa)
		}
	}
	check()
	b.restart()
	check()
	b.sync()
	check()
	b.apply("1.yaml", "zz1 {externalIPs: [203.0.113.1], ports: [{name: b, port: 81}, {name: a, port: 80}], sessionAffinity: ClientIP}\nmm1 {externalIPs: [203.0.113.1]}")
	check()
}
