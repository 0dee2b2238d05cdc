package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// HealthChecks are the numbers of health checks; see prober.Stats. States, kinds and results are as
// users see them.
type HealthChecks struct {
	// Targets counts the targets by state; Transitions counts changes of state by the new one.
	Targets, Transitions map[string]float64
	Checks               []CheckCount
	Durations            map[string]Durations // by kind
	FailingOpen          int
	InFlight             int
	Late                 time.Duration
	Expiry               time.Time // zero: no certificate was seen
}

// CheckCount counts checks by type and result.
type CheckCount struct {
	Type, Result string
	Count        float64
}

// Durations is a histogram of the durations of checks. Buckets counts by upper bound in seconds.
type Durations struct {
	Count   uint64
	Sum     time.Duration
	Buckets map[float64]uint64
}

// HealthChecks shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) HealthChecks(read func() HealthChecks) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.registry.MustRegister(&healthChecks{
		read:        read,
		targets:     desc("svcctl_health_targets", "Endpoints that are checked, each way of asking once, by state.", "state"),
		checks:      desc("svcctl_health_checks_total", "Health checks by their kind and what came of them; void: not made, for a reason of this host.", "type", "result"),
		durations:   desc("svcctl_health_check_duration_seconds", "Time from the begin of a health check to its result.", "type"),
		transitions: desc("svcctl_health_transitions_total", "Changes of the state of endpoints, by the new one.", "to"),
		failingOpen: desc("svcctl_health_failing_open", "Ports of Services, once for each family, that use endpoints which are not up, as too few are."),
		inFlight:    desc("svcctl_health_checks_in_flight", "Health checks that wait for their answer."),
		late:        desc("svcctl_health_late_seconds", "How long the first health check waits that was to begin and may not yet."),
		expiry:      desc("svcctl_health_certificate_expiry_seconds", "Time until the first certificate of a checked endpoint ends."),
	})
}

// healthChecks is a collector of its own, so that the numbers of one scrape belong together.
type healthChecks struct {
	read func() HealthChecks

	targets, checks, durations, transitions, failingOpen, inFlight, late, expiry *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (h *healthChecks) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{h.targets, h.checks, h.durations, h.transitions, h.failingOpen, h.inFlight, h.late, h.expiry} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (h *healthChecks) Collect(out chan<- prometheus.Metric) {
	now := h.read()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for state, n := range now.Targets {
		gauge(h.targets, n, state)
	}
	for state, n := range now.Transitions {
		out <- prometheus.MustNewConstMetric(h.transitions, prometheus.CounterValue, n, state)
	}
	for _, c := range now.Checks {
		out <- prometheus.MustNewConstMetric(h.checks, prometheus.CounterValue, c.Count, c.Type, c.Result)
	}
	for kind, d := range now.Durations {
		out <- prometheus.MustNewConstHistogram(h.durations, d.Count, d.Sum.Seconds(), d.Buckets, kind)
	}
	gauge(h.failingOpen, float64(now.FailingOpen))
	gauge(h.inFlight, float64(now.InFlight))
	gauge(h.late, now.Late.Seconds())
	if !now.Expiry.IsZero() {
		gauge(h.expiry, time.Until(now.Expiry).Seconds())
	}
}
