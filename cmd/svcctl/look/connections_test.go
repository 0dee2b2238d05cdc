package look

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

// Which connections are fast is there when one is. How long a fast one may be silent is not reported by the kernel.
func Test1110_top_has_what_is_fast(t *testing.T) {
	slow := wire.Connection{ID: 7, Namespace: "shop", Service: "web", Protocol: "TCP", Client: "203.0.113.7:1", To: "10.96.0.10:80", Endpoint: "10.1.2.11:80", Answered: true, Expires: 60}
	fast := slow
	fast.Fast, fast.Expires = true, 0
	if text := connsTable(&wire.Connections{Connections: []wire.Connection{slow}}, true); strings.Contains(text, "FAST") {
		t.Errorf("nothing is fast:\n%s", text)
	}
	lines := strings.Split(connsTable(&wire.Connections{Connections: []wire.Connection{slow, fast}}, true), "\n")
	for i, want := range []string{"EXPIRES FAST", "1m0s -", "- yes"} {
		if fields := strings.Fields(lines[i]); strings.Join(fields[len(fields)-2:], " ") != want {
			t.Errorf("a line ends with %q, want %q", fields, want)
		}
	}
}
