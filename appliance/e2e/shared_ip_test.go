package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about load balancer IPs: whose they are, how many there are,
// and what is served on them.

const (
	loadBalancerIPs = "svcctl.io/load-balancer-ips"
	sharedIP        = "svcctl.io/allow-shared-ip"
)

// balancersOf are the load balancer IPs that serve a port.
func (b *box) balancersOf(t *testing.T, f family, protocol string, port uint16) []string {
	t.Helper()
	pool := netip.MustParsePrefix(f.pick("198.51.100.0/28", "2001:db8:198::/124"))
	var all []string
	for _, e := range b.table(t, f)["services"] {
		if pool.Contains(netip.MustParseAddr(e.Key[0])) && e.Key[1] == protocol && e.Key[2] == fmt.Sprint(port) {
			all = append(all, e.Key[0])
		}
	}
	slices.Sort(all)
	return all
}

func (f family) lbs(numbers ...int) string {
	var all []string
	for _, n := range numbers {
		all = append(all, f.lb(n))
	}
	return strings.Join(all, ", ")
}

func Test031_several_load_balancer_ips_of_one_service(t *testing.T) {
	b := newBox(t, nil)
	docs := func(numbers ...int) func(f family) []string {
		return func(f family) []string {
			doc := f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), nodePorts(f, 30080))
			return []string{annotated(doc, loadBalancerIPs, f.lbs(numbers...)), f.slice("web", "p80: 80", b.L1)}
		}
	}
	b.write("web.yaml", docs(4, 5))
	b.svcctl.Start()
	for _, f := range families {
		for _, n := range []int{4, 5} {
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(n), 80), masq, f.on(80, b.L1)...)
			b.refuses(t, b.EXT, "tcp", f.at(f.lb(n), 81))
			b.refuses(t, b.EXT, "tcp", f.at(f.lb(n), f.number(30080)))
		}
		b.noProblem(t, f.object("Service", "web"))
	}
	b.rewrite("web.yaml", docs(5, 6))
	for _, f := range families {
		if got := b.balancersOf(t, f, "tcp", 80); !slices.Equal(got, []string{f.lb(5), f.lb(6)}) {
			t.Errorf("%s: load balancer IPs %v, want .5 and .6", f, got)
		}
		for _, n := range []int{5, 6} {
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(n), 80), masq, f.on(80, b.L1)...)
		}
	}
}

// Two Services on one address, as long as no port of the one is a port of the other.
func Test044_shared_load_balancer_ip(t *testing.T) {
	b := newBox(t, nil)
	sharing := func(name, key string, port string, host *netlab.Host) func(f family) []string {
		return func(f family) []string {
			doc := f.service(name, "type: LoadBalancer", "ports: [{name: p, "+port+"}]")
			ports := "p: 80"
			if strings.Contains(port, "UDP") {
				ports = "p: 80/UDP"
			}
			return []string{annotated(doc, sharedIP, key), f.slice(name, ports, host)}
		}
	}
	b.write("1.yaml", sharing("web", "site", "port: 80", b.L1))
	b.svcctl.Start()
	b.rewrite("2.yaml", sharing("tls", "site", "port: 443", b.R1))
	b.rewrite("3.yaml", sharing("quic", "site", "port: 443, protocol: UDP", b.L2))
	b.rewrite("4.yaml", sharing("other", "elsewhere", "port: 444", b.L2))
	b.rewrite("5.yaml", sharing("again", "site", "port: 443", b.L2)) // that port is taken: another address
	b.each(t, func(t *testing.T, b *box, f family) {
		lb := b.balancersOf(t, f, "tcp", 80)
		if len(lb) != 1 {
			t.Fatalf("port 80 has the load balancer IPs %v, want one", lb)
		}
		b.reaches(t, b.EXT, "tcp", f.at(lb[0], 80), masq, f.on(80, b.L1)...)
		b.reaches(t, b.EXT, "tcp", f.at(lb[0], 443), masq, f.on(80, b.R1)...)
		b.reaches(t, b.EXT, "udp", f.at(lb[0], 443), masq, f.on(80, b.L2)...)
		b.refuses(t, b.EXT, "tcp", f.at(lb[0], 444))
		for port, want := range map[uint16]int{443: 2, 444: 1} {
			if got := b.balancersOf(t, f, "tcp", port); len(got) != want {
				t.Errorf("port %d has the load balancer IPs %v, want %d", port, got, want)
			}
		}
		for _, name := range []string{"web", "tls", "quic", "other", "again"} {
			b.noProblem(t, f.object("Service", name))
		}
	})
}

func Test044_shared_load_balancer_ip_by_name(t *testing.T) {
	b := newBox(t, nil)
	asking := func(name, ports string, host *netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service(name, "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, "+ports+"}]"),
				f.slice(name, "p80: 80", host),
			}
		}
	}
	b.write("1.yaml", asking("web", "port: 80", b.L1))
	b.svcctl.Start()
	b.rewrite("2.yaml", asking("tls", "port: 443", b.R1))
	b.rewrite("3.yaml", asking("late", "port: 80", b.L2))
	served := func(eighty, tls *netlab.Host) {
		t.Helper()
		for _, f := range families {
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, eighty)...)
			b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 443), masq, f.on(80, tls)...)
		}
	}
	served(b.L1, b.R1)
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "late"), "spec.loadBalancerIP", f.lb(4), f.name("web"), "both serve TCP port 80")
	}
	// One that goes leaves the address to the others, and its port to who waits for it.
	b.change(func() { b.svcctl.Manifests.Remove("1.yaml") })
	served(b.L2, b.R1)
	for _, f := range families {
		b.noProblem(t, f.object("Service", "late"))
	}
}

func Test031_mixed_protocols_on_one_load_balancer_ip(t *testing.T) {
	b := newBox(t, nil)
	b.write("dns.yaml", func(f family) []string {
		return []string{
			f.service("dns", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), `ports:
- {name: udp, port: 53, protocol: UDP}
- {name: tcp, port: 53, protocol: TCP}
- {name: sctp, port: 53, protocol: SCTP}`),
			f.slice("dns", "udp: 53/UDP, tcp: 5353/TCP, sctp: 9376/SCTP", b.L1, b.R1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		to := f.at(f.lb(4), 53)
		b.reaches(t, b.EXT, "udp", to, masq, f.on(53, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "tcp", to, masq, f.on(5353, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "sctp", to, masq, f.on(9376, b.L1, b.R1)...)
		// One number of a port is one node port on all protocols.
		numbers := map[string]bool{}
		for _, port := range b.nodePortsInUse(t, f) {
			_, number, _ := strings.Cut(port, " ")
			numbers[number] = true
		}
		if len(numbers) != 1 {
			t.Errorf("node ports %v, want one number on three protocols", b.nodePortsInUse(t, f))
		}
		b.noProblem(t, f.object("Service", "dns"))
	})
}

// A load balancer of another class is another controller's: no address is given, and the rest
// of the Service is served.
func Test130_load_balancer_class(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("other", "type: LoadBalancer", "loadBalancerClass: example.com/other", "clusterIP: "+f.vip(41),
				"loadBalancerIP: "+f.lb(4), nodePorts(f, 30080)),
			f.slice("other", "p80: 80", b.L1),
			f.service("ours", "type: LoadBalancer", "loadBalancerClass: svcctl.io/load-balancer", "loadBalancerIP: "+f.lb(5),
				"ports: [{name: p80, port: 80}]"),
			f.slice("ours", "p80: 80", b.R1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1)...)
		b.reaches(t, b.EXT, "tcp", f.nodePort(), masq, f.on(80, b.L1)...)
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(5), 80), masq, f.on(80, b.R1)...)
		if got := b.balancersOf(t, f, "tcp", 80); !slices.Equal(got, []string{f.lb(5)}) {
			t.Errorf("load balancer IPs %v, want only the one of our class", got)
		}
		b.noProblem(t, f.object("Service", "other"))
	})
}

// Without node ports a load balancer IP is served all the same, by every policy.
func Test128_policy_local_without_node_ports(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "allocateLoadBalancerNodePorts: false", etpLocal,
				"ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1, b.R1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.balancer(), plain, f.on(80, b.L1)...)
		b.reaches(t, b.IN, "tcp", f.balancer(), plain, f.on(80, b.L1, b.R1)...)
		if ports := b.nodePortsInUse(t, f); len(ports) != 0 {
			t.Errorf("node ports %v, want none", ports)
		}
	})
}

// The status is the appliance's: addresses that a manifest writes there are not served.
func Test131_status_of_a_manifest(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		doc := f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]")
		return []string{
			doc + "status: {loadBalancer: {ingress: [{ip: '" + f.lb(9) + "', ipMode: Proxy}]}}\n",
			f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "warning", "status", "spec.loadBalancerIP")
		b.reaches(t, b.EXT, "tcp", f.balancer(), masq, f.on(80, b.L1)...)
		if err := b.notListed(t, f, f.at(f.lb(9), 0).Addr()); err != nil {
			t.Error(err)
		}
	})
}
