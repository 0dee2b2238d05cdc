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
		At: at, Seconds: 2, Tracked: 9, More: 3, NoBytes: "a setting is 0", Totals: wire.ServiceTraffic{ConnectionCounts: wire.ConnectionCounts{Open: 150, Unanswered: 4, Rate: rate(32)}},
		Ports: []wire.PortTraffic{
			{Namespace: "shop", Service: "web", Port: "http", Protocol: "TCP", ConnectionCounts: wire.ConnectionCounts{Open: 120, Unanswered: 4, Rate: rate(31.6)},
				Endpoints: []wire.EndpointTraffic{
					{Endpoint: "10.1.2.11:8080", ConnectionCounts: wire.ConnectionCounts{Open: 119, Rate: rate(31.6)}},
					{Endpoint: "10.1.2.12:8080", ConnectionCounts: wire.ConnectionCounts{Open: 1, Unanswered: 4, Rate: rate(0)}, Leaving: true},
				}},
			{Namespace: "default", Service: "dns", Protocol: "UDP", ConnectionCounts: wire.ConnectionCounts{Open: 1, Rate: rate(0.5)}},
		},
	}}
	golden(t, "endpoints.txt", top.Table(at.Add(30*time.Second)))
	top.q.Endpoints, top.seen.Seconds, top.seen.More = false, 0, 0
	for i := range top.seen.Ports {
		top.seen.Ports[i].Rate = nil
	}
	golden(t, "first.txt", top.Table(at))
	n := func(n uint64) *uint64 { return &n }
	counted := *top.seen
	counted.Counted, counted.Ports = true, slices.Clone(top.seen.Ports)
	counted.Ports[0].Connections, counted.Ports[0].Refused = n(123456), n(0)
	counted.Ports[1].Connections, counted.Ports[1].Refused = n(9), n(77)
	for _, endpoints := range []bool{false, true} {
		top := *top
		top.seen, top.q.Endpoints = &counted, endpoints
		golden(t, fmt.Sprintf("counted-%t.txt", endpoints), top.Table(at))
	}
	top.seen.Egress = []wire.EgressTraffic{
		{Namespace: "default", Service: "mail", Address: "192.0.2.200", Sources: make([]wire.EgressSource, 2), Open: 17, Rate: rate(1.25), Connections: n(1731), Ports: 52100},
		{Namespace: "lab", Service: "mail", Address: "2001:db8::200", Sources: make([]wire.EgressSource, 1)},
	}
	top.seen.Routes = []string{"shop/edge-svcctl:p443: listener Gateway/shop/edge/tls, TLSRoute/shop/www: shop/www:443 1/1 (2 endpoints)"}
	golden(t, "egress.txt", top.Table(at))
	top.seen.Egress, top.seen.Routes = nil, nil
	flows := counted
	flows.NoBytes, flows.Ports[0].InRate, flows.Ports[0].OutRate = "", rate(1500), rate(3e6)
	flows.Flows, flows.Ports[0].FlowTotals = true, wire.FlowTotals{Flows: n(120000), BytesIn: n(1 << 20), BytesOut: n(12345678901)}
	for i := range flows.Ports[0].Endpoints {
		flows.Ports[0].Endpoints[i].FlowTotals = wire.FlowTotals{Flows: n(60000), BytesIn: n(1000), BytesOut: n(1 << 12)}
	}
	top.seen, top.q.Endpoints = &flows, true
	golden(t, "flows.txt", top.Table(at))
	flows.NoBytes, flows.Counted = "a setting is 0", false
	golden(t, "flows-without-bytes.txt", top.Table(at))
	relayed := wire.Traffic{At: at, Seconds: 4, Ports: []wire.PortTraffic{{Namespace: "shop", Service: "web", Port: "tls", Protocol: "TCP",
		ConnectionCounts: wire.ConnectionCounts{Open: 71, Rate: rate(2)}, Endpoints: []wire.EndpointTraffic{
			{Endpoint: "10.1.2.1:40001", Relay: true, ConnectionCounts: wire.ConnectionCounts{Open: 71, Rate: rate(2)}},
			{Endpoint: "10.1.2.12:8443", Relayed: true, ConnectionCounts: wire.ConnectionCounts{Open: 70}},
		}}}}
	top.seen = &relayed
	golden(t, "relayed.txt", top.Table(at))
	top.seen, top.q.Endpoints = &flows, false
	golden(t, "ports.txt", top.Table(at))
}

// The clients of a Service stand below its ports.
func TestTopClients(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	top := &Top{q: wire.TrafficQuery{Sort: "open", Service: "web", Clients: true}, seen: &wire.Traffic{
		At: at, Tracked: 12, Ports: []wire.PortTraffic{{Namespace: "shop", Service: "web", Port: "http", Protocol: "TCP", ConnectionCounts: wire.ConnectionCounts{Open: 120, Unanswered: 4}}},
		Clients: &wire.ServiceClients{Counted: true, More: 17, Clients: []wire.ClientTraffic{{Client: "203.0.113.7", Open: 118}, {Client: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Open: 2, Unanswered: 4}}},
	}}
	golden(t, "clients.txt", top.Table(at))
	for says, clients := range map[string]wire.ServiceClients{"\nClients are counted from the next reading on.\n": {}, "\nNo client is connected.\n": {Counted: true}} {
		top.seen.Clients = &clients
		if text := top.Table(at); !strings.HasSuffix(text, says) {
			t.Errorf("want %q at the end of\n%s", says, text)
		}
	}
}
