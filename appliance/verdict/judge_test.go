package verdict

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

// A dead server behind eleven Services is one group, with the Services that do not answer for it first.
func TestOneCauseIsOneGroup(t *testing.T) {
	f := Facts{Services: map[string]bool{"shop/healthy": false}}
	for i := range 11 {
		f.Services[fmt.Sprintf("shop/s%02d", i)] = false
		f.Problems = append(f.Problems, wire.Problem{Object: fmt.Sprintf("Service shop/s%02d", i), Field: "spec.ports[0]", Reason: "EndpointDown",
			Message: "down", Severity: wire.SeverityWarning, Cause: fmt.Sprintf("10.1.2.12:%d (connection refused)", 8000+i)})
	}
	j := Judge(f)
	if len(j.Verdict.Groups) != 1 || j.Verdict.Warning != 11 || j.Verdict.Fails != 0 || j.Verdict.Answers != 1 {
		t.Fatalf("%+v", j.Verdict)
	}
	if g := j.Verdict.Groups[0]; g.Text != "10.1.2.12 is down (connection refused): 11 Services run without it" || g.Concerned != 11 || g.Severity != wire.SeverityWarning {
		t.Errorf("%+v", g)
	}
	// It is the only endpoint of one of them.
	f.Problems = append(f.Problems, wire.Problem{Object: "Service shop/s03", Field: "spec.ports[0]", Reason: "FailingOpen", Message: "its only endpoint is down",
		Severity: wire.SeverityError, Cause: "10.1.2.12:8003 (connection refused)"})
	j = Judge(f)
	if len(j.Verdict.Groups) != 1 || j.Verdict.Fails != 1 || j.Verdict.Text != "1 of 12 Services does not answer; 10 have a warning" {
		t.Fatalf("%+v", j.Verdict)
	}
	if g := j.Verdict.Groups[0]; g.Text != "10.1.2.12 is down (connection refused): 1 Service does not answer, 10 run without it" || g.Services[0] != "shop/s03" || g.Severity != wire.SeverityError {
		t.Errorf("%+v", g)
	}
	if s := j.Services["shop/s03"]; s.Failing.Reason != "FailingOpen" || !s.Failed() {
		t.Errorf("%+v", s)
	}
}

// A drained box comes first; next steps fit how the program was started.
func TestDrainedComesFirst(t *testing.T) {
	f := Facts{Services: map[string]bool{"a/b": false}, Problems: []wire.Problem{
		{Object: "Service a/b", Reason: "NoEndpoints", Message: "it has no endpoint", Severity: wire.SeverityError},
		{Reason: "AnnouncerMissing", Message: "no announcer", Severity: wire.SeverityWarning},
		{Reason: "Drained", Message: "this box is drained", Severity: wire.SeverityWarning},
	}}
	plain := Judge(f).Verdict.Groups
	f.Packaged = true
	packaged := Judge(f).Verdict.Groups
	if plain[0].Reason != "Drained" || plain[1].Reason != "NoEndpoints" || plain[1].Next != "svcctl explain svc/b -n a" {
		t.Errorf("%+v", plain)
	}
	if plain[2].Next != "svcctl announce" || !strings.HasPrefix(packaged[2].Next, "systemctl ") {
		t.Errorf("%q, %q", plain[2].Next, packaged[2].Next)
	}
}
