package metrics

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

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
