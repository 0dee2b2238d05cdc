package diagnose_test

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
)

// Refusals that rise and endpoints that do not answer are told; what is over is no doubt.
func TestTraffic(t *testing.T) {
	some, none, rare := 1.5, 0.0, 0.01
	made, refused, zero := uint64(100), uint64(7), uint64(0)
	for name, tt := range map[string]struct {
		port  wire.PortTraffic
		level diagnose.Level
		want  string
	}{
		"served":     {wire.PortTraffic{TrafficTotals: wire.TrafficTotals{Connections: &made, Refused: &zero, RefusedRate: &none}}, diagnose.Good, ""},
		"rising":     {wire.PortTraffic{Port: "http", TrafficTotals: wire.TrafficTotals{Connections: &made, Refused: &refused, RefusedRate: &some}}, diagnose.Doubt, "clients are refused at port http, as there is no endpoint: 1.5 packets a second, 7 in all"},
		"over":       {wire.PortTraffic{TrafficTotals: wire.TrafficTotals{Connections: &made, Refused: &refused, RefusedRate: &none}}, diagnose.Good, "7 packets found no endpoint and were refused in all, none lately; 100 connections made"},
		"rare":       {wire.PortTraffic{TrafficTotals: wire.TrafficTotals{Connections: &made, Refused: &refused, RefusedRate: &rare}}, diagnose.Doubt, "clients are refused, as there is no endpoint: 3 in the last 5m0s, 7 in all"},
		"first look": {wire.PortTraffic{TrafficTotals: wire.TrafficTotals{Connections: &made, Refused: &refused}}, diagnose.Good, "7 packets found no endpoint and were refused in all, whether lately is not known yet"},
		"silent":     {wire.PortTraffic{ConnectionCounts: wire.ConnectionCounts{Open: 1, Unanswered: 4}}, diagnose.Doubt, "4 connections without an answer of the endpoint, more than the 1 that were answered"},
		"not silent": {wire.PortTraffic{ConnectionCounts: wire.ConnectionCounts{Open: 40, Unanswered: 4}}, diagnose.Good, ""},
	} {
		t.Run(name, func(t *testing.T) {
			findings := diagnose.Service(facts(func(f *diagnose.Facts) {
				f.State = state("10.96.0.10:80")
				f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
				f.Traffic = &wire.Traffic{Seconds: 300, Ports: []wire.PortTraffic{tt.port}}
			}))
			got := text(findings)
			if diagnose.Worst(findings) != tt.level || !strings.Contains(got, tt.want) || tt.want == "" && (strings.Contains(got, "for want of") || strings.Contains(got, "without an answer")) {
				t.Errorf("level %d, want %d and %q:\n%s", diagnose.Worst(findings), tt.level, tt.want, got)
			}
		})
	}
}

// Which ports are fast, and why others are not.
func Test1110_explain_has_what_is_fast(t *testing.T) {
	for slow, want := range map[string]string{
		"":                            "+ port 80/TCP (IPv4) is on the fast path: from about the 50th packet on, connections bypass all rules and routing",
		"idle-timeout does not apply": "+ port 80/TCP (IPv4) is not on the fast path: idle-timeout does not apply",
	} {
		got := text(diagnose.Service(facts(func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80")
			f.State.Ports[0].Fast, f.State.Ports[0].Slow = slow == "", slow
		})))
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
