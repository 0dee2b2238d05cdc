package appliance

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// connectionMetrics are the numbers of the conntrack cleaner as metrics.
func connectionMetrics(s conntrack.Stats) metrics.Connections {
	return metrics.Connections{
		Looks: s.Looks, Entries: s.Entries, Forgotten: s.Forgotten,
		Reset: s.Reset, Failures: s.Failures, Draining: s.Draining, Retried: s.Retried,
	}
}

// flowMetrics are the numbers of who hears of connections as they end.
func flowMetrics(f *parts.Flows) metrics.Flows {
	m := metrics.Flows{EventsLost: f.Book().Lost()}
	if log := f.Log(); log != nil {
		m.Logs, m.Lines, m.LinesLost = true, log.Lines(), log.Lost()
	}
	return m
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
		peers[i] = metrics.Peer{Name: p.Name, Established: p.State == wire.Established, Routes: p.Routes, Updates: p.Updates, BFD: p.BFD != "", BFDUp: p.BFD == "Up"}
	}
	var group *metrics.Group
	if g := c.Group; g != nil {
		group = &metrics.Group{VRID: strconv.Itoa(int(g.VRID)), Active: g.State == "active" || g.State == "leaving", Transitions: g.Transitions, Differs: g.Differs != nil}
	}
	return metrics.Announcements{
		Peers: peers, Group: group, Drained: c.Drained,
		Places: c.Places, Withheld: c.Withheld, Announcer: c.Announcer,
		Answers: c.Reported.Answers, Sent: c.Reported.Announcements, Conflicts: c.Reported.Conflicts,
	}
}

// relayMetrics are the numbers of the relay as metrics. A port is that of both its pools.
func relayMetrics(r *parts.Relay) metrics.Relay {
	stats := r.Stats()
	protocol := func(name string, l relay.Load) metrics.RelayProtocol {
		return metrics.RelayProtocol{Protocol: name, Loopback: l.Loopback, Redirected: l.Redirected, Limit: l.Limit, Taken: l.Taken, TurnedAway: l.TurnedAway}
	}
	m := metrics.Relay{FailedConnects: stats.FailedConnects, Protocols: []metrics.RelayProtocol{protocol(relay.TCP, stats.TCP), protocol(relay.UDP, stats.UDP)}}
	for _, l := range r.Loads() {
		namespace, name, port := parts.PortOf(l.ID)
		p := metrics.RelayPort{
			Namespace: namespace, Service: name, Port: port, Protocol: l.Protocol, Family: nft.FamilyOf(l.Listen.Addr()).Name(),
			Taken: l.Taken, FailedConnects: l.FailedConnects, Open: map[string]int{},
		}
		// The pools of a port follow each other.
		if last := len(m.Ports) - 1; last >= 0 && m.Ports[last].IsSame(&p) {
			p.Taken, p.FailedConnects, p.Open = p.Taken+m.Ports[last].Taken, p.FailedConnects+m.Ports[last].FailedConnects, m.Ports[last].Open
			m.Ports = m.Ports[:last]
		}
		for endpoint, n := range l.Open {
			p.Open[endpoint.String()] += n
		}
		m.Ports = append(m.Ports, p)
	}
	return m
}

// relayedClients returns the endpoints of clients whose connections are relayed, at each call.
func relayedClients(r *parts.Relay) func() map[traffic.RelayedClient][]netip.AddrPort {
	return func() map[traffic.RelayedClient][]netip.AddrPort {
		clients := map[traffic.RelayedClient][]netip.AddrPort{}
		for _, p := range r.Passages() {
			protocol, _ := nft.ProtocolNamed(strings.ToUpper(p.Protocol))
			c := traffic.RelayedClient{Protocol: protocol, Client: p.Client, Listener: p.Listener}
			clients[c] = append(clients[c], p.Endpoint)
		}
		return clients
	}
}

// poolMetrics are the ranges of load balancer IPs as metrics.
func poolMetrics(objects *store.Store) (all []metrics.Pool) {
	for _, p := range objects.PoolsInUse() {
		all = append(all, metrics.Pool(p))
	}
	return all
}

// tlsMetrics are the numbers of TLS at relayed ports as metrics.
func tlsMetrics(r *parts.Relay) metrics.RelayedTLS {
	t := metrics.RelayedTLS{FailedHandshakes: r.Stats().FailedHandshakes, Ends: map[string]time.Time{}}
	for _, c := range r.Certificates() {
		t.Ends[c.Secret] = c.Expires
	}
	return t
}
