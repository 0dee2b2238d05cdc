package store

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/alloc"
)

func TestExchangesInOneSync(t *testing.T) {
	for _, test := range []struct{ name, before, after string }{
		{"node ports", "a {type: NodePort, ports: [{port: 1, nodePort: 30001}]}\nb {type: NodePort, ports: [{port: 1, nodePort: 30002}]}",
			"a {type: NodePort, ports: [{port: 1, nodePort: 30002}]}\nb {type: NodePort, ports: [{port: 1, nodePort: 30001}]}"},
		{"load balancer IPs", "a {type: LoadBalancer, loadBalancerIP: 198.51.100.4}\nb {type: LoadBalancer, loadBalancerIP: 198.51.100.5}",
			"a {type: LoadBalancer, loadBalancerIP: 198.51.100.5}\nb {type: LoadBalancer, loadBalancerIP: 198.51.100.4}"},
		{"to a newcomer", "a {clusterIP: 172.30.0.5}", "b {clusterIP: 172.30.0.5}"},
		{"from a type change", "a {clusterIP: 172.30.0.5}", "a {type: ExternalName, externalName: x.example}\nb {clusterIP: 172.30.0.5}"},
		{"chain", "c {type: NodePort, ports: [{port: 1, nodePort: 30001}]}\nb {type: NodePort, ports: [{port: 1, nodePort: 30002}]}",
			"a {type: NodePort, ports: [{port: 1, nodePort: 30001}]}\nb {type: NodePort, ports: [{port: 1, nodePort: 30003}]}\nc {type: NodePort, ports: [{port: 1, nodePort: 30002}]}"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBox(t)
			b.apply("a.yaml", test.before)
			b.wantProblems()
			b.apply("a.yaml", test.after)
			b.wantProblems()
			want := strings.Split(strings.ReplaceAll(yamlOf(test.after), ",", "\n"), "\n")
			for _, line := range want {
				if ip, found := strings.CutPrefix(strings.TrimSpace(line), "loadBalancerIP: "); found && !strings.Contains(b.ingress("a")+b.ingress("b"), strings.TrimSuffix(ip, "}")) {
					t.Errorf("nobody has %s", ip)
				}
			}
		})
	}
}

// A holder that cannot have what it asks for keeps what it has, and everybody who
// counted on that has to do without too.
func TestRefusedMovesFallBack(t *testing.T) {
	b := newBox(t)
	at := func(name string, port int) string {
		return fmt.Sprintf("%s {type: NodePort, ports: [{port: 1, nodePort: %d}]}\n", name, port)
	}
	before, after := at("taken", 31000), at("taken", 31000)
	const chain = 40 // longer than the rounds of allocation
	for i := range chain {
		before += at(fmt.Sprintf("svc-%02d", i), 30000+i)
		port := 30000 + i + 1
		if i == chain-1 {
			port = 31000
		}
		after += at(fmt.Sprintf("svc-%02d", i), port)
	}
	b.apply("a.yaml", before)
	b.wantProblems()
	b.apply("a.yaml", after+at("new", 30000)+at("free", 32000))
	for i := range chain {
		if got := b.nodePort(fmt.Sprintf("svc-%02d", i)); got != int32(30000+i) {
			t.Errorf("svc-%02d has moved to %d", i, got)
		}
	}
	if b.has("new") || b.nodePort("free") != 32000 || len(b.s.Problems()) != chain+1 {
		t.Errorf("problems:\n%s", b.problems())
	}
	if !strings.Contains(b.problems(), errTooManyMoves.Error()) {
		t.Errorf("the chain was followed to its end:\n%s", b.problems())
	}
	// When the end of the chain is free, it moves.
	b.apply("a.yaml", strings.Replace(after, at("taken", 31000), "", 1)+at("new", 30000))
	for range chain/maxRounds + 2 {
		b.apply("touch.yaml", "touch {}")
		b.apply("touch.yaml", "")
	}
	b.wantProblems()
	if b.nodePort("new") != 30000 || b.nodePort("svc-39") != 31000 {
		t.Errorf("new at %d, svc-39 at %d", b.nodePort("new"), b.nodePort("svc-39"))
	}
}

func TestTypeChangesReleaseValues(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: LoadBalancer, externalTrafficPolicy: Local}")
	for _, spec := range []string{"type: ClusterIP", "type: ExternalName, externalName: x.example", "type: LoadBalancer, externalTrafficPolicy: Local"} {
		b.apply("a.yaml", "web {"+spec+"}")
		b.wantProblems()
		svc := b.service("web")
		lb := strings.Contains(spec, "LoadBalancer")
		if (svc.Spec.HealthCheckNodePort != 0) != lb || (svc.Spec.Ports[0].NodePort != 0) != lb || (len(svc.Status.LoadBalancer.Ingress) != 0) != lb {
			t.Errorf("%s: %+v", spec, svc)
		}
		if external := svc.Spec.Type == "ExternalName"; external != (svc.Spec.ClusterIP == "") {
			t.Errorf("%s: cluster IP %q", spec, svc.Spec.ClusterIP)
		}
		ports, pools := len(b.s.allocator.ports.Holders()), b.s.allocator.pools.Holders()
		if (ports != 0) != lb || (len(pools) != 0) != lb {
			t.Errorf("%s: %d ports and %v are held", spec, ports, pools)
		}
	}
}

func TestDualStack(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = append(c.Pools, pool("2001:db8::1", "2001:db8::9")) })
	b.apply("a.yaml", "web {type: LoadBalancer, ipFamilyPolicy: PreferDualStack}")
	svc := b.service("web")
	if len(svc.Spec.ClusterIPs) != 2 || !strings.HasPrefix(svc.Spec.ClusterIPs[1], "fd00:172:30::") {
		t.Errorf("cluster IPs %v", svc.Spec.ClusterIPs)
	}
	if len(svc.Status.LoadBalancer.Ingress) != 2 {
		t.Errorf("ingress %s", b.ingress("web"))
	}
	second := netip.MustParseAddr(svc.Spec.ClusterIPs[1])
	b.apply("a.yaml", "web {type: LoadBalancer, ipFamilyPolicy: SingleStack}")
	after := b.service("web")
	if len(after.Spec.ClusterIPs) != 1 || after.Spec.ClusterIP != svc.Spec.ClusterIP || len(after.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("downgraded: %+v", after)
	}
	if _, held := b.s.allocator.addresses[false].Owner(second); held {
		t.Error("the second IP was not released")
	}
	b.wantProblems()
}

func TestSameNodePortOnTwinProtocols(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "dns {type: NodePort, ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 53, protocol: TCP}, {name: m, port: 9153}]}")
	ports := b.service("dns").Spec.Ports
	if ports[0].NodePort == 0 || ports[0].NodePort != ports[1].NodePort || ports[2].NodePort == ports[0].NodePort || ports[2].NodePort == 0 {
		t.Errorf("%+v", ports)
	}
	b.apply("b.yaml", "dns2 {type: NodePort, ports: [{name: u, port: 53, protocol: UDP, nodePort: 30053}, {name: t, port: 53, protocol: TCP}]}")
	if ports := b.service("dns2").Spec.Ports; ports[1].NodePort != 30053 {
		t.Errorf("%+v", ports)
	}
}

func TestNodePortSpaces(t *testing.T) {
	for space, want := range map[alloc.Space]bool{alloc.PerProtocol: true, alloc.Shared: false} {
		b := newBox(t, func(c *Config) { c.NodePortSpace = space })
		b.apply("a.yaml", "a {type: NodePort, ports: [{port: 53, nodePort: 30053}]}")
		b.apply("b.yaml", "b {type: NodePort, ports: [{port: 53, nodePort: 30053, protocol: UDP}]}")
		if b.has("b") != want {
			t.Errorf("space %d: accepted %t", space, b.has("b"))
		}
	}
}

// Why a Service of a file does not get what it asks for.
func TestReasonsOfRefusedValues(t *testing.T) {
	for spec, want := range map[string]string{
		"clusterIP: 172.30.0.9":                                           ReasonConflict,
		"type: NodePort, ports: [{port: 1, nodePort: 30001}]":             ReasonConflict,
		"clusterIP: 10.0.0.1":                                             ReasonOutside,
		"type: NodePort, ports: [{port: 1, nodePort: 1}]":                 ReasonOutside,
		"type: NodePort, ports: [{port: 1, name: a}, {port: 2, name: b}]": ReasonFull,
	} {
		b := newBox(t, func(c *Config) { c.NodePorts = PortRange{30001, 30002} })
		b.apply("a.yaml", "web {clusterIP: 172.30.0.9, type: NodePort, ports: [{port: 1, nodePort: 30001}]}")
		b.wantProblems()
		b.apply("b.yaml", "other {"+spec+"}")
		if p := b.s.Problems(); len(p) != 1 || p[0].Reason != want || p[0].Warning {
			t.Errorf("%s: want %s, got:\n%s", spec, want, b.problems())
		}
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	b := newBox(t)
	lb := "type: LoadBalancer, externalTrafficPolicy: Local, "
	b.apply("a.yaml", "a {"+lb+"healthCheckNodePort: 30500}")
	b.apply("b.yaml", "b {"+lb+"healthCheckNodePort: 30500}\nc {"+lb+"healthCheckNodePort: 30600, ports: [{port: 1, nodePort: 30600}]}")
	b.wantProblems(
		"b.yaml:5:", "b.yaml:10:",
	)
	if text := b.problems(); !strings.Contains(text, "spec.healthCheckNodePort: Invalid value: 30500: provided port is already allocated to Service default/a") ||
		!strings.Contains(text, "spec.healthCheckNodePort: Invalid value: 30600: provided port is already allocated to Service default/c") {
		t.Error(text)
	}
}

// A holder that moves comes before a newcomer that asks for the same.
func TestMovingHolderComesBeforeNewcomer(t *testing.T) {
	b := newBox(t)
	b.apply("z.yaml", "z {type: NodePort, ports: [{port: 1, nodePort: 30001}]}")
	b.write("a.yaml", "a {type: NodePort, ports: [{port: 1, nodePort: 30002}]}")
	b.apply("z.yaml", "z {type: NodePort, ports: [{port: 1, nodePort: 30002}]}")
	if b.has("a") || b.nodePort("z") != 30002 {
		t.Errorf("z at %d, a accepted %t", b.nodePort("z"), b.has("a"))
	}
	b.wantProblems("Service default/a: spec.ports[0].nodePort: Invalid value: 30002: provided port is already allocated to Service default/z")
}

// What people ask for is given before what is chosen for others in the same sync.
func TestAskedForComesBeforeChosen(t *testing.T) {
	b := newBox(t, func(c *Config) { c.NodePorts = PortRange{30000, 30001} })
	b.apply("a.yaml", "a {type: NodePort}\nb {type: NodePort, ports: [{port: 1, nodePort: 30000}]}")
	b.wantProblems()
	b = newBox(t, func(c *Config) { c.NodePorts = PortRange{30000, 30001} })
	b.apply("a.yaml", "a {type: NodePort}\nb {type: NodePort, ports: [{port: 1, nodePort: 30001}]}")
	b.wantProblems()
}

func TestDefaultsOfConfig(t *testing.T) {
	cfg := Config{}.withDefaults()
	if cfg.NodePorts != (PortRange{30000, 32767}) || cfg.Clock().IsZero() {
		t.Errorf("got %+v", cfg)
	}
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if a, b := cfg.NewUID(), cfg.NewUID(); a == b || !form.MatchString(a) {
		t.Errorf("uids %s and %s", a, b)
	}
}

// A file that stops asking for node ports does not take away those that are in use.
func TestNodePortsOfALoadBalancerStay(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "a {type: LoadBalancer}")
	port := b.nodePort("a")
	b.apply("a.yaml", "a {type: LoadBalancer, allocateLoadBalancerNodePorts: false}\nb {type: LoadBalancer, allocateLoadBalancerNodePorts: false}")
	if port == 0 || b.nodePort("a") != port || b.nodePort("b") != 0 {
		t.Errorf("a at %d, was %d; b at %d", b.nodePort("a"), port, b.nodePort("b"))
	}
	b.wantProblems()
}
