package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

func (f family) webService() string {
	return f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]")
}

func Test101_endpoint_moves_between_slices(t *testing.T) {
	b := newBox(t, nil)
	slice := func(name string, hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string { return []string{f.namedSlice(name, "web", "p80: 80", hosts...)} }
	}
	b.write("service.yaml", func(f family) []string { return []string{f.webService()} })
	b.write("a.yaml", slice("a", b.L1))
	b.write("b.yaml", slice("b"))
	b.svcctl.Start()

	stop := make(chan struct{})
	var asking sync.WaitGroup
	for _, f := range families {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := b.IN.Ask("tcp", f.at(f.vip(41), 80), patiently); err != nil {
					t.Errorf("%s: a moment without the endpoint: %v", f, err)
					return
				}
			}
		})
	}
	defer asking.Wait()
	defer close(stop)
	for range 3 {
		b.rewrite("b.yaml", slice("b", b.L1))
		b.rewrite("a.yaml", slice("a"))
		b.rewrite("a.yaml", slice("a", b.L1))
		b.rewrite("b.yaml", slice("b"))
	}
}

func Test104_families_are_kept_apart(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		other := families[1]
		if f == other {
			other = families[0]
		}
		// A slice of the other family and one of names, for a Service of this family.
		foreign := strings.Replace(other.namedSlice("foreign", "web", "p80: 80", b.L1, b.R1), other.name("web"), f.name("web"), 1)
		names := strings.Replace(f.rawSlice("names", "web", "p80: 80", "{addresses: [endpoint.example.com]}"),
			"addressType: "+f.String(), "addressType: FQDN", 1)
		return []string{f.webService(), foreign, names, f.slice("web", "p80: 80", b.L2)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L2)...)
	})
}

func Test105_slice_ports(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("unnamed", "clusterIP: "+f.vip(41), "ports: [{port: 80}]"),
			f.rawSlice("unnamed", "unnamed", "[{port: 80}]", f.endpoint(b.L1)),

			f.service("some", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}, {name: nil, port: 81}]"),
			f.rawSlice("some", "some", "[{name: p80, port: 80}, {name: nil}]", f.endpoint(b.L1)),

			f.service("several", "clusterIP: "+f.vip(43), "ports: [{name: p80, port: 80}]"),
			f.rawSlice("several", "several", "p80: 80", fmt.Sprintf("{addresses: [%q, %q]}", f.of(b.L2), f.of(b.R1))),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.L1)...)
		b.refuses(t, b.IN, "tcp", f.at(f.vip(42), 81))
		b.reaches(t, b.IN, "tcp", f.at(f.vip(43), 80), plain, f.on(80, b.L2)...)
	})
}

func Test106_slices_of_nobody(t *testing.T) {
	b := newBox(t, nil)
	b.write("slices.yaml", func(f family) []string {
		return []string{
			f.namedSlice("unlabeled", "", "p80: 80", b.L2),
			f.namedSlice("early", "late", "p80: 80", b.R1),
		}
	})
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
	b.rewrite("late.yaml", func(f family) []string {
		return []string{f.service("late", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]")}
	})
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.R1)...)
	}
}

func Test108_endpoint_is_a_cluster_ip(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1)(f),
			f.service("loop", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"),
			f.rawSlice("loop", "loop", "p80: 80", fmt.Sprintf("{addresses: [%q]}", f.vip(41)), f.endpoint(b.R1)),
		)
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.R1)...)
		b.hasProblem(t, f.object("EndpointSlice", "loop"), f.vip(41))
	})
}

// The part of the behavior that packets show: who makes slices of Endpoints is nobody's
// business here.
func Test116_endpoints_object(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{port: 80, targetPort: 9376}]"),
			"apiVersion: v1\nkind: Endpoints\nmetadata: {name: " + f.name("web") + "}\nsubsets:\n" +
				fmt.Sprintf("- addresses: [{ip: %q}, {ip: %q}]\n", f.of(b.L1), f.of(b.R1)) +
				fmt.Sprintf("  notReadyAddresses: [{ip: %q}]\n  ports: [{port: 9376}]\n", f.of(b.R2)),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(9376, b.L1, b.R1)...)
	})
}
