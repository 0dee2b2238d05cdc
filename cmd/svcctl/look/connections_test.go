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
