package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func Test124_node_port_bands(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		var docs []string
		for i := range 50 {
			name := fmt.Sprintf("s%d", i)
			docs = append(docs, f.service(name, "type: NodePort", "ports: [{name: p, port: 80}]"), f.slice(name, "p: 80", b.L1))
		}
		return docs
	})
	b.svcctl.Start()
	all := append(b.nodePortsInUse(t, ipv4), b.nodePortsInUse(t, ipv6)...)
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != 100 {
		t.Errorf("100 Services got %d different node ports: %v", len(slices.Compact(all)), all)
	}
	for _, port := range all {
		if port < "tcp 30086" || port > "tcp 32767" {
			t.Errorf("%s was given, want one from 30086 on", port)
		}
	}
}

func Test124_small_node_port_range(t *testing.T) {
	b := newBox(t, flags{"service-node-port-range": {"30000-30015"}})
	b.write("web.yaml", func(f family) []string {
		var docs []string
		for i := range 9 {
			name := fmt.Sprintf("s%d", i)
			docs = append(docs, f.service(name, "type: NodePort", "ports: [{name: p, port: 80}]"), f.slice(name, "p: 80", b.L1))
		}
		return docs
	})
	b.svcctl.Start()
	if n := len(b.nodePortsInUse(t, ipv4)) + len(b.nodePortsInUse(t, ipv6)); n != 16 {
		t.Errorf("%d of 16 node ports were given to 18 Services", n)
	}
	if n := len(b.status().Problems); n < 2 {
		t.Errorf("%d problems, want one of each of the 2 Services without a node port", n)
	}
}

func Test125_requested_node_port(t *testing.T) {
	b := newBox(t, nil)
	docs := func(name string, ports ...string) string {
		return service(name, "type: NodePort", "ports: ["+strings.Join(ports, ", ")+"]")
	}
	b.svcctl.Manifests.Write("a.yaml", docs("fixed", "{name: a, port: 80, nodePort: 30007}")+"---\n"+
		strings.ReplaceAll(ipv4.slice("fixed", "a: 80", b.L1), "fixed-4", "fixed"))
	b.svcctl.Manifests.Write("b.yaml", docs("taken", "{name: a, port: 80, nodePort: 30007}"))
	b.svcctl.Manifests.Write("c.yaml", docs("outside", "{name: a, port: 80, nodePort: 29999}"))
	b.svcctl.Manifests.Write("d.yaml", docs("twice", "{name: a, port: 80, nodePort: 30008}", "{name: b, port: 81, nodePort: 30008}"))
	b.svcctl.Start()
	b.reaches(t, b.EXT, "tcp", ipv4.at(ipv4.boxAddr(), 30007), masq, ipv4.on(80, b.L1)...)
	b.hasProblem(t, "Service default/taken", "spec.ports[0].nodePort", "Invalid value: 30007: provided port is already allocated")
	b.hasProblem(t, "Service default/outside", "spec.ports[0].nodePort",
		"provided port is not in the valid range. The range of valid ports is 30000-32767")
	b.hasProblem(t, "Service default/twice", "spec.ports[1].nodePort", "30008")
}

func Test127_node_port_to_cluster_ip(t *testing.T) {
	b := newBox(t, nil)
	docs := func(kind, nodePort string) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service("web", "type: "+kind, "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80"+nodePort+"}]"),
				f.slice("web", "p80: 80", b.L1),
			}
		}
	}
	b.write("web.yaml", docs("NodePort", ""))
	b.svcctl.Start()
	for _, f := range families {
		if ports := b.nodePortsInUse(t, f); len(ports) != 1 {
			t.Fatalf("%s: node ports %v, want one", f, ports)
		}
	}
	b.rewrite("web.yaml", docs("ClusterIP", ""))
	for _, f := range families {
		if ports := b.nodePortsInUse(t, f); len(ports) != 0 {
			t.Errorf("%s: node ports %v, want none", f, ports)
		}
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
	b.write("web.yaml", docs("ClusterIP", ", nodePort: 30010"))
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "spec.ports[0].nodePort", "may not be used when `type` is 'ClusterIP'")
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...) // as before
	}
}

func Test128_load_balancer_without_node_ports(t *testing.T) {
	b := newBox(t, nil)
	docs := func(allocate, nodePort string) func(f family) []string {
		return func(f family) []string {
			if nodePort != "" {
				nodePort = ", nodePort: " + f.port(30010)
			}
			return []string{
				f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "allocateLoadBalancerNodePorts: "+allocate,
					"ports: [{name: p80, port: 80"+nodePort+"}]"),
				f.slice("web", "p80: 80", b.L1),
			}
		}
	}
	want := func(what string, n int) {
		t.Helper()
		for _, f := range families {
			if ports := b.nodePortsInUse(t, f); len(ports) != n {
				t.Errorf("%s, %s: node ports %v, want %d", what, f, ports, n)
			}
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
		}
	}
	b.write("web.yaml", docs("false", ""))
	b.svcctl.Start()
	want("not allocated", 0)
	b.rewrite("web.yaml", docs("false", "explicit"))
	want("asked for", 1)
	b.rewrite("web.yaml", docs("true", ""))
	want("allocated", 1)
	b.rewrite("web.yaml", docs("false", ""))
	want("existing ones stay", 1)
	b.write("cluster.yaml", func(f family) []string {
		return []string{f.service("wrong", "allocateLoadBalancerNodePorts: false", "ports: [{name: p80, port: 80}]")}
	})
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "wrong"), "spec.allocateLoadBalancerNodePorts", "Forbidden")
	}
}

func Test130_load_balancer_ip(t *testing.T) {
	b := newBox(t, nil)
	docs := func(name string, port int, spec ...string) func(f family) []string {
		return func(f family) []string {
			lines := []string{"type: LoadBalancer", fmt.Sprintf("ports: [{name: p80, port: %d}]", port)}
			for _, line := range spec {
				lines = append(lines, strings.ReplaceAll(line, "LB", f.lb(4)))
			}
			host := b.L1
			if name == "taken" {
				host = b.R1
			}
			return []string{f.service(name, lines...), f.slice(name, "p80: 80", host)}
		}
	}
	outside := func(f family) []string {
		return docs("outside", 1003, "loadBalancerIP: "+f.pick("198.51.101.4", "2001:db8:199::4"))(f)
	}
	b.write("1.yaml", docs("asked", 1001, "loadBalancerIP: LB"))
	b.svcctl.Start()
	b.rewrite("2.yaml", docs("taken", 1001, "loadBalancerIP: LB"))
	b.rewrite("3.yaml", outside)
	b.rewrite("4.yaml", docs("automatic", 1004))
	b.rewrite("5.yaml", docs("foreign", 1005, "loadBalancerClass: example.com/other"))
	for _, f := range families {
		served := map[string][]string{} // load balancer IPs by port
		for _, e := range b.table(t, f)["services"] {
			if pool := netip.MustParsePrefix(f.pick("198.51.100.0/28", "2001:db8:198::/124")); pool.Contains(f.at(e.Key[0], 0).Addr()) {
				served[e.Key[2]] = append(served[e.Key[2]], e.Key[0])
			}
		}
		if got := served["1001"]; !slices.Equal(got, []string{f.lb(4)}) {
			t.Errorf("%s: the Service that asked for %s has %v", f, f.lb(4), got)
		}
		if got := served["1004"]; len(got) != 1 || got[0] == f.lb(4) {
			t.Errorf("%s: the Service that asked for nothing has %v", f, got)
		}
		for _, port := range []string{"1003", "1005"} {
			if len(served[port]) != 0 {
				t.Errorf("%s: port %s has %v, want none", f, port, served[port])
			}
		}
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 1001), masq, f.on(80, b.L1)...)
		b.hasProblem(t, f.object("Service", "taken"), f.lb(4), f.name("asked"))
		b.hasProblem(t, f.object("Service", "outside"), f.pick("198.51.101.4", "2001:db8:199::4"))
		b.noProblem(t, f.object("Service", "automatic"))
	}
	b.write("1.yaml", docs("asked", 1001, "loadBalancerIP: LB", "loadBalancerClass: example.com/late"))
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "asked"), "spec.loadBalancerClass", "may not change once set")
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 1001), masq, f.on(80, b.L1)...) // as before
	}
	b.write("6.yaml", func(f family) []string {
		return []string{f.service("class", "loadBalancerClass: example.com/other", "ports: [{name: p80, port: 80}]")}
	})
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "class"), "spec.loadBalancerClass", "Forbidden")
	}
}
