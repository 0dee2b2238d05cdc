package metrics

import "github.com/prometheus/client_golang/prometheus"

// DNSAnswers makes the numbers of a DNS server, one for each result that an answer can
// have, and gives who counts an answer. It is called once, and not at all without DNS.
func (m *Metrics) DNSAnswers(results []string) func(result string) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svcctl_dns_answers_total",
		Help: "Answers of the DNS server; limited: cut off because a network asked too often over UDP."}, []string{"result"})
	counters := make(map[string]prometheus.Counter, len(results))
	for _, result := range results {
		counters[result] = vec.WithLabelValues(result)
	}
	m.registry.MustRegister(vec)
	return func(result string) {
		if c := counters[result]; c != nil {
			c.Inc()
		}
	}
}
