package box

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// Doctor lists the Services that refuse clients now, with the reason; earlier refusals are no finding.
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
		found[0].Advice != "`svcctl explain svc/web -n shop` has the reason" || !strings.Contains(found[1].Message, "12 packets a second are refused or dropped: stray") || found[1].Advice == "" {
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

// A rate since a look of long ago is none of now: doctor takes the second of two looks that it causes. Else one look is enough.
func TestTwoLooks(t *testing.T) {
	now := time.Now()
	rate := func(r float64) *float64 { return &r }
	look := func(ago time.Duration, seconds, refused float64) wire.Traffic {
		return wire.Traffic{At: now.Add(-ago), Seconds: seconds, Counted: true, Ports: []wire.PortTraffic{
			{Namespace: "shop", Service: "web", TrafficTotals: wire.TrafficTotals{RefusedRate: rate(refused)}}}}
	}
	looks := []wire.Traffic{look(2*time.Second, 840, 0.01), look(2*time.Second, 840, 0.01), look(0, 2, 50), look(0, 90, 50)}
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(looks[0])
		looks = looks[1:]
	})}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	seen, err := twoLooks(t.Context(), client.New(socket))
	if err != nil || seen.Seconds != 2 || len(looks) != 1 {
		t.Errorf("%+v, %v; %d looks left", seen, err, len(looks))
	}
	if seen, err = twoLooks(t.Context(), client.New(socket)); err != nil || seen.Seconds != 90 || len(looks) != 0 {
		t.Errorf("%+v, %v; %d looks left", seen, err, len(looks))
	}
}
