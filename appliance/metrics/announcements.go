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
	// Counts are what the announcer counted since it started.
	Answers, Sent, Conflicts uint64
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
	})
}

type announcements struct {
	read                                          func() Announcements
	places, withheld, up, answers, sent, conflict *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (a *announcements) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{a.places, a.withheld, a.up, a.answers, a.sent, a.conflict} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (a *announcements) Collect(all chan<- prometheus.Metric) {
	now := a.read()
	for place, n := range now.Places {
		all <- prometheus.MustNewConstMetric(a.places, prometheus.GaugeValue, float64(n), place[0], place[1])
	}
	up := 0.0
	if now.Announcer {
		up = 1
	}
	all <- prometheus.MustNewConstMetric(a.withheld, prometheus.GaugeValue, float64(now.Withheld))
	all <- prometheus.MustNewConstMetric(a.up, prometheus.GaugeValue, up)
	for desc, n := range map[*prometheus.Desc]uint64{a.answers: now.Answers, a.sent: now.Sent, a.conflict: now.Conflicts} {
		all <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n))
	}
}
