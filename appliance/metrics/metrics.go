package metrics

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/listen"
)

// Metrics are the Prometheus metrics of the appliance. All methods may be called concurrently.
type Metrics struct {
	registry *prometheus.Registry

	mu      sync.Mutex
	reasons map[[2]string]int  // severity and reason of the series in byReason
	values  map[string]float64 // values of the section "state" of scraped.txt, by metric

	problems         *prometheus.GaugeVec
	states, byReason *prometheus.GaugeVec

	syncs         *prometheus.CounterVec
	syncSeconds   prometheus.Histogram
	changeSeconds prometheus.Histogram

	operations  prometheus.Histogram
	healSeconds prometheus.Histogram
	api         apiMetrics
}

// The results of a Sync, as values of the label result.
const (
	resultCommitted = "committed" // a transaction changed the kernel
	resultUnchanged = "unchanged" // there was nothing to change
	resultFailed    = "failed"
)

// New returns a Metrics with everything at zero; version is the program's.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), values: map[string]float64{},

		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svcctl_objects_problems",
			Help: "Problems of objects; error: refused or not in force, warning: in force but doubtful."}, []string{"severity"}),
		states: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svcctl_service_states",
			Help: "Services by state: answers, warning, stale (served in an earlier version), fails, idle (without endpoints on purpose), settling; unchecked are those of them without a health check."}, []string{"state"}),
		byReason: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svcctl_problems",
			Help: "Problems by severity and reason, as svcctl status has them."}, []string{"severity", "reason"}),

		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svcctl_sync_total",
			Help: "Rounds of making the kernel equal to what was accepted."}, []string{"result"}),
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_sync_duration_seconds",
			Help:    "Time from taking up a change to its being in the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)}), // 0.5 ms to 8 s
		changeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_change_duration_seconds",
			Help:    "Time from noticing that a manifest changed to the transaction that has the change, the time that it took to settle included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}), // 1 ms to 33 s

		operations: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_transaction_operations",
			Help:    "Netlink operations in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9)}), // 1 to 65,536
		healSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svcctl_heal_duration_seconds",
			Help:    "Time from noticing a change by another program to its being undone.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}), // 1 ms to 33 s
		api: newAPIMetrics(),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "svcctl_build_info", Help: "Always 1; the labels describe what is running.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()}})
	build.Set(1)
	for _, result := range []string{resultCommitted, resultUnchanged, resultFailed} {
		m.syncs.WithLabelValues(result) // seen as 0 before the first one
	}
	m.Verdict(map[string]int{wire.ServiceAnswers: 0, wire.ServiceWarning: 0, wire.ServiceStale: 0, wire.ServiceFails: 0, wire.ServiceIdle: 0, wire.ServiceSettling: 0, "unchecked": 0}, nil)
	m.registry.MustRegister(build, m.problems, m.states, m.byReason,
		m.syncs, m.syncSeconds, m.changeSeconds, m.operations, m.healSeconds,
		m.api.calls, m.api.seconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Scraped("state", func(to Samples) {
		m.mu.Lock()
		values := maps.Clone(m.values) // no recording waits for a scrape
		m.mu.Unlock()
		for name := range scrapedRows()["state"] {
			to.Set(name, values[name])
		}
	})
	return m
}

// set sets the value of a metric in the section "state" of scraped.txt; add adds to it.
func (m *Metrics) set(name string, value float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[name] = value
}

func (m *Metrics) add(name string, n float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[name] += n
}

// Sync is the result of one step of the loop that programs the accepted objects into the kernel.
type Sync struct {
	At       time.Time     // when it ended
	Duration time.Duration // time from the start of processing the change to At
	// Noticed is the time at which the change of a file was noticed; zero if the change did not come from a file.
	Noticed time.Time
	// Transaction has the sizes of the commit; nil when there was nothing to change.
	Transaction *Transaction
	// Err is the error of the commit, nil if it succeeded.
	Err error
}

// Transaction counts the operations and elements of one commit.
type Transaction struct{ Operations, Elements int }

// Synced records a Sync.
func (m *Metrics) Synced(s Sync) {
	m.syncSeconds.Observe(s.Duration.Seconds())
	if t := s.Transaction; t != nil && s.Err == nil {
		if !s.Noticed.IsZero() {
			m.changeSeconds.Observe(s.At.Sub(s.Noticed).Seconds())
		}
		m.operations.Observe(float64(t.Operations))
		m.add("svcctl_transaction_elements_total", float64(t.Elements))
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
	m.set("svcctl_sync_last_success_timestamp_seconds", float64(s.At.UnixMilli())/1000)
}

// Serves records the numbers of Services in force, and of their ports, addresses and endpoints.
func (m *Metrics) Serves(c wire.Counts) {
	m.set("svcctl_services", float64(c.Services))
	m.set("svcctl_service_ports", float64(c.ServicePorts))
	m.set("svcctl_vips", float64(c.VIPs))
	m.set("svcctl_frontends", float64(c.Frontends))
	m.set("svcctl_endpoints", float64(c.Endpoints))
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

// FileProblems records the number of files with problems.
func (m *Metrics) FileProblems(files int) { m.set("svcctl_file_problems", float64(files)) }

// Revisions records the newest accepted revision of the store, and the newest one that is programmed into the kernel.
func (m *Metrics) Revisions(accepted, programmed uint64) {
	m.set("svcctl_revision_accepted", float64(accepted)) // exact below 2^53, see wire.Revision
	m.set("svcctl_revision_programmed", float64(programmed))
}

// ForeignChanged counts a change that another program made to svcctl's tables.
func (m *Metrics) ForeignChanged() { m.add("svcctl_foreign_changes_total", 1) }

// Conntrack records the number of entries of the connection tracking table and its limit. It also records the total numbers of failed inserts and
// dropped packets.
func (m *Metrics) Conntrack(entries, limit, insertFailed, dropped uint64) {
	m.set("svcctl_conntrack_entries", float64(entries))
	m.set("svcctl_conntrack_entries_limit", float64(limit))
	m.set("svcctl_conntrack_insert_failed", float64(insertFailed))
	m.set("svcctl_conntrack_drop", float64(dropped))
}

// DNSAnswers registers a counter of the DNS server's answers for each of results. It returns the function that counts an answer with a given result.
// DNSAnswers may be called only once.
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

// Held records how many Services stay in force because their removal from the manifests awaits confirmation, and how many Services the
// kernel refuses.
func (m *Metrics) Held(removals, refused int) {
	m.set("svcctl_removals_held", float64(removals))
	m.set("svcctl_refused_services", float64(refused))
}

// Healed records that a change by another program was repaired. after is the time between noticing and repairing it.
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

// Listen opens a TCP listener for Handler on addr, host:port.
func Listen(addr string) (net.Listener, error) {
	ln, err := listen.TCP(context.Background(), addr)
	if err != nil {
		return nil, fmt.Errorf("open --metrics-listen %s: %w: give another one, or leave it out", addr, err)
	}
	return ln, nil
}

// apiMetrics counts the requests of the API, and has their durations.
type apiMetrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newAPIMetrics() apiMetrics {
	return apiMetrics{
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
func (m *Metrics) APIPanicked() { m.add("svcctl_api_panics_total", 1) }

// APICalled records a request to the API that was answered.
func (m *Metrics) APICalled(c api.Call) {
	m.api.calls.WithLabelValues(c.Verb, c.Resource, strconv.Itoa(c.Code)).Inc()
	if !c.Endless {
		m.api.seconds.WithLabelValues(c.Verb, c.Resource).Observe(c.Took.Seconds())
	}
}

//go:embed scraped.txt
var scrapedText string

// scrapedRows returns the descriptions of the metrics in scraped.txt, by section and name.
var scrapedRows = sync.OnceValue(func() map[string]map[string]*prometheus.Desc {
	sections := map[string]map[string]*prometheus.Desc{}
	var rows map[string]*prometheus.Desc
	for line := range strings.SplitSeq(scrapedText, "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			rows = map[string]*prometheus.Desc{}
			sections[strings.Trim(line, "[]")] = rows
		default:
			name, help, _ := strings.Cut(line, " ")
			name, list, labeled := strings.Cut(strings.TrimSuffix(name, "}"), "{")
			var labels []string
			if labeled {
				labels = strings.Split(list, ",")
			}
			rows[name] = prometheus.NewDesc(name, help, labels, nil)
		}
	}
	return sections
})

// Samples receives the values of one section of scraped.txt at a scrape.
type Samples struct {
	rows map[string]*prometheus.Desc
	out  chan<- prometheus.Metric
}

// Set adds the value of a metric of the section. labels are the values of its labels, in the order of scraped.txt.
func (s Samples) Set(name string, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	s.out <- prometheus.MustNewConstMetric(s.rows[name], kind, value, labels...)
}

// SetIf adds a metric with the value 1 if the condition is true, and 0 otherwise.
func (s Samples) SetIf(name string, is bool, labels ...string) {
	s.Set(name, map[bool]float64{true: 1}[is], labels...)
}

// Histogram adds a histogram; buckets has the counts by upper bound.
func (s Samples) Histogram(name string, count uint64, sum float64, buckets map[float64]uint64, labels ...string) {
	s.out <- prometheus.MustNewConstHistogram(s.rows[name], count, sum, buckets, labels...)
}

// Scraped registers a section of scraped.txt. read is called at each scrape and must add all values of the section, so that they are consistent with
// each other. Scraped may be called only once for a section.
func (m *Metrics) Scraped(section string, read func(Samples)) {
	m.registry.MustRegister(&scraped{scrapedRows()[section], read})
}

type scraped struct {
	rows map[string]*prometheus.Desc
	read func(Samples)
}

// Describe implements prometheus.Collector.
func (s *scraped) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range s.rows {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (s *scraped) Collect(out chan<- prometheus.Metric) { s.read(Samples{s.rows, out}) }
