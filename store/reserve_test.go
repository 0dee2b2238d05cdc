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
	for _, key := range b.s.Services() {
		endpoints := []netip.Addr{netip.MustParseAddr(endpoint)}
		svc, slices, _ := b.s.Service(key)
		if len(slices) > 0 {
			endpoints = []netip.Addr{netip.MustParseAddr(slices[0].Endpoints[0].Addresses[0])}
		}
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

// Test805_values_go_back_where_names_lead_to_one: where many Services share few values, many names lead to one value, and all but one
// have the next ones. After the data is lost each has its own again.
func Test805_values_go_back_where_names_lead_to_one(t *testing.T) {
	few := func(cfg *Config) {
		cfg.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/25")}
		cfg.NodePorts = PortRange{First: 30000, Last: 30063}
		cfg.Pools = []alloc.Pool{{First: netip.MustParseAddr("198.51.100.0"), Last: netip.MustParseAddr("198.51.100.63"), AvoidEnds: true}}
	}
	const services = 40
	come := func(b *box) (names []string) {
		for i := range services {
			name := fmt.Sprintf("s%d", i)
			names = append(names, name)
			b.write(name+".yaml", yamlOf(name+" {type: LoadBalancer}")+sliceOf(name, fmt.Sprintf("10.1.0.%d", i+1)))
		}
		for i, port := range []int{80, 443} { // of one load balancer IP
			name := fmt.Sprintf("shares%d", i)
			b.write(name+".yaml", yamlOf(fmt.Sprintf("%s {KEY k, type: LoadBalancer, ports: [{port: %d}]}", name, port))+sliceOf(name, fmt.Sprintf("10.1.1.%d", i+1)))
			names = append(names, name)
		}
		b.sync()
		return names
	}
	old, b := newBox(t, few), newBox(t, few)
	come(old)
	if err := b.s.Reserve(inForce(old, "10.1.9.9")); err != nil {
		t.Fatal(err)
	}
	if old.ingress("shares0") != old.ingress("shares1") {
		t.Fatal("the two do not share an address")
	}
	for _, name := range come(b) {
		if b.ip(name) != old.ip(name) || b.ingress(name) != old.ingress(name) || b.nodePort(name) != old.nodePort(name) {
			t.Errorf("%s has %s, %s and %d, and had %s, %s and %d", name, b.ip(name), b.ingress(name), b.nodePort(name), old.ip(name), old.ingress(name), old.nodePort(name))
		}
	}
	b.check()
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
