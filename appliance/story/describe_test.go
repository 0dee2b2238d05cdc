package story

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/trace"
)

func header(from, to string) *trace.Header {
	return &trace.Header{Protocol: byte(nft.TCP), From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort(to), SYN: true}
}

var facts = Facts{
	Served: map[string][]nft.ServicePort{"default/web": {{
		ID: "default/web/http", Family: nft.IPv4, Protocol: nft.TCP,
		Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}, {Port: 30080}},
	}}},
	Box: nft.Box{
		NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ServiceRanges:     []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	},
	Interface: func(int) string { return "eth0" },
}

func TestTell(t *testing.T) {
	ours := func(chain, verdict string, h *trace.Header) trace.Step {
		return trace.Step{Family: "ip", Table: nft.TableName, Chain: chain, Kind: trace.KindRule, Verdict: verdict, Header: h, In: 2}
	}
	theirs := func(verdict string, kind trace.Kind) trace.Step {
		return trace.Step{Family: "inet", Table: "fw", Chain: "forward", Kind: kind, Rule: 12, Verdict: verdict, In: 2, Out: 3}
	}
	vip := header("203.0.113.7:4000", "10.96.0.10:80")
	for name, c := range map[string]struct {
		steps []trace.Step
		says  []string
	}{
		"picked": {[]trace.Step{ours("prerouting", "goto pick-3", vip), ours("pick-3", "accept", nil), ours("postrouting", "accept", header("203.0.113.7:4000", "10.1.2.11:8080"))},
			[]string{"good is for Service default/web, port http", "good 3 endpoints, one is picked at random", "good sent to endpoint 10.1.2.11:8080", "note came to this host itself"}},
		"node port":       {[]trace.Step{ours("prerouting", "goto nodeport-pick-2", header("203.0.113.7:4000", "192.0.2.1:30080"))}, []string{"port http (node port)", "2 endpoints"}},
		"another's drop":  {[]trace.Step{ours("prerouting", "goto pick-1", vip), theirs("drop", trace.KindRule)}, []string{"bad dropped by table inet fw, chain forward, the rule with handle 12"}},
		"policy":          {[]trace.Step{ours("prerouting", "goto pick-1", vip), theirs("drop", trace.KindPolicy)}, []string{"bad dropped by the policy of table inet fw, chain forward"}},
		"queue":           {[]trace.Step{ours("prerouting", "goto pick-1", vip), theirs("queue", trace.KindRule)}, []string{"note handed to a program by table inet fw"}},
		"stray":           {[]trace.Step{ours("stray", "drop", vip)}, []string{"bad dropped: it belongs to no connection"}},
		"free address":    {[]trace.Step{ours("prerouting", "drop", header("203.0.113.7:4000", "10.96.0.11:80"))}, []string{"bad dropped: 10.96.0.11 is in the service range"}},
		"no endpoint":     {[]trace.Step{ours("prerouting", "goto refuse", vip), ours("refuse", "drop", nil)}, []string{"bad refused: Service default/web has no endpoint"}},
		"weights, hashes": {[]trace.Step{ours("prerouting", "goto hash-256", vip)}, []string{"picked by a hash of the client"}},
	} {
		var told []string
		for _, l := range Describe(c.steps, &facts).Lines {
			told = append(told, l.State+" "+l.Text)
		}
		for _, want := range c.says {
			if !strings.Contains(strings.Join(told, "\n"), want) {
				t.Errorf("%s: no %q in\n%s", name, want, strings.Join(told, "\n"))
			}
		}
	}
}

// What is still said of a connection after its packet passed is in the story; the next packet of a
// flow is another one.
func TestTellerSplitsPackets(t *testing.T) {
	steps := []trace.Step{
		{Packet: 1, Family: "ip", Table: nft.TableName, Chain: "invalid", Verdict: "accept", Header: header("203.0.113.7:4000", "10.1.2.11:8080"), In: 2},
		{Packet: 1, Family: "inet", Table: "fw", Chain: "forward", Verdict: "accept", Header: header("203.0.113.7:4000", "10.1.2.11:8080"), In: 2, Out: 3},
		{Packet: 1, Family: "ip", Table: nft.TableName, Chain: "invalid", Verdict: "accept", Header: header("10.1.2.11:8080", "203.0.113.7:4000"), In: 3},
	}
	teller := &Tracer{
		served: func() (map[string][]nft.ServicePort, nft.Box) { return facts.Served, facts.Box },
		follow: func(ctx context.Context, _ []trace.Filter, each func(trace.Step)) error {
			for _, s := range steps {
				each(s)
			}
			<-ctx.Done()
			return nil
		},
		find: func(*trace.Step) *conntrack.Connection {
			c := conntrack.Connection{Protocol: nft.TCP, Answered: true}
			c.Client, c.To, c.Endpoint = netip.MustParseAddrPort("203.0.113.7:4000"), netip.MustParseAddrPort("10.96.0.10:80"), netip.MustParseAddrPort("10.1.2.11:8080")
			c.As = c.Client
			return &c
		},
	}
	var stories []wire.TracedPacket
	err := teller.Trace(context.Background(), wire.TraceQuery{Count: 2, Seconds: int(time.Minute / time.Second)}, func(p wire.TracedPacket) { stories = append(stories, p) })
	if err != nil || len(stories) != 2 {
		t.Fatalf("%d packets, %v; want 2", len(stories), err)
	}
	if text := stories[0].Lines[1].Text; !strings.Contains(text, "sent to endpoint 10.1.2.11:8080, which was picked at its first packet") || len(stories[0].Steps) != 2 {
		t.Errorf("the first packet: %+v", stories[0])
	}
	if text := stories[1].Lines[1].Text; !strings.Contains(text, "is an answer of endpoint 10.1.2.11:8080") {
		t.Errorf("the second packet: %+v", stories[1])
	}
}

// One trace follows packets at a time. Predictions follow none, and need not wait.
func TestTellerFollowsForOne(t *testing.T) {
	inside := make(chan struct{})
	teller := &Tracer{
		served: func() (map[string][]nft.ServicePort, nft.Box) { return facts.Served, facts.Box },
		follow: func(ctx context.Context, _ []trace.Filter, _ func(trace.Step)) error {
			close(inside)
			<-ctx.Done()
			return nil
		},
		way: func(netip.Addr) (Way, error) { return Way{}, nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan error, 1)
	q := wire.TraceQuery{To: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: "TCP", Count: 1, Seconds: 60}
	go func() { first <- teller.Trace(ctx, q, nil) }()
	<-inside
	if err := teller.Trace(ctx, q, nil); !errors.Is(err, wire.ErrTracing) {
		t.Errorf("a second trace: %v", err)
	}
	q.Predict = true
	if err := teller.Trace(ctx, q, func(wire.TracedPacket) {}); err != nil {
		t.Errorf("a prediction: %v", err)
	}
	cancel()
	if err := <-first; err != nil {
		t.Errorf("the first trace: %v", err)
	}
	busy := &Tracer{follow: func(context.Context, []trace.Filter, func(trace.Step)) error { return trace.ErrBusy }}
	for range 2 { // the refused one is over
		if err := busy.Trace(context.Background(), wire.TraceQuery{Count: 1, Seconds: 60}, nil); !errors.Is(err, wire.ErrTracing) {
			t.Errorf("while another process traces: %v", err)
		}
	}
}

// What was heard before the following ended is in the story, whichever of both is noticed first.
func TestTellerHearsAllAtTheEnd(t *testing.T) {
	const steps = 20
	for range 20 {
		teller := &Tracer{
			served: func() (map[string][]nft.ServicePort, nft.Box) { return facts.Served, facts.Box },
			follow: func(_ context.Context, _ []trace.Filter, each func(trace.Step)) error {
				each(trace.Step{Packet: 1, Family: "ip", Table: nft.TableName, Chain: "prerouting", Verdict: "goto pick-3", Header: header("203.0.113.7:4000", "10.96.0.10:80")})
				for range steps - 1 {
					each(trace.Step{Packet: 1, Family: "inet", Table: "fw", Chain: "forward", Verdict: "continue"})
				}
				return nil
			},
			find: func(*trace.Step) *conntrack.Connection { return nil },
		}
		var stories []wire.TracedPacket
		if err := teller.Trace(context.Background(), wire.TraceQuery{Count: 2, Seconds: 60}, func(p wire.TracedPacket) { stories = append(stories, p) }); err != nil {
			t.Fatal(err)
		}
		if len(stories) != 1 || len(stories[0].Steps) != steps {
			t.Fatalf("stories %+v; want one of %d steps", stories, steps)
		}
	}
}

// A packet is quiet when nothing more was heard of it for some turns: each step begins to count anew.
func TestPacketsGrowQuiet(t *testing.T) {
	var packets packets
	step := trace.Step{Packet: 1, Family: "ip", Table: nft.TableName, Chain: "prerouting", Header: header("203.0.113.7:4000", "10.96.0.10:80")}
	packets.add(step)
	packets.age()
	packets.age()
	step.Chain, step.Header = "pick-3", nil
	packets.add(step)
	packets.age()
	if p := packets.order[0]; p.quiet != 1 || len(p.steps) != 2 {
		t.Errorf("quiet for %d turns with %d steps; want 1 and 2", p.quiet, len(p.steps))
	}
}
