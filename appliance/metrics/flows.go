package metrics

import "github.com/prometheus/client_golang/prometheus"

// Flows are the numbers of who hears of connections as they end, since the start.
type Flows struct {
	EventsLost uint64
	// Logs reports that there is a log: of Lines, LinesLost were not written.
	Logs             bool
	Lines, LinesLost uint64
}

// Flows shows what read gives, which is asked at each scrape. It is called once, and not at all without a listener
// for the ends of connections.
func (m *Metrics) Flows(read func() Flows) {
	m.registry.MustRegister(&flows{read,
		prometheus.NewDesc("svcctl_flow_events_lost_total", "Messages of the kernel about connections that were lost: their totals miss the connections that they were about.", nil, nil),
		prometheus.NewDesc("svcctl_connection_log_lines_total", "Connections that ended and were to be logged.", nil, nil),
		prometheus.NewDesc("svcctl_connection_log_lines_lost_total", "Lines of the connection log that were not written: it could not be, or too slowly.", nil, nil),
	})
}

type flows struct {
	read              func() Flows
	lost, lines, gone *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (f *flows) Describe(descs chan<- *prometheus.Desc) {
	descs <- f.lost
	descs <- f.lines
	descs <- f.gone
}

// Collect implements prometheus.Collector.
func (f *flows) Collect(metrics chan<- prometheus.Metric) {
	now := f.read()
	count := func(d *prometheus.Desc, n uint64) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	count(f.lost, now.EventsLost)
	if now.Logs {
		count(f.lines, now.Lines)
		count(f.gone, now.LinesLost)
	}
}
