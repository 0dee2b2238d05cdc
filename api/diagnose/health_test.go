package diagnose_test

import (
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
)

// TestHealth: who is down, since when and why, and what to do about it.
func TestHealth(t *testing.T) {
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	a := wire.EndpointHealth{Service: "default/web", Port: "http", Protocol: "TCP", Endpoint: "10.1.2.11:8080", State: wire.HealthUp, Check: "tcp"}
	b := a
	b.Endpoint = "10.1.2.12:8080"
	down := func(e wire.EndpointHealth, why string) wire.EndpointHealth {
		e.State, e.Since, e.Why = wire.HealthDown, &since, why
		return e
	}
	out := b
	out.State, out.Check = wire.HealthOut, ""
	isNew := b
	isNew.State = wire.HealthNew
	for name, tt := range map[string]struct {
		health []wire.EndpointHealth
		used   []string
		worst  diagnose.Level
		want   []string
		next   string
	}{
		"not checked": {nil, []string{"10.1.2.11:8080", "10.1.2.12:8080"}, diagnose.Good, nil, ""},
		"up":          {[]wire.EndpointHealth{a, b}, []string{"10.1.2.11:8080", "10.1.2.12:8080"}, diagnose.Good, []string{"+ port 80/TCP has health checks: 2 of 2 endpoints are up"}, ""},
		"one down": {[]wire.EndpointHealth{a, down(b, "connection refused")}, []string{"10.1.2.11:8080"}, diagnose.Doubt,
			[]string{"? port 80/TCP: 1 of 2 endpoints is down and gets no new connections", "    10.1.2.12:8080 is down since 2026-03-01 12:00:00Z: connection refused (tcp)"}, "look at that server"},
		"silent": {[]wire.EndpointHealth{a, down(b, "no answer in 2s")}, []string{"10.1.2.11:8080"}, diagnose.Doubt,
			[]string{"? port 80/TCP: 1 of 2 endpoints is down"}, "firewall lets this box in"},
		"all down": {[]wire.EndpointHealth{down(a, "no answer in 2s"), down(b, "connection refused")}, []string{"10.1.2.11:8080", "10.1.2.12:8080"}, diagnose.Bad,
			[]string{"- port 80/TCP: both endpoints are down, so traffic still goes to all that are ready"}, "look at that server"},
		"new": {[]wire.EndpointHealth{a, isNew}, []string{"10.1.2.11:8080"}, diagnose.Doubt, []string{"? port 80/TCP: 1 of 2 endpoints is new"}, "as soon as they answer"},
		"out": {[]wire.EndpointHealth{a, out}, []string{"10.1.2.11:8080"}, diagnose.Good, []string{"    10.1.2.12:8080 is taken out by the annotation svcctl.io/out"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			findings := diagnose.Service(facts(func(f *diagnose.Facts) {
				f.State = state("10.96.0.10:80")
				f.State.Ports[0].Endpoints, f.State.Health = tt.used, tt.health
			}))
			got := text(findings)
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
			if worst := diagnose.Worst(findings); worst != tt.worst || strings.Contains(got, "correct the addresses") {
				t.Errorf("level %d, want %d:\n%s", worst, tt.worst, got)
			}
			next := ""
			for _, f := range findings {
				next += f.Next + "\n"
			}
			if !strings.Contains(next, tt.next) {
				t.Errorf("no step %q in %q", tt.next, next)
			}
		})
	}
}
