package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// countedTraffic has the kernel's counts in all, as `svcctl top` prints them.
type countedTraffic struct {
	At       time.Time
	Counted  bool
	Refusals map[string]int
	Ports    []struct {
		Service, Protocol    string
		Connections, Refused int
		Open                 int
	}
}

// counted is a look that was made after it was asked for.
func (b *box) counted(t *testing.T) (seen countedTraffic) {
	t.Helper()
	asked := time.Now()
	eventually(t, time.Minute, func() error {
		seen = countedTraffic{}
		out, errOut, code := b.svcctl.Svcctl("top", "-A", "--once", "-o", "json")
		if code != 0 {
			return fmt.Errorf("svcctl top: exit code %d: %s", code, errOut)
		}
		if err := json.Unmarshal([]byte(out), &seen); err != nil {
			return err
		}
		if seen.At.Before(asked) {
			return fmt.Errorf("the look is of %s, asked at %s", seen.At, asked)
		}
		return nil
	})
	return seen
}

// of returns the counts of a Service over a protocol.
func (c *countedTraffic) of(service, protocol string) string {
	for _, p := range c.Ports {
		if p.Service == service && p.Protocol == protocol {
			return fmt.Sprintf("%d connections, %d refused", p.Connections, p.Refused)
		}
	}
	return "nothing"
}

// counts asserts what a Service has counted, by each look from now on.
func (b *box) counts(t *testing.T, when, service, protocol string, connections, refused int) {
	t.Helper()
	seen := b.counted(t)
	if got, want := seen.of(service, protocol), fmt.Sprintf("%d connections, %d refused", connections, refused); got != want {
		t.Errorf("%s: %s over %s: %s, want %s", when, service, protocol, got, want)
	}
}

// ask asks so many times, and is answered each time.
func (b *box) ask(t *testing.T, n int, from *netlab.Host, network string, to netip.AddrPort, opts ...netlab.Option) {
	t.Helper()
	for range n {
		if _, err := from.Ask(network, to, append(opts, patiently)...); err != nil {
			t.Fatal(err)
		}
	}
}

// Each connection counts once: over TCP and UDP, at cluster IPs, node ports and external IPs, of
// clients that session affinity knows and of those it does not.
func Test334_connections_are_counted(t *testing.T) {
	b := newBox(t, setAside(nil))
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), "externalIPs: ['"+f.external(99)+"']",
				fmt.Sprintf("ports: [{name: p80, port: 80, nodePort: %d}, {name: u80, port: 80, protocol: UDP, nodePort: %d}]", f.number(30080), f.number(30080))),
			f.slice("web", "p80: 80, u80: 80/UDP", b.L1, b.L2),
			f.service("cart", "clusterIP: "+f.vip(42), "sessionAffinity: ClientIP", "ports: [{name: p80, port: 80}]"),
			f.slice("cart", "p80: 80", b.L1, b.L2),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		web, cart := f.name("web"), f.name("cart")
		b.counts(t, "at the start", web, "TCP", 0, 0)
		b.ask(t, 3, b.IN, "tcp", f.at(f.vip(41), 80))
		b.ask(t, 4, b.EXT, "tcp", f.at(f.external(99), 80))
		b.ask(t, 5, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)))
		b.ask(t, 6, b.IN, "udp", f.at(f.vip(41), 80))
		b.ask(t, 2, b.GW1, "tcp", f.at(f.vip(41), 80)) // from output
		b.ask(t, 7, b.IN, "tcp", f.at(f.vip(42), 80))
		for n := range 3 {
			b.ask(t, 2, b.EXT, "tcp", f.at(f.vip(42), 80), netlab.From(f.client(10+n)))
		}
		b.counts(t, "at each address", web, "TCP", 3+4+5+2, 0)
		b.counts(t, "at the cluster IP", web, "UDP", 6, 0)
		b.counts(t, "with affinity", cart, "TCP", 7+6, 0)

		conn, err := b.IN.Dial(f.at(f.vip(41), 80), patiently)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 20 {
			if err := conn.Echo("more", patiently); err != nil {
				t.Fatal(err)
			}
		}
		b.counts(t, "with many packets in one connection", web, "TCP", 15, 0)
	})
}

// Refusals count at the Service that has no endpoint, and by their reason.
func Test335_refusals_are_counted(t *testing.T) {
	b := newBox(t, flags{"load-balancer-internal-pool": {"198.51.100.32/28", "2001:db8:198::20/124"}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.policyService(f.ranges(extOnly)), f.slice("web", "p80: 80", b.L1),
			f.service("empty", "clusterIP: "+f.vip(60), "ports: [{name: p80, port: 80}, {name: u80, port: 80, protocol: UDP}]"),
			f.service("away", "type: LoadBalancer", "loadBalancerIP: "+f.lb(5), "externalTrafficPolicy: Local", "ports: [{name: p80, port: 80}]"),
			f.slice("away", "p80: 80", b.R1),
			annotated(f.service("inner", "type: LoadBalancer", "ports: [{name: p80, port: 80}]", "loadBalancerIP: "+f.pick("198.51.100.33", "2001:db8:198::21")),
				"service.beta.kubernetes.io/aws-load-balancer-internal", "true"),
			f.slice("inner", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	for _, f := range families {
		before := b.counted(t).Refusals
		grows := map[string]int{}
		send := func(reason string, from *netlab.Host, to netip.AddrPort, n int) {
			begin(from, f.of(from), to, n)
			grows[reason] += n
		}
		send("no-endpoint", b.EXT, f.at(f.vip(60), 80), 3)
		send("no-such-port", b.EXT, f.at(f.vip(60), 81), 4)
		send("not-allocated", b.EXT, f.at(f.vip(200), 80), 5)
		send("source-range", b.BLK, f.balancer(), 6)
		send("inside-only", b.EXT, f.at(f.pick("198.51.100.33", "2001:db8:198::21"), 80), 7)
		for n := range 8 {
			b.EXT.SendTCP(netlab.TCPHeader{From: netip.AddrPortFrom(f.of(b.EXT), uint16(40100+n)), To: f.at(f.vip(60), 80), Flags: netlab.TCPSyn | netlab.TCPAck})
		}
		grows["stray"] += 8
		begin(b.EXT, f.of(b.EXT), f.at(f.lb(5), 80), 2) // dropped: the policy is Local, and no endpoint is
		if _, err := b.EXT.Ask("udp", f.at(f.vip(60), 80), patiently); netlab.RefusalOf(err) != netlab.Unreachable {
			t.Fatalf("UDP: %v, want it refused", err)
		}
		grows["no-endpoint"]++
		b.ask(t, 5, b.EXT, "tcp", f.balancer())

		var got map[string]int
		var seen countedTraffic
		eventually(t, time.Minute, func() error { // a packet may be under way
			seen = b.counted(t)
			got = map[string]int{}
			for reason, n := range seen.Refusals {
				if n -= before[reason]; n != 0 {
					got[reason] = n
				}
			}
			if !maps.Equal(got, grows) {
				return fmt.Errorf("%s: refusals grew by %v, want %v", f, got, grows)
			}
			return nil
		})
		for service, want := range map[string]string{
			"empty": "0 connections, 3 refused", "away": "0 connections, 2 refused", "inner": "0 connections, 0 refused", "web": "5 connections, 0 refused",
		} {
			if got := seen.of(f.name(service), "TCP"); got != want {
				t.Errorf("%s: %s, want %s", f.name(service), got, want)
			}
		}
		if got := seen.of(f.name("empty"), "UDP"); got != "0 connections, 1 refused" {
			t.Errorf("%s over UDP: %s", f.name("empty"), got)
		}
	}
}

// Totals go on through changes of endpoints, refusal and back, foreign flushes, hand-overs and restarts, and begin anew
// after a crash. No count is ever a difference: with traffic alone nothing is committed.
func Test336_totals_never_go_back(t *testing.T) {
	b := newBox(t, nil)
	var annotations []string
	serve := func(hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			svc := f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, 30080))
			return []string{
				withAnnotations(svc, annotations...), f.slice("web", "p80: 80", hosts...),
				f.service("other", "clusterIP: "+f.vip(43), "ports: [{name: p80, port: 80}]"), f.slice("other", "p80: 80", b.L1),
			}
		}
	}
	b.write("web.yaml", serve(b.L1))
	b.svcctl.Start()
	connections, refused := 0, 0
	ask := func(n int) {
		t.Helper()
		for _, f := range families {
			b.ask(t, n, b.IN, "tcp", f.cluster())
			b.ask(t, n, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)))
		}
		connections += 2 * n
	}
	counts := func(when string) {
		t.Helper()
		for _, f := range families {
			b.counts(t, when, f.name("web"), "TCP", connections, refused)
		}
	}
	ask(3)
	counts("one endpoint")
	for _, hosts := range [][]*netlab.Host{{b.L1, b.L2}, {b.L2}, {b.L1, b.L2, b.R1}} {
		b.rewrite("web.yaml", serve(hosts...))
		ask(2)
	}
	counts("after changes of endpoints")
	b.rewrite("web.yaml", serve())
	for _, f := range families {
		begin(b.EXT, f.of(b.EXT), f.cluster(), 4)
	}
	refused += 4
	counts("without endpoints")
	b.rewrite("web.yaml", serve(b.L1))
	ask(1)
	counts("with one again")
	annotations = []string{`svcctl.io/rate-limit: "1000/s"`}
	b.rewrite("web.yaml", serve(b.L1))
	ask(2)
	b.rewrite("web.yaml", serve())
	for _, f := range families {
		begin(b.EXT, f.of(b.EXT), f.cluster(), 2)
	}
	refused += 2
	b.rewrite("web.yaml", serve(b.L1))
	ask(1)
	counts("under a limit")
	annotations = nil
	b.rewrite("web.yaml", serve(b.L1))
	counts("without the limit")
	ask(1)
	counts("and with more")

	b.GW1.Nft("flush", "ruleset")
	eventually(t, time.Minute, func() error {
		for _, f := range families {
			for _, to := range []netip.AddrPort{f.cluster(), f.at(f.vip(43), 80)} {
				if !strings.Contains(b.GW1.Nft("list", "ruleset"), to.Addr().String()+" . tcp . 80 counter") {
					return fmt.Errorf("%v is not in the kernel", to)
				}
			}
		}
		return nil
	})
	b.synced()
	ask(40) // more than there was
	counts("after a foreign flush")

	if done := b.transactions(func() { ask(3); counts("with traffic alone") }); len(done) > 0 {
		t.Errorf("traffic leads to transactions: %v", done)
	}
	b.svcctl.HandOver()
	counts("after a hand-over")
	b.svcctl.Stop()
	ask(2)
	b.svcctl.Start()
	counts("after a restart")
	b.rewrite("web.yaml", serve(b.L1, b.L2))
	ask(2)
	counts("after a restart and a change")
	b.svcctl.Kill()
	b.svcctl.Start()
	connections, refused = 0, 0
	counts("after a crash")
	ask(2)
	counts("after a crash, with connections")
}

// --traffic off takes the counters out and counters puts them in, with no packet lost and no client
// forgotten.
func Test337_counters_can_be_turned_off(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "sessionAffinity: ClientIP", "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", b.L1, b.L2),
		}
	})
	b.svcctl.Start()
	first := map[family]netip.AddrPort{}
	var conns []*netlab.Conn
	for _, f := range families {
		conn, err := b.IN.Dial(f.cluster(), patiently)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		conns, first[f] = append(conns, conn), conn.Reply.At
	}
	for _, counters := range []bool{false, true, false} {
		b.svcctl.Stop()
		b.flags["traffic"] = []string{map[bool]string{true: "counters", false: "off"}[counters]}
		next := b.GW1.Appliance(binary, b.flags.args()...)
		next.Manifests, next.Data = b.svcctl.Manifests, b.svcctl.Data
		b.svcctl = next
		b.svcctl.Start()
		eventually(t, syncTimeout, func() error {
			if listing := b.GW1.Nft("list", "ruleset"); strings.Contains(listing, "counter") != counters {
				return fmt.Errorf("counters %t:\n%s", counters, listing)
			}
			return nil
		})
		for _, f := range families {
			reply, err := b.IN.Ask("tcp", f.cluster(), patiently)
			if err != nil || reply.At != first[f] {
				t.Errorf("counters %t: %s is answered by %v, %v; it had %v before", counters, f, reply.At, err, first[f])
			}
		}
		for _, conn := range conns {
			if err := conn.Echo("still here", patiently); err != nil {
				t.Errorf("counters %t: %v", counters, err)
			}
		}
		if seen := b.counted(t); seen.Counted != counters || (len(seen.Refusals) > 0) != counters {
			t.Errorf("counters %t: top tells %+v", counters, seen)
		}
	}
}
