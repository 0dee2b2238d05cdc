package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// began has since when things are as they are, by what they are.
func (b *box) began(t *testing.T) map[string]string {
	t.Helper()
	times := map[string]string{}
	read := func(to any, args ...string) {
		t.Helper()
		out, errOut, _ := b.svcctl.Svcctl(args[0], append(args[1:], "-o", "json")...)
		if err := json.Unmarshal([]byte(out), to); err != nil {
			t.Fatalf("svcctl %s: %v\n%s%s", args, err, out, errOut)
		}
	}
	var health struct {
		Endpoints []struct{ Service, Endpoint, State, Since, Check string }
	}
	read(&health, "health")
	for _, e := range health.Endpoints {
		if e.State == "down" {
			times["endpoint of "+e.Service+" "+e.Endpoint+" "+e.Check] = e.Since
		}
	}
	var status struct {
		Verdict struct {
			Groups []struct{ Reason, Text, Since string }
		}
	}
	read(&status, "status")
	for _, g := range status.Verdict.Groups {
		if g.Reason != "Host" { // those of the machine that the test runs on
			text, _, _ := strings.Cut(g.Text, " (") // the failure of a check differs on a busy machine
			times[g.Reason+": "+text] = g.Since
		}
	}
	var services struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status, LastTransitionTime string }
			}
		}
	}
	read(&services, "get", "svc", "-A")
	for _, s := range services.Items {
		for _, c := range s.Status.Conditions {
			times[s.Metadata.Name+" "+c.Type+"="+c.Status] = c.LastTransitionTime
		}
	}
	return times
}

// What is down, and what is wrong, is so since the same time after the process was executed anew, stopped, or killed.
func Test855_the_begin_of_what_is_wrong_survives_a_restart(t *testing.T) {
	b := newBox(t, metered)
	left, right := healthAt(t, b.L1, 9000), healthAt(t, b.R1, 9000)
	healthAt(t, b.R1, 9001)
	const drop = "table inet dead { chain input { type filter hook input priority 0; tcp dport 80 drop; }; }"
	b.L2.LoadNft(drop)
	right.mode.Store(serves5)
	b.write("web.yaml", func(f family) []string { return b.checkedAt(f, 51, 9000) })
	b.write("open.yaml", func(f family) []string { return b.checkedAt(f, 52, 9002) }) // nobody answers: all are used
	b.write("back.yaml", func(f family) []string { return b.checkedAt(f, 53, 9001) }) // L1 does not
	b.write("eject.yaml", func(f family) []string { return b.unchecked(f, "eject", 41, `svcctl.io/eject: "true"`) })
	b.write("plain.yaml", func(f family) []string { return b.unchecked(f, "plain", 42) })
	b.write("empty.yaml", func(f family) []string {
		return []string{f.service("empty", "clusterIP: "+f.vip(60), "ports: [{name: p80, port: 80}]")}
	})
	b.svcctl.Start()
	for _, f := range families {
		b.becomesDead(t, f, "eject", 41, "EndpointSilent", "taken out")
		b.becomesDead(t, f, "plain", 42, "EndpointSilent")
		b.hasProblem(t, "Service default/"+f.name("web51"), "EndpointDown")
		b.hasProblem(t, "Service default/"+f.name("web52"), "FailingOpen")
		eventually(t, time.Minute, func() error {
			if text := fmt.Sprint(b.status().Problems); !strings.Contains(text, "Service default/"+f.name("empty")) {
				return fmt.Errorf("no problem of the Service without endpoints in %s", text)
			}
			return nil
		})
	}
	before := b.began(t)
	for _, what := range []string{"endpoint of default/", "EndpointDown: ", "EndpointSilent: ", "FailingOpen: ", "NoEndpoints: ", "Ready=True", "Ready=False"} {
		if !strings.Contains(fmt.Sprint(before), what) {
			t.Fatalf("no %q in %v", what, before)
		}
	}
	survives := func(how string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			now := b.began(t)
			for what := range maps.Keys(before) {
				if now[what] != before[what] || before[what] == "" {
					return fmt.Errorf("%s: %s since %q, before since %q; now %v", how, what, now[what], before[what], now)
				}
			}
			return nil
		})
		for _, f := range families {
			for _, name := range []string{"web51", "web52", "eject", "plain"} {
				if out, _, _ := b.svcctl.Svcctl("explain", "svc/"+f.name(name)); strings.Contains(out, "since the first check") || !strings.Contains(out, " since 20") {
					t.Errorf("%s: explain %s:\n%s", how, name, out)
				}
			}
		}
	}
	b.svcctl.HandOver()
	survives("executed anew")
	b.svcctl.Stop()
	b.svcctl.Start()
	survives("stopped and started")
	b.svcctl.Kill()
	b.svcctl.Start()
	survives("killed and started")

	// What is over while the program is stopped begins anew when it comes again.
	b.svcctl.Stop()
	left.mode.Store(serves5)
	right.mode.Store(healthy)
	b.svcctl.Start()
	for _, f := range families {
		eventually(t, time.Minute, func() error {
			now := b.began(t)
			for what, since := range now {
				if !strings.HasPrefix(what, "endpoint of default/"+f.name("web51")) {
					continue
				}
				if !strings.Contains(what, f.on(80, b.L1)[0].String()) || since <= before["endpoint of default/"+f.name("web51")+" "+f.on(80, b.R1)[0].String()+" http:9000/healthz"] {
					return fmt.Errorf("%s since %s, before it %v", what, since, before)
				}
				return nil
			}
			return fmt.Errorf("no endpoint of web51 is down: %v", now)
		})
	}
}

// The story of a box is the same after it was executed anew, stopped, or killed, and has an entry for each cause.
func Test910_the_story_survives_a_restart(t *testing.T) {
	b := newBox(t, metered)
	right := healthAt(t, b.R1, 9000)
	healthAt(t, b.L1, 9000)
	b.write("web.yaml", func(f family) []string { return b.checkedAt(f, 51, 9000) })
	empty := func(f family) []string {
		return []string{f.service("empty", "clusterIP: "+f.vip(60), "ports: [{name: p80, port: 80}]")}
	}
	b.write("empty.yaml", empty)
	b.svcctl.Start()
	type entry struct {
		Time                 time.Time
		Kind, Severity, Text string
		Services             []string
	}
	story := func(query string) (entries []entry) {
		t.Helper()
		var answer struct{ Entries []entry }
		body, err := b.svcctl.Get("/svcctl/v1/history" + query)
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answer.Entries
	}
	has := func(severity, text string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			all := story("")
			if !slices.ContainsFunc(all, func(e entry) bool { return e.Severity == severity && strings.Contains(e.Text, text) }) {
				return fmt.Errorf("no %s %q in %+v", severity, text, all)
			}
			return nil
		})
	}
	f := families[0]
	at := f.on(80, b.R1)[0].String() + " of default/" + f.name("web51")
	has("error", f.name("empty")+" and default/"+families[1].name("empty")+" do not answer: ")
	right.mode.Store(serves5)
	has("warning", at+" went down: ")
	right.mode.Store(healthy)
	has("", at+" came up")
	b.write("empty.yaml", func(f family) []string { return append(empty(f), f.slice("empty", "p80: 80", b.L1)) })
	has("", "default/"+f.name("empty")+" and default/"+families[1].name("empty")+" answer again")
	if of := story("?namespace=default&name=" + f.name("web51")); len(of) != 2 {
		t.Errorf("of one Service: %+v", of)
	}
	before := story("")
	survives := func(how string) {
		t.Helper()
		eventually(t, time.Minute, func() error { // a stop may take the last endpoint's check with it
			now := story("")
			if len(now) < len(before) || fmt.Sprint(now[:len(before)]) != fmt.Sprint(before) {
				return fmt.Errorf("%s:\n%+v\nbefore:\n%+v", how, now, before)
			}
			return nil
		})
	}
	b.svcctl.HandOver()
	survives("executed anew")
	b.svcctl.Stop()
	b.svcctl.Start()
	survives("stopped and started")
	b.svcctl.Kill()
	b.svcctl.Start()
	survives("killed and started")
}

// The journal has changes of objects and what happened to them in one list by time, also after a restart and kill -9.
func Test936_journal_over_a_restart_and_a_kill(t *testing.T) {
	b := newBox(t, metered)
	right := healthAt(t, b.R1, 9000)
	healthAt(t, b.L1, 9000)
	f := families[0]
	service := "svc/" + f.name("web51")
	b.write("web.yaml", func(f family) []string { return b.checkedAt(f, 51, 9000) })
	b.svcctl.Start()
	lines := func() []string {
		t.Helper()
		out, errOut, code := b.svcctl.Svcctl("journal", service, "--since", "1h", "-o", "json")
		if code != 0 {
			t.Fatalf("journal: exit %d: %s", code, errOut)
		}
		return strings.Split(strings.TrimSpace(out), "\n")
	}
	// has waits for lines with texts, one after the other.
	has := func(texts ...string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			all := lines()
			at := 0
			for _, text := range texts {
				found := slices.IndexFunc(all[at:], func(line string) bool { return strings.Contains(line, text) })
				if found < 0 {
					return fmt.Errorf("no %q from line %d on:\n%s", text, at, strings.Join(all, "\n"))
				}
				at += found + 1
			}
			return nil
		})
	}
	created := []string{`"verb":"create","kind":"Service"`, "went down: ", "came up"}
	right.mode.Store(serves5)
	has(created[:2]...)
	right.mode.Store(healthy)
	has(created...)
	b.write("web.yaml", func(f family) []string {
		return append(b.checkedAt(f, 51, 9000), f.service("more", "clusterIP: "+f.vip(61), "ports: [{name: p80, port: 80}]"))
	})
	if all := strings.Join(lines(), "\n"); strings.Contains(all, f.name("more")) {
		t.Errorf("another Service is in the journal of %s:\n%s", service, all)
	}
	b.svcctl.Stop()
	b.svcctl.Start()
	has(created...)
	b.svcctl.Kill()
	b.svcctl.Start()
	right.mode.Store(serves5)
	has(append(created, "went down: ")...)
}
