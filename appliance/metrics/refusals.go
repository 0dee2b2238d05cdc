package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Refusals shows what read gives, packets by reason, which is asked at each scrape. It is called once,
// and not at all where refusals are not counted. While read fails there are no samples.
func (m *Metrics) Refusals(read func() (map[string]uint64, error)) {
	m.registry.MustRegister(&refusals{read, prometheus.NewDesc("svcctl_refused_packets_total",
		"Packets that were refused or dropped, by reason.", []string{"reason"}, nil)})
}

type refusals struct {
	read func() (map[string]uint64, error)
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (r *refusals) Describe(descs chan<- *prometheus.Desc) { descs <- r.desc }

// Collect implements prometheus.Collector.
func (r *refusals) Collect(metrics chan<- prometheus.Metric) {
	packets, err := r.read()
	if err != nil {
		return
	}
	for _, reason := range slices.Sorted(maps.Keys(packets)) {
		metrics <- prometheus.MustNewConstMetric(r.desc, prometheus.CounterValue, float64(packets[reason]), reason)
	}
}
