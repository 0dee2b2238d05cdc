package metrics

import "github.com/prometheus/client_golang/prometheus"

// Pool is a range of load balancer IPs. Name is "" for one of flags.
type Pool struct {
	Name, Range string
	Size, Used  uint64
}

// Pools shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) Pools(read func() []Pool) {
	labels := []string{"pool", "range"}
	m.registry.MustRegister(&pools{
		read: read,
		size: prometheus.NewDesc("svcctl_pool_addresses", "Load balancer IPs of a range of a pool.", labels, nil),
		used: prometheus.NewDesc("svcctl_pool_addresses_used", "Load balancer IPs of a range that Services have.", labels, nil),
	})
}

type pools struct {
	read       func() []Pool
	size, used *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (p *pools) Describe(descs chan<- *prometheus.Desc) {
	descs <- p.size
	descs <- p.used
}

// Collect implements prometheus.Collector.
func (p *pools) Collect(all chan<- prometheus.Metric) {
	for _, pool := range p.read() {
		name := pool.Name
		if name == "" {
			name = "flags"
		}
		all <- prometheus.MustNewConstMetric(p.size, prometheus.GaugeValue, float64(pool.Size), name, pool.Range)
		all <- prometheus.MustNewConstMetric(p.used, prometheus.GaugeValue, float64(pool.Used), name, pool.Range)
	}
}
