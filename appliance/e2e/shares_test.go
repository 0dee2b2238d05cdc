package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// part is a backend of a Service: its share, and the hosts that are its endpoints.
type part struct {
	name  string
	share int
	hosts []*netlab.Host
}

// shared is a Service with a cluster IP and node ports for TCP and UDP whose backends have shares.
func (b *box) shared(parts []part, annotations ...string) func(f family) []string {
	return func(f family) []string {
		svc := f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), "ports:",
			fmt.Sprintf("- {name: tcp, port: 80, nodePort: %d}", f.everywherePort("tcp")),
			fmt.Sprintf("- {name: udp, port: 53, protocol: UDP, nodePort: %d}", f.everywherePort("udp")))
		if len(annotations) > 0 {
			svc = withAnnotations(svc, annotations...)
		}
		docs := []string{svc}
		for _, p := range parts {
			docs = append(docs, withAnnotations(f.namedSlice(p.name, "web", "tcp: 80, udp: 53/UDP", p.hosts...), fmt.Sprintf("svcctl.io/share: %s=%d", p.name, p.share)))
		}
		return docs
	}
}

// shareOut asserts what a list of hosts gets, in this order: L1, L2, R1, R2 and those that are refused.
func (b *box) shareOut(t *testing.T, f family, networks map[string]uint16, weights ...int) {
	t.Helper()
	for network, port := range networks {
		want := map[netip.AddrPort]int{}
		for i, at := range append(f.on(port, b.L1, b.L2, b.R1, b.R2), netip.AddrPort{}) {
			if weights[i] > 0 {
				want[at] = weights[i]
			}
		}
		b.shares(t, b.IN, network, f.at(f.vip(41), port), want)
		b.shares(t, b.EXT, network, f.at(f.boxAddr(), f.everywherePort(network)), want)
	}
}

// The shares of invalid and empty backends are refused, in the kernel, by chance, by a hash and in turns, over TCP and UDP. While
// endpoints go down one by one connections move within their backend alone, and the share of the last one is refused.
func Test951_refused_shares_in_the_kernel(t *testing.T) {
	b := newBox(t, nil)
	kernel := map[string]uint16{"tcp": 80, "udp": 53}
	blue := func(hosts ...*netlab.Host) part { return part{"blue", 60, hosts} }
	green := func(hosts ...*netlab.Host) part { return part{"green", 30, hosts} }
	broken := part{"broken", 10, nil}
	b.write("web.yaml", b.shared([]part{blue(b.L1, b.L2, b.R1), green(b.R2), broken}))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.shareOut(t, f, kernel, 20, 20, 20, 30, 10)
		b.hasProblem(t, f.object("Service", "web"), "ShareRefused", "10 % of new connections are refused: backend broken has no usable endpoint")
	})
	for _, c := range []struct {
		parts   []part
		weights []int
	}{
		{[]part{blue(b.L2, b.R1), green(b.R2), broken}, []int{0, 30, 30, 30, 10}},
		{[]part{blue(b.R1), green(b.R2), broken}, []int{0, 0, 60, 30, 10}},
		{[]part{blue(), green(b.R2), broken}, []int{0, 0, 0, 30, 70}},
		{[]part{blue(b.L1, b.L2), green(), broken}, []int{30, 30, 0, 0, 40}},
		{[]part{blue(b.L1), green(b.L1)}, []int{1, 0, 0, 0, 0}},
		{[]part{blue(b.L1, b.R2), green(b.R2)}, []int{30, 0, 0, 60, 0}},
	} {
		b.rewrite("web.yaml", b.shared(c.parts))
		b.each(t, func(t *testing.T, b *box, f family) { b.shareOut(t, f, kernel, c.weights...) })
	}
	for _, balance := range []string{"maglev", "round-robin"} {
		b.rewrite("web.yaml", b.shared([]part{blue(b.L1, b.L2), green(), broken}, "svcctl.io/balance: "+balance))
		b.each(t, func(t *testing.T, b *box, f family) { b.shareOut(t, f, kernel, 30, 30, 0, 0, 40) })
	}
}

// The relay refuses the same shares.
func Test952_refused_shares_of_relayed_ports(t *testing.T) {
	b := newBox(t, nil)
	parts := []part{{"blue", 60, []*netlab.Host{b.L1, b.L2}}, {"green", 30, []*netlab.Host{b.R1}}, {"broken", 10, nil}}
	b.write("web.yaml", b.shared(parts, "svcctl.io/proxy-mode: userspace"))
	b.svcctl.Start()
	tcp := map[string]uint16{"tcp": 80}
	b.each(t, func(t *testing.T, b *box, f family) { b.shareOut(t, f, tcp, 30, 30, 30, 0, 10) })
	parts[1].hosts = nil
	for _, balance := range []string{"random", "round-robin", "least-connection", "maglev"} {
		b.rewrite("web.yaml", b.shared(parts, "svcctl.io/proxy-mode: userspace", "svcctl.io/balance: "+balance))
		b.each(t, func(t *testing.T, b *box, f family) { b.shareOut(t, f, tcp, 30, 30, 0, 0, 40) })
	}
}

// A change of shares, and the end of a backend, touch no connection of another backend.
func Test954_shares_leave_open_connections_alone(t *testing.T) {
	b := newBox(t, nil)
	parts := func(blue, green int, hosts ...*netlab.Host) func(f family) []string {
		return b.shared([]part{{"blue", blue, []*netlab.Host{b.L1, b.L2}}, {"green", green, hosts}}, "svcctl.io/drain-timeout: 1s")
	}
	b.write("web.yaml", parts(1, 1, b.R1))
	b.svcctl.Start()
	var open []*netlab.Conn
	entries, greens := map[entry]string{}, 0
	for _, f := range families {
		for range 24 {
			c, err := b.IN.Dial(f.at(f.vip(41), 80), patiently)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			if c.Reply.Server == "R1" {
				greens++
				continue
			}
			open = append(open, c)
		}
	}
	if len(open) == 0 || greens == 0 {
		t.Fatalf("%d connections are with blue, %d with green", len(open), greens)
	}
	for e, id := range b.entries(t) {
		if e.network == "tcp" && slices.ContainsFunc(open, func(c *netlab.Conn) bool { return e.from == c.Local }) {
			entries[e] = id
		}
	}
	for what, documents := range map[string]func(f family) []string{
		"another share": parts(9, 1, b.R1), "an endpoint less": parts(1, 9), "a backend less": parts(1, 0, b.R1), "all refused": parts(0, 1),
	} {
		b.rewrite("web.yaml", documents)
		b.untouched(t, entries)
		for _, c := range open {
			if err := c.Echo("still there", patiently); err != nil {
				t.Fatalf("%s: an open connection to %s: %v", what, c.Reply.At, err)
			}
		}
	}
}
