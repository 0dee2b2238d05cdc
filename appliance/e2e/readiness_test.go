package e2e

import (
	"fmt"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// The conditions that endpoints of these tests have, as they are written in YAML. A pod
// that is being deleted is not ready, and serves as long as its probe says so.
const (
	isReady     = "{ready: true, serving: true, terminating: false}"
	notReady    = "{ready: false, serving: false, terminating: false}"
	draining    = "{ready: false, serving: true, terminating: true}"
	terminating = "{ready: false, serving: false, terminating: true}"
)

// having is an endpoint on a host with conditions.
func (f family) having(h *netlab.Host, conditions string) string {
	node := "other"
	if h.Name == "L1" || h.Name == "L2" || h.Name == "near" {
		node = "gw1"
	}
	return fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: %s}", f.of(h), node, conditions)
}

// conditions writes and serves the Service of the policy tests with endpoints as written.
func conditions(t *testing.T, endpoints func(b *box, f family) []string, spec ...string) *box {
	t.Helper()
	b := newBox(t, nil)
	// Near is one more host on the segment of the local endpoints.
	b.Near.Serve("tcp", 80)
	b.write("web.yaml", b.conditionDocuments(endpoints, spec...))
	b.svcctl.Start()
	return b
}

func (b *box) conditionDocuments(endpoints func(b *box, f family) []string, spec ...string) func(f family) []string {
	return func(f family) []string {
		return []string{f.policyService(spec...), f.rawSlice("web", "web", "p80: 80", endpoints(b, f)...)}
	}
}

// The local endpoints fall back on those that drain by themselves, whatever the others
// are.
func Test062_local_endpoints_drain(t *testing.T) {
	b := conditions(t, func(b *box, f family) []string {
		return []string{
			f.having(b.L1, draining), f.having(b.L2, terminating), f.having(b.Near, notReady), f.having(b.R1, isReady),
		}
	}, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.external(t, f, b.EXT, plain, b.L1)
		b.external(t, f, b.IN, plain, b.R1)
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.R1)...)
	})
}

func Test062_local_endpoints_drain_for_the_cluster_ip(t *testing.T) {
	b := conditions(t, func(b *box, f family) []string {
		return []string{f.having(b.L1, draining), f.having(b.L2, draining), f.having(b.R1, isReady)}
	}, itpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1, b.L2)...)
		b.external(t, f, b.EXT, masq, b.R1)
	})
}

// Endpoints elsewhere that drain are endpoints elsewhere: a balancer in front is to try
// another box.
func Test063_only_remote_endpoints_drain(t *testing.T) {
	b := conditions(t, func(b *box, f family) []string {
		return []string{f.having(b.L1, terminating), f.having(b.R1, draining)}
	}, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.external(t, f, b.IN, plain, b.R1)
		b.silent(t, b.EXT, f.externals()...)
	})
}

func Test064_endpoints_that_do_not_serve(t *testing.T) {
	for name, spec := range map[string][]string{"policies Cluster": nil, "policies Local": {etpLocal, itpLocal}} {
		t.Run(name, func(t *testing.T) {
			b := conditions(t, func(b *box, f family) []string {
				return []string{f.having(b.L1, terminating), f.having(b.R1, terminating)}
			}, spec...)
			b.each(t, func(t *testing.T, b *box, f family) {
				for _, from := range []*netlab.Host{b.EXT, b.IN, b.GW1} {
					for _, to := range append(f.externals(), f.cluster()) {
						b.refuses(t, from, "tcp", to)
					}
				}
			})
		})
	}
}

// Who writes the slices of a Service with publishNotReadyAddresses writes ready for all
// endpoints; that counts, whatever the other conditions are.
func Test067_published_endpoints_are_used(t *testing.T) {
	b := conditions(t, func(b *box, f family) []string {
		return []string{
			f.having(b.L1, "{ready: true, serving: false, terminating: false}"),
			f.having(b.R1, "{ready: true, serving: false, terminating: true}"),
			f.having(b.R2, "{ready: true, serving: true, terminating: true}"),
			f.having(b.L2, "{}"), // absent conditions mean ready
		}
	}, "publishNotReadyAddresses: true")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1, b.L2, b.R1, b.R2)...)
	})
}

func Test068_endpoint_starts_to_drain(t *testing.T) {
	endpoints := func(first string) func(b *box, f family) []string {
		return func(b *box, f family) []string {
			return []string{f.having(b.L1, first), f.having(b.R1, isReady)}
		}
	}
	b := conditions(t, endpoints(isReady))
	open := map[family]*netlab.Conn{}
	for _, f := range families {
		open[f] = b.dialUntil(t, f, b.L1)
		defer open[f].Close()
	}
	b.rewrite("web.yaml", b.conditionDocuments(endpoints(draining)))
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.R1)...)
	}
	b.rewrite("web.yaml", b.conditionDocuments(endpoints(terminating)))
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.R1)...)
		if err := open[f].Echo("still here", patiently); err != nil {
			t.Errorf("%s: the connection to the endpoint that drains: %v", f, err)
		}
	}
}

// dialUntil is an open connection of IN to the cluster IP that an endpoint took.
func (b *box) dialUntil(t *testing.T, f family, endpoint *netlab.Host) *netlab.Conn {
	t.Helper()
	for range 100 {
		c, err := b.IN.Dial(f.cluster(), patiently)
		if err != nil {
			t.Fatal(err)
		}
		if c.Reply.Server == endpoint.Name {
			return c
		}
		c.Close()
	}
	t.Fatalf("none of 100 connections to %s leads to %s", f.cluster(), endpoint.Name)
	return nil
}
