package parts

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/resolve"
)

// A port whose clients circulate is not told to have too many of them.
func TestLoopIsNotFull(t *testing.T) {
	full := relay.Overloaded{ID: "default/web/http", Protocol: relay.TCP, Redirected: true, Limit: 625}
	other, loop := full, full
	other.ID, loop.Looped = "default/other", true
	var got []string
	for _, p := range overloadProblems([]relay.Overloaded{full, loop, other}) {
		got = append(got, p.Object.Name+" "+p.Reason)
		if p.Warning == (p.Reason == resolve.ReasonRelayLoop) {
			t.Errorf("%+v has the wrong severity", p)
		}
	}
	if text := strings.Join(got, ", "); text != "web RelayLoop, other RelayFull" {
		t.Errorf("problems %s", text)
	}
}
