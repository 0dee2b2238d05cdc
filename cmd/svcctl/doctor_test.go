package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

// Doctor tells who refuses clients now, and why; what was refused before is no finding.
func TestRefusalFindings(t *testing.T) {
	none, some, n := 0.0, 2.5, uint64(40)
	seen := &wire.Traffic{Counted: true, Seconds: 2, Refusals: map[string]uint64{"stray": 30, "no-endpoint": 40},
		Ports: []wire.PortTraffic{
			{Namespace: "shop", Service: "web", Port: "http", TrafficTotals: wire.TrafficTotals{Refused: &n, RefusedRate: &some}},
			{Namespace: "shop", Service: "dns", TrafficTotals: wire.TrafficTotals{Refused: &n, RefusedRate: &none}},
		}}
	if found := refusalFindings(&wire.Traffic{}); found != nil {
		t.Errorf("without counters: %v", found)
	}
	seen.RefusalRates = map[string]float64{"stray": 12, "no-endpoint": 2.5, "source-range": 0.2}
	found := refusalFindings(seen)
	if len(found) != 2 || found[0].Level != "warning" || !strings.Contains(found[0].Message, "shop/web:http refuses 2.5 packets a second") ||
		found[0].Advice != "`svcctl explain svc/web -n shop` says why" || !strings.Contains(found[1].Message, "12 packets a second are refused or dropped: stray") || found[1].Advice == "" {
		t.Errorf("%+v", found)
	}
	seen.Ports, seen.RefusalRates = seen.Ports[1:], nil
	if found := refusalFindings(seen); len(found) != 1 || found[0].Level != "ok" || !strings.Contains(found[0].Message, "70 packets") {
		t.Errorf("%+v", found)
	}
}

func TestSilenceFindings(t *testing.T) {
	port := func(name string, open, unanswered int) wire.PortTraffic {
		return wire.PortTraffic{Namespace: "default", Service: name, ConnectionCounts: wire.ConnectionCounts{Open: open, Unanswered: unanswered}}
	}
	f := silenceFindings(&wire.Traffic{Ports: []wire.PortTraffic{port("dark", 0, 5), port("slow", 9, 4)}})
	if f.Level != "warning" || !strings.Contains(f.Message, "default/dark (5 unanswered, 0 open)") || strings.Contains(f.Message, "slow") || f.Advice == "" {
		t.Errorf("got %+v", f)
	}
	if f := silenceFindings(&wire.Traffic{Ports: []wire.PortTraffic{port("slow", 9, 4), port("idle", 0, 0)}}); f.Level != "ok" {
		t.Errorf("got %+v", f)
	}
	if f := accountingFindings(&wire.Traffic{Flows: true, NoBytes: "a setting is 0"}); len(f) != 1 || !strings.Contains(f[0].Message, "a setting is 0") {
		t.Errorf("got %+v", f)
	}
}
