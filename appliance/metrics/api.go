package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"svcctl.io/svcctl/api"
)

// apiMetrics are the numbers of requests of the API.
type apiMetrics struct {
	panics  prometheus.Counter
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newAPIMetrics() apiMetrics {
	return apiMetrics{
		panics: counter("svcctl_api_panics_total", "API requests that failed because their handler panicked."),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svcctl_api_requests_total",
			Help: "API requests that were answered, by what was asked of which objects, or by method and path, and by the status of the answer."},
			[]string{"verb", "resource", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "svcctl_api_request_duration_seconds",
			Help:    "Time from an API request to the end of its answer; without watches, which have none.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12)}, // 0.5 ms to 12 s
			[]string{"verb", "resource"}),
	}
}

// APIPanicked records that a handler of the API panicked.
func (m *Metrics) APIPanicked() { m.api.panics.Inc() }

// APICalled records a request that was answered.
func (m *Metrics) APICalled(c api.Call) {
	m.api.calls.WithLabelValues(c.Verb, c.Resource, strconv.Itoa(c.Code)).Inc()
	if !c.Endless {
		m.api.seconds.WithLabelValues(c.Verb, c.Resource).Observe(c.Took.Seconds())
	}
}

// APILoad shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) APILoad(read func() api.Load) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "svcctl_api_requests_in_flight", Help: "API requests under way, watches apart."},
			func() float64 { return float64(read().Requests) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "svcctl_api_watches", Help: "Watches, and requests that wait, that are open."},
			func() float64 { return float64(read().Watches) }),
	)
}
