package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// queries are those of the Grafana dashboard, for all boxes.
func queries(t *testing.T) (all []string) {
	t.Helper()
	content, err := os.ReadFile("../../examples/monitoring/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all = append(all, strings.ReplaceAll(target.Expr, "$instance", ".*"))
		}
	}
	return all
}

// The distribution's Prometheus scrapes the program, both pages, and every query of the dashboard
// that is among the examples gives a series.
func Test331_prometheus_scrapes_what_the_dashboard_shows(t *testing.T) {
	const scraped, asked = "127.0.0.1:9753", "127.0.0.1:9090"
	b := newBox(t, flags{"metrics-listen": {scraped}})
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n"+
		"- {job_name: svcctl, static_configs: [{targets: ['%[1]s']}]}\n"+
		"- {job_name: svcctl-services, metrics_path: /metrics/services, static_configs: [{targets: ['%[1]s']}]}\n", scraped)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	prometheus := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+asked)
	var log strings.Builder
	prometheus.Stdout, prometheus.Stderr = &log, &log
	if err := b.GW1.Do(prometheus.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = prometheus.Process.Kill()
		_ = prometheus.Wait()
		if t.Failed() {
			t.Logf("Prometheus:\n%s", log.String())
		}
	})
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			err = b.GW1.Do(func() error { conn, err = net.Dial("tcp", asked); return err })
			return conn, err
		},
	}}
	for _, query := range queries(t) {
		eventually(t, time.Minute, func() error {
			resp, err := client.Get("http://" + asked + "/api/v1/query?query=" + url.QueryEscape(query))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err == nil && !strings.Contains(string(body), `"metric"`) {
				err = fmt.Errorf("%s gives no series: %s", query, body)
			}
			return err
		})
	}
}
