package traffic

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/flows"
	"svcctl.io/svcctl/nft"
)

// answersOf returns Queries over Services with n ports in all, and the connections of a table.
func answersOf(n int, table *table) *Queries {
	served := map[string][]nft.ServicePort{}
	for i := range n {
		at := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		key := fmt.Sprintf("shop/s%d", i)
		served[key] = []nft.ServicePort{{
			ID: key + "/http", Family: nft.IPv4, Protocol: nft.TCP,
			Frontends: []nft.Frontend{{Addr: at, Port: 80}},
			Pools:     [2][]netip.AddrPort{nft.PoolCluster: {at443("10.1.2.11"), at443("10.1.2.12")}},
		}}
	}
	return tells(served, table)
}

func at443(a string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), 443) }

func scrape(t *testing.T, a *Queries, path string, code int) string {
	t.Helper()
	page, _, _ := strings.Cut(path, "?")
	w := httptest.NewRecorder()
	a.Pages()[page].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != code {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

func TestPages(t *testing.T) {
	table := &table{entries: []conntrack.Connection{
		connection(1, "10.96.0.1:80", "10.1.2.11:443", true, true),
		connection(2, "10.96.0.1:80", "10.1.2.12:443", false, false),
	}, counted: &nft.Totals{Frontends: []nft.FrontendTotal{{Family: nft.IPv4, Protocol: nft.TCP, At: at("10.96.0.1:80"), Connections: 7, Refused: 3}}}}
	a := answersOf(3, table)
	services := scrape(t, a, "/metrics/services", http.StatusOK)
	for _, want := range []string{
		`svcctl_service_connections_open{namespace="shop",service="s1",port="http",protocol="TCP"} 1`,
		`svcctl_service_connections_unanswered{namespace="shop",service="s1",port="http",protocol="TCP"} 1`,
		`svcctl_service_connections_open{namespace="shop",service="s2",port="http",protocol="TCP"} 0`,
		`svcctl_service_connections_total{namespace="shop",service="s1",port="http",protocol="TCP"} 7`,
		`svcctl_service_refused_total{namespace="shop",service="s1",port="http",protocol="TCP"} 3`,
		`svcctl_service_refused_total{namespace="shop",service="s2",port="http",protocol="TCP"} 0`,
		"svcctl_series_left_out 0",
	} {
		if !strings.Contains(services, want+"\n") {
			t.Errorf("no %s in\n%s", want, services)
		}
	}
	endpoints := scrape(t, a, "/metrics/endpoints?namespace=shop&service=s1", http.StatusOK)
	want := `svcctl_endpoint_connections_unanswered{namespace="shop",service="s1",port="http",protocol="TCP",endpoint="10.1.2.12:443"} 1`
	if !strings.Contains(endpoints, want+"\n") || strings.Contains(endpoints, `"s2"`) {
		t.Errorf("want %s, and no other Service, in\n%s", want, endpoints)
	}
	scrape(t, a, "/metrics/endpoints", http.StatusBadRequest)
	if other := scrape(t, a, "/metrics/services?namespace=other", http.StatusOK); strings.Contains(other, "shop") {
		t.Errorf("of another namespace:\n%s", other)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	for _, page := range []string{services, endpoints} {
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(page)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool: %v\n%s\n%s", err, out, page)
		}
	}
}

// The busiest have room, the rest is counted.
func TestPagesAreBounded(t *testing.T) {
	a := answersOf(60_000, &table{entries: []conntrack.Connection{connection(1, "10.96.200.200:80", "10.1.2.11:443", true, true)}})
	text := scrape(t, a, "/metrics/services", http.StatusOK)
	if n, want := strings.Count(text, "svcctl_service_"), maxSeries/3*3+2*3; n != want {
		t.Errorf("%d lines, want %d samples and %d of help", n, want-6, 6)
	}
	if !strings.Contains(text, "svcctl_series_left_out 80001\n") || !strings.Contains(text, `service="s51400"`) {
		t.Error("the busiest has no room, or what was left out is not counted")
	}
}

func TestLabelsAreEscaped(t *testing.T) {
	if got := quoted("a\"b\\c\nd"); got != `"a\"b\\c\nd"` {
		t.Error(got)
	}
}

// What the pages serve is in the manual, and nothing else.
func TestManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "### Services and endpoints\n")
	section, _, _ = strings.Cut(section, "\n### ")
	told := map[string]bool{}
	for _, name := range regexp.MustCompile("`(svcctl_[a-z_]+)`").FindAllStringSubmatch(section, -1) {
		told[name[1]] = true
	}
	a := answersOf(1, &table{counted: &nft.Totals{}})
	a.Follow(flows.NewTotals(nil), func() {})
	a.observer.settings = func() conntrack.Settings { return conntrack.Settings{Bytes: true} }
	served := scrape(t, a, "/metrics/services", http.StatusOK) + scrape(t, a, "/metrics/endpoints?namespace=shop", http.StatusOK)
	for _, want := range []string{`svcctl_endpoint_bytes_total{namespace="shop",service="s0",port="http",protocol="TCP",endpoint="10.1.2.11:443",direction="in"} 0`, `,direction="out"} 0`} {
		if !strings.Contains(served, want+"\n") {
			t.Errorf("no %s in\n%s", want, served)
		}
	}
	var left strings.Builder // what only Services with sources have
	out := bufio.NewWriter(&left)
	egressSeries(out, []wire.EgressTraffic{{Connections: new(uint64(1))}})
	out.Flush()
	served += left.String()
	for _, name := range regexp.MustCompile(`(?m)^# TYPE (svcctl_\w+)`).FindAllStringSubmatch(served, -1) {
		if !told[name[1]] {
			t.Errorf("the manual says nothing about %s", name[1])
		}
	}
	for name := range told {
		if !strings.Contains(served, "# TYPE "+name+" ") {
			t.Errorf("the manual tells of %s, which is not there", name)
		}
	}
}
