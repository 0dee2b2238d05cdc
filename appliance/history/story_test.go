package history

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// lines are the entries of a story.
func lines(entries []Entry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %s[%s] %s %q\n", e.At.Format("15:04:05"), e.Kind, e.Severity, e.Text, e.Services)
	}
	return b.String()
}

// Transitions of one cause are one entry, and a problem whose effect is among them is none.
func TestStory(t *testing.T) {
	b := Open(t.TempDir(), "gw1", noon, discard)
	at := noon
	down := func(service string) {
		b.Note(Key{KindEndpoint, "Service " + service, "10.1.2.12:8080 tcp"}, "down", "connection refused", at)
		b.Note(Key{KindProblem, "Service " + service, "EndpointDown warning spec.ports[0] 10.1.2.12:8080"}, "warning", "1 of 2 is down", at.Add(time.Second))
	}
	down("shop/web")
	down("shop/api")
	down("auth/token")
	failing := func(service, state, severity string) {
		b.Note(Key{KindProblem, "Service " + service, "NoEndpoints " + severity + " "}, state, "it has no endpoint", at)
		b.Note(Key{KindCondition, service, "Ready"}, map[bool]string{true: "False"}[state != ""], "it has no endpoint", at)
	}
	at = at.Add(time.Minute)
	failing("billing/invoices", "error", "error")
	failing("billing/idle", "warning", "warning")
	b.Note(Key{KindProblem, "Service shop/web", "Invalid error spec.ports"}, "error", "port 99999 is none", at)
	b.Note(Key{KindCondition, "shop/web", "Programmed"}, "False", "port 99999 is none", at)
	b.Note(Key{KindCondition, "shop/new", "Ready"}, "False", "it has no endpoint", at) // settles: no problem comes
	b.Note(Key{KindCondition, "shop/late", "Ready"}, "False", "it has no endpoint", at)
	b.Note(Key{KindCondition, "shop/new", "Ready"}, "", "", at.Add(time.Second))
	b.Note(Key{KindProblem, "Service shop/late", "NoEndpoints error "}, "error", "it has no endpoint", at.Add(10*time.Second))
	failing("shop/both", "error", "error")
	b.Note(Key{KindProblem, "Service shop/both", "BadAnnotation warning x"}, "warning", "not a number", at)
	b.Note(Key{KindProblem, "/etc/x.yaml", "Invalid error "}, "error", "no YAML", at)
	b.Note(Key{KindEndpoint, "", "10.1.2.13:80"}, "dead", "connection refused", at, "shop/web")
	b.Add(Transition{At: at, Key: Key{KindAnnouncement, "192.0.2.1", "l2 eth0"}, State: "announced", Services: []string{"shop/web"}})
	b.Add(Transition{At: at, Key: Key{KindAnnouncement, "192.0.2.2", "l2 eth0"}, State: "announced", Services: []string{"shop/api"}})
	b.Add(Transition{At: at, Key: Key{KindAnnouncement, "192.0.2.1", "bgp tor-1"}, Services: []string{"shop/web"}})
	at = at.Add(3 * time.Minute)
	failing("billing/invoices", "", "error")
	b.Note(Key{KindEndpoint, "Service shop/web", "10.1.2.12:8080 tcp"}, "", "", at)
	b.Note(Key{KindEndpoint, "", "10.1.2.13:80"}, "", "", at)
	b.Note(Key{KindCondition, "shop/web", "Programmed"}, "", "", at)
	b.Note(Key{KindProblem, "/etc/x.yaml", "Invalid error "}, "", "", at)
	list, from := b.Transitions(noon)
	want := `12:00:00 endpoint[warning] 10.1.2.12:8080 of shop/web and 2 others went down: connection refused ["shop/web" "shop/api" "auth/token"]
12:01:00 condition[error] billing/invoices and 2 others do not answer: it has no endpoint ["billing/invoices" "shop/late" "shop/both"]
12:01:00 condition[warning] billing/idle does not answer: it has no endpoint ["billing/idle"]
12:01:00 condition[error] an earlier version of shop/web stays in force: port 99999 is none ["shop/web"]
12:01:00 problem[warning] shop/both: not a number ["shop/both"]
12:01:00 problem[error] /etc/x.yaml: no YAML []
12:01:00 endpoint[warning] 10.1.2.13:80 of shop/web went down: connection refused ["shop/web"]
12:01:00 announcement[] 192.0.2.1 and 192.0.2.2 announced on eth0 ["shop/web" "shop/api"]
12:01:00 announcement[warning] 192.0.2.1 no longer announced to tor-1 ["shop/web"]
12:04:00 condition[] billing/invoices answers again after 3 min ["billing/invoices"]
12:04:00 endpoint[] 10.1.2.12:8080 of shop/web came up after 4 min ["shop/web"]
12:04:00 endpoint[] 10.1.2.13:80 of shop/web came up after 3 min ["shop/web"]
12:04:00 condition[] the newest version of shop/web is in force after 3 min ["shop/web"]
12:04:00 problem[] /etc/x.yaml: over after 3 min: no YAML []
`
	if got := lines(Story(list)); got != want || !from.Equal(noon) {
		t.Errorf("from %s:\n%swant:\n%s", from, got, want)
	}
	list = slices.DeleteFunc(list, func(x Transition) bool { return !x.IsAbout("shop", "api") })
	if got := lines(Story(list)); strings.Count(got, "\n") != 2 || !strings.Contains(got, "10.1.2.12:8080 of shop/api went down") || !strings.Contains(got, "192.0.2.2 announced") {
		t.Errorf("of one Service:\n%s", got)
	}
	if list, _ := b.Transitions(at); len(list) != 6 {
		t.Errorf("%d since the last minute", len(list))
	}
}

// What happened is the same after a kill, over the change of files, and with a torn line.
func TestPastSurvives(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	b.Note(web, "warning", "1 of 2 is down", noon)
	n := 0
	for ; !fileExists(t, dir, oldName); n++ {
		if n > 100_000 {
			t.Fatal("the file never becomes the old one")
		}
		at := noon.Add(time.Duration(n) * time.Second)
		b.Note(api, []string{"down", ""}[n%2], strings.Repeat("x", 5000), at)
		b.Add(Transition{At: at, Key: Key{KindAnnouncement, "192.0.2.1", "l2 eth0"}, State: "announced"})
		b.flush()
	}
	list, _ := b.Transitions(time.Time{})
	if len(list) != 2*n+1 {
		t.Fatalf("%d transitions of %d in memory", len(list), 2*n+1)
	}
	again := start(t, dir, "gw1", noon) // b was killed
	if got, _ := again.Transitions(time.Time{}); fmt.Sprint(got) != fmt.Sprint(list) {
		t.Errorf("%d after a kill, want %d; the first is %+v, the last %+v", len(got), len(list), got[0], got[len(got)-1])
	}
	if _, known := again.Last(Key{KindAnnouncement, "192.0.2.1", "l2 eth0"}); known {
		t.Error("an announcement is kept as if it were a problem")
	}
	again.Note(web, "", "", noon.Add(time.Hour))
	stop(t, again)
	if err := os.Truncate(filepath.Join(dir, fileName), int64(len(content(t, dir, fileName))-9)); err != nil {
		t.Fatal(err)
	}
	torn := start(t, dir, "gw1", noon)
	if got, _ := torn.Transitions(time.Time{}); fmt.Sprint(got) != fmt.Sprint(list) {
		t.Errorf("%d with a torn line, want %d", len(got), len(list))
	}
	stop(t, torn)
}

func fileExists(t *testing.T, dir, name string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// The memory is bounded.
func TestPastIsBounded(t *testing.T) {
	b := Open(t.TempDir(), "gw1", noon, discard)
	for i := range 3 * mostPast {
		b.Add(Transition{At: noon.Add(time.Duration(i) * time.Second), Key: Key{KindAnnouncement, "192.0.2.1", "l2 eth0"}, State: "announced"})
	}
	list, from := b.Transitions(time.Time{})
	if len(list) < mostPast || len(list) > mostPast+mostPast/8+1 || !from.Equal(list[0].At) || !list[len(list)-1].At.Equal(noon.Add((3*mostPast-1)*time.Second)) {
		t.Errorf("%d, from %s", len(list), from)
	}
}

// An endpoint that flaps within seconds has an entry for each change: the last one is the state that it is in.
func TestStoryOfAnEndpointThatFlaps(t *testing.T) {
	b := Open(t.TempDir(), "gw1", noon, discard)
	for i, state := range []string{"down", "", "down"} {
		for _, service := range []string{"shop/web", "shop/api"} {
			b.Note(Key{KindEndpoint, "Service " + service, "10.1.2.12:8080 tcp"}, state, "", noon.Add(time.Duration(i)*time.Second))
		}
	}
	list, _ := b.Transitions(noon)
	const down, up = "10.1.2.12:8080 of shop/web and shop/api went down", "10.1.2.12:8080 of shop/web and shop/api came up"
	var texts []string
	for _, e := range Story(list) {
		text, _, _ := strings.Cut(e.Text, " after")
		texts = append(texts, text)
	}
	if !slices.Equal(texts, []string{down, up, down}) {
		t.Errorf("%q", texts)
	}
}
