package appliance

import (
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
)

// connectionMetrics are the numbers of the conntrack cleaner as metrics.
func connectionMetrics(s conntrack.Stats) metrics.Connections {
	return metrics.Connections{
		Looks: s.Looks, Entries: s.Entries, Forgotten: s.Forgotten,
		Reset: s.Reset, Failures: s.Failures, Draining: s.Draining, Retried: s.Retried,
	}
}

// healthMetrics are the numbers of the prober as metrics.
func healthMetrics(s prober.Stats, failingOpen int) metrics.HealthChecks {
	h := metrics.HealthChecks{
		Targets: map[string]float64{}, Transitions: map[string]float64{}, Durations: map[string]metrics.Durations{},
		FailingOpen: failingOpen, InFlight: s.UnderWay, Late: s.Late, Expiry: s.Expiry,
	}
	for state, n := range s.Targets {
		h.Targets[state.String()] = float64(n)
	}
	for state, n := range s.Transitions {
		h.Transitions[state.String()] = float64(n)
	}
	for kind, outcomes := range s.Checks {
		for outcome, n := range outcomes {
			h.Checks = append(h.Checks, metrics.CheckCount{Type: kind.String(), Result: outcome.String(), Count: float64(n)})
		}
	}
	for kind, d := range s.Durations {
		buckets := make(map[float64]uint64, len(prober.Bounds))
		for i, bound := range prober.Bounds {
			buckets[bound] = d.Buckets[i]
		}
		h.Durations[kind.String()] = metrics.Durations{Count: d.Count, Sum: d.Sum, Buckets: buckets}
	}
	return h
}

// announcementMetrics are the numbers of announcements as metrics.
func announcementMetrics(b *announcements.Book) metrics.Announcements {
	c := b.Counts()
	peers := make([]metrics.Peer, len(c.Peers))
	for i, p := range c.Peers {
		peers[i] = metrics.Peer{Name: p.Name, Established: p.State == wire.Established, Routes: p.Routes, BFD: p.BFD != "", BFDUp: p.BFD == "Up"}
	}
	return metrics.Announcements{
		Peers:  peers,
		Places: c.Places, Withheld: c.Withheld, Announcer: c.Announcer,
		Answers: c.Reported.Answers, Sent: c.Reported.Announcements, Conflicts: c.Reported.Conflicts,
	}
}

// tlsMetrics are the numbers of TLS at relayed ports as metrics.
func tlsMetrics(r *parts.Relay) metrics.RelayedTLS {
	t := metrics.RelayedTLS{FailedHandshakes: r.Stats().FailedHandshakes, Ends: map[string]time.Time{}}
	for _, c := range r.Certificates() {
		t.Ends[c.Secret] = c.Expires
	}
	return t
}
