package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// someChecks have a value of their own for each number.
var someChecks = HealthChecks{
	Targets: map[string]float64{"up": 101}, Transitions: map[string]float64{"down": 102},
	Checks:    []CheckCount{{"http", "refused", 103}},
	Durations: map[string]Durations{"http": {Count: 104, Sum: 1500 * time.Millisecond, Buckets: map[float64]uint64{0.5: 100}}},
	InFlight:  105, Late: 2500 * time.Millisecond, FailingOpen: 106, Expiry: time.Now().Add(1000 * time.Hour),
}

func TestHealthChecks(t *testing.T) {
	m := New("v1.2.3")
	m.HealthChecks(func() HealthChecks { return someChecks })
	text := scrape(t, m)
	for _, want := range []string{
		`svcctl_health_targets{state="up"} 101`, `svcctl_health_transitions_total{to="down"} 102`,
		`svcctl_health_checks_total{result="refused",type="http"} 103`,
		`svcctl_health_check_duration_seconds_count{type="http"} 104`, `svcctl_health_check_duration_seconds_sum{type="http"} 1.5`,
		`svcctl_health_check_duration_seconds_bucket{type="http",le="0.5"} 100`,
		"svcctl_health_checks_in_flight 105\n", "svcctl_health_late_seconds 2.5\n", "svcctl_health_failing_open 106\n",
		"svcctl_health_certificate_expiry_seconds 3.59",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "svcctl_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	m = New("v1.2.3")
	m.HealthChecks(func() HealthChecks { return HealthChecks{} })
	if strings.Contains(scrape(t, m), "certificate_expiry") {
		t.Error("a certificate ends, and none was seen")
	}
}
