package metrics

import "github.com/prometheus/client_golang/prometheus"

// Announcements are how many addresses are announced.
type Announcements struct {
	// Places are how many there are, by place (as "l2 eth0") and state.
	Places map[[2]string]int
	// Withheld are those that are not to be announced now.
	Withheld int
	// Announcer reports whether one is connected.
	Announcer bool
	// The counters of the announcer, since it started.
	Answers, Sent, Conflicts uint64
	Peers                    []Peer
}

// Peer is a BGP peer of the announcer.
type Peer struct {
	Name        string
	Established bool
	Routes      int
	BFD         bool // it is watched by BFD
	BFDUp       bool
}

// Announcements shows what read gives, which is asked at each scrape. It is called once.
func (m *Metrics) Announcements(read func() Announcements) {
	m.registry.MustRegister(&announcements{
		read:     read,
		places:   prometheus.NewDesc("svcctl_announced_vips", "Addresses of Services by where they are announced and what became of it there.", []string{"by", "state"}, nil),
		withheld: prometheus.NewDesc("svcctl_withheld_vips", "Addresses of Services that could be announced and are not, because nobody would be served.", nil, nil),
		up:       prometheus.NewDesc("svcctl_announcer_connected", "1 while svcctl announce is connected.", nil, nil),
		answers:  prometheus.NewDesc("svcctl_neighbor_answers_total", "Questions of neighbors (ARP, NDP) that svcctl announce answered since it started.", nil, nil),
		sent:     prometheus.NewDesc("svcctl_neighbor_announcements_total", "Announcements to neighbors that svcctl announce made since it started.", nil, nil),
		conflict: prometheus.NewDesc("svcctl_neighbor_conflicts_total", "Times that another host had an address, since svcctl announce started.", nil, nil),
		session:  prometheus.NewDesc("svcctl_bgp_session_up", "1 while the BGP session with a peer is established.", []string{"peer"}, nil),
		routes:   prometheus.NewDesc("svcctl_bgp_routes", "Routes that a BGP peer was sent and that were not withdrawn.", []string{"peer"}, nil),
		bfd:      prometheus.NewDesc("svcctl_bfd_up", "1 while the BFD session with a BGP peer is up.", []string{"peer"}, nil),
	})
}

type announcements struct {
	read                                          func() Announcements
	places, withheld, up, answers, sent, conflict *prometheus.Desc
	session, routes, bfd                          *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (a *announcements) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.places, a.withheld, a.up, a.answers, a.sent, a.conflict, a.session, a.routes, a.bfd} {
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
		if p.BFD {
			all <- prometheus.MustNewConstMetric(a.bfd, prometheus.GaugeValue, one(p.BFDUp), p.Name)
		}
	}
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
