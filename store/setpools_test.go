package store

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// named is a pool of an object.
func named(name, first, last string) alloc.Pool {
	p := pool(first, last)
	p.Name = name
	return p
}

// Pools that come give addresses to those who wait; pools that go leave what is held, with a note that goes
// when the pool is back. A commit that fails is made up for by the next call.
func TestSetPools(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = nil })
	set := func(want bool, pools ...alloc.Pool) {
		t.Helper()
		changed, err := b.s.SetPools(pools)
		if changed != want || err != nil {
			t.Fatalf("changed is %t, want %t: %v", changed, want, err)
		}
	}
	b.apply("a.yaml", "a {type: LoadBalancer}\nb {type: LoadBalancer, loadBalancerIP: 203.0.113.5}")
	lan, far := named("m/lan", "198.51.100.4", "198.51.100.4"), named("m/far", "203.0.113.0", "203.0.113.7")
	set(true, lan)
	set(false, lan)
	if b.ingress("a") != "198.51.100.4" || b.ingress("b") != "" {
		t.Errorf("a has %q, b has %q", b.ingress("a"), b.ingress("b"))
	}
	set(true, lan, far)
	if b.ingress("b") != "203.0.113.5" {
		t.Errorf("b has %q", b.ingress("b"))
	}
	set(true, far)
	if got := b.s.Problems(); b.ingress("a") != "198.51.100.4" || len(got) != 1 || !strings.Contains(got[0].Message, "198.51.100.4 lies in no load balancer pool") {
		t.Errorf("a has %q, and problems are %v", b.ingress("a"), got)
	}
	b.restart()
	set(true, lan, far)
	if got := b.s.Problems(); len(got) != 0 {
		t.Errorf("the pool is back, and problems are %v", got)
	}
	if use := b.s.IngressPools(); len(use) != 2 || use[0].Name != "m/lan" || use[0].Range != lan.String() || use[0].Size != 1 || use[0].Used != 1 || use[1].Used != 1 {
		t.Errorf("pools are %+v", use)
	}
	overlap := named("m/twice", "203.0.113.7", "203.0.113.9")
	if _, err := b.s.SetPools([]alloc.Pool{lan, far, overlap}); err == nil || b.ingress("b") != "203.0.113.5" {
		t.Errorf("pools that overlap are taken: %v", err)
	}
	b.apply("c.yaml", "c {type: LoadBalancer, loadBalancerIP: 192.0.2.9}")
	more := named("m/more", "192.0.2.9", "192.0.2.9")
	b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Full })
	if _, err := b.s.SetPools([]alloc.Pool{lan, far, more}); err == nil {
		t.Error("a commit that failed is no error")
	}
	b.engine.Inject(nil)
	set(true, lan, far, more)
	if b.ingress("c") != "192.0.2.9" {
		t.Errorf("c has %q", b.ingress("c"))
	}
}

// Test1124_pool_of_a_second_family: a Service of two families that has an IP of one gets one of the other as soon as a pool has it, not
// after a restart alone.
func Test1124_pool_of_a_second_family(t *testing.T) {
	of := func(first, last string) alloc.Pool {
		return alloc.Pool{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	}
	b := newBox(t, func(c *Config) {
		c.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd00:172:30::/112")}
		c.Pools = []alloc.Pool{of("198.51.100.4", "198.51.100.5")}
	})
	b.apply("web.yaml", yamlOf("web {type: LoadBalancer, ipFamilyPolicy: PreferDualStack}"))
	if got := b.service("web").Status.LoadBalancer.Ingress; len(got) != 1 {
		t.Fatalf("without an IPv6 pool it has %v", got)
	}
	if _, err := b.s.SetPools([]alloc.Pool{of("198.51.100.4", "198.51.100.5"), of("2001:db8::4", "2001:db8::5")}); err != nil {
		t.Fatal(err)
	}
	if got := b.service("web").Status.LoadBalancer.Ingress; len(got) != 2 || got[1].IP != "2001:db8::4" {
		t.Errorf("with an IPv6 pool it has %v", got)
	}
}

// What a Service waits for comes although its file asks for something that is refused meanwhile.
func Test1128_service_of_a_refused_document_gets_an_address(t *testing.T) {
	b := newBox(t, func(c *Config) { c.Pools = nil })
	b.apply("a.yaml", "a {type: LoadBalancer}")
	b.apply("a.yaml", "a {type: LoadBalancer, ports: [{port: 0}]}")
	if _, err := b.s.SetPools([]alloc.Pool{{First: netip.MustParseAddr("198.51.100.4"), Last: netip.MustParseAddr("198.51.100.5")}}); err != nil {
		t.Fatal(err)
	}
	given := b.ingress("a")
	if given == "" {
		t.Error("it has no address of the pool before a restart")
	}
	problems := b.problems()
	if !strings.Contains(problems, "spec.ports[0].port") {
		t.Errorf("the refused document is no problem: %s", problems)
	}
	b.restart()
	b.sync()
	if got := b.ingress("a"); got != given {
		t.Errorf("it had %q, and after a restart %q", given, got)
	}
	b.check()
}

// A Service waits for an address that an endpoint, or the host, has. It gets the address when that is free, before a restart.
func Test1125_address_that_an_endpoint_or_the_host_had(t *testing.T) {
	b := newBox(t)
	gateway := netip.MustParseAddr("198.51.100.10")
	b.s.SetHost(hostOf{reserved: func(_ *object.Service, addr netip.Addr) string {
		return map[bool]string{true: "a gateway of this host"}[addr == gateway]
	}})
	b.apply("s.yaml", endpointOf("multi", "198.51.100.11]"))
	b.apply("n.yaml", "e {type: LoadBalancer, loadBalancerIP: 198.51.100.11}\nh {type: LoadBalancer, loadBalancerIP: 198.51.100.10}")
	has := func(e, h string) {
		t.Helper()
		at := b.s.Revision()
		for range 2 {
			if err := b.s.GiveFreed(); err != nil {
				t.Fatal(err)
			}
			if b.ingress("e") != e || b.ingress("h") != h {
				t.Errorf("they have %q and %q, want %q and %q", b.ingress("e"), b.ingress("h"), e, h)
			}
			if e+h == "" && b.s.Revision() != at {
				t.Error("something is stored, and nothing is free")
			}
		}
		b.check()
	}
	has("", "")
	b.apply("s.yaml", "")
	has("198.51.100.11", "")
	gateway = netip.Addr{}
	has("198.51.100.11", "198.51.100.10")
	if problems := b.problems(); problems != "" {
		t.Error(problems)
	}
}

// A Service that waits for an address, and is older than the one that has it, gets the address in the commit in which the other one
// gives the port up, also when that one was given the address without asking for it.
func Test1104_older_Service_gets_a_port_that_becomes_free(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "older {type: LoadBalancer}")
	const younger = "younger {type: LoadBalancer, KEY k, ports: [{port: %d}]}"
	b.apply("b.yaml", fmt.Sprintf(younger, 80))
	at := b.ingress("younger")
	b.apply("a.yaml", "older {type: LoadBalancer, KEY k, loadBalancerIP: "+at+"}")
	if got := b.ingress("older"); got != "" {
		t.Fatalf("both have port 80 at %s", got)
	}
	b.apply("b.yaml", fmt.Sprintf(younger, 81))
	if b.ingress("older") != at || b.ingress("younger") != at {
		t.Errorf("of %s the older has %q, the younger %q: %s", at, b.ingress("older"), b.ingress("younger"), b.problems())
	}
	b.restart()
	if n := b.sync().Changes; n > 0 {
		t.Errorf("%d changes at a restart", n)
	}
}
