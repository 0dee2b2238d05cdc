package main

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

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
