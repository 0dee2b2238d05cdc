package examples_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// promtool runs it in examples/monitoring.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	command := exec.Command(path, args...)
	command.Dir = "monitoring"
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

func TestMonitoringRules(t *testing.T) {
	promtool(t, "check", "config", "prometheus.yml")
	promtool(t, "check", "rules", "rules.yml")
	promtool(t, "test", "rules", "rules_test.yml")
}

// Test871_each_alert_fires looks for a test of each alert of the rules.
func Test871_each_alert_fires(t *testing.T) {
	rules, err := os.ReadFile("monitoring/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("monitoring/rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(alerts) < 20 {
		t.Errorf("%d alerts", len(alerts))
	}
	for _, alert := range alerts {
		if !regexp.MustCompile(`alertname: ` + alert[1] + `\n\s+exp_alerts:`).Match(tests) {
			t.Errorf("no test has %s fire", alert[1])
		}
	}
}

// panelExpressions are the queries of the dashboard.
func panelExpressions(t *testing.T) (all []string) {
	t.Helper()
	content, err := os.ReadFile("monitoring/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// What rules and dashboard ask for is in the manual page of the metrics.
func TestMonitoringNames(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("monitoring/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(rules) + strings.Join(panelExpressions(t), "\n")
	for _, name := range regexp.MustCompile(`svcctl_[a-z_]+`).FindAllString(text, -1) {
		name = strings.TrimSuffix(name, "_bucket")
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
	}
}
