package store

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/alloc"
)

func internalPool(first, last string) alloc.Pool {
	p := pool(first, last)
	p.Internal = true
	return p
}

// internal is a Service that asks to be internal.
func internal(name, spec string) string {
	doc := yamlOf(name + " {type: LoadBalancer" + spec + "}")
	return strings.Replace(doc, "namespace: default", "namespace: default, annotations: {service.beta.kubernetes.io/azure-load-balancer-internal: \"true\"}", 1)
}

const openService = "type: LoadBalancer"

// Internal load balancers have addresses of internal pools alone, and all others none of them
// that they do not name.
func TestInternalLoadBalancers(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.Pools = []alloc.Pool{internalPool("10.20.0.1", "10.20.0.1"), pool("198.51.100.4", "198.51.100.4")}
	})
	b.apply("a.yaml", "a {"+openService+"}")
	b.apply("b.yaml", internal("b", ""))
	if b.ingress("a") != "198.51.100.4" || b.ingress("b") != "10.20.0.1" {
		t.Fatalf("a %q, b %q", b.ingress("a"), b.ingress("b"))
	}
	// The one of the other kind is no help when one's own is taken.
	b.apply("c.yaml", "c {"+openService+"}")
	b.apply("d.yaml", internal("d", ""))
	waits := []string{
		"Service default/c: spec.type: every IPv4 address of the load balancer pools (198.51.100.4-198.51.100.4) is taken",
		"Service default/d: metadata.annotations[service.beta.kubernetes.io/azure-load-balancer-internal]: every IPv4 address of the internal load balancer pools (10.20.0.1-10.20.0.1) is taken",
	}
	b.wantProblems(waits...)
	// They change places at once.
	b.write("a.yaml", internal("a", ""))
	b.write("d.yaml", "")
	b.apply("b.yaml", "b {"+openService+"}")
	if got := b.ingress("a") + " " + b.ingress("b"); got != "10.20.0.1 198.51.100.4" {
		t.Errorf("when they change places, a and b have %s", got)
	}
	b.wantProblems(waits[0])
	// One that is not internal may have an internal address that it names.
	b.write("a.yaml", "")
	b.apply("c.yaml", "c {type: LoadBalancer, loadBalancerIP: 10.20.0.1}")
	if b.ingress("c") != "10.20.0.1" {
		t.Errorf("c has %q", b.ingress("c"))
	}
	b.wantProblems()
	// An internal one gets none of the others, also when it has it already.
	b.apply("b.yaml", internal("b", ", loadBalancerIP: 198.51.100.4"))
	if b.ingress("b") != "" {
		t.Errorf("b has %q", b.ingress("b"))
	}
	b.wantProblems("Service default/b: spec.loadBalancerIP: 198.51.100.4 lies in no internal load balancer pool (10.20.0.1-10.20.0.1)")
}

// One that leaves gives its address to who waits for it, in the same change.
func TestAddressOfAnInternalOneIsFreeAtOnce(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = []alloc.Pool{pool("198.51.100.4", "198.51.100.4")} })
	b.apply("b.yaml", "b {"+openService+"}")
	b.apply("a.yaml", "a {"+openService+"}")
	b.apply("b.yaml", internal("b", ""))
	if b.ingress("a") != "198.51.100.4" || b.ingress("b") != "" {
		t.Errorf("a %q, b %q", b.ingress("a"), b.ingress("b"))
	}
	b.wantProblems("Service default/b: metadata.annotations[service.beta.kubernetes.io/azure-load-balancer-internal]: there is no internal load balancer pool of IPv4 addresses: add one with --load-balancer-internal-pool")
}

// Without its pool an internal one keeps its address, unserved, and finds it when the pool is
// back; when there is another internal pool, it moves there.
func TestInternalPoolThatMoves(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = []alloc.Pool{internalPool("10.20.0.1", "10.20.0.9")} })
	b.apply("a.yaml", internal("a", ""))
	had := b.ingress("a")
	b.cfg.Pools = nil
	b.restart()
	b.sync()
	if b.ingress("a") != had {
		t.Errorf("without the pool it has %q, had %s", b.ingress("a"), had)
	}
	b.wantProblems("Service default/a: metadata.annotations[service.beta.kubernetes.io/azure-load-balancer-internal]: " + had + " lies in no internal load balancer pool (there is none) and is not served: add the pool with --load-balancer-internal-pool")
	b.cfg.Pools = []alloc.Pool{internalPool("10.20.0.1", "10.20.0.9")}
	b.restart()
	b.sync()
	if b.ingress("a") != had {
		t.Errorf("with its pool it has %q, had %s", b.ingress("a"), had)
	}
	b.wantProblems()
	b.cfg.Pools = []alloc.Pool{pool("10.20.0.1", "10.20.0.9"), internalPool("10.30.0.1", "10.30.0.1")}
	b.restart()
	b.sync()
	if b.ingress("a") != "10.30.0.1" {
		t.Errorf("with another pool it has %q", b.ingress("a"))
	}
	b.wantProblems()
}

// A load balancer that is not internal keeps its address when the pool becomes internal. As others lose it by that, it is reported, unless the
// Service names the address.
func Test1171_pool_that_becomes_internal(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = []alloc.Pool{pool("10.20.0.1", "10.20.0.9")} })
	b.apply("a.yaml", "a {"+openService+"}")
	b.apply("b.yaml", "b {type: LoadBalancer, loadBalancerIP: 10.20.0.9}")
	had := b.ingress("a")
	problem := "Service default/a: spec.loadBalancerIP: " + had + " lies in an internal load balancer pool, and only internal clients reach it"
	if changed, err := b.s.SetPools([]alloc.Pool{internalPool("10.20.0.1", "10.20.0.9")}); !changed || err != nil {
		t.Fatal(changed, err)
	}
	b.wantProblems(problem)
	b.cfg.Pools = []alloc.Pool{internalPool("10.20.0.1", "10.20.0.9")}
	b.restart()
	b.sync()
	b.wantProblems(problem)
	if b.ingress("a") != had || b.ingress("b") != "10.20.0.9" {
		t.Errorf("a had %s, has %s; b has %s", had, b.ingress("a"), b.ingress("b"))
	}
	if _, err := b.s.SetPools([]alloc.Pool{pool("10.20.0.1", "10.20.0.9")}); err != nil {
		t.Fatal(err)
	}
	b.wantProblems()
}
