package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about externalTrafficPolicy and internalTrafficPolicy. Their
// Service has a cluster IP, a node port, a load balancer IP and an external IP.

const (
	etpLocal = "externalTrafficPolicy: Local"
	itpLocal = "internalTrafficPolicy: Local"
)

func l1l2(b *box) []*netlab.Host { return []*netlab.Host{b.L1, b.L2} }

// policies writes and serves the Service, with more lines of its spec.
func policies(t *testing.T, other flags, hosts func(b *box) []*netlab.Host, spec ...string) *box {
	t.Helper()
	b := newBox(t, other)
	b.write("web.yaml", policyDocuments(hosts(b), spec...))
	b.svcctl.Start()
	return b
}

func policyDocuments(hosts []*netlab.Host, spec ...string) func(f family) []string {
	return func(f family) []string {
		return []string{f.policyService(spec...), f.slice("web", "p80: 80", hosts...)}
	}
}

// policyService is the Service alone.
func (f family) policyService(spec ...string) string {
	return f.service("web", append([]string{
		"type: LoadBalancer", "clusterIP: " + f.vip(41), "loadBalancerIP: " + f.lb(4),
		"externalIPs: [" + f.external(99) + "]", nodePorts(f, 30080),
	}, spec...)...)
}

// externals are the addresses that externalTrafficPolicy is about: node port, load
// balancer IP and external IP.
func (f family) externals() []netip.AddrPort {
	return []netip.AddrPort{f.at(f.boxAddr(), f.number(30080)), f.at(f.lb(4), 80), f.at(f.external(99), 80)}
}

// cluster is the address that internalTrafficPolicy is about.
func (f family) cluster() netip.AddrPort { return f.at(f.vip(41), 80) }

// external asserts what a client gets at each of the externals.
func (b *box) external(t *testing.T, f family, from *netlab.Host, want source, hosts ...*netlab.Host) {
	t.Helper()
	for _, to := range f.externals() {
		b.reaches(t, from, "tcp", to, want, f.on(80, hosts...)...)
	}
}

// silent asserts that there is no answer at all, at several addresses at the same time.
func (b *box) silent(t *testing.T, from *netlab.Host, to ...netip.AddrPort) {
	t.Helper()
	errs := make([]error, len(to))
	var asking sync.WaitGroup
	for i := range to {
		asking.Go(func() { _, errs[i] = from.Ask("tcp", to[i]) })
	}
	asking.Wait()
	for i, err := range errs {
		if netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("%s to %s: got %v, want silence", from.Name, to[i], err)
		}
		if err := b.noEntry(from, "tcp", to[i]); err != nil {
			t.Error(err)
		}
	}
}

func Test052_external_policy_local_without_internal_sources(t *testing.T) {
	b := policies(t, flags{"cluster-cidr": nil}, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.external(t, f, b.IN, plain, b.L1)
		b.external(t, f, b.EXT, plain, b.L1)
	})
}

// forget empties the connection table of the box, so that what a refused connection
// leaves in it can be told from what others left. Open connections do not survive it.
func (b *box) forget() { b.GW1.Conntrack("-F") }

// annotated gives a Service's document an annotation.
func annotated(doc, key, value string) string {
	return strings.Replace(doc, "spec:", fmt.Sprintf("  annotations: {%s: '%s'}\nspec:", key, value), 1)
}

const noLocalEndpoints = "svcctl.io/no-local-endpoints"

func Test053_answer_without_local_endpoint(t *testing.T) {
	b := newBox(t, nil)
	docs := func(answer string, hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				annotated(f.policyService(etpLocal, itpLocal), noLocalEndpoints, answer),
				f.slice("web", "p80: 80", hosts...),
			}
		}
	}
	b.write("web.yaml", docs("reject", b.R1))
	b.svcctl.Start()
	for _, f := range families {
		for _, to := range f.externals() {
			b.refuses(t, b.EXT, "tcp", to)
			b.reaches(t, b.IN, "tcp", to, plain, f.on(80, b.R1)...)
		}
		b.refuses(t, b.IN, "tcp", f.cluster())
		b.hasProblem(t, f.object("Service", "web"), "NoLocalEndpoint", "clients are refused by this box")
	}
	b.rewrite("web.yaml", docs("reject", b.R1, b.L1))
	for _, f := range families {
		b.external(t, f, b.EXT, plain, b.L1)
	}
	b.write("web.yaml", docs("maybe", b.R1)) // no word for it: "reject" stays in force
	b.forget()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "error", noLocalEndpoints, "maybe", "drop", "reject")
		b.refuses(t, b.EXT, "tcp", f.externals()[0])
	})
}

// Both policies of one Service say each what becomes of their own addresses.
func Test055_both_policies_local(t *testing.T) {
	b := policies(t, nil, l1r1, etpLocal, itpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1)...)
		b.reaches(t, b.EXT, "tcp", f.cluster(), masq, f.on(80, b.L1)...)
		b.external(t, f, b.EXT, plain, b.L1)
		b.external(t, f, b.IN, plain, b.L1, b.R1)
	})
}

func Test058_external_policy_of_what_is_not_external(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			// A load balancer that gets no address and no node port.
			f.service("web", "type: LoadBalancer", "loadBalancerClass: example.com/other", "allocateLoadBalancerNodePorts: false",
				"clusterIP: "+f.vip(41), etpLocal, "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1, b.R1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "tcp", f.cluster(), masq, f.on(80, b.L1, b.R1)...)
		if ports := b.nodePortsInUse(t, f); len(ports) != 0 {
			t.Errorf("node ports %v, want none", ports)
		}
	})
}

func Test059_endpoints_without_node_name(t *testing.T) {
	nodeless := func(b *box) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.policyService(etpLocal, itpLocal),
				f.rawSlice("web", "web", "p80: 80", f.nodeless(b.L1), f.nodeless(b.R1)),
			}
		}
	}
	t.Run("local", func(t *testing.T) {
		b := newBox(t, nil)
		b.write("web.yaml", nodeless(b))
		b.svcctl.Start()
		b.each(t, func(t *testing.T, b *box, f family) {
			b.external(t, f, b.EXT, plain, b.L1, b.R1)
			b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1, b.R1)...)
		})
	})
	t.Run("remote", func(t *testing.T) {
		b := newBox(t, flags{"nodeless-endpoints": {"remote"}})
		b.write("web.yaml", nodeless(b))
		b.svcctl.Start()
		b.each(t, func(t *testing.T, b *box, f family) {
			b.external(t, f, b.IN, plain, b.L1, b.R1)
			b.silent(t, b.EXT, f.externals()...)
			b.silent(t, b.IN, f.cluster())
		})
	})
}

func Test060_policy_changes_on_a_live_service(t *testing.T) {
	b := policies(t, nil, l1r1)
	to := func(f family) netip.AddrPort { return f.at(f.lb(4), 80) }
	// Connections to both endpoints, which are open all the time.
	open := map[family]map[string]*netlab.Conn{}
	for _, f := range families {
		open[f] = map[string]*netlab.Conn{}
		for try := 0; len(open[f]) < 2; try++ {
			c, err := b.EXT.Dial(to(f), patiently)
			if err != nil || try == 100 {
				t.Fatalf("%d connections to %s lead to one endpoint, %v", try, to(f), err)
			}
			if open[f][c.Reply.Server] != nil {
				c.Close()
				continue
			}
			defer c.Close()
			open[f][c.Reply.Server] = c
		}
	}
	live := func(when string) {
		t.Helper()
		for _, f := range families {
			for server, c := range open[f] {
				if err := c.Echo(when, patiently); err != nil {
					t.Errorf("%s, %s: the old connection to %s: %v", when, f, server, err)
				}
			}
		}
	}
	b.rewrite("web.yaml", policyDocuments(l1r1(b), etpLocal))
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", to(f), plain, f.on(80, b.L1)...)
	}
	live("Local")
	b.rewrite("web.yaml", policyDocuments(l1r1(b), etpLocal, itpLocal))
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1)...)
	}
	live("both Local")
	b.rewrite("web.yaml", policyDocuments(l1r1(b)))
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", to(f), masq, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1, b.R1)...)
	}
	live("Cluster")
}
