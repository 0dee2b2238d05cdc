package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
)

func TestTopTable(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	rate := func(r float64) *float64 { return &r }
	top := &top{by: "open", endpoints: true, seen: &wire.Traffic{
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
	golden(t, "top/endpoints.txt", top.table(at.Add(30*time.Second), 0, 0))
	top.endpoints, top.seen.Seconds, top.seen.More = false, 0, 0
	for i := range top.seen.Ports {
		top.seen.Ports[i].Rate = nil
	}
	golden(t, "top/first.txt", top.table(at, 0, 0))
	n := func(n uint64) *uint64 { return &n }
	counted := *top.seen
	counted.Counted, counted.Ports = true, slices.Clone(top.seen.Ports)
	counted.Ports[0].Connections, counted.Ports[0].Refused = n(123456), n(0)
	counted.Ports[1].Connections, counted.Ports[1].Refused = n(9), n(77)
	for _, endpoints := range []bool{false, true} {
		top := *top
		top.seen, top.endpoints = &counted, endpoints
		golden(t, fmt.Sprintf("top/counted-%t.txt", endpoints), top.table(at, 0, 0))
	}
	flows := counted
	flows.Flows, flows.Ports[0].FlowTotals = true, wire.FlowTotals{Flows: n(120000), BytesIn: n(1 << 20), BytesOut: n(12345678901)}
	for i := range flows.Ports[0].Endpoints {
		flows.Ports[0].Endpoints[i].FlowTotals = wire.FlowTotals{Flows: n(60000), BytesIn: n(1000), BytesOut: n(1 << 12)}
	}
	top.seen, top.endpoints = &flows, true
	golden(t, "top/flows.txt", top.table(at, 0, 0))
	flows.NoBytes, flows.Counted = "a setting is 0", false
	golden(t, "top/flows-without-bytes.txt", top.table(at, 0, 0))
	relayed := wire.Traffic{At: at, Seconds: 4, Ports: []wire.PortTraffic{{Namespace: "shop", Service: "web", Port: "tls", Protocol: "TCP",
		ConnectionCounts: wire.ConnectionCounts{Open: 71, Rate: rate(2)}, Endpoints: []wire.EndpointTraffic{
			{Endpoint: "10.1.2.1:40001", Relay: true, ConnectionCounts: wire.ConnectionCounts{Open: 71, Rate: rate(2)}},
			{Endpoint: "10.1.2.12:8443", Relayed: true, ConnectionCounts: wire.ConnectionCounts{Open: 70}},
		}}}}
	top.seen = &relayed
	golden(t, "top/relayed.txt", top.table(at, 0, 0))
	top.seen, top.endpoints = &flows, false
	small := strings.Split(strings.TrimSuffix(top.table(at, 4, 20), "\n"), "\n")
	if len(small) != 4 || len([]rune(small[0])) != 20 {
		t.Errorf("on a screen of 4 lines of 20 characters: %q", small)
	}
	for key, want := range map[byte]string{'r': "rate", 'u': "unanswered", 'n': "name", 'f': "refused", 'o': "open"} {
		if top.key(key) || top.by != want {
			t.Errorf("after %c it is sorted by %s, want %s", key, top.by, want)
		}
	}
	if top.key('c'); top.clients || strings.Contains(top.bar(), "clients") {
		t.Error("clients are offered of all Services together")
	}
	top.named = true
	if top.key('c'); !top.clients || !strings.Contains(top.bar(), "c clients") {
		t.Error("c does not show the clients of a Service")
	}
	if top.key('e'); !top.endpoints || !top.key('q') {
		t.Error("e does not show endpoints, or q does not quit")
	}
}

// The clients of a Service stand below its ports.
func TestTopClients(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	top := &top{by: "open", named: true, clients: true, seen: &wire.Traffic{
		At: at, Tracked: 12, Ports: []wire.PortTraffic{{Namespace: "shop", Service: "web", Port: "http", Protocol: "TCP", ConnectionCounts: wire.ConnectionCounts{Open: 120, Unanswered: 4}}},
		Clients: &wire.ServiceClients{Counted: true, More: 17, Clients: []wire.ClientTraffic{{Client: "203.0.113.7", Open: 118}, {Client: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Open: 2, Unanswered: 4}}},
	}}
	golden(t, "top/clients.txt", top.table(at, 0, 0))
	for says, clients := range map[string]wire.ServiceClients{"\nClients are counted from the next look on.\n": {}, "\nNobody is connected.\n": {Counted: true}} {
		top.seen.Clients = &clients
		if text := top.table(at, 0, 0); !strings.HasSuffix(text, says) {
			t.Errorf("want %q at the end of\n%s", says, text)
		}
	}
}

// The filter is typed on the screen, and the table follows.
func TestTopFilter(t *testing.T) {
	top := &top{by: "open"}
	for _, step := range []struct{ keys, filter, bar string }{
		{"/sho", "sho", "filter: sho_"}, {"x\x7fp/*", "shop/*", "filter: shop/*_"}, {"\r", "shop/*", "by open, with shop/*   o open"}, {"r", "shop/*", "by rate, with"},
		{"/q\r", "shop/*q", "by rate"}, {"\x1b", "", "by rate   o open"}, {"/e\x1b", "", "by rate   o open"}, {"/\x7f\x7f\xc3\xa4 ", "", "filter: _"},
	} {
		for _, key := range []byte(step.keys) {
			if top.key(key) {
				t.Fatalf("%q ends it", step.keys)
			}
		}
		if top.filter != step.filter || !strings.HasPrefix(top.bar(), step.bar) || top.endpoints {
			t.Errorf("after %q the filter is %q, the bar %q; want %q and %q", step.keys, top.filter, top.bar(), step.filter, step.bar)
		}
	}
	if !top.key(3) {
		t.Error("Ctrl-C does not end it while a filter is typed")
	}
}

// The endpoint of a relayed connection is the one behind the listener.
func TestRelayedConnections(t *testing.T) {
	text := connsTable(&wire.Connections{Connections: []wire.Connection{
		{ID: 7, Namespace: "shop", Service: "web", Protocol: "TCP", Client: "203.0.113.7:1", To: "10.96.0.10:80", Endpoint: "10.1.2.1:40001", RelayedTo: []string{"10.1.2.11:80", "10.1.2.12:80"}, Answered: true},
	}}, false)
	if want := " 10.1.2.11:80,10.1.2.12:80 (relayed) "; !strings.Contains(text, want) || strings.Contains(text, "40001") {
		t.Errorf("want %q in\n%s", want, text)
	}
}

// What is wrong on the command line is said before anybody is asked.
func TestTopUsage(t *testing.T) {
	b := newBench()
	for line, says := range map[string]string{
		"top --by beauty": "want open, rate, unanswered, refused, name",
		"top --limit 0":   "want a number from 1 to 10000",
		"top --filter " + strings.Repeat("x", 513): "512 is the most",
		"top --clients":                    "name it, as in `svcctl top svc/web --clients`",
		"top pod/web":                      "takes one Service",
		"top svc/web -A":                   "give -n NAMESPACE, not -A",
		"conns --kill seven":               "want the ID",
		"conns svc/web --kill 7":           "leave out svc/web",
		"conns --kill 7 --client 10.0.0.1": "leave out --endpoint and --client",
	} {
		if code := b.run(strings.Fields(line)...); code != exitUsage || !strings.Contains(b.err.String(), says) {
			t.Errorf("%s: exit %d, %q; want %q", line, code, b.err.String(), says)
		}
	}
}
