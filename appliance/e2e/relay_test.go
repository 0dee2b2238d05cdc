package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// loopback asks for node ports on loopback addresses, beside those of one segment.
var loopback = flags{"nodeport-addresses": {"127.0.0.0/8,192.0.2.0/24,::1/128,2001:db8::/64"}}

// local is a node port on the loopback address of a family.
func (f family) local() netip.AddrPort {
	return f.at(f.pick("127.0.0.1", "::1"), f.number(30080))
}

// looped writes and serves a Service with a node port over TCP and UDP.
func looped(t *testing.T, hosts func(b *box) []*netlab.Host, spec ...string) *box {
	t.Helper()
	b := newBox(t, loopback)
	b.write("web.yaml", loopedDocuments(hosts(b), spec...))
	b.svcctl.Start()
	return b
}

func loopedDocuments(hosts []*netlab.Host, spec ...string) func(f family) []string {
	return func(f family) []string {
		lines := append([]string{"type: NodePort", "clusterIP: " + f.vip(41), "ports:",
			"- {name: p80, port: 80, nodePort: " + f.port(30080) + "}",
			"- {name: udp, port: 80, protocol: UDP, nodePort: " + f.port(30080) + "}"}, spec...)
		return []string{f.service("web", lines...), f.slice("web", "p80: 80, udp: 80/UDP", hosts...)}
	}
}

// eventuallyReaches is for listeners that are opened after everything is in the kernel.
func (b *box) eventuallyReaches(t *testing.T, from *netlab.Host, network string, to netip.AddrPort, want source, at ...netip.AddrPort) {
	t.Helper()
	eventually(t, syncTimeout, func() error { return b.tryReaches(from, network, to, want, at...) })
}

func Test024_node_port_on_loopback(t *testing.T) {
	b := looped(t, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, network := range []string{"tcp", "udp"} {
			b.eventuallyReaches(t, b.GW1, network, f.local(), masq, f.on(80, b.L1, b.R1)...)
			b.reaches(t, b.EXT, network, f.nodePort(), masq, f.on(80, b.L1, b.R1)...)
		}
		b.noProblem(t, f.object("Service", "web"))
	})
}

// A neighbor that routes loopback addresses to the box gets nothing from there.
func Test024_loopback_is_not_for_neighbors(t *testing.T) {
	b := looped(t, l1)
	b.eventuallyReaches(t, b.GW1, "tcp", ipv4.local(), masq, ipv4.on(80, b.L1)...)
	b.RTR.RemoveAddr("lo", "127.0.0.1/8")
	b.RTR.RemoveAddr("lo", "::1/128")
	b.RTR.Sysctl("net.ipv4.conf.all.route_localnet", "1")
	b.RTR.Route("127.0.0.1/32", netlab.BoxAddr4)
	b.RTR.Route("::1/128", netlab.BoxAddr6)
	b.each(t, func(t *testing.T, b *box, f family) {
		from := netip.MustParseAddr(f.pick("192.0.2.254", "2001:db8::fe"))
		sent := b.RTR.Capture("box")
		if reply, err := b.RTR.Ask("tcp", f.local(), netlab.From(from)); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("a neighbor to %s: %v, %v, want silence", f.local(), reply, err)
		}
		asked := sent.Packets(func(p netlab.Packet) bool { return p.Outgoing && p.To == f.local() })
		if f == ipv4 && len(asked) == 0 {
			t.Error("the neighbor's question did not leave it: nothing was tried")
		}
	})
	for _, of := range []string{"all", "default", "lo", "ext0", "alt0", "int0", "int1", "int2"} {
		if value := b.setting(t, "net/ipv4/conf/"+of+"/route_localnet"); value != "0" {
			t.Errorf("route_localnet of %s is %s, want 0", of, value)
		}
	}
}

// setting is a sysctl of the box.
func (b *box) setting(t *testing.T, path string) string {
	t.Helper()
	var value []byte
	err := b.GW1.Do(func() (err error) {
		value, err = os.ReadFile("/proc/sys/" + path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}

func Test024_loopback_without_endpoints(t *testing.T) {
	b := looped(t, nobody)
	for _, f := range families {
		if reply, err := b.GW1.Ask("tcp", f.local()); netlab.RefusalOf(err) != netlab.Refused {
			t.Errorf("%s: %v, %v, want a reset", f.local(), reply, err)
		}
	}
	b.rewrite("web.yaml", loopedDocuments(l1(b)))
	for _, f := range families {
		b.eventuallyReaches(t, b.GW1, "tcp", f.local(), masq, f.on(80, b.L1)...)
	}
	open := map[family]*netlab.Conn{}
	for _, f := range families {
		c, err := b.GW1.Dial(f.local(), patiently)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open[f] = c
	}
	b.rewrite("web.yaml", loopedDocuments(r1(b)))
	for _, f := range families {
		b.eventuallyReaches(t, b.GW1, "tcp", f.local(), masq, f.on(80, b.R1)...)
		b.eventuallyReaches(t, b.GW1, "udp", f.local(), masq, f.on(80, b.R1)...)
		if err := open[f].Echo("still here", patiently); err != nil {
			t.Errorf("%s: a connection to an endpoint that is gone: %v", f, err)
		}
	}
	b.change(func() { b.svcctl.Manifests.Remove("web.yaml") })
	for _, f := range families {
		eventually(t, syncTimeout, func() error {
			if reply, err := b.GW1.Ask("tcp", f.local()); netlab.RefusalOf(err) != netlab.Refused {
				return fmt.Errorf("%s: %v, %v, want a reset", f.local(), reply, err)
			}
			return nil
		})
	}
}

// The box is inside: externalTrafficPolicy is not about it.
func Test024_loopback_with_policy_local(t *testing.T) {
	b := looped(t, l1r1, etpLocal)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.eventuallyReaches(t, b.GW1, "tcp", f.local(), masq, f.on(80, b.L1, b.R1)...)
		b.reaches(t, b.EXT, "tcp", f.nodePort(), plain, f.on(80, b.L1)...)
	})
}

// Without loopback addresses in the list there is nothing on them.
func Test024_loopback_only_when_listed(t *testing.T) {
	b := nodePort(t, nil, l1)
	for _, f := range families {
		if reply, err := b.GW1.Ask("tcp", f.local()); netlab.RefusalOf(err) != netlab.Refused {
			t.Errorf("%s: %v, %v, want a reset", f.local(), reply, err)
		}
	}
}

func Test024_loopback_port_is_taken(t *testing.T) {
	b := newBox(t, loopback)
	taken := map[family]*netlab.Server{}
	for _, f := range families {
		taken[f] = b.GW1.ServeAt("tcp", f.local())
	}
	b.write("web.yaml", loopedDocuments(l1(b)))
	b.svcctl.Start()
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), f.local().Addr().String(), fmt.Sprint(f.local().Port()))
		if reply := answers(t, b.GW1, "tcp", f.local()); reply.Server != b.GW1.Name {
			t.Errorf("%s: answered by %s, want who had it before", f.local(), reply)
		}
		b.reaches(t, b.EXT, "tcp", f.nodePort(), masq, f.on(80, b.L1)...) // the other addresses
		taken[f].Close()
	}
	for _, f := range families {
		eventually(t, 3*syncTimeout, func() error { return b.tryReaches(b.GW1, "tcp", f.local(), masq, f.on(80, b.L1)...) })
	}
}
