package wire

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestQueriesAreReadAsWritten(t *testing.T) {
	want := WaitQuery{For: "ready", Timeout: 90 * time.Second, Revision: 1<<63 + 1}
	var got WaitQuery
	if err := ReadQuery(WriteQuery(want), &got); err != nil || got != want {
		t.Errorf("%v is read as %+v, %v; want %+v", WriteQuery(want), got, err, want)
	}
	all := TrafficQuery{Namespace: "shop", Service: "web", Filter: "a*", Sort: "rate", Limit: 7, Endpoints: true, History: true, Clients: true}
	var traffic TrafficQuery
	if err := ReadQuery(WriteQuery(all), &traffic); err != nil || traffic != all {
		t.Errorf("%+v, %v; want %+v", traffic, err, all)
	}
	if values := WriteQuery(TrafficQuery{}); len(values) != 0 {
		t.Errorf("a query of zero values has the parameters %v", values)
	}
	var journal JournalQuery
	if err := ReadQuery(url.Values{}, &journal); err != nil || journal.Limit != 100 {
		t.Errorf("without parameters: %+v, %v; want the default limit", journal, err)
	}
}

// Every wrong value is answered with the parameter, the value and the valid ones.
func TestWrongParametersAreRefused(t *testing.T) {
	for query, want := range map[string]string{
		"for=synced&timeout=0s":         `timeout="0s": want a duration as 30s or 2m, at most 1h`,
		"for=synced&timeout=2h":         `timeout="2h": want a duration`,
		"for=synced&timeout=x":          `timeout="x": want a duration`,
		"for=ready&revision=-1":         `revision="-1": want a number`,
		"for=ready&revision=0x1":        `revision="0x1": want a number`,
		"for=other":                     `for="other": want synced or ready`,
		"":                              `for="": want synced or ready`,
		"for=ready&revision=" + huge(1): `revision="` + huge(1) + `": want a number`,
	} {
		refused(t, query, want, new(WaitQuery))
	}
	for query, want := range map[string]string{
		"limit=0": `limit="0": want a number from 1 to 10000`, "limit=10001": "from 1 to 10000", "limit=x": "from 1 to 10000", "limit=1.5": "from 1 to 10000",
	} {
		refused(t, query, want, new(JournalQuery))
	}
	for query, want := range map[string]string{"": `id="": want the number`, "id=x": "want the number", "id=4294967296": "want the number"} {
		refused(t, query, want, new(KillQuery))
	}
	for query, want := range map[string]string{"": `for="": want a duration as 5m, from 1s to 24h`, "for=25h": "from 1s to 24h", "for=1ms": "from 1s to 24h"} {
		refused(t, query, want, new(TrialQuery))
	}
	refused(t, "revision=0", `revision="0": want a number`, new(RollbackQuery))
	refused(t, "steps=gw1&within=1m&onFailure=explode", `onFailure="explode": want stop or undo`, new(RolloutQuery))
	refused(t, "steps=gw1", `within="": want a duration`, new(RolloutQuery))
}

func huge(n int) string { return strings.Repeat("9", 20+n) }

func refused(t *testing.T, query, want string, q any) {
	t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	if err := ReadQuery(values, q); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", query, err, want)
	}
}
