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

// Announcements counts announced addresses.
type Announcements struct {
	// Places counts them by place (as "l2 eth0") and state.
	Places map[[2]string]int
	// Withheld counts the addresses that are not to be announced now.
	Withheld int
	// Announcer reports whether one is connected.
	Announcer bool
	// The counters of the announcer, since it started.
	Answers, Sent, Conflicts uint64
	Peers                    []Peer
	// Group is the election that the announcer takes part in; nil: none.
	Group *Group
	// Drained reports that the box is to announce nothing.
	Drained bool
}

// Group is an election of a virtual router.
type Group struct {
	VRID        string
	Active      bool // this box answers
	Transitions uint64
	Differs     bool // the box that answers has other addresses
}

// Peer is a BGP peer of the announcer.
type Peer struct {
	Name        string
	Established bool
	Routes      int
	Updates     uint64
	BFD         bool // it is watched by BFD
	BFDUp       bool
}

// Announcements shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) Announcements(read func() Announcements) {
	m.registry.MustRegister(&announcements{
		read:     read,
		places:   prometheus.NewDesc("svcctl_announced_vips", "Addresses of Services by where they are announced and what became of it there.", []string{"by", "state"}, nil),
		withheld: prometheus.NewDesc("svcctl_withheld_vips", "Addresses of Services that could be announced and are not, because no client would be served.", nil, nil),
		up:       prometheus.NewDesc("svcctl_announcer_connected", "1 while svcctl announce is connected.", nil, nil),
		answers:  prometheus.NewDesc("svcctl_neighbor_answers_total", "Questions of neighbors (ARP, NDP) that svcctl announce answered since it started.", nil, nil),
		sent:     prometheus.NewDesc("svcctl_neighbor_announcements_total", "Announcements to neighbors that svcctl announce made since it started.", nil, nil),
		conflict: prometheus.NewDesc("svcctl_neighbor_conflicts_total", "Times that another host had an address, since svcctl announce started.", nil, nil),
		session:  prometheus.NewDesc("svcctl_bgp_session_up", "1 while the BGP session with a peer is established.", []string{"peer"}, nil),
		routes:   prometheus.NewDesc("svcctl_bgp_routes", "Routes that a BGP peer was sent and that were not withdrawn.", []string{"peer"}, nil),
		updates:  prometheus.NewDesc("svcctl_bgp_updates_total", "UPDATE messages sent to a BGP peer since svcctl announce started.", []string{"peer"}, nil),
		active:   prometheus.NewDesc("svcctl_vrrp_active", "1 while this box answers for the virtual router.", []string{"vrid"}, nil),
		moves:    prometheus.NewDesc("svcctl_vrrp_transitions_total", "Changes of the state in the election of a virtual router since svcctl announce started.", []string{"vrid"}, nil),
		differs:  prometheus.NewDesc("svcctl_vrrp_group_disagrees", "1 while the box that answers lists other addresses than this one would.", []string{"vrid"}, nil),
		drained:  prometheus.NewDesc("svcctl_drained", "1 while this box is drained: it announces nothing.", nil, nil),
		bfd:      prometheus.NewDesc("svcctl_bfd_up", "1 while the BFD session with a BGP peer is up.", []string{"peer"}, nil),
	})
}

type announcements struct {
	read                                          func() Announcements
	places, withheld, up, answers, sent, conflict *prometheus.Desc
	session, routes, updates, bfd                 *prometheus.Desc
	active, moves, differs, drained               *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (a *announcements) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.places, a.withheld, a.up, a.answers, a.sent, a.conflict, a.session, a.routes, a.updates, a.bfd, a.active, a.moves, a.differs, a.drained} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (a *announcements) Collect(all chan<- prometheus.Metric) {
	now := a.read()
	for place, n := range now.Places {
		all <- prometheus.MustNewConstMetric(a.places, prometheus.GaugeValue, float64(n), place[0], place[1])
	}
	for _, p := range now.Peers {
		all <- prometheus.MustNewConstMetric(a.session, prometheus.GaugeValue, one(p.Established), p.Name)
		all <- prometheus.MustNewConstMetric(a.routes, prometheus.GaugeValue, float64(p.Routes), p.Name)
		all <- prometheus.MustNewConstMetric(a.updates, prometheus.CounterValue, float64(p.Updates), p.Name)
		if p.BFD {
			all <- prometheus.MustNewConstMetric(a.bfd, prometheus.GaugeValue, one(p.BFDUp), p.Name)
		}
	}
	if g := now.Group; g != nil {
		all <- prometheus.MustNewConstMetric(a.active, prometheus.GaugeValue, one(g.Active), g.VRID)
		all <- prometheus.MustNewConstMetric(a.moves, prometheus.CounterValue, float64(g.Transitions), g.VRID)
		all <- prometheus.MustNewConstMetric(a.differs, prometheus.GaugeValue, one(g.Differs), g.VRID)
	}
	all <- prometheus.MustNewConstMetric(a.drained, prometheus.GaugeValue, one(now.Drained))
	all <- prometheus.MustNewConstMetric(a.withheld, prometheus.GaugeValue, float64(now.Withheld))
	all <- prometheus.MustNewConstMetric(a.up, prometheus.GaugeValue, one(now.Announcer))
	for desc, n := range map[*prometheus.Desc]uint64{a.answers: now.Answers, a.sent: now.Sent, a.conflict: now.Conflicts} {
		all <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n))
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
