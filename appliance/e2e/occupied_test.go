package e2e

import (
	"fmt"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// listens has a program of the box listen on a port, over TCP, until it is closed. The
// program is this test.
func (b *box) listens(f family, addr string) *netlab.Server {
	return b.GW1.ServeAt("tcp", f.at(addr, f.number(30090)))
}

func (b *box) occupiedDocuments(nodePort int) func(f family) []string {
	return func(f family) []string {
		return []string{
			f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, nodePort)),
			f.slice("web", "p80: 80", b.L1),
		}
	}
}

// occupied are where programs listen when the Service asks for the port.
var occupied = []struct {
	name string
	addr func(f family) string
}{
	{"an address of the box", family.boxAddr},
	{"every address", func(f family) string { return f.pick("0.0.0.0", "::") }},
}

func Test030_node_port_that_a_program_has(t *testing.T) {
	for _, where := range occupied {
		t.Run(where.name, func(t *testing.T) {
			b := newBox(t, nil)
			programs := map[family]*netlab.Server{}
			for _, f := range families {
				programs[f] = b.listens(f, where.addr(f))
			}
			b.write("web.yaml", b.occupiedDocuments(30090))
			b.svcctl.Start()
			for _, f := range families {
				to := f.at(f.boxAddr(), f.number(30090))
				b.hasProblem(t, f.object("Service", "web"), "error", "spec.ports[0].nodePort", fmt.Sprint(to.Port()),
					"listens on tcp "+f.at(where.addr(f), to.Port()).String(), "pid")
				if reply := answers(t, b.EXT, "tcp", to); reply.Server != b.GW1.Name || reply.Client.Addr() != f.of(b.EXT) {
					t.Errorf("%s: answered by %s, want the program", to, reply)
				}
				b.reaches(t, b.IN, "tcp", f.cluster(), plain, f.on(80, b.L1)...) // its other address
			}
			// A restart does not take the port over either.
			b.svcctl.Kill()
			b.svcctl.Start()
			for _, f := range families {
				if reply := answers(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090))); reply.Server != b.GW1.Name {
					t.Errorf("after a restart: answered by %s, want the program", reply)
				}
				programs[f].Close()
			}
			for _, f := range families { // who waits gets it
				eventually(t, 3*syncTimeout, func() error {
					return b.tryReaches(b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090)), masq, f.on(80, b.L1)...)
				})
				b.noProblem(t, f.object("Service", "web"))
			}
		})
	}
}

// A live Service does not get such a port either.
func Test030_live_service_asks_for_a_port_that_a_program_has(t *testing.T) {
	b := newBox(t, nil)
	for _, f := range families {
		b.listens(f, f.boxAddr())
	}
	b.write("web.yaml", b.occupiedDocuments(30080))
	b.svcctl.Start()
	b.rewrite("web.yaml", b.occupiedDocuments(30090))
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "spec.ports[0].nodePort", "listens on tcp")
		if reply := answers(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090))); reply.Server != b.GW1.Name {
			t.Errorf("answered by %s, want the program", reply)
		}
	}
}

// What is no node port's business: other protocols, other addresses, loopback.
func Test030_programs_that_are_in_nobodys_way(t *testing.T) {
	b := newBox(t, flags{"nodeport-addresses": {"primary"}})
	for _, f := range families {
		b.GW1.ServeAt("udp", f.at(f.boxAddr(), f.number(30090)))
		b.GW1.ServeAt("tcp", f.at(f.altAddr(), f.number(30090)))
		b.GW1.ServeAt("tcp", f.at(f.pick("127.0.0.1", "::1"), f.number(30090)))
	}
	b.write("web.yaml", b.occupiedDocuments(30090))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "web"))
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090)), masq, f.on(80, b.L1)...)
	})
}

// A program that comes later gets nothing from outside, and is told of.
func Test030_program_that_comes_later(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.occupiedDocuments(30090))
	b.svcctl.Start()
	programs := map[family]*netlab.Server{}
	for _, f := range families {
		programs[f] = b.listens(f, f.boxAddr())
	}
	for _, f := range families {
		to := f.at(f.boxAddr(), f.number(30090))
		eventually(t, 3*syncTimeout, func() error {
			for _, p := range b.status().Problems {
				if p.Object == f.object("Service", "web") && p.Severity == "warning" && p.Reason == "PortInUse" {
					return nil
				}
			}
			return fmt.Errorf("no warning in:\n%s", list(b.status().Problems))
		})
		b.reaches(t, b.EXT, "tcp", to, masq, f.on(80, b.L1)...)
	}
	// It has the port still after a restart: a port that is served is never given up.
	b.svcctl.Kill()
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090)), masq, f.on(80, b.L1)...)
		programs[f].Close()
	}
	for _, f := range families {
		eventually(t, 3*syncTimeout, func() error {
			for _, p := range b.status().Problems {
				if p.Object == f.object("Service", "web") {
					return fmt.Errorf("still %s", p)
				}
			}
			return nil
		})
	}
}

// A port of the box's own address, which a Service may have on purpose.
func Test030_external_port_that_a_program_has(t *testing.T) {
	b := newBox(t, nil)
	b.GW1.Serve("tcp", 22)
	b.write("web.yaml", func(f family) []string {
		doc := f.service("web", "externalIPs: ["+f.boxAddr()+"]", "ports: [{name: p80, port: 80}, {name: ssh, port: 22}]")
		return []string{annotated(doc, "svcctl.io/allow-host-address", "true"), f.slice("web", "p80: 80, ssh: 8080", b.L1)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "spec.ports[1].port", f.boxAddr()+" port 22/tcp", "listens on tcp")
		if reply := answers(t, b.EXT, "tcp", f.at(f.boxAddr(), 22)); reply.Server != b.GW1.Name {
			t.Errorf("answered by %s, want the program", reply)
		}
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), 80), masq, f.on(80, b.L1)...)
	})
}
