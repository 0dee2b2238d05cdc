package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/wire"
)

var update = flag.Bool("update", false, "write what is there as what is wanted")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", path, diff)
	}
}

func TestTopTable(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rate := func(r float64) *float64 { return &r }
	top := &Top{q: wire.TrafficQuery{Sort: "open", Endpoints: true}, seen: &wire.Traffic{
		At: at, Seconds: 2, Tracked: 9, More: 3,
		Ports: []wire.PortTraffic{
			{Namespace: "shop", Service: "web", Port: "http", Protocol: "TCP", ConnectionCounts: wire.ConnectionCounts{Open: 120, Unanswered: 4, Rate: rate(31.6)},
				Endpoints: []wire.EndpointTraffic{
					{Endpoint: "10.1.2.11:8080", ConnectionCounts: wire.ConnectionCounts{Open: 119, Rate: rate(31.6)}},
					{Endpoint: "10.1.2.12:8080", ConnectionCounts: wire.ConnectionCounts{Open: 1, Unanswered: 4, Rate: rate(0)}, Leaving: true},
				}},
			{Namespace: "default", Service: "dns", Protocol: "UDP", ConnectionCounts: wire.ConnectionCounts{Open: 1, Rate: rate(0.5)}},
		},
	}}
	golden(t, "endpoints.txt", top.Table(at.Add(30*time.Second), 0, 0))
	top.q.Endpoints, top.seen.Seconds, top.seen.More = false, 0, 0
	for i := range top.seen.Ports {
		top.seen.Ports[i].Rate = nil
	}
	golden(t, "first.txt", top.Table(at, 0, 0))
	n := func(n uint64) *uint64 { return &n }
	counted := *top.seen
	counted.Counted, counted.Ports = true, slices.Clone(top.seen.Ports)
	counted.Ports[0].Connections, counted.Ports[0].Refused = n(123456), n(0)
	counted.Ports[1].Connections, counted.Ports[1].Refused = n(9), n(77)
	for _, endpoints := range []bool{false, true} {
		top := *top
		top.seen, top.q.Endpoints = &counted, endpoints
		golden(t, fmt.Sprintf("counted-%t.txt", endpoints), top.Table(at, 0, 0))
	}
	flows := counted
	flows.Flows, flows.Ports[0].FlowTotals = true, wire.FlowTotals{Flows: n(120000), BytesIn: n(1 << 20), BytesOut: n(12345678901)}
	for i := range flows.Ports[0].Endpoints {
		flows.Ports[0].Endpoints[i].FlowTotals = wire.FlowTotals{Flows: n(60000), BytesIn: n(1000), BytesOut: n(1 << 12)}
	}
	top.seen, top.q.Endpoints = &flows, true
	golden(t, "flows.txt", top.Table(at, 0, 0))
	flows.NoBytes, flows.Counted = "a setting is 0", false
	golden(t, "flows-without-bytes.txt", top.Table(at, 0, 0))
	relayed := wire.Traffic{At: at, Seconds: 4, Ports: []wire.PortTraffic{{Namespace: "shop", Service: "web", Port: "tls", Protocol: "TCP",
		ConnectionCounts: wire.ConnectionCounts{Open: 71, Rate: rate(2)}, Endpoints: []wire.EndpointTraffic{
			{Endpoint: "10.1.2.1:40001", Relay: true, ConnectionCounts: wire.ConnectionCounts{Open: 71, Rate: rate(2)}},
			{Endpoint: "10.1.2.12:8443", Relayed: true, ConnectionCounts: wire.ConnectionCounts{Open: 70}},
		}}}}
	top.seen = &relayed
	golden(t, "relayed.txt", top.Table(at, 0, 0))
	top.seen, top.q.Endpoints = &flows, false
	small := strings.Split(strings.TrimSuffix(top.Table(at, 4, 20), "\n"), "\n")
	if len(small) != 4 || slices.ContainsFunc(small, func(line string) bool { return len([]rune(line)) > 20 }) {
		t.Errorf("on a screen of 4 lines of 20 characters: %q", small)
	}
	top.q.Endpoints = true
	top.seen.Ports[0].States, top.seen.Ports[0].Failed = &wire.EndpointStates{Up: 2, All: 3}, 7
	top.seen.Ports[0].Endpoints[1].State, top.seen.Ports[0].Endpoints[1].Failed = wire.HealthDown, 7
	golden(t, "columns-80.txt", top.Table(at.Add(time.Minute), 40, 80))
	top.q.Endpoints = false
	for key, want := range map[byte]string{'r': "rate", 'u': "unanswered", 'n': "name", 'f': "refused", 'o': "open"} {
		if top.key(key) || top.q.Sort != want {
			t.Errorf("after %c it is sorted by %s, want %s", key, top.q.Sort, want)
		}
	}
	if top.key('c'); top.q.Clients || strings.Contains(top.bar(), "clients") {
		t.Error("clients are offered of all Services together")
	}
	top.q.Service = "web"
	if top.key('c'); !top.q.Clients || !strings.Contains(top.bar(), "c clients") {
		t.Error("c does not show the clients of a Service")
	}
	if top.key('e'); !top.q.Endpoints || !top.key('q') {
		t.Error("e does not show endpoints, or q does not quit")
	}
}

// The clients of a Service stand below its ports.
func TestTopClients(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	top := &Top{q: wire.TrafficQuery{Sort: "open", Service: "web", Clients: true}, seen: &wire.Traffic{
		At: at, Tracked: 12, Ports: []wire.PortTraffic{{Namespace: "shop", Service: "web", Port: "http", Protocol: "TCP", ConnectionCounts: wire.ConnectionCounts{Open: 120, Unanswered: 4}}},
		Clients: &wire.ServiceClients{Counted: true, More: 17, Clients: []wire.ClientTraffic{{Client: "203.0.113.7", Open: 118}, {Client: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Open: 2, Unanswered: 4}}},
	}}
	golden(t, "clients.txt", top.Table(at, 0, 0))
	for says, clients := range map[string]wire.ServiceClients{"\nClients are counted from the next look on.\n": {}, "\nNo client is connected.\n": {Counted: true}} {
		top.seen.Clients = &clients
		if text := top.Table(at, 0, 0); !strings.HasSuffix(text, says) {
			t.Errorf("want %q at the end of\n%s", says, text)
		}
	}
}

// The filter is typed on the screen, and the table follows.
func TestTopFilter(t *testing.T) {
	top := &Top{q: wire.TrafficQuery{Sort: "open"}}
	for _, step := range []struct{ keys, filter, bar string }{
		{"/sho", "sho", "filter: sho_"}, {"x\x7fp/*", "shop/*", "filter: shop/*_"}, {"\r", "shop/*", "by open, with shop/*   o open"}, {"r", "shop/*", "by rate, with"},
		{"/q\r", "shop/*q", "by rate"}, {"\x1b", "", "by rate   o open"}, {"/e\x1b", "", "by rate   o open"}, {"/\x7f\x7f\xc3\xa4 ", "", "filter: _"},
	} {
		for _, key := range []byte(step.keys) {
			if top.key(key) {
				t.Fatalf("%q ends it", step.keys)
			}
		}
		if top.q.Filter != step.filter || !strings.HasPrefix(top.bar(), step.bar) || top.q.Endpoints {
			t.Errorf("after %q the filter is %q, the bar %q; want %q and %q", step.keys, top.q.Filter, top.bar(), step.filter, step.bar)
		}
	}
	if !top.key(3) {
		t.Error("Ctrl-C does not end it while a filter is typed")
	}
}
