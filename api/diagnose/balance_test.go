package diagnose_test

import (
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

func TestBalance(t *testing.T) {
	balanced := func(change func(*wire.PortState)) func(*diagnose.Facts) {
		return func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80")
			p := &f.State.Ports[0]
			p.Endpoints, p.Balance = []string{"10.1.2.11:8080", "10.1.2.12:8080"}, object.BalanceRandom
			change(p)
		}
	}
	annotate := func(meta *object.ObjectMeta, key, value string) { meta.Annotations = map[string]string{key: value} }
	for _, c := range []struct {
		name   string
		change func(*diagnose.Facts)
		want   string // "!…": not there
	}{
		{"random", balanced(func(*wire.PortState) {}), "!picks by"},
		{"weights", balanced(func(p *wire.PortState) { p.Weights = map[string]uint16{"10.1.2.11:8080": 5} }),
			"+ port 80/TCP (IPv4) picks by random, with weights: 10.1.2.11:8080 has 5\n"},
		{"open connections", balanced(func(p *wire.PortState) {
			p.Balance, p.Shares = "least-connection", map[string]float64{"10.1.2.11:8080": 0.25, "10.1.2.12:8080": 0.75}
		}), "+ port 80/TCP (IPv4) picks by least-connection\n    shares of new connections for now: 10.1.2.11:8080 25 %, 10.1.2.12:8080 75 %\n"},
		{"another name", func(f *diagnose.Facts) {
			balanced(func(p *wire.PortState) { p.Balance = "least-connection" })(f)
			annotate(&f.Service.Metadata, object.AnnotationBalance, "nq")
		}, "+ port 80/TCP (IPv4) picks by least-connection (nq)\n"},
		{"a slow start", balanced(func(p *wire.PortState) {
			p.Starting, p.Shares = []string{"10.1.2.12:8080"}, map[string]float64{"10.1.2.11:8080": 0.9, "10.1.2.12:8080": 0.1}
		}), "10.1.2.12:8080 10 %\n    new, with a share that grows: 10.1.2.12:8080\n"},
		{"retry", func(f *diagnose.Facts) {
			annotate(&f.Service.Metadata, object.AnnotationRetryAfter, "2s")
		}, "+ a SYN that gets no answer for 2s is forgotten: the client's next one chooses an endpoint again\n"},
		{"a client", balanced(func(p *wire.PortState) {
			p.Balance, p.Client, p.Chosen = "source-hash", "192.0.2.10", []wire.Chosen{{Frontend: "10.96.0.10:80", Endpoint: "10.1.2.12:8080"}}
		}), "+ port 80/TCP (IPv4) picks by source-hash\n    192.0.2.10 gets 10.1.2.12:8080 at 10.96.0.10:80\n"},
		{"a client without its port", balanced(func(p *wire.PortState) {
			p.Balance, p.Client, p.Chosen = "maglev", "192.0.2.10", []wire.Chosen{{Frontend: "10.96.0.10:80"}}
		}), "what 192.0.2.10 gets at 10.96.0.10:80 depends on its port: ask with --client ADDRESS:PORT"},
		{"a client of chance", balanced(func(p *wire.PortState) {
			p.Client, p.Chosen = "192.0.2.10", []wire.Chosen{{Frontend: "10.96.0.10:80"}}
		}), "what 192.0.2.10 gets at 10.96.0.10:80 is left to chance\n"},
		{"a client that may connect at one of two addresses", balanced(func(p *wire.PortState) {
			p.Client, p.Chosen = "192.0.2.10", []wire.Chosen{{Frontend: "10.96.0.10:80"}, {Frontend: "198.51.100.4:80", Excluded: true}}
		}), "192.0.2.10 gets no answer at 198.51.100.4:80: it is not among the clients that may connect\n"},
		{"weight 0", func(f *diagnose.Facts) {
			balanced(func(p *wire.PortState) { p.Endpoints = p.Endpoints[:1] })(f)
			annotate(&f.Service.Metadata, object.AnnotationWeights, "10.1.2.12=0")
		}, "10.1.2.12 gets no new connections: its weight is 0\n"},
		{"a sorry server", func(f *diagnose.Facts) {
			balanced(func(p *wire.PortState) { p.Endpoints = p.Endpoints[:1] })(f)
			sorry := *f.Slices[0]
			annotate(&sorry.Metadata, object.AnnotationPriority, "9")
			first := *f.Slices[0]
			sorry.Endpoints, first.Endpoints = sorry.Endpoints[1:], first.Endpoints[:1]
			f.Slices = []*object.EndpointSlice{&first, &sorry}
		}, "10.1.2.12 stands by: its priority is 9, and endpoints of a lower one serve\n"},
	} {
		findings := diagnose.Service(facts(c.change))
		got := text(findings)
		if not, is := strings.CutPrefix(c.want, "!"); is == strings.Contains(got, strings.TrimPrefix(c.want, "!")) {
			t.Errorf("%s: want %q (%t) in\n%s", c.name, not, !is, got)
		}
		if worst := diagnose.Worst(findings); worst != diagnose.Good {
			t.Errorf("%s: the worst is %d:\n%s", c.name, worst, got)
		}
	}
}

// A client that the address in question excludes is why there is no answer; another address of the Service that excludes it is not.
func TestExcludedClient(t *testing.T) {
	for address, worst := range map[string]diagnose.Level{"10.96.0.10": diagnose.Good, "198.51.100.4": diagnose.Bad} {
		findings := diagnose.Service(facts(func(f *diagnose.Facts) {
			f.Service.Spec.ExternalIPs = []string{"198.51.100.4"}
			f.State = state("10.96.0.10:80", "198.51.100.4:80")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.State.Ports[0].Client = "192.0.2.10"
			f.State.Ports[0].Chosen = []wire.Chosen{{Frontend: "10.96.0.10:80"}, {Frontend: "198.51.100.4:80", Excluded: true}}
			f.Question = diagnose.Question{Address: netip.MustParseAddr(address), Port: 80, Protocol: object.ProtocolTCP}
		}))
		got := text(findings)
		const excluded = "- 192.0.2.10 gets no answer at 198.51.100.4:80: it is not among the clients that may connect"
		if diagnose.Worst(findings) != worst || strings.Contains(got, excluded) != (worst == diagnose.Bad) {
			t.Errorf("asked about %s, the worst is %d:\n%s", address, diagnose.Worst(findings), got)
		}
	}
}
