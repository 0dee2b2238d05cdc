package store

import (
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/alloc"
)

// smallPool leaves two load balancer IPs.
func smallPool(c *Config) { c.Pools = []alloc.Pool{pool("198.51.100.4", "198.51.100.5")} }

func TestRequestedLoadBalancerIP(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "a {type: LoadBalancer, loadBalancerIP: 198.51.100.4}")
	if b.ingress("a") != "198.51.100.4" || *b.service("a").Status.LoadBalancer.Ingress[0].IPMode != "VIP" {
		t.Errorf("got %+v", b.service("a").Status)
	}
	b.apply("b.yaml", strings.Join([]string{
		"b {type: LoadBalancer, loadBalancerIP: 198.51.100.4}",
		"c {type: LoadBalancer, loadBalancerIP: 192.0.2.1}",
		`d {type: LoadBalancer, loadBalancerIP: "2001:db8::1"}`,
		"e {type: LoadBalancer, loadBalancerClass: example.com/other, loadBalancerIP: 198.51.100.5}",
		"f {type: LoadBalancer, loadBalancerClass: " + LoadBalancerClass + ", loadBalancerIP: 198.51.100.6}",
	}, "\n"))
	b.wantProblems(
		"b.yaml:5:49: warning: Service default/b: spec.loadBalancerIP: 198.51.100.4 cannot be given: provided IP is already allocated to Service default/a: both serve TCP port 80; the Service waits for it",
		"b.yaml:10:49: warning: Service default/c: spec.loadBalancerIP: 192.0.2.1 lies in no load balancer pool (198.51.100.0-198.51.100.15): name another address",
		"b.yaml:15:49: warning: Service default/d: spec.loadBalancerIP: 2001:db8::1 is not of the Service's family, [IPv4]",
	)
	for name, want := range map[string]string{"b": "", "c": "", "d": "", "e": "", "f": "198.51.100.6"} {
		if got := b.ingress(name); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	// The first in line gets what becomes free.
	b.apply("a.yaml", "a {type: LoadBalancer, loadBalancerIP: 198.51.100.9}")
	if b.ingress("a") != "198.51.100.9" || b.ingress("b") != "198.51.100.4" {
		t.Errorf("a has %q, b has %q", b.ingress("a"), b.ingress("b"))
	}
}

func TestLoadBalancerWithoutPool(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = nil })
	b.apply("a.yaml", "a {type: LoadBalancer}\nb {type: LoadBalancer, loadBalancerIP: 198.51.100.4}\nc {type: LoadBalancer, loadBalancerIP: balancer.example}")
	b.wantProblems(
		"a.yaml:5:29: warning: Service default/a: spec.type: there is no load balancer pool of IPv4 addresses: add one with loadBalancerPool (--load-balancer-pool)",
		"a.yaml:10:49: warning: Service default/b: spec.loadBalancerIP: 198.51.100.4 lies in no load balancer pool (there is none)",
		"is not an IP address and is ignored",
		"Service default/c: spec.type: there is no load balancer pool",
	)
	// Pools that come with the next start serve those who wait.
	b.cfg.Pools = []alloc.Pool{pool("198.51.100.0", "198.51.100.15")}
	b.restart()
	b.sync()
	if b.ingress("a") == "" || b.ingress("b") != "198.51.100.4" || b.ingress("c") == "" {
		t.Errorf("a %q, b %q, c %q", b.ingress("a"), b.ingress("b"), b.ingress("c"))
	}
}

func TestDualStackLoadBalancerTakesWhatThereIs(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "a {type: LoadBalancer, ipFamilyPolicy: PreferDualStack}\nb {type: LoadBalancer, ipFamilyPolicy: RequireDualStack}")
	b.wantProblems("Service default/b: spec.type: there is no load balancer pool of IPv6 addresses")
	if b.ingress("a") == "" || b.ingress("b") == "" {
		t.Errorf("a %q, b %q", b.ingress("a"), b.ingress("b"))
	}
}

func TestSharedLoadBalancerIP(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", strings.Join([]string{
		"web {type: LoadBalancer, loadBalancerIP: 198.51.100.4}",
		"tls {type: LoadBalancer, loadBalancerIP: 198.51.100.4, ports: [{port: 443}]}",
		"quic {type: LoadBalancer, loadBalancerIP: 198.51.100.4, ports: [{port: 443, protocol: UDP}]}",
		"k1 {KEY mail, type: LoadBalancer, ports: [{port: 25}]}",
		"k2 {KEY mail, type: LoadBalancer, ports: [{port: 143}]}",
		"k3 {KEY other, type: LoadBalancer, ports: [{port: 993}]}",
	}, "\n"))
	b.wantProblems()
	if b.ingress("web") != "198.51.100.4" || b.ingress("tls") != "198.51.100.4" || b.ingress("quic") != "198.51.100.4" {
		t.Error("who asks for one IP should share it")
	}
	if b.ingress("k1") != b.ingress("k2") || b.ingress("k1") == b.ingress("k3") {
		t.Errorf("keys: %s, %s, %s", b.ingress("k1"), b.ingress("k2"), b.ingress("k3"))
	}
	// A port that a neighbor has is refused, and everything stays as it is.
	b.apply("b.yaml", "")
	b.apply("a.yaml", strings.Join([]string{
		"web {type: LoadBalancer, loadBalancerIP: 198.51.100.4, ports: [{name: a, port: 80}, {name: b, port: 443}]}",
		"tls {type: LoadBalancer, loadBalancerIP: 198.51.100.4, ports: [{port: 443}]}",
		"k1 {KEY mail, type: LoadBalancer, ports: [{port: 25}]}",
		"k2 {KEY mail, type: LoadBalancer, ports: [{port: 25}]}",
	}, "\n"))
	b.wantProblems("a.yaml:5:28: Service default/web: spec.loadBalancerIP: Invalid value: \"198.51.100.4\": provided IP is already allocated to Service default/tls: both serve TCP port 443")
	if len(b.service("web").Spec.Ports) != 1 || b.ingress("web") != "198.51.100.4" {
		t.Errorf("web: %+v", b.service("web"))
	}
	// Who named no IP moves instead.
	if b.ingress("k1") == b.ingress("k2") || b.ingress("k2") == "" {
		t.Errorf("keys: %s, %s", b.ingress("k1"), b.ingress("k2"))
	}
	// When the neighbor goes, there is room.
	b.apply("a.yaml", "web {type: LoadBalancer, loadBalancerIP: 198.51.100.4, ports: [{name: a, port: 80}, {name: b, port: 443}]}")
	b.wantProblems()
	if len(b.service("web").Spec.Ports) != 2 {
		t.Error("web is still refused")
	}
}

// In MetalLB one IP went to two Services after a restart, because Services that waited were
// served before those that had one (#1774, #2443, #2479).
func TestHoldersKeepTheirsBesidePendingOnesOverARestart(t *testing.T) {
	b := newBox(t, smallPool)
	b.apply("z.yaml", "z1 {type: LoadBalancer}\nz2 {type: LoadBalancer}")
	b.apply("a.yaml", "a1 {type: LoadBalancer}\na2 {type: LoadBalancer, loadBalancerIP: 198.51.100.4}")
	want := b.ingress("z1") + b.ingress("z2")
	for range 3 {
		if got := b.ingress("z1") + b.ingress("z2"); got != want {
			t.Errorf("holders have %s, had %s", got, want)
		}
		if b.ingress("a1") != "" || b.ingress("a2") != "" {
			t.Errorf("pending ones have %q, %q", b.ingress("a1"), b.ingress("a2"))
		}
		b.wantProblems("Service default/a1: spec.type: every IPv4 address of the load balancer pools (198.51.100.4-198.51.100.5) is taken",
			"Service default/a2: spec.loadBalancerIP: 198.51.100.4 cannot be given")
		b.restart()
		if got := b.ingress("z1") + b.ingress("z2"); got != want {
			t.Errorf("right after a restart holders have %s, had %s", got, want)
		}
		b.sync()
	}
	b.apply("z.yaml", "")
	if b.ingress("a1") == "" || b.ingress("a2") != "198.51.100.4" {
		t.Errorf("a1 %q, a2 %q", b.ingress("a1"), b.ingress("a2"))
	}
	b.wantProblems()
}

func TestPoolThatMovesLeavesHoldersAlone(t *testing.T) {
	b := newBox(t, smallPool)
	b.apply("a.yaml", "a {type: LoadBalancer}\nb {type: LoadBalancer, loadBalancerIP: 198.51.100.5}")
	a := b.ingress("a")
	b.cfg.Pools = []alloc.Pool{pool("203.0.113.4", "203.0.113.9")}
	b.restart()
	outside := []string{
		"Service default/a: spec.loadBalancerIP: 198.51.100.4 lies in no load balancer pool (203.0.113.4-203.0.113.9); the Service keeps it",
		"Service default/b: spec.loadBalancerIP: 198.51.100.5 lies in no load balancer pool (203.0.113.4-203.0.113.9); the Service keeps it",
	}
	b.wantProblems(outside...)
	b.apply("c.yaml", "c {type: LoadBalancer, loadBalancerIP: 198.51.100.4}")
	if b.ingress("a") != a || b.ingress("b") != "198.51.100.5" || b.ingress("c") != "" {
		t.Errorf("a %q, b %q, c %q", b.ingress("a"), b.ingress("b"), b.ingress("c"))
	}
	b.apply("c.yaml", "")
	b.wantProblems(outside...)
	// The user changes it.
	b.apply("a.yaml", "a {type: LoadBalancer, loadBalancerIP: 203.0.113.4}\nb {type: LoadBalancer}")
	if b.ingress("a") != "203.0.113.4" || b.ingress("b") != "198.51.100.5" {
		t.Errorf("a %q, b %q", b.ingress("a"), b.ingress("b"))
	}
	b.wantProblems(outside[1])
}

func TestRangesThatMoveLeaveHoldersAlone(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "a {type: NodePort, ports: [{port: 80, nodePort: 30001}], ipFamilyPolicy: PreferDualStack}")
	before := b.service("a")
	b.cfg.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	b.cfg.NodePorts = PortRange{31000, 31999}
	b.restart()
	for range 2 {
		svc := b.service("a")
		if strings.Join(svc.Spec.ClusterIPs, " ") != strings.Join(before.Spec.ClusterIPs, " ") || b.nodePort("a") != 30001 {
			t.Errorf("renumbered: %+v", svc.Spec)
		}
		if problems := b.s.Problems(); len(problems) != 3 || problems[0].Reason != ReasonOutside {
			t.Errorf("problems:\n%s", b.problems())
		}
		b.sync()
	}
	b.apply("b.yaml", "b {type: NodePort}")
	if !strings.HasPrefix(b.ip("b"), "10.96.") || b.nodePort("b") < 31000 {
		t.Errorf("%+v", b.service("b").Spec)
	}
	b.apply("a.yaml", "a {type: NodePort, ports: [{port: 80, nodePort: 30001}], ipFamilyPolicy: PreferDualStack, sessionAffinity: ClientIP}")
	if b.service("a").Spec.SessionAffinity != "ClientIP" {
		t.Errorf("an edit of something else is refused:\n%s", b.problems())
	}
}

// TestFullNamedPool: a Service that names a full pool is answered with that pool and its holders, not with the others.
func TestFullNamedPool(t *testing.T) {
	b := newBox(t, func(c *Config) {
		tiny, few := pool("203.0.113.240", "203.0.113.240"), pool("203.0.113.8", "203.0.113.12")
		tiny.Name, tiny.OnRequest = "metallb-system/tiny", true
		few.Name, few.OnRequest = "metallb-system/few", true
		c.Pools = []alloc.Pool{tiny, few, pool("198.51.100.0", "198.51.100.15")}
	})
	asks := func(name, pool string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", annotations: {metallb.io/address-pool: " + pool + "}}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n"
	}
	b.apply("1.yaml", asks("tiny1", "tiny"))
	b.apply("2.yaml", asks("tiny2", "metallb-system/tiny"))
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		b.apply(name+".yaml", asks(name, "few"))
	}
	b.apply("f.yaml", asks("f", "few"))
	if b.ingress("tiny1") != "203.0.113.240" || b.ingress("tiny2") != "" || b.ingress("f") != "" {
		t.Fatalf("tiny1 %q, tiny2 %q, f %q", b.ingress("tiny1"), b.ingress("tiny2"), b.ingress("f"))
	}
	b.wantProblems(
		"Service default/tiny2: spec.type: the pool metallb-system/tiny (203.0.113.240-203.0.113.240, 1 address) is full: Service default/tiny1 has it; the Service waits for one",
		"Service default/f: spec.type: the pool few (203.0.113.8-203.0.113.12, 5 IPv4 addresses) is full: Services default/")
	if got := b.ingress("tiny2"); got != "" {
		t.Errorf("tiny2 has %q", got)
	}
	b.apply("1.yaml", "")
	if got := b.ingress("tiny2"); got != "203.0.113.240" {
		t.Errorf("tiny2 has %q when the pool has room", got)
	}
}

// A Service that asks for a pool of a name that no pool has keeps its address until there is one: a pool and the annotations of its Services are renamed
// by one commit of files, and the Services are processed first.
func Test1173_pool_that_is_renamed(t *testing.T) {
	named := func(name, first, last string) alloc.Pool {
		p := pool(first, last)
		p.Name = name
		return p
	}
	asks := func(pool string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: a, annotations: {metallb.io/address-pool: " + pool + "}}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n"
	}
	b := newBox(t, func(c *Config) { c.Pools = []alloc.Pool{named("m/lan", "192.0.2.1", "192.0.2.1")} })
	b.apply("a.yaml", asks("lan"))
	b.apply("b.yaml", "b {"+openService+"}")
	b.apply("a.yaml", asks("new"))
	if b.ingress("a") != "192.0.2.1" || b.ingress("b") != "" {
		t.Errorf("a %q, b %q: the address was given away", b.ingress("a"), b.ingress("b"))
	}
	waits := "Service default/b: spec.type: every IPv4 address of the load balancer pools (192.0.2.1-192.0.2.1) is taken"
	b.wantProblems("Service default/a: spec.type: there is no load balancer pool of the name new with IPv4 addresses", waits)
	if _, err := b.s.SetPools([]alloc.Pool{named("m/new", "192.0.2.1", "192.0.2.1")}); err != nil {
		t.Fatal(err)
	}
	b.wantProblems(waits)
	// A pool of that name elsewhere is where it goes.
	b.apply("a.yaml", asks("far"))
	if _, err := b.s.SetPools([]alloc.Pool{named("m/far", "198.51.100.1", "198.51.100.1"), named("m/new", "192.0.2.1", "192.0.2.1")}); err != nil {
		t.Fatal(err)
	}
	if b.ingress("a") != "198.51.100.1" || b.ingress("b") != "192.0.2.1" {
		t.Errorf("a %q, b %q", b.ingress("a"), b.ingress("b"))
	}
	b.wantProblems()
}
