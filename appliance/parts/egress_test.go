package parts

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
)

// The warning comes at 80 % and stays until less than 70 % are used; its text changes in steps.
func TestEgressPorts(t *testing.T) {
	e, wakes := new(Egress), 0
	e.Attach(func(...resolve.Need) { wakes++ })
	for _, step := range []struct {
		percent int
		text    string // "": no problem
		wakes   bool
	}{
		{79, "", false}, {80, "uses 80 % of its 64512 ports towards 203.0.113.5:443/TCP, most by 10.1.2.11", true}, {84, "uses 80 %", false},
		{97, "uses 95 %", true}, {70, "uses 70 %", true}, {69, "", true}, {79, "", false},
	} {
		before := wakes
		e.Take([]wire.EgressTraffic{{Namespace: "default", Service: "mail", Address: "192.0.2.200", Ports: (step.percent*wire.EgressPorts + 99) / 100,
			Fullest: "203.0.113.5:443/TCP", By: "10.1.2.11"}})
		text := ""
		for _, p := range e.Problems() {
			text = p.Reason + " " + p.Message
		}
		if (text == "") != (step.text == "") || !strings.Contains(text, step.text) || (wakes > before) != step.wakes {
			t.Errorf("at %d %%: %q, woken: %t; want %q, %t", step.percent, text, wakes > before, step.text, step.wakes)
		}
	}
	e.Take([]wire.EgressTraffic{{Address: "192.0.2.200", Ports: wire.EgressPorts}})
	if e.Take(nil); len(e.Problems()) != 0 {
		t.Errorf("without an Egress %v", e.Problems())
	}
}
