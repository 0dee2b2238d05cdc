package metrics

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay are the numbers of what the appliance relays; see relay.Stats.
type Relay struct {
	Protocols      []RelayProtocol
	Ports          []RelayPort
	FailedConnects int64
}

// RelayProtocol has the counters of TCP connections, or of UDP clients.
type RelayProtocol struct {
	Protocol                    string // tcp, udp
	Loopback, Redirected, Limit int64
	Taken, TurnedAway           int64
}

// RelayPort has the counters of a port of a Service in one family.
type RelayPort struct {
	Namespace, Service, Port, Protocol, Family string
	Taken, FailedConnects                      int64
	Open                                       map[string]int // by endpoint
}

// IsSame reports whether both are about one port.
func (p *RelayPort) IsSame(other *RelayPort) bool {
	return p.Namespace == other.Namespace && p.Service == other.Service && p.Port == other.Port && p.Protocol == other.Protocol && p.Family == other.Family
}

// Relay shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) Relay(read func() Relay) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	port := []string{"namespace", "service", "port", "protocol", "family"}
	m.registry.MustRegister(&relayNumbers{
		read:       read,
		open:       desc("svcctl_relay_open", "Connections, and clients of UDP, that are relayed now.", "protocol", "of"),
		limit:      desc("svcctl_relay_limit", "How many connections, or clients of UDP, of relayed Services there can be.", "protocol"),
		taken:      desc("svcctl_relay_accepted_total", "Connections, and clients of UDP, that were relayed.", "protocol"),
		turnedAway: desc("svcctl_relay_turned_away_total", "Connections that were reset, and clients of UDP that were forgotten, as there were too many at once.", "protocol"),
		failed:     desc("svcctl_relay_failed_connects_total", "Times that an endpoint did not accept a connection."),
		portOpen:   desc("svcctl_relay_port_open", "Connections, and clients of UDP, of a relayed port by endpoint.", append(port, "endpoint")...),
		portTaken:  desc("svcctl_relay_port_accepted_total", "Connections, and clients of UDP, of a relayed port.", port...),
		portFailed: desc("svcctl_relay_port_failed_connects_total", "Times that an endpoint of a relayed port did not accept a connection.", port...),
	})
}

type relayNumbers struct {
	read                                   func() Relay
	open, limit, taken, turnedAway, failed *prometheus.Desc
	portOpen, portTaken, portFailed        *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (r *relayNumbers) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{r.open, r.limit, r.taken, r.turnedAway, r.failed, r.portOpen, r.portTaken, r.portFailed} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (r *relayNumbers) Collect(metrics chan<- prometheus.Metric) {
	now := r.read()
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(r.failed, now.FailedConnects)
	for _, p := range now.Protocols {
		gauge(r.open, p.Redirected, p.Protocol, "services")
		gauge(r.open, p.Loopback, p.Protocol, "loopback")
		gauge(r.limit, p.Limit, p.Protocol)
		counter(r.taken, p.Taken, p.Protocol)
		counter(r.turnedAway, p.TurnedAway, p.Protocol)
	}
	for _, p := range now.Ports {
		labels := []string{p.Namespace, p.Service, p.Port, p.Protocol, p.Family}
		counter(r.portTaken, p.Taken, labels...)
		counter(r.portFailed, p.FailedConnects, labels...)
		for endpoint, n := range p.Open {
			gauge(r.portOpen, int64(n), append(labels, endpoint)...)
		}
	}
}

// RelayedTLS are the numbers of TLS at relayed ports.
type RelayedTLS struct {
	// Ends has the expiry of the certificate in use of each Secret, by "namespace/name".
	Ends map[string]time.Time
	// FailedHandshakes counts failed handshakes with clients and with endpoints.
	FailedHandshakes int64
}

// RelayedTLS shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) RelayedTLS(read func() RelayedTLS) {
	m.registry.MustRegister(&relayedTLS{
		read: read,
		ends: prometheus.NewDesc("svcctl_tls_certificate_expiry_timestamp_seconds", "Unix time at which the certificate in use of a Secret ends.",
			[]string{"namespace", "secret"}, nil),
		failed: prometheus.NewDesc("svcctl_tls_handshake_failures_total", "TLS handshakes of relayed ports that failed, with clients and with endpoints.", nil, nil),
	})
}

type relayedTLS struct {
	read         func() RelayedTLS
	ends, failed *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (r *relayedTLS) Describe(descs chan<- *prometheus.Desc) { descs <- r.ends; descs <- r.failed }

// Collect implements prometheus.Collector.
func (r *relayedTLS) Collect(out chan<- prometheus.Metric) {
	now := r.read()
	for _, key := range slices.Sorted(maps.Keys(now.Ends)) {
		namespace, name, _ := strings.Cut(key, "/")
		out <- prometheus.MustNewConstMetric(r.ends, prometheus.GaugeValue, float64(now.Ends[key].Unix()), namespace, name)
	}
	out <- prometheus.MustNewConstMetric(r.failed, prometheus.CounterValue, float64(now.FailedHandshakes))
}
