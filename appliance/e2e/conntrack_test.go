package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests of this file are about connections that were there before a change. The
// kernel sends a connection where its first packet went, for as long as packets come, so
// whose endpoint is gone must be forgotten, and nothing else. Their Service is everywhere.

// serveEverywhere serves the Service everywhere with L1 as its endpoint.
func serveEverywhere(t *testing.T) *box {
	t.Helper()
	b := newBox(t, metered)
	b.write("any.yaml", everywhere(53, b.L1))
	b.svcctl.Start()
	b.remember()
	return b
}

// remember makes the box forget no flow by itself while a busy machine takes its time: it
// does so after 30 s of silence, and after 3 s with half an association of SCTP; a whole
// one is more than the servers here know.
func (b *box) remember() {
	b.t.Helper()
	b.GW1.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "300")
	b.GW1.Sysctl("net.netfilter.nf_conntrack_sctp_timeout_cookie_wait", "300")
}

// bystanders are connections that none of the Service's changes is about.
type bystanders struct {
	entries map[entry]string
	open    []*netlab.Conn
}

// bystand makes them: foreign ones to endpoints and to a host that has the number of a
// node port, and open connections of TCP to the Service itself.
func (b *box) bystand(t *testing.T) bystanders {
	t.Helper()
	var made bystanders
	var foreign []flow
	for _, f := range families {
		for _, network := range []string{"udp", "sctp"} {
			port := f.everywherePort(network)
			b.R2.Serve(network, port)
			for _, to := range []netip.AddrPort{f.on(53, b.L1)[0], f.on(5353, b.L1)[0], f.on(port, b.R2)[0]} {
				foreign = append(foreign, flow{f, network, b.IN, to, uint16(12000 + len(foreign))})
			}
		}
		for _, to := range []netip.AddrPort{f.at(f.vip(41), 80), f.at(f.boxAddr(), f.everywherePort("tcp"))} {
			c, err := b.IN.Dial(to, patiently)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			made.open = append(made.open, c)
		}
	}
	for _, fl := range foreign {
		answers(t, fl.from, fl.network, fl.to, netlab.FromPort(fl.port))
	}
	made.entries = b.entriesOf(t, foreign...)
	for e, id := range b.entries(t) {
		if e.network == "tcp" && slices.ContainsFunc(made.open, func(c *netlab.Conn) bool { return e.from == c.Local }) {
			made.entries[e] = id
		}
	}
	if want := len(foreign) + len(made.open); len(made.entries) != want {
		t.Fatalf("%d bystanders have entries, want %d", len(made.entries), want)
	}
	return made
}

// spared asserts that nothing happened to bystanders.
func (b *box) spared(t *testing.T, by bystanders) {
	t.Helper()
	b.untouched(t, by.entries)
	for _, c := range by.open {
		if err := c.Echo("still there", patiently); err != nil {
			t.Errorf("open TCP connection to %s: %v", c.Reply.At, err)
		}
	}
}

// loseEndpoint goes on from L1 serving the flows, and ends with R1.
func (b *box) loseEndpoint(t *testing.T, flows []flow) {
	t.Helper()
	lead(t, flows, b.L1, 53)
	entries := b.entriesOf(t, flows...)
	b.rewrite("any.yaml", everywhere(53, b.L1, b.R1))
	lead(t, flows, b.L1, 53)
	b.untouched(t, entries)
	b.rewrite("any.yaml", everywhere(53, b.R1))
	lead(t, flows, b.R1, 53)
	b.rewrite("any.yaml", everywhere(5353, b.R1))
	lead(t, flows, b.R1, 5353)
}

func Test093_endpoint_goes(t *testing.T) {
	b := serveEverywhere(t)
	by := b.bystand(t)
	b.loseEndpoint(t, b.flows("udp", 11000))
	b.spared(t, by)
}

func Test094_sent_before_the_service_was_there(t *testing.T) {
	b := newBox(t, nil)
	other := func(f family) []string {
		return []string{f.service("other", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]")}
	}
	b.write("other.yaml", other)
	b.svcctl.Start()
	// What is sent to an address of the service range, or of a pool, is dropped until it is a VIP.
	early := slices.DeleteFunc(b.flows("udp", 11000), func(fl flow) bool {
		return fl.to == fl.at(fl.vip(41), 53) || fl.to == fl.at(fl.lb(4), 53)
	})
	for e := range b.unanswered(t, early) {
		if e.answer != e.to {
			t.Errorf("translated before there is a Service: %s", e)
		}
	}
	b.rewrite("any.yaml", everywhere(53, b.L1))
	lead(t, early, b.L1, 53)
}

// loseAllEndpoints goes on from R1 serving the flows, and ends without endpoints.
func (b *box) loseAllEndpoints(t *testing.T, flows []flow) {
	t.Helper()
	lead(t, flows, b.R1, 5353)
	b.rewrite("any.yaml", everywhere(53))
	b.refused(t, flows)
	// The same without any answer.
	b.rewrite("any.yaml", everywhere(silentPort, b.L1))
	for e := range b.unanswered(t, flows) {
		if e.answer.Port() != silentPort {
			t.Errorf("%s, want it to lead to the endpoint that is silent", e)
		}
	}
	b.rewrite("any.yaml", everywhere(silentPort))
	b.refused(t, flows)
}

const silentPort = 999

// silence makes a host say nothing about what comes to silentPort.
func silence(h *netlab.Host) {
	h.LoadNft(fmt.Sprintf("table inet silent {\n chain input {\n type filter hook input priority filter\n meta l4proto { udp, sctp } th dport %d drop\n }\n }\n", silentPort))
}

func Test095_no_endpoint_is_left(t *testing.T) {
	b := serveEverywhere(t)
	silence(b.L1)
	by := b.bystand(t)
	b.rewrite("any.yaml", everywhere(5353, b.R1))
	b.loseAllEndpoints(t, b.flows("udp", 11000))
	b.spared(t, by)
}

// loseService goes on from L1 serving the flows, and ends without the Service.
func (b *box) loseService(t *testing.T, flows []flow) {
	t.Helper()
	lead(t, flows, b.L1, 53)
	b.change(func() { b.svcctl.Manifests.Remove("any.yaml") })
	b.abandoned(t, flows)
}

// abandoned asserts that, within a sync, no entry of the flows leads to L1, and that
// their next packet gets no answer.
func (b *box) abandoned(t *testing.T, flows []flow) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		for e := range b.entries(t) {
			if slices.ContainsFunc(flows, func(fl flow) bool {
				return fl.has(e) && e.answer.Addr() == fl.of(b.L1)
			}) {
				return fmt.Errorf("the Service is deleted, and there is an entry: %s", e)
			}
		}
		return nil
	})
	for _, fl := range flows {
		if reply, err := fl.ask(shortly); err == nil {
			t.Errorf("%s: the Service is deleted and %s answers", fl, reply)
		}
	}
}

func Test096_service_is_deleted(t *testing.T) {
	b := serveEverywhere(t)
	by := b.bystand(t)
	// Others never pause: every packet that is under way during the change could make
	// an entry to the old endpoint that lives for ever.
	stream := b.flows("udp", 11100)
	b.stream(t, stream)
	b.loseService(t, b.flows("udp", 11000))
	arrived := b.L1.Capture("eth0")
	eventually(t, syncTimeout, func() error {
		count := func() int {
			return len(arrived.Packets(func(p netlab.Packet) bool {
				return p.Protocol == unix.IPPROTO_UDP && !p.Outgoing && p.To.Port() == 53
			}))
		}
		before := count()
		time.Sleep(100 * time.Millisecond)
		if n := count() - before; n > 0 {
			return fmt.Errorf("the Service is deleted, and its endpoint got %d more packets", n)
		}
		return nil
	})
	b.spared(t, by)
}

// The flow of others has the number of a node port, and the box is on its way.
func Test097_foreign_flow_with_the_number_of_a_node_port(t *testing.T) {
	b := serveEverywhere(t)
	var ours, foreign []flow
	for _, f := range families {
		port := f.everywherePort("udp")
		b.R2.Serve("udp", port)
		foreign = append(foreign,
			flow{f, "udp", b.IN, f.on(port, b.R2)[0], 11000},
			flow{f, "udp", b.Near, f.on(port, b.R2)[0], 11000})
		ours = append(ours, flow{f, "udp", b.IN, f.at(f.pick("10.0.0.1", "fd00:10::1"), port), 11001})
	}
	for _, fl := range foreign {
		answers(t, fl.from, fl.network, fl.to, netlab.FromPort(fl.port))
	}
	entries := b.entriesOf(t, foreign...)
	lead(t, ours, b.L1, 53)
	b.rewrite("any.yaml", everywhere(53, b.R1))
	lead(t, ours, b.R1, 53)
	b.rewrite("any.yaml", everywhere(53))
	b.refused(t, ours)
	b.rewrite("any.yaml", everywhere(53, b.L1))
	b.untouched(t, entries)
	b.loseService(t, ours)
	b.untouched(t, entries)
}

func Test098_sctp(t *testing.T) {
	b := serveEverywhere(t)
	silence(b.L1)
	by := b.bystand(t)
	flows := b.flows("sctp", 11000)
	b.loseEndpoint(t, flows)
	b.loseAllEndpoints(t, flows)
	b.rewrite("any.yaml", everywhere(53, b.L1))
	b.loseService(t, flows)
	b.spared(t, by)
}

func Test099_restart(t *testing.T) {
	b := serveEverywhere(t)
	by := b.bystand(t)
	flows := slices.Concat(b.flows("udp", 11000), b.flows("sctp", 11100))
	lead(t, flows, b.L1, 53)
	entries := b.entriesOf(t, flows...)
	for how, end := range map[string]func(){"stopped": b.svcctl.Stop, "killed": b.svcctl.Kill} {
		end()
		b.svcctl.Start()
		b.looked(t)
		if n := b.metric(t, forgotten); n != 0 {
			t.Errorf("%s and started: %d entries were deleted", how, n)
		}
		b.untouched(t, entries)
	}
	b.spared(t, by)
}

func Test099_changes_while_nobody_looks(t *testing.T) {
	b := serveEverywhere(t)
	other := func(hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service("other", "clusterIP: "+f.vip(42), "ports: [{name: udp, port: 53, protocol: UDP}]"),
				f.slice("other", "udp: 53/UDP", hosts...),
			}
		}
	}
	b.rewrite("other.yaml", other(b.L1))
	var others []flow
	for i, f := range families {
		others = append(others, flow{f, "udp", b.EXT, f.at(f.vip(42), 53), uint16(11200 + i)})
	}
	flows := slices.Concat(b.flows("udp", 11000), b.flows("sctp", 11100))
	lead(t, slices.Concat(flows, others), b.L1, 53)
	by := b.bystand(t)

	b.svcctl.Stop()
	b.svcctl.Manifests.Remove("any.yaml")
	b.write("other.yaml", other(b.R1))
	b.svcctl.Start()
	b.abandoned(t, flows)
	lead(t, others, b.R1, 53)
	b.looked(t)
	if n, want := b.metric(t, forgotten), len(flows)+len(others); n < want {
		t.Errorf("%d entries were deleted, want %d", n, want)
	}
	b.spared(t, by)
}

// An endpoint that terminates and still serves keeps its flows, over a restart too. It is
// on another box: this box would send new connections with policy Local to one of its own.
func Test099_endpoint_that_drains_keeps_flows(t *testing.T) {
	b := serveEverywhere(t)
	flows := slices.Concat(b.flows("udp", 11000), b.flows("sctp", 11100))
	become := func(conditions string) {
		t.Helper()
		b.rewrite("any.yaml", func(f family) []string {
			return []string{f.everywhereService("tcp", "udp", "sctp"), f.everywhereSlice(53, f.having(b.R1, conditions), f.having(b.R2, isReady))}
		})
	}
	b.rewrite("any.yaml", everywhere(53, b.R1))
	lead(t, flows, b.R1, 53)
	entries := b.entriesOf(t, flows...)
	become(draining)
	lead(t, flows, b.R1, 53)
	lead(t, b.flows("udp", 11200), b.R2, 53)
	b.svcctl.Stop()
	b.svcctl.Start()
	b.looked(t)
	b.untouched(t, entries)
	lead(t, flows, b.R1, 53)
	become(terminating)
	lead(t, flows, b.R2, 53)
}

func Test100_many_entries(t *testing.T) {
	b := newBox(t, metered)
	at := func(h *netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{f.everywhereService("udp"), f.everywhereSlice(53, f.endpoint(h))}
		}
	}
	b.write("any.yaml", at(b.L1))
	b.svcctl.Start()
	b.remember()
	others := b.crowd(t)
	flows := b.flows("udp", 11000)
	lead(t, flows, b.L1, 53)
	for try, h := range []*netlab.Host{b.R1, b.L1} {
		before := b.tracked(t)
		b.rewrite("any.yaml", at(h))
		start := time.Now()
		lead(t, flows, h, 53)
		t.Logf("%d entries of others: all flows reached the other endpoint %s after the change", others, time.Since(start))
		eventually(t, syncTimeout, func() error {
			if n, want := b.metric(t, forgotten), (try+1)*len(flows); n != want {
				return fmt.Errorf("%d entries were deleted, want %d", n, want)
			}
			return nil
		})
		// The scrapes are connections of the box to itself.
		if after := b.tracked(t); after < before {
			t.Errorf("%d entries before and %d after the change: each stale one was to be replaced", before, after)
		}
	}
}
