package metrics

import (
	"maps"
	"slices"
	"strconv"
	"time"

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

// Fleet describes the box as a member of its fleet.
type Fleet struct {
	State string
	// Revision is the newest revision that was followed, Newest the last one seen in etcd.
	Revision, Newest uint64
	// Heard is the time of etcd's last answer.
	Heard     time.Time
	LostRaces uint64
	// Turn is set on the box that runs the controllers for all.
	Turn bool
	// Rollout is the phase of the newest rollout, "" when there was none. RolloutHere says that this box programs the new versions
	// while others do not, RolloutStep and RolloutSteps are the present step, from 1, and their number.
	Rollout                   string
	RolloutHere               bool
	RolloutStep, RolloutSteps int
}

// Fleet shows what read gives, which is asked at each scrape. It is called once, on a box of a fleet.
func (m *Metrics) Fleet(read func() Fleet) {
	m.registry.MustRegister(&fleet{
		read:     read,
		state:    prometheus.NewDesc("svcctl_fleet_state", "1, with the state of this box in its fleet: Following while all is well.", []string{"state"}, nil),
		revision: prometheus.NewDesc("svcctl_fleet_revision", "The newest revision of the fleet that this box has followed.", nil, nil),
		newest:   prometheus.NewDesc("svcctl_fleet_newest_revision", "The newest revision of the fleet, as of etcd's last answer.", nil, nil),
		heard:    prometheus.NewDesc("svcctl_fleet_heard_timestamp_seconds", "When etcd answered last, in seconds since 1970.", nil, nil),
		lost:     prometheus.NewDesc("svcctl_fleet_lost_races_total", "Commits of this box that another box was ahead of, and that were decided anew.", nil, nil),
		phase:    prometheus.NewDesc("svcctl_rollout_phase", "1, with the phase of the newest rollout in the fleet: Stopped when it waits for somebody. Absent when there was none.", []string{"phase"}, nil),
		step:     prometheus.NewDesc("svcctl_rollout_step", "The step of the newest rollout, from 1; 0 while its changes are being written.", nil, nil),
		steps:    prometheus.NewDesc("svcctl_rollout_steps", "The number of steps of the newest rollout.", nil, nil),
		here:     prometheus.NewDesc("svcctl_rollout_new_versions", "1 while this box programs the new versions of a rollout that is under way.", nil, nil),
		turn:     prometheus.NewDesc("svcctl_fleet_turn", "1 while this box runs the controllers for its fleet.", nil, nil),
	})
}

type fleet struct {
	read                                       func() Fleet
	state, revision, newest, heard, lost, turn *prometheus.Desc
	phase, step, steps, here                   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (f *fleet) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.state, f.revision, f.newest, f.heard, f.lost, f.turn, f.phase, f.step, f.steps, f.here} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (f *fleet) Collect(all chan<- prometheus.Metric) {
	now := f.read()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		all <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(f.state, 1, now.State)
	gauge(f.revision, float64(now.Revision))
	gauge(f.newest, float64(now.Newest))
	if !now.Heard.IsZero() {
		gauge(f.heard, float64(now.Heard.UnixMilli())/1000)
	}
	is := map[bool]float64{true: 1}
	gauge(f.turn, is[now.Turn])
	if now.Rollout != "" {
		gauge(f.phase, 1, now.Rollout)
		gauge(f.step, float64(now.RolloutStep))
		gauge(f.steps, float64(now.RolloutSteps))
		gauge(f.here, is[now.RolloutHere])
	}
	all <- prometheus.MustNewConstMetric(f.lost, prometheus.CounterValue, float64(now.LostRaces))
}
