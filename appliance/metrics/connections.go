package metrics

import "github.com/prometheus/client_golang/prometheus"

// Connections are the numbers of who ends connections to endpoints that are gone; see
// conntrack.Stats. All but Draining are counted since the start.
type Connections struct {
	Looks, Entries, Forgotten, Reset, Failures, Retried uint64
	Draining                                            int // endpoints
}

// Connections shows what read gives, which is asked at each scrape. It is called once,
// and not at all where connections cannot be ended.
func (m *Metrics) Connections(read func() Connections) {
	counts := func(name, help string, of func(*Connections) uint64) number {
		return number{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, func(c *Connections) float64 { return float64(of(c)) }}
	}
	m.registry.MustRegister(&connections{read, []number{
		counts("svcctl_conntrack_looks_total", "Times the connection tracking table was looked through for connections to endpoints that are gone.",
			func(c *Connections) uint64 { return c.Looks }),
		counts("svcctl_conntrack_entries_read_total", "Entries of the connection tracking table that were read in looks for connections to endpoints that are gone.",
			func(c *Connections) uint64 { return c.Entries }),
		counts("svcctl_conntrack_forgotten_total", "Entries that were deleted because their endpoint is gone.",
			func(c *Connections) uint64 { return c.Forgotten }),
		counts("svcctl_conntrack_reset_total", "TCP connections that were ended because their endpoint is gone and their time to drain was over.",
			func(c *Connections) uint64 { return c.Reset }),
		counts("svcctl_conntrack_failures_total", "Looks through the connection tracking table that failed; they are repeated until one succeeds.",
			func(c *Connections) uint64 { return c.Failures }),
		counts("svcctl_conntrack_retried_total", "Connections without an answer that were forgotten, so that the client's next SYN picks an endpoint anew.",
			func(c *Connections) uint64 { return c.Retried }),
		{prometheus.NewDesc("svcctl_conntrack_draining", "Endpoints that are gone and whose connections are being drained.", nil, nil),
			prometheus.GaugeValue, func(c *Connections) float64 { return float64(c.Draining) }},
	}})
}

// connections is a collector of its own, so that the numbers of one scrape belong
// together.
type connections struct {
	read    func() Connections
	numbers []number
}

type number struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*Connections) float64
}

// Describe implements prometheus.Collector.
func (c *connections) Describe(descs chan<- *prometheus.Desc) {
	for _, n := range c.numbers {
		descs <- n.desc
	}
}

// Collect implements prometheus.Collector.
func (c *connections) Collect(metrics chan<- prometheus.Metric) {
	now := c.read()
	for _, n := range c.numbers {
		metrics <- prometheus.MustNewConstMetric(n.desc, n.kind, n.of(&now))
	}
}
