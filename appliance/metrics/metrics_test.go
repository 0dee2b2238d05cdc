package metrics

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
)

type health struct{ healthy, ready error }

func (h health) Healthy() error { return h.healthy }
func (h health) Ready() error   { return h.ready }

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler(health{}, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("GET /metrics: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestNumbers(t *testing.T) {
	m := New("v1.2.3")
	m.Synced(Sync{At: time.Unix(1000, 0), Duration: 3 * time.Millisecond, Noticed: time.Unix(1000, 0).Add(-20 * time.Millisecond), Transaction: &Transaction{Operations: 5, Elements: 40}})
	m.Synced(Sync{At: time.Unix(2000, 500e6), Duration: time.Millisecond})
	m.Synced(Sync{At: time.Unix(3000, 0), Duration: time.Second, Transaction: &Transaction{Operations: 7, Elements: 7}, Err: errors.New("no")})
	m.Serves(wire.Counts{Services: 1, ServicePorts: 2, VIPs: 3, Frontends: 4, Endpoints: 5})
	m.FileProblems(8)
	m.Verdict(nil, map[[2]string]int{{"error", "NoEndpoints"}: 6, {"warning", "NoEffect"}: 7})
	m.Revisions(1800000000000001, 1800000000000000)
	m.ForeignChanged()
	m.APIPanicked()
	m.APICalled(api.Call{Verb: "list", Resource: "services", Code: 200, Took: 2 * time.Millisecond})
	m.APICalled(api.Call{Verb: "watch", Resource: "services", Code: 200, Took: time.Hour, Endless: true})
	m.Scraped("api", func(to Samples) {
		to.Set("svcctl_api_requests_in_flight", 9)
		to.Set("svcctl_api_watches", 10)
	})
	m.Scraped("fleet", func(to Samples) {
		to.Set("svcctl_fleet_state", 1, "Following")
		to.Set("svcctl_fleet_lost_races_total", 11)
		to.SetIf("svcctl_fleet_turn", true)
	})
	m.Scraped("health", func(to Samples) {
		to.Histogram("svcctl_health_check_duration_seconds", 104, 1.5, map[float64]uint64{0.5: 100}, "http")
	})

	text := scrape(t, m)
	for _, want := range []string{
		`svcctl_build_info{goversion="go`,
		`version="v1.2.3"} 1`,
		"svcctl_services 1\n", "svcctl_service_ports 2\n", "svcctl_vips 3\n", "svcctl_frontends 4\n", "svcctl_endpoints 5\n",
		`svcctl_objects_problems{severity="error"} 6`, `svcctl_objects_problems{severity="warning"} 7`, "svcctl_file_problems 8\n",
		"svcctl_revision_accepted 1.800000000000001e+15\n", "svcctl_revision_programmed 1.8e+15\n",
		`svcctl_sync_total{result="committed"} 1`, `svcctl_sync_total{result="unchanged"} 1`, `svcctl_sync_total{result="failed"} 1`,
		"svcctl_sync_duration_seconds_count 3\n",
		`svcctl_change_duration_seconds_bucket{le="0.016"} 0`, `svcctl_change_duration_seconds_bucket{le="0.032"} 1`,
		"svcctl_change_duration_seconds_count 1\n",
		"svcctl_sync_last_success_timestamp_seconds 2000.5\n",                              // a failure does not move it
		"svcctl_transaction_operations_count 1\n", "svcctl_transaction_operations_sum 5\n", // nor count as a transaction
		"svcctl_transaction_elements_total 40\n",
		"svcctl_foreign_changes_total 1\n", "svcctl_api_panics_total 1\n",
		`svcctl_api_requests_total{code="200",resource="services",verb="list"} 1`, `svcctl_api_requests_total{code="200",resource="services",verb="watch"} 1`,
		`svcctl_api_request_duration_seconds_bucket{resource="services",verb="list",le="0.00125"} 0`,
		`svcctl_api_request_duration_seconds_bucket{resource="services",verb="list",le="0.003125"} 1`,
		"svcctl_api_requests_in_flight 9\n", "svcctl_api_watches 10\n",
		"# TYPE svcctl_fleet_state gauge\nsvcctl_fleet_state{state=\"Following\"} 1\n", "svcctl_fleet_turn 1\n",
		"# TYPE svcctl_fleet_lost_races_total counter\nsvcctl_fleet_lost_races_total 11\n",
		`svcctl_health_check_duration_seconds_bucket{type="http",le="0.5"} 100`, `svcctl_health_check_duration_seconds_sum{type="http"} 1.5`,
		"go_goroutines ", "process_open_fds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The manual has every metric, and no other.
func TestManual(t *testing.T) {
	m := New("v1.2.3")
	m.APICalled(api.Call{Verb: "get", Resource: "/readyz", Code: 200})
	m.DNSAnswers([]string{"success"})("success")
	m.Verdict(nil, map[[2]string]int{{"error", "NoEndpoints"}: 1})
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	// The pages with labels of objects are package traffic's.
	before, others, _ := strings.Cut(string(page), "### Services and endpoints\n")
	_, after, _ := strings.Cut(others, "\n### ")
	described := map[string]bool{}
	for _, name := range regexp.MustCompile("`(svcctl_[a-z_]+)`").FindAllStringSubmatch(before+after, -1) {
		described[name[1]] = true
	}
	names := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^# TYPE (svcctl_\w+)`).FindAllStringSubmatch(scrape(t, m), -1) {
		names[line[1]] = true
	}
	for _, rows := range scrapedRows() {
		for name := range rows {
			names[name] = true
		}
	}
	for name := range names {
		if !described[name] {
			t.Errorf("the manual does not have %s", name)
		}
	}
	for name := range described {
		if !names[name] {
			t.Errorf("the manual has %s, which is no metric", name)
		}
	}
}

func TestStartsAtZero(t *testing.T) {
	text := scrape(t, New("v1.2.3"))
	for _, want := range []string{`svcctl_sync_total{result="failed"} 0`, `svcctl_objects_problems{severity="error"} 0`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q before anything happened", want)
		}
	}
}

func TestLint(t *testing.T) {
	m := New("v1.2.3")
	for section, rows := range scrapedRows() {
		if section == "state" {
			continue // New has it
		}
		m.Scraped(section, func(to Samples) {
			for name, desc := range rows {
				_, labels, _ := strings.Cut(desc.String(), "variableLabels: {")
				to.Set(name, 1, strings.FieldsFunc(labels, func(r rune) bool { return r == ',' || r == '}' })...)
			}
		})
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
	// That the linter would say something.
	if p, _ := promlint.New(strings.NewReader("# TYPE x_count gauge\nx_count 1\n")).Lint(); len(p) == 0 {
		t.Error("the linter finds nothing wrong in anything")
	}
}

func TestTwoInOneProcess(t *testing.T) {
	a, b := New("a"), New("b")
	a.ForeignChanged()
	if !strings.Contains(scrape(t, b), "svcctl_foreign_changes_total 0\n") {
		t.Error("two Metrics share their numbers")
	}
}

func TestHealth(t *testing.T) {
	h := New("v1.2.3").Handler(health{ready: errors.New("manifests are not read yet")}, nil)
	for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/readyz": 503, "/": 404} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("GET %s: %d, want %d", path, w.Code, want)
		}
	}
}

func TestListenInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = Listen(ln.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "address already in use: give another one") {
		t.Errorf("Listen on a port in use: %v", err)
	}
}

func TestDNSAnswers(t *testing.T) {
	m := New("v1.2.3")
	if strings.Contains(scrape(t, m), "svcctl_dns") {
		t.Error("metrics of DNS without DNS")
	}
	count := m.DNSAnswers([]string{"success", "limited"})
	count("success")
	count("unknown")
	text := scrape(t, m)
	for _, want := range []string{`svcctl_dns_answers_total{result="success"} 1`, `svcctl_dns_answers_total{result="limited"} 0`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "unknown") {
		t.Error("an unknown result has a metric")
	}
}
