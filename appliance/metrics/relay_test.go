package metrics

import (
	"strings"
	"testing"
)

func TestRelay(t *testing.T) {
	m := New("v1")
	if text := scrape(t, m); strings.Contains(text, "svcctl_relay") {
		t.Error("a relay that nobody told of is shown")
	}
	m.Relay(func() Relay {
		return Relay{
			FailedConnects: 7,
			Protocols:      []RelayProtocol{{Protocol: "tcp", Loopback: 1, Redirected: 2, Limit: 3, Taken: 4, TurnedAway: 5}},
			Ports: []RelayPort{{Namespace: "default", Service: "web", Port: "http", Protocol: "tcp", Family: "IPv4",
				Taken: 8, FailedConnects: 9, Open: map[string]int{"10.1.2.11:8080": 10}}},
		}
	})
	text := scrape(t, m)
	const port = `family="IPv4",namespace="default",port="http",protocol="tcp",service="web"} `
	for _, line := range []string{
		`svcctl_relay_open{of="loopback",protocol="tcp"} 1`, `svcctl_relay_open{of="services",protocol="tcp"} 2`,
		`svcctl_relay_limit{protocol="tcp"} 3`, `svcctl_relay_accepted_total{protocol="tcp"} 4`,
		`svcctl_relay_turned_away_total{protocol="tcp"} 5`, `svcctl_relay_failed_connects_total 7`,
		`svcctl_relay_port_accepted_total{` + port + "8", `svcctl_relay_port_failed_connects_total{` + port + "9",
		`svcctl_relay_port_open{endpoint="10.1.2.11:8080",` + port + "10",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
}
