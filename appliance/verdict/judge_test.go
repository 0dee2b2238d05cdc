package verdict

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// A dead server behind eleven Services is one group, with the Services that do not answer for it first.
func TestOneCauseIsOneGroup(t *testing.T) {
	services := map[string]bool{"shop/healthy": false}
	var problems []wire.Problem
	for i := range 11 {
		services[fmt.Sprintf("shop/s%02d", i)] = false
		problems = append(problems, wire.Problem{Object: fmt.Sprintf("Service shop/s%02d", i), Field: "spec.ports[0]", Reason: "EndpointDown",
			Message: "down", Severity: wire.SeverityWarning, Cause: fmt.Sprintf("10.1.2.12:%d (connection refused)", 8000+i)})
	}
	j := NewJudge(services)
	v := judge(j, problems...)
	if len(v.Groups) != 1 || v.Warning != 11 || v.Fails != 0 || v.Answers != 1 {
		t.Fatalf("%+v", v)
	}
	if g := v.Groups[0]; g.Text != "10.1.2.12 is down (connection refused): 11 Services run without it" || g.Concerned != 11 || g.Severity != wire.SeverityWarning {
		t.Errorf("%+v", g)
	}
	// It is the only endpoint of one of them.
	problems = append(problems, wire.Problem{Object: "Service shop/s03", Field: "spec.ports[0]", Reason: "FailingOpen", Message: "its only endpoint is down",
		Severity: wire.SeverityError, Cause: "10.1.2.12:8003 (connection refused)"})
	j = NewJudge(services)
	v = judge(j, problems...)
	if len(v.Groups) != 1 || v.Fails != 1 || v.Text != "1 of 12 Services does not answer; 10 have a warning" {
		t.Fatalf("%+v", v)
	}
	if g := v.Groups[0]; g.Text != "10.1.2.12 is down (connection refused): 1 Service does not answer, 10 run without it" || g.Services[0] != "shop/s03" || g.Severity != wire.SeverityError {
		t.Errorf("%+v", g)
	}
	if s := j.State("shop/s03"); s.Failing.Reason != "FailingOpen" || s.Word() != wire.ServiceFails {
		t.Errorf("%+v", s)
	}
}

// A problem keeps its begin while its words and causes change, and a cause that joins has one of its own. A dead server
// without a check behind several Services is one group.
func TestBeginOfACause(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, reason := range []string{"EndpointDown", "EndpointSilent"} {
		of := func(service, cause string) *Problem {
			return &Problem{Problem: wire.Problem{Object: "Service " + service, Field: "spec.ports[0]", Reason: reason, Message: cause, Severity: wire.SeverityWarning, Cause: cause}}
		}
		known := map[Occurrence]time.Time{}
		for _, o := range Occurrences(&of("shop/web", "10.1.2.12:8080").Problem) {
			known[o] = noon
		}
		problems := []*Problem{of("shop/web", "10.1.2.12:8080 (connection refused); 10.1.2.13:8080 (no answer)"), of("shop/api", "10.1.2.13:9090 (no answer)")}
		for _, p := range problems {
			for _, o := range Occurrences(&p.Problem) {
				at, is := known[o]
				if !is {
					at = noon.Add(time.Hour)
				}
				p.Since = append(p.Since, at)
			}
		}
		groups := Groups(problems, false)
		if len(groups) != 2 {
			t.Fatalf("%s: %+v", reason, groups)
		}
		if both, one := groups[0], groups[1]; both.Concerned != 2 || !both.Since.Equal(noon.Add(time.Hour)) || one.Concerned != 1 || !one.Since.Equal(noon) {
			t.Errorf("%s: %+v", reason, groups)
		}
		if want := map[string]string{"EndpointDown": "10.1.2.13 is down (no answer): 2 Services run without it", "EndpointSilent": "10.1.2.13 is down (no answer): 2 Services are affected"}[reason]; groups[0].Text != want {
			t.Errorf("%q, want %q", groups[0].Text, want)
		}
	}
	errors := []wire.Problem{{Reason: "Host", Message: "a", Severity: wire.SeverityWarning}, {Reason: "Host", Message: "b", Severity: wire.SeverityWarning}}
	if a, b := Occurrences(&errors[0]), Occurrences(&errors[1]); a[0] == b[0] {
		t.Errorf("two problems of the box are one: %v", a)
	}
}

// A drained box comes first; next steps fit how the program was started.
func TestDrainedComesFirst(t *testing.T) {
	problems := []*Problem{
		{Problem: wire.Problem{Object: "Service a/b", Reason: "NoEndpoints", Message: "it has no endpoint", Severity: wire.SeverityError}},
		{Problem: wire.Problem{Reason: "AnnouncerMissing", Message: "no announcer", Severity: wire.SeverityWarning}},
		{Problem: wire.Problem{Reason: "Drained", Message: "this box is drained", Severity: wire.SeverityWarning}},
	}
	plain, packaged := Groups(problems, false), Groups(problems, true)
	if plain[0].Reason != "Drained" || plain[1].Reason != "NoEndpoints" || plain[1].Next != "svcctl explain svc/b -n a" {
		t.Errorf("%+v", plain)
	}
	if plain[2].Next != "svcctl announce" || !strings.HasPrefix(packaged[2].Next, "systemctl ") {
		t.Errorf("%q, %q", plain[2].Next, packaged[2].Next)
	}
}

// Test1014_last_usable_version_of_a_Secret_serves: its Service answers in an earlier version, and what is written is not in force.
func Test1014_last_usable_version_of_a_Secret_serves(t *testing.T) {
	for reason, want := range map[string]string{
		"SecretNotInForce": "the only Service answers; 1 is served in an earlier version",
		"SecretUnusable":   "the only Service does not answer",
	} {
		p := wire.Problem{Object: "Service shop/web", Reason: reason, Severity: wire.SeverityError}
		if v := judge(NewJudge(map[string]bool{"shop/web": false}), p); v.Text != want {
			t.Errorf("%s: %s, want %s", reason, v.Text, want)
		}
	}
}

// judge has problems come up.
func judge(j *Judge, problems ...wire.Problem) wire.Verdict {
	var came []*Problem
	for _, p := range problems {
		came = append(came, &Problem{Problem: p})
	}
	j.Change(nil, came, nil)
	v := j.Verdict(0)
	v.Groups = Groups(came, false)
	return v
}

// Judging changes one by one comes to what judging all at once does, whatever the order is, and nothing is left of
// Services and problems that are gone.
func TestJudgingChangesIsJudgingAll(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	services := map[string]bool{}
	j := NewJudge(services)
	var has []*Problem
	reasons := []string{"NoEndpoints", "PortMismatch", "FieldValueInvalid", "NoEffect", "EndpointDown"}
	for n := range 3000 {
		key := fmt.Sprintf("a/s%d", random.IntN(9))
		var over, came []*Problem
		var touched []string
		switch random.IntN(4) {
		case 0:
			if _, there := services[key]; there {
				delete(services, key)
			} else {
				services[key] = false
			}
			touched = []string{key}
		case 1, 2:
			p := &Problem{Problem: wire.Problem{Object: "Service " + key, Reason: reasons[random.IntN(len(reasons))], Message: fmt.Sprint(n),
				Severity: severities[random.IntN(2)]}, Settling: random.IntN(9) == 0}
			came, has = []*Problem{p}, append(has, p)
		default:
			if len(has) > 0 {
				i := random.IntN(len(has))
				over = []*Problem{has[i]}
				has = slices.Delete(has, i, i+1)
			}
		}
		before := map[string]State{}
		for n := range 9 {
			before[fmt.Sprintf("a/s%d", n)] = j.State(fmt.Sprintf("a/s%d", n))
		}
		told := j.Change(over, came, touched)
		all := NewJudge(services)
		all.Change(nil, has, slices.Collect(maps.Keys(services)))
		for key, was := range before {
			if now := all.State(key); now != j.State(key) {
				t.Fatalf("%s: %+v, want %+v", key, j.State(key), now)
			} else if old, changed := told[key]; changed != (was != now) || changed && old != was {
				t.Fatalf("%s was %+v and is %+v, told %+v", key, was, now, told)
			}
		}
		if have, want := j.Verdict(0), all.Verdict(0); !reflect.DeepEqual(have, want) || !maps.Equal(j.Reasons(), all.Reasons()) ||
			!slices.Equal(j.Settling(), all.Settling()) || have.Answers < 0 {
			t.Fatalf("%+v, want %+v", have, want)
		}
	}
	j.Change(has, nil, nil)
	if len(j.problems)+len(j.counted)+len(j.reasons) > 0 {
		t.Errorf("left: %+v", j)
	}
}

// The first line says that Services answer of those alone that are Ready, also in an earlier version.
func TestHeadline(t *testing.T) {
	problem := func(key, reason, severity string, settling bool) *Problem {
		return &Problem{Problem: wire.Problem{Object: "Service " + key, Reason: reason, Severity: severity}, Settling: settling}
	}
	for want, c := range map[string]struct {
		services string
		came     []*Problem
	}{
		"no Service is declared":                                             {},
		"the only Service answers":                                           {services: "a/a"},
		"both Services answer; 1 has a warning":                              {"a/a a/b", []*Problem{problem("a/a", "NoEffect", "warning", false)}},
		"both Services answer; 1 is served in an earlier version":            {"a/a a/b", []*Problem{problem("a/a", "FieldValueInvalid", "error", false)}},
		"1 of 2 Services answers; 1 has no endpoint on purpose":              {"a/a a/b", []*Problem{problem("a/a", "NoEndpoints", "warning", false)}},
		"1 of 2 Services answers; 1 waits for endpoints":                     {"a/a a/b", []*Problem{problem("a/a", "NoEndpoints", "error", true)}},
		"1 of 2 Services does not answer":                                    {"a/a a/b", []*Problem{problem("a/a", "NoEndpoints", "error", false)}},
		"1 of 2 Services does not answer; 1 is served in an earlier version": {"a/a a/b", []*Problem{problem("a/a", "NotServed", "error", false), problem("a/b", "Syntax", "error", false)}},
		"the only Service does not answer; 1 has no endpoint on purpose":     {"a/a", []*Problem{problem("a/a", "NoEndpoints", "warning", false)}},
		"1 of 3 Services does not answer":                                    {"a/a a/b", []*Problem{problem("a/gone", "FieldValueInvalid", "error", false)}},
	} {
		services := map[string]bool{}
		for _, key := range strings.Fields(c.services) {
			services[key] = false
		}
		j := NewJudge(services)
		j.Change(nil, c.came, nil)
		if v := j.Verdict(0); v.Text != want {
			t.Errorf("%q, want %q", v.Text, want)
		}
	}
}
