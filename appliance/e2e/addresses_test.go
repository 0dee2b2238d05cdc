package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// applied asks for documents through the API.
func (b *box) applied(t *testing.T, documents ...string) (stderr string, code int) {
	t.Helper()
	manifest := filepath.Join(t.TempDir(), "asked.yaml")
	if err := os.WriteFile(manifest, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code = b.svcctl.Svcctl("apply", "-f", manifest)
	return stderr, code
}

// refusedByAPI asserts that a Service is refused for its first external IP.
func (b *box) refusedByAPI(t *testing.T, f family, addr, why string) {
	t.Helper()
	stderr, code := b.applied(t, f.service("asked", "externalIPs: ['"+addr+"']", "ports: [{name: p, port: 12345}]"))
	if code != 1 || !strings.Contains(stderr, "spec.externalIPs[0]: Invalid value") || !strings.Contains(stderr, why) {
		t.Errorf("svcctl apply with external IP %s: exit %d: %s; want %q", addr, code, stderr, why)
	}
}

// answersItself asserts that a host answers at its own address, whose client sees it.
func answersItself(t *testing.T, from *netlab.Host, network string, f family, host *netlab.Host, port uint16) {
	t.Helper()
	reply := answers(t, from, network, f.on(port, host)[0])
	if reply.Server != host.Name || reply.Client.Addr() != f.of(from) {
		t.Errorf("%s %s to %s port %d: %s, want an answer of the host itself to %s", from.Name, network, host.Name, port, reply, f.of(from))
	}
}

// routed has the router know the networks behind the box.
func (b *box) routed() {
	for _, f := range families {
		for _, prefix := range []string{f.pick("10.0.0.0/24", "fd00:10::/64"), f.pick("10.180.0.0/16", "fd00:10:180::/64"), f.pick("10.181.0.0/16", "fd00:10:181::/64")} {
			b.RTR.Route(prefix, f.boxAddr())
		}
	}
}

// Through the box goes what is sent to the address of some other host, an endpoint or a server
// in the Internet, whatever a Service says of another port of it.
func TestExternalIPTakesNamedPortsOnly(t *testing.T) {
	b := newBox(t, nil)
	b.routed()
	b.EXT.Serve("udp", 53)
	b.EXT.Serve("tcp", 443)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "externalIPs: ['"+f.of(b.EXT).String()+"']", "ports: [{name: p443, port: 443}]"),
			f.slice("web", "p443: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.on(443, b.EXT)[0], masq, f.on(80, b.L1)...)
		answersItself(t, b.IN, "udp", f, b.EXT, 53)
		answersItself(t, b.R1, "udp", f, b.EXT, 53)
		if err := b.IN.Ping(f.of(b.EXT), patiently); err != nil {
			t.Errorf("IN pings %s: %v", f.of(b.EXT), err)
		}
		b.noProblem(t, f.object("Service", "web"))
	})
}

// A host that is an endpoint stays one, and stays reachable, when a later Service names its
// address. A client of the API is refused.
func TestExternalIPOfAnEndpoint(t *testing.T) {
	b := newBox(t, nil)
	b.routed()
	b.write("multi.yaml", func(f family) []string {
		return []string{
			f.service("multi", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
			f.slice("multi", "p80: 80", b.L1, b.R1),
		}
	})
	b.svcctl.Start()
	for _, f := range families {
		b.refusedByAPI(t, f, f.of(b.L1).String(), "an endpoint of Service default/multi")
	}
	b.rewrite("a-taker.yaml", func(f family) []string {
		return []string{
			f.service("a-taker", "externalIPs: ['"+f.of(b.L1).String()+"']", "ports: [{name: p12345, port: 12345}]"),
			f.slice("a-taker", "p12345: 80", b.R2),
		}
	})
	check := func(when string) {
		t.Helper()
		for _, f := range families {
			b.hasProblem(t, f.object("Service", "a-taker"), "Conflict", "was an endpoint of Service default/"+f.name("multi"))
			b.noProblem(t, f.object("Service", "multi"))
			if err := b.tryReaches(b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			answersItself(t, b.EXT, "tcp", f, b.L1, 443)
		}
	}
	check("at first")
	b.svcctl.Kill()
	b.svcctl.Start()
	check("after a restart")
	// The first start of a box that has both at once.
	b.svcctl.Stop()
	if _, stderr, code := b.svcctl.Svcctl("down", "--yes"); code != 0 {
		t.Fatalf("svcctl down: %s", stderr)
	}
	b.svcctl.Start()
	check("from nothing")
}

// What no external IP may take: the service range, other hosts' traffic, a load balancer IP of another Service.
func TestExternalIPsThatAreRefused(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1),
			f.service("range", "externalIPs: ["+f.vip(77)+"]", "ports: [{name: p80, port: 80}]"),
			f.slice("range", "p80: 80", b.L2),
		}
	})
	b.svcctl.Start()
	b.rewrite("late.yaml", func(f family) []string {
		return []string{
			f.service("late", "externalIPs: ["+f.lb(4)+"]", "ports: [{name: p443, port: 443}]"),
			f.slice("late", "p443: 80", b.L2),
		}
	})
	for _, f := range families {
		b.refusedByAPI(t, f, f.vip(78), "it lies in the service range")
		b.refusedByAPI(t, f, f.lb(4), "a load balancer IP of Service default/"+f.name("web"))
		b.refusedByAPI(t, f, f.pick("240.1.2.3", "ff0e::1"), "")
		b.hasProblem(t, f.object("Service", "range"), "error", "spec.externalIPs[0]", "ServiceRange")
		b.hasProblem(t, f.object("Service", "late"), "error", "Conflict", "is a load balancer IP of Service default/"+f.name("web"))
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
		b.refuses(t, b.EXT, "tcp", f.at(f.lb(4), 443))
	}
	b2 := newBoxFrom(t, b, flags{"external-ip-range": {"none"}})
	b2.svcctl.Start()
	for _, f := range families {
		b2.refusedByAPI(t, f, f.external(99), "--external-ip-range is none")
	}
}

// newBoxFrom is another appliance on the same network, after the first one has stopped.
func newBoxFrom(t *testing.T, b *box, other flags) *box {
	t.Helper()
	b.svcctl.Stop()
	f := standardFlags()
	for name, values := range other {
		f[name] = values
	}
	return &box{Standard: b.Standard, svcctl: b.GW1.Appliance(binary, f.args()...), t: t, flags: f}
}

// A service range over a network of the box leaves that network reachable, from the box and
// through it, is an error, and its hosts may be endpoints.
func TestServiceRangeOverANetworkOfTheBox(t *testing.T) {
	b := newBox(t, flags{"service-cluster-ip-range": {"10.180.0.0/16,fd00:10:180::/112"}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1),
			f.service("taker", "type: LoadBalancer", "loadBalancerIP: "+f.lb(5),
				"clusterIP: "+f.pick("10.180.255.254", "fd00:10:180::ffff"), "ports: [{name: p80, port: 80}]"),
			f.slice("taker", "p80: 80", b.L2),
		}
	})
	b.routed()
	b.GW1.Serve("tcp", 22)
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		answersItself(t, b.EXT, "tcp", f, b.L1, 443)
		answersItself(t, b.R1, "tcp", f, b.L2, 443)
		if reply := answers(t, b.GW1, "tcp", f.on(443, b.L1)[0]); reply.Server != b.L1.Name {
			t.Errorf("the box to its own network: answered by %s", reply)
		}
		own := f.at(f.pick("10.180.255.254", "fd00:10:180::ffff"), 22)
		if reply := answers(t, b.L1, "tcp", own); reply.Server != b.GW1.Name {
			t.Errorf("L1 to the box: answered by %s", reply)
		}
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
		// Its cluster IP is the box's and not served; its other address is.
		b.hasProblem(t, f.object("Service", "taker"), "error", "spec.clusterIPs[0]", "HostAddress", "an address of this host")
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(5), 80), masq, f.on(80, b.L2)...)
		b.noProblem(t, f.object("EndpointSlice", "web"))
		b.hasProblem(t, "", "error", "Host", "the service range "+f.pick("10.180.0.0/16", "fd00:10:180::/112")+" overlaps "+f.pick("10.180.255.254/16", "fd00:10:180::ffff"))
		stderr, code := b.applied(t, f.service("asked", "clusterIP: "+f.pick("10.180.255.254", "fd00:10:180::ffff"), "ports: [{name: p, port: 12345}]"))
		if code != 1 || !strings.Contains(stderr, "spec.clusterIPs") {
			t.Errorf("svcctl apply: exit %d: %s", code, stderr)
		}
	})
}

// A network that comes while the box serves is reachable at once, and reported.
func TestNetworkThatComesIntoTheServiceRange(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	b.routed()
	b.RTR.AddAddr("box", "172.30.5.2/24")
	b.RTR.Serve("tcp", 8081)
	if _, err := b.GW1.Ask("tcp", ipv4.at("172.30.5.2", 8081)); err == nil {
		t.Fatal("the network is reachable before it is there")
	}
	b.GW1.AddAddr("ext0", "172.30.5.1/24")
	b.hasReason(t, syncTimeout, "Host", "the service range 172.30.0.0/16 overlaps 172.30.5.1/24 on ext0")
	for _, from := range []*netlab.Host{b.GW1, b.L1} {
		if reply := answers(t, from, "tcp", ipv4.at("172.30.5.2", 8081)); reply.Server != b.RTR.Name {
			t.Errorf("%s: answered by %s", from.Name, reply)
		}
	}
	b.reaches(t, b.IN, "tcp", ipv4.cluster(), plain, ipv4.on(80, b.L1)...)
	b.GW1.RemoveAddr("ext0", "172.30.5.1/24")
	b.hasReason(t, syncTimeout, "Host")
}

// A VIP that a failover program brings to the box is served whatever its prefix length, also
// after a restart and a reboot; the box's own addresses are not taken.
func TestVIPThatIsBroughtToTheBox(t *testing.T) {
	b := newBox(t, nil)
	documents := func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "externalIPs: ["+f.external(99)+", "+f.altAddr()+"]",
				"ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1),
		}
	}
	b.write("web.yaml", documents)
	b.svcctl.Start()
	check := func(when string) {
		t.Helper()
		for _, f := range families {
			for _, vip := range []string{f.external(99), f.lb(4)} {
				if err := b.tryReaches(b.EXT, "tcp", f.at(vip, 80), masq, f.on(80, b.L1)...); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			b.hasProblem(t, f.object("Service", "web"), "HostAddress", f.altAddr())
			for _, p := range b.status().Problems {
				if p.Object == f.object("Service", "web") && !strings.Contains(p.Message, f.altAddr()) {
					t.Errorf("%s: %s", when, p)
				}
			}
		}
	}
	check("before it comes")
	before := b.status().Revision.Accepted
	for _, f := range families {
		b.GW1.AddAddr("ext0", f.external(99)+f.pick("/24", "/64"))
		b.GW1.AddAddr("ext0", f.lb(4)+f.pick("/24", "/64"))
	}
	b.GW1.AddAddr("ext0", "192.0.2.77/24") // one of the box's own, which the Node lists then
	eventually(t, syncTimeout, func() error {
		if now := b.status().Revision.Accepted; now == before {
			return fmt.Errorf("the addresses are not noticed")
		}
		return nil
	})
	check("when it has come")
	b.svcctl.Kill()
	b.svcctl.Start()
	check("after a restart")
	b.svcctl.Stop()
	if _, stderr, code := b.svcctl.Svcctl("down", "--yes"); code != 0 {
		t.Fatalf("svcctl down: %s", stderr)
	}
	b.svcctl.Start()
	check("after a reboot")
	// Both come back: with its primary address, IPv4 removes the secondary ones of the same network, here lb(4), which is
	// announced nowhere then.
	for _, f := range families {
		b.GW1.RemoveAddr("ext0", f.lb(4)+f.pick("/24", "/64"))
		b.GW1.RemoveAddr("ext0", f.external(99)+f.pick("/24", "/64"))
		b.GW1.AddAddr("ext0", f.external(99)+f.pick("/24", "/64"))
		b.GW1.AddAddr("ext0", f.lb(4)+f.pick("/24", "/64"))
	}
	check("when it has come back")
}

// What no host can be is no endpoint: class E, the limited and a network's broadcast address.
func TestEndpointsThatAreNoHosts(t *testing.T) {
	b := newBox(t, nil)
	slice := strings.Replace(ipv4.slice("web", "p80: 80", b.L1), `endpoints:`, "endpoints:\n- addresses: [10.180.255.255]\n- addresses: [240.0.0.1]\n- addresses: [255.255.255.255]", 1)
	b.svcctl.Manifests.Write("web.yaml", ipv4.service("web", "clusterIP: "+ipv4.vip(41), "ports: [{name: p80, port: 80}]")+"---\n"+slice)
	b.svcctl.Start()
	for _, addr := range []string{"10.180.255.255", "240.0.0.1", "255.255.255.255"} {
		eventually(t, syncTimeout, func() error {
			for _, p := range b.status().Problems {
				if p.Severity == "warning" && strings.Contains(p.Message, "endpoint "+addr+" is left out") {
					return nil
				}
			}
			return fmt.Errorf("%s is not reported: %s", addr, list(b.status().Problems))
		})
	}
	b.reaches(t, b.IN, "tcp", ipv4.cluster(), plain, ipv4.on(80, b.L1)...)
}
