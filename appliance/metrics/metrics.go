package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/listen"
)

// Metrics are the appliance's numbers. All methods may be called concurrently. It has more than 15 fields: one
// for each collector that the loop sets.
type Metrics struct {
	registry *prometheus.Registry

	mu      sync.Mutex
	reasons map[[2]string]int // that byReason has

	services, servicePorts, vips, frontends, endpoints prometheus.Gauge
	problems                                           *prometheus.GaugeVec
	states, byReason                                   *prometheus.GaugeVec
	fileProblems                                       prometheus.Gauge

	syncs                *prometheus.CounterVec
	syncSeconds          prometheus.Histogram
	changeSeconds        prometheus.Histogram
	lastSuccess          prometheus.Gauge
	accepted, programmed prometheus.Gauge

	operations     prometheus.Histogram
	elements       prometheus.Counter
	foreignChanges prometheus.Counter
	healSeconds    prometheus.Histogram

	removalsHeld, refusedServices prometheus.Gauge

	conntrackEntries, conntrackMax, conntrackFailed, conntrackDropped prometheus.Gauge
	api                                                               apiMetrics
}

// The results of a sync, the values of the label result.
const (
	resultCommitted = "committed" // a transaction changed the kernel
	resultUnchanged = "unchanged" // there was nothing to change
	resultFailed    = "failed"
)

// New is a Metrics with everything at zero; version is the program's.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),

		services:     gauge("svcctl_services", "Services that are served."),
		servicePorts: gauge("svcctl_service_ports", "Ports of the Services that are served, once for each family."),
		vips:         gauge("svcctl_vips", "Addresses that Services are reached by."),
		frontends:    gauge("svcctl_frontends", "Frontends: address, protocol and port, or node port."),
		endpoints:    gauge("svcctl_endpoints", "Usable endpoints, once for each port of a Service."),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svcctl_objects_problems",
			Help: "Problems of objects; error: refused or not in force, warning: in force but doubtful."}, []string{"severity"}),
		states: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svcctl_service_states",
			Help: "Services by state: answers, warning, stale (served in an earlier version), fails, idle (without endpoints on purpose), settling; unchecked are those of them without a health check."}, []string{"state"}),
		byReason: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svcctl_problems",
			Help: "Problems by severity and reason, as svcctl status has them."}, []string{"severity", "reason"}),
		fileProblems: gauge("svcctl_file_problems", "Manifest files that cannot be read or parsed; their last good content stays in force."),

		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svcctl_sync_total",
			Help: "Rounds of making the kernel equal to what was accepted."}, []string{"result"}),
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_sync_duration_seconds",
			Help:    "Time from taking up a change to its being in the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}), // 0.5 ms to 8 s
		changeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_change_duration_seconds",
			Help:    "Time from noticing that a manifest changed to the transaction that has the change, the time that it took to settle included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}), // 1 ms to 33 s
		lastSuccess: gauge("svcctl_sync_last_success_timestamp_seconds", "When the last round succeeded, in Unix time."),
		accepted:    gauge("svcctl_revision_accepted", "Revision of the newest change accepted."),
		programmed:  gauge("svcctl_revision_programmed", "Revision of the newest change that is in the kernel."),

		operations: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_transaction_operations",
			Help:    "Netlink operations in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9)}), // 1 to 65,536
		elements:       counter("svcctl_transaction_elements_total", "Set elements added and deleted."),
		foreignChanges: counter("svcctl_foreign_changes_total", "Transactions of other programs that changed the tables of svcctl."),
		healSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_heal_duration_seconds",
			Help:    "Time from noticing a change by another program to its being undone.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}), // 1 ms to 33 s
		removalsHeld:     gauge("svcctl_removals_held", "Services that vanished from the manifests in a mass and stay in force until that is confirmed."),
		refusedServices:  gauge("svcctl_refused_services", "Services whose present version the kernel refuses."),
		conntrackEntries: gauge("svcctl_conntrack_entries", "Entries of the connection tracking table in use."),
		conntrackMax:     gauge("svcctl_conntrack_entries_limit", "Entries that the connection tracking table takes (nf_conntrack_max)."),
		conntrackFailed:  gauge("svcctl_conntrack_insert_failed", "Entries that could not be made, since the box started."),
		conntrackDropped: gauge("svcctl_conntrack_drop", "Packets dropped because the connection tracking table was full, since the box started."),
		api:              newAPIMetrics(),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "svcctl_build_info", Help: "Always 1; the labels describe what is running.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()}})
	build.Set(1)
	for _, result := range []string{resultCommitted, resultUnchanged, resultFailed} {
		m.syncs.WithLabelValues(result) // seen as 0 before the first one
	}
	m.Verdict(map[string]int{wire.ServiceAnswers: 0, wire.ServiceWarning: 0, wire.ServiceStale: 0, wire.ServiceFails: 0, wire.ServiceIdle: 0, wire.ServiceSettling: 0, "unchecked": 0}, nil)
	m.registry.MustRegister(build, m.services, m.servicePorts, m.vips, m.frontends, m.endpoints, m.problems, m.states, m.byReason, m.fileProblems,
		m.syncs, m.syncSeconds, m.changeSeconds, m.lastSuccess, m.accepted, m.programmed, m.operations, m.elements, m.foreignChanges, m.healSeconds, m.removalsHeld, m.refusedServices,
		m.conntrackEntries, m.conntrackMax, m.conntrackFailed, m.conntrackDropped, m.api.panics, m.api.calls, m.api.seconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Sync is one round of making the kernel equal to what was accepted.
type Sync struct {
	At       time.Time     // when it ended
	Duration time.Duration // from taking up the change
	// Noticed is the time at which the change of a file was noticed; zero: it did not come by a
	// file.
	Noticed time.Time
	// Transaction has the sizes of the commit; nil when there was nothing to change.
	Transaction *Transaction
	// Err is the error of the commit, nil if it succeeded.
	Err error
}

// Transaction counts the operations and elements of one commit.
type Transaction struct{ Operations, Elements int }

// Synced records a round.
func (m *Metrics) Synced(s Sync) {
	m.syncSeconds.Observe(s.Duration.Seconds())
	if t := s.Transaction; t != nil && s.Err == nil {
		if !s.Noticed.IsZero() {
			m.changeSeconds.Observe(s.At.Sub(s.Noticed).Seconds())
		}
		m.operations.Observe(float64(t.Operations))
		m.elements.Add(float64(t.Elements))
	}
	switch {
	case s.Err != nil:
		m.syncs.WithLabelValues(resultFailed).Inc()
		return
	case s.Transaction != nil:
		m.syncs.WithLabelValues(resultCommitted).Inc()
	default:
		m.syncs.WithLabelValues(resultUnchanged).Inc()
	}
	m.lastSuccess.Set(float64(s.At.UnixMilli()) / 1000)
}

// Counts are the numbers of Services in force, and of their ports, addresses, frontends and endpoints; see wire.Counts.
type Counts struct{ Services, ServicePorts, VIPs, Frontends, Endpoints int }

// Serves records how much is served.
func (m *Metrics) Serves(c Counts) {
	m.services.Set(float64(c.Services))
	m.servicePorts.Set(float64(c.ServicePorts))
	m.vips.Set(float64(c.VIPs))
	m.frontends.Set(float64(c.Frontends))
	m.endpoints.Set(float64(c.Endpoints))
}

// Verdict records the numbers of Services by state, and of problems by severity and reason.
func (m *Metrics) Verdict(states map[string]int, problems map[[2]string]int) {
	for state, n := range states {
		m.states.WithLabelValues(state).Set(float64(n))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for labels := range m.reasons {
		if problems[labels] == 0 {
			m.byReason.DeleteLabelValues(labels[0], labels[1])
		}
	}
	severities := map[string]int{wire.SeverityError: 0, wire.SeverityWarning: 0}
	for labels, n := range problems {
		m.byReason.WithLabelValues(labels[0], labels[1]).Set(float64(n))
		severities[labels[0]] += n
	}
	for severity, n := range severities {
		m.problems.WithLabelValues(severity).Set(float64(n))
	}
	m.reasons = problems
}

// FileProblems records how many files are bad.
func (m *Metrics) FileProblems(files int) { m.fileProblems.Set(float64(files)) }

// Revisions records the newest revision accepted, and the newest in the kernel.
func (m *Metrics) Revisions(accepted, programmed uint64) {
	m.accepted.Set(float64(accepted)) // exact below 2^53, see wire.Revision
	m.programmed.Set(float64(programmed))
}

// ForeignChanged records that another program changed our tables.
func (m *Metrics) ForeignChanged() { m.foreignChanges.Inc() }

// Conntrack records how full the connection tracking table is, and what it had no room for.
func (m *Metrics) Conntrack(entries, limit, insertFailed, dropped uint64) {
	m.conntrackEntries.Set(float64(entries))
	m.conntrackMax.Set(float64(limit))
	m.conntrackFailed.Set(float64(insertFailed))
	m.conntrackDropped.Set(float64(dropped))
}

// DNSAnswers registers a counter for each result of an answer of the DNS server. It returns the function that counts an
// answer. It is called at most once.
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

// Held records how many Services are kept although they vanished from the manifests, and
// how many the kernel refuses.
func (m *Metrics) Held(removals, refused int) {
	m.removalsHeld.Set(float64(removals))
	m.refusedServices.Set(float64(refused))
}

// Healed records that what another program changed was undone, and how long after it
// was noticed.
func (m *Metrics) Healed(after time.Duration) { m.healSeconds.Observe(after.Seconds()) }

// Handler answers /metrics, /healthz, /livez and /readyz, and further pages by path.
func (m *Metrics) Handler(health api.Health, pages map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry}))
	for path, page := range pages {
		mux.Handle(path, page)
	}
	checks := api.HealthHandler(health)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.Handle(path, checks)
	}
	return mux
}

// Listen opens addr, host:port, for Handler. It fails at once when it is in use.
func Listen(addr string) (net.Listener, error) {
	ln, err := listen.TCP(context.Background(), addr)
	if err != nil {
		return nil, fmt.Errorf("open --metrics-listen %s: %w: give another one, or leave it out", addr, err)
	}
	return ln, nil
}

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
