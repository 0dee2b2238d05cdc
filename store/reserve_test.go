package store

import (
	"fmt"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// inForce are the frontends of the Services of a box, as the kernel has them.
func inForce(b *box, endpoint string) (frontends []ReservedFrontend) {
	endpoints := []netip.Addr{netip.MustParseAddr(endpoint)}
	for _, svc := range b.s.Services() {
		v := valuesOf(svc)
		for _, p := range svc.Spec.Ports {
			port := alloc.Port{Protocol: p.Protocol, Number: uint16(p.Port)}
			for _, addr := range append(v.clusterIPs, v.ingress...) {
				frontends = append(frontends, ReservedFrontend{addr, port, endpoints})
			}
			if p.NodePort != 0 {
				frontends = append(frontends, ReservedFrontend{netip.Addr{}, alloc.Port{Protocol: p.Protocol, Number: uint16(p.NodePort)}, endpoints})
			}
		}
	}
	return frontends
}

func largeRange(cfg *Config) {
	cfg.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}
}

func sliceOf(service, endpoint string) string {
	return fmt.Sprintf("\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-1, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}\n"+
		"addressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [%[2]s]}]\n", service, endpoint)
}

// lostData is a new store on a box that serves web with all kinds of values.
func lostData(t *testing.T) (b *box, ip, ingress string, nodePort int32) {
	old := newBox(t, largeRange)
	old.apply("a.yaml", "web {type: LoadBalancer}")
	b = newBox(t, largeRange)
	if !b.s.Blank() || b.s.HasReserved() {
		t.Fatal("a new store is not blank, or has values reserved")
	}
	if err := b.s.Reserve(inForce(old, "10.1.0.1")); err != nil {
		t.Fatal(err)
	}
	return b, old.ip("web"), old.ingress("web"), old.nodePort("web")
}

// Values that the kernel serves for nobody knows whom are given to nobody else, whoever is
// about to get them.
func TestReservedValuesAreGivenToNobodyElse(t *testing.T) {
	b, ip, ingress, nodePort := lostData(t)
	for i := range 300 { // more than there are
		text := fmt.Sprintf("s%d {type: LoadBalancer}", i)
		b.apply(fmt.Sprintf("%d.yaml", i), text)
		if name := fmt.Sprintf("s%d", i); b.has(name) && (b.ip(name) == ip || b.ingress(name) == ingress || b.nodePort(name) == nodePort) {
			t.Fatalf("s%d got a value that is in force for another Service", i)
		}
	}
	// The same name with other ports, or with other endpoints, is another Service.
	b, ip, _, _ = lostData(t)
	b.apply("web.yaml", "web {type: LoadBalancer, ports: [{port: 443}]}")
	if b.ip("web") == ip {
		t.Error("a Service with other ports got the cluster IP")
	}
	b, ip, ingress, nodePort = lostData(t)
	b.apply("web.yaml", yamlOf("web {type: LoadBalancer}")+sliceOf("web", "10.9.9.9"))
	if b.ip("web") == ip || b.ingress("web") == ingress || b.nodePort("web") == nodePort {
		t.Error("a Service with other endpoints got a value")
	}
}

func TestReservedValuesGoBackToTheirService(t *testing.T) {
	for name, come := range map[string]func(b *box){
		"a file":                   func(b *box) { b.apply("web.yaml", yamlOf("web {type: LoadBalancer}")+sliceOf("web", "10.1.0.1")) },
		"a file without endpoints": func(b *box) { b.apply("web.yaml", "web {type: LoadBalancer}") },
		"a client": func(b *box) {
			if _, err := b.put(document(t, "web {type: LoadBalancer}")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		b, ip, ingress, nodePort := lostData(t)
		b.apply("other.yaml", "other {type: LoadBalancer}")
		come(b)
		if b.ip("web") != ip || b.ingress("web") != ingress || b.nodePort("web") != nodePort {
			t.Errorf("%s: it has %s, %s and %d, and had %s, %s and %d", name, b.ip("web"), b.ingress("web"), b.nodePort("web"), ip, ingress, nodePort)
		}
		b.check()
	}
}

// Who names a value gets it, and it stays with them; a refusal takes nothing.
func TestReservedValuesAreThereToBeAskedFor(t *testing.T) {
	b, ip, ingress, nodePort := lostData(t)
	text := fmt.Sprintf("named {type: LoadBalancer, clusterIP: %s, loadBalancerIP: %s, ports: [{port: 80, nodePort: %d}]}", ip, ingress, nodePort)
	if w := b.ask(Write{Ref: ref("named"), Object: document(t, text), DryRun: true}); w.Err != nil {
		t.Fatal(w.Err)
	}
	if owner, _ := b.s.allocator.owner(netip.MustParseAddr(ip)); owner != reservedOwner {
		t.Errorf("after a dry run %q has the address", owner)
	}
	b.apply("named.yaml", text)
	if b.ip("named") != ip || b.ingress("named") != ingress || b.nodePort("named") != nodePort {
		t.Errorf("it has %s, %s and %d\n%s", b.ip("named"), b.ingress("named"), b.nodePort("named"), b.problems())
	}
}

func TestReservationsOutliveARestartAndEnd(t *testing.T) {
	b, ip, _, _ := lostData(t)
	b.restart()
	if !b.s.HasReserved() {
		t.Error("a restart forgets that values are reserved")
	}
	if err := b.s.Reserve([]ReservedFrontend{{Addr: netip.MustParseAddr(ip), Port: alloc.Port{Protocol: object.ProtocolTCP, Number: 80}}}); err != nil {
		t.Fatal(err)
	}
	if err := b.s.Unreserve(); err != nil {
		t.Fatal(err)
	}
	if owner, held := b.s.allocator.owner(netip.MustParseAddr(ip)); held || b.s.HasReserved() {
		t.Errorf("%q still has it", owner)
	}
	b.restart()
	if b.s.HasReserved() {
		t.Error("it comes back with a restart")
	}
}

// A store is not blank because its last Service went.
func TestBlank(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {}")
	b.apply("a.yaml", "")
	for range 2 {
		if b.s.Blank() {
			t.Error("blank, although there was a Service")
		}
		b.restart()
	}
}
