package appliance

import (
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/relay"
)

// TestSamples compares the metrics of each source, whose fields all have a value of their own.
func TestSamples(t *testing.T) {
	pool := func(port string, taken int64) relay.PortLoad {
		return relay.PortLoad{ID: "default/web/" + port, Protocol: "tcp", Listen: netip.MustParseAddrPort("192.0.2.1:80"), Taken: taken, FailedConnects: 9,
			Open: map[netip.AddrPort]int{netip.MustParseAddrPort("10.1.2.11:8080"): 10}}
	}
	buckets := [len(prober.Bounds)]uint64{100}
	for section, test := range map[string]struct {
		read func(metrics.Samples)
		want []string
	}{
		"conntrack": {func(to metrics.Samples) {
			connectionSamples(conntrack.Stats{Looks: 1, Entries: 2, Forgotten: 3, Reset: 4, Failures: 5, Retried: 6, Draining: 7}, to)
		}, []string{
			"svcctl_conntrack_looks_total 1", "svcctl_conntrack_entries_read_total 2", "svcctl_conntrack_forgotten_total 3", "svcctl_conntrack_reset_total 4",
			"svcctl_conntrack_failures_total 5", "svcctl_conntrack_retried_total 6", "svcctl_conntrack_draining 7",
		}},
		"health": {func(to metrics.Samples) {
			s := prober.New(prober.Options{}).Stats() // with all states, kinds and results
			for state := range s.Targets {
				s.Targets[state], s.Transitions[state] = 101, 102
			}
			for kind, outcomes := range s.Checks {
				for outcome := range outcomes {
					outcomes[outcome] = 103
				}
				s.Durations[kind] = prober.Durations{Count: 104, Sum: 1500 * time.Millisecond, Buckets: buckets}
			}
			s.UnderWay, s.Late, s.Expiry = 105, 2500*time.Millisecond, time.Now().Add(1000*time.Hour)
			healthSamples(s, 106, to)
		}, []string{
			`svcctl_health_targets{state="up"} 101`, `svcctl_health_transitions_total{to="down"} 102`, `svcctl_health_checks_total{result="refused",type="http"} 103`,
			`svcctl_health_check_duration_seconds_bucket{type="http",le="0.001"} 100`, `svcctl_health_check_duration_seconds_count{type="http"} 104`,
			`svcctl_health_check_duration_seconds_sum{type="http"} 1.5`, "svcctl_health_checks_in_flight 105", "svcctl_health_late_seconds 2.5",
			"svcctl_health_failing_open 106", "svcctl_health_certificate_expiry_seconds 3.5",
		}},
		"announcements": {func(to metrics.Samples) {
			announcementSamples(announcements.Counts{
				Places: map[[2]string]int{{"l2 eth0", "announced"}: 1}, Withheld: 2, Announcer: true, Drained: true,
				Reported: wire.AnnouncerCounters{Answers: 3, Announcements: 4, Conflicts: 5},
				Peers:    []wire.Peer{{Name: "tor-1", State: wire.Established, Routes: 6, Updates: 7, BFD: "Up"}, {Name: "tor-2", BFD: "Down"}},
				Group:    &wire.Group{VRID: 51, State: "active", Transitions: 8},
			}, to)
		}, []string{
			`svcctl_announced_vips{by="l2 eth0",state="announced"} 1`, "svcctl_withheld_vips 2", "svcctl_announcer_connected 1", "svcctl_drained 1",
			"svcctl_neighbor_answers_total 3", "svcctl_neighbor_announcements_total 4", "svcctl_neighbor_conflicts_total 5",
			`svcctl_bgp_session_up{peer="tor-1"} 1`, `svcctl_bgp_session_up{peer="tor-2"} 0`, `svcctl_bgp_routes{peer="tor-1"} 6`, `svcctl_bgp_updates_total{peer="tor-1"} 7`,
			`svcctl_bfd_up{peer="tor-1"} 1`, `svcctl_bfd_up{peer="tor-2"} 0`,
			`svcctl_vrrp_active{vrid="51"} 1`, `svcctl_vrrp_transitions_total{vrid="51"} 8`, `svcctl_vrrp_group_disagrees{vrid="51"} 0`,
		}},
		"relay": {func(to metrics.Samples) {
			relaySamples(relay.Stats{TCP: relay.Load{Loopback: 1, Redirected: 2, Limit: 3, Taken: 4, TurnedAway: 5}, FailedConnects: 6, FailedHandshakes: 7},
				[]relay.PortLoad{pool("http", 8), pool("http", 80), pool("other", 800)}, to)
		}, []string{
			`svcctl_relay_open{of="loopback",protocol="tcp"} 1`, `svcctl_relay_open{of="services",protocol="tcp"} 2`, `svcctl_relay_limit{protocol="tcp"} 3`,
			`svcctl_relay_accepted_total{protocol="tcp"} 4`, `svcctl_relay_turned_away_total{protocol="tcp"} 5`, "svcctl_relay_failed_connects_total 6",
			"svcctl_tls_handshake_failures_total 7",
			`svcctl_relay_port_accepted_total{family="IPv4",namespace="default",port="http",protocol="tcp",service="web"} 88`,
			`svcctl_relay_port_failed_connects_total{family="IPv4",namespace="default",port="http",protocol="tcp",service="web"} 18`,
			`svcctl_relay_port_accepted_total{family="IPv4",namespace="default",port="other",protocol="tcp",service="web"} 800`,
			`svcctl_relay_port_open{endpoint="10.1.2.11:8080",family="IPv4",namespace="default",port="http",protocol="tcp",service="web"} 20`,
		}},
	} {
		m := metrics.New("v1.2.3")
		m.Scraped(section, test.read)
		w := httptest.NewRecorder()
		m.Handler(nil, nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		text := w.Body.String()
		for _, want := range test.want {
			if !strings.Contains(text, "\n"+want) {
				t.Errorf("%s: no %s in\n%s", section, want, text)
			}
		}
	}
}

// TestScrapedIsSet looks for metrics of scraped.txt that no code sets: a scrape would miss them without an error.
func TestScrapedIsSet(t *testing.T) {
	read := func(paths ...string) (all string) {
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all += string(content)
		}
		return all
	}
	code := read("numbers.go", "fastpath.go", "fleet.go", "apiserver/apiserver.go", "metrics/metrics.go")
	for _, name := range regexp.MustCompile(`(?m)^svcctl_\w+`).FindAllString(read("metrics/scraped.txt"), -1) {
		if !strings.Contains(code, `"`+name+`"`) {
			t.Errorf("no code sets %s", name)
		}
	}
}
