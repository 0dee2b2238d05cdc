package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestConnections(t *testing.T) {
	m := New("v1.2.3")
	if text := scrape(t, m); strings.Contains(text, "svcctl_conntrack_looks_total") {
		t.Error("looks are shown where there are none")
	}
	var now Connections
	m.Connections(func() Connections { return now })
	for name, value := range map[string]Connections{
		"svcctl_conntrack_looks_total":        {Looks: 4711},
		"svcctl_conntrack_entries_read_total": {Entries: 4711},
		"svcctl_conntrack_forgotten_total":    {Forgotten: 4711},
		"svcctl_conntrack_reset_total":        {Reset: 4711},
		"svcctl_conntrack_failures_total":     {Failures: 4711},
		"svcctl_conntrack_draining":           {Draining: 4711},
		"svcctl_conntrack_retried_total":      {Retried: 4711},
	} {
		now = value // each scrape reads anew
		if text := scrape(t, m); !strings.Contains(text, name+" 4711\n") || strings.Count(text, " 4711\n") != 1 {
			t.Errorf("no %s of 4711, or not it alone, in\n%s", name, text)
		}
	}
	problems, err := promlint.New(strings.NewReader(scrape(t, m))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "svcctl_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
