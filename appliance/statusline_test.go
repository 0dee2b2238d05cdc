package appliance

import (
	"testing"

	"svcctl.io/svcctl/api/wire"
)

func TestStatusLine(t *testing.T) {
	counts := wire.Counts{Services: 10000, Endpoints: 1234567}
	for _, tt := range []struct {
		status wire.Status
		want   string
	}{
		{wire.Status{Synced: true, Counts: counts}, "10,000 Services, 1,234,567 endpoints, all in the kernel; no problems"},
		{wire.Status{Synced: true, Counts: wire.Counts{Services: 1, Endpoints: 999}, Problems: []wire.Problem{{Severity: wire.SeverityError}, {Severity: wire.SeverityWarning}, {Severity: wire.SeverityWarning}}},
			"1 Service, 999 endpoints, all in the kernel; 1 error, 2 warnings, see svcctl status"},
		{wire.Status{Synced: true, Problems: []wire.Problem{{Severity: wire.SeverityWarning}}, HeldRemovals: 40},
			"0 Services, 0 endpoints, all in the kernel; 40 Services vanished and held, see svcctl confirm --removals; 1 warning, see svcctl status"},
		{wire.Status{Reason: "the kernel\nrefuses", RulesAway: true}, "0 Services, 0 endpoints, not all in the kernel: the kernel refuses; another program has changed the rules; no problems"},
		{wire.Status{}, "0 Services, 0 endpoints, a change is being applied; no problems"},
	} {
		if got := statusLine(tt.status); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
