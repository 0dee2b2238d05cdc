package appliance

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/nft"
)

// count registers the sources of all metrics.
func (a *assembly) count(asks *prober.Prober) {
	m := a.metrics
	m.Scraped("log", func(to metrics.Samples) { to.Set("svcctl_log_dropped_total", float64(a.cfg.Log.Queue.Dropped())) })
	m.Scraped("announcements", func(to metrics.Samples) { announcementSamples(a.announced.Counts(), to) })
	m.Scraped("pools", func(to metrics.Samples) {
		for _, p := range a.store.IngressPools() {
			to.Set("svcctl_pool_addresses", float64(p.Size), cmp.Or(p.Name, "flags"), p.Range)
			to.Set("svcctl_pool_addresses_used", float64(p.Used), cmp.Or(p.Name, "flags"), p.Range)
		}
	})
	if a.cfg.Services.Traffic != config.TrafficOff {
		m.Scraped("refusals", func(to metrics.Samples) {
			packets, _ := a.kernel.Refusals() // none while they cannot be read
			for reason, n := range packets {
				to.Set("svcctl_refused_packets_total", float64(n), reason)
			}
		})
	}
	if f := a.parts.flows; f != nil {
		m.Scraped("flows", func(to metrics.Samples) {
			to.Set("svcctl_flow_events_lost_total", float64(f.Totals().Lost()))
			if log := f.Log(); log != nil {
				to.Set("svcctl_connection_log_lines_total", float64(log.Lines()))
				to.Set("svcctl_connection_log_lines_lost_total", float64(log.Lost()))
			}
		})
	}
	countFast(a)
	if a.member != nil {
		m.Scraped("fleet", a.member.samples)
	}
	m.Scraped("relay", func(to metrics.Samples) {
		relaySamples(a.parts.relay.Stats(), a.parts.relay.Loads(), to)
		for _, c := range a.parts.relay.Certificates() {
			namespace, name, _ := strings.Cut(c.Secret, "/")
			to.Set("svcctl_tls_certificate_expiry_timestamp_seconds", float64(c.Expires.Unix()), namespace, name)
		}
	})
	m.Scraped("health", func(to metrics.Samples) { healthSamples(asks.Stats(), a.parts.checks.FailingOpen(), to) })
}

// connectionSamples adds the metrics of deleted conntrack entries, from the statistics of the conntrack Cleaner.
func connectionSamples(s conntrack.Stats, to metrics.Samples) {
	to.Set("svcctl_conntrack_looks_total", float64(s.Looks))
	to.Set("svcctl_conntrack_entries_read_total", float64(s.Entries))
	to.Set("svcctl_conntrack_forgotten_total", float64(s.Forgotten))
	to.Set("svcctl_conntrack_reset_total", float64(s.Reset))
	to.Set("svcctl_conntrack_failures_total", float64(s.Failures))
	to.Set("svcctl_conntrack_retried_total", float64(s.Retried))
	to.Set("svcctl_conntrack_draining", float64(s.Draining))
}

// healthSamples adds the metrics of health checks. failingOpen is the sum of resolve.Output.FailingOpen of all Services.
func healthSamples(s prober.Stats, failingOpen int, to metrics.Samples) {
	for state, n := range s.Targets {
		to.Set("svcctl_health_targets", float64(n), state.String())
	}
	for state, n := range s.Transitions {
		to.Set("svcctl_health_transitions_total", float64(n), state.String())
	}
	for kind, outcomes := range s.Checks {
		for outcome, n := range outcomes {
			to.Set("svcctl_health_checks_total", float64(n), kind.String(), outcome.String())
		}
	}
	for kind, d := range s.Durations {
		buckets := make(map[float64]uint64, len(prober.Bounds))
		for i, bound := range prober.Bounds {
			buckets[bound] = d.Buckets[i]
		}
		to.Histogram("svcctl_health_check_duration_seconds", d.Count, d.Sum.Seconds(), buckets, kind.String())
	}
	to.Set("svcctl_health_failing_open", float64(failingOpen))
	to.Set("svcctl_health_checks_in_flight", float64(s.UnderWay))
	to.Set("svcctl_health_late_seconds", s.Late.Seconds())
	if !s.Expiry.IsZero() {
		to.Set("svcctl_health_certificate_expiry_seconds", time.Until(s.Expiry).Seconds())
	}
}

// announcementSamples adds the metrics of announced addresses.
func announcementSamples(c announcements.Counts, to metrics.Samples) {
	for place, n := range c.Places {
		to.Set("svcctl_announced_vips", float64(n), place[0], place[1])
	}
	for _, p := range c.Peers {
		to.SetIf("svcctl_bgp_session_up", p.State == wire.Established, p.Name)
		to.Set("svcctl_bgp_routes", float64(p.Routes), p.Name)
		to.Set("svcctl_bgp_updates_total", float64(p.Updates), p.Name)
		if p.BFD != "" {
			to.SetIf("svcctl_bfd_up", p.BFD == "Up", p.Name)
		}
	}
	if g := c.Group; g != nil {
		vrid := strconv.Itoa(int(g.VRID))
		to.SetIf("svcctl_vrrp_active", g.State == "active" || g.State == "leaving", vrid)
		to.Set("svcctl_vrrp_transitions_total", float64(g.Transitions), vrid)
		to.SetIf("svcctl_vrrp_group_disagrees", g.Differs != nil, vrid)
	}
	to.SetIf("svcctl_drained", c.Drained)
	to.Set("svcctl_withheld_vips", float64(c.Withheld))
	to.SetIf("svcctl_announcer_connected", c.Announcer)
	to.Set("svcctl_neighbor_answers_total", float64(c.Reported.Answers))
	to.Set("svcctl_neighbor_announcements_total", float64(c.Reported.Announcements))
	to.Set("svcctl_neighbor_conflicts_total", float64(c.Reported.Conflicts))
}

// relaySamples adds the metrics of the relay. A port has two pools, each with its own listener; their numbers are added.
func relaySamples(s relay.Stats, loads []relay.PortLoad, to metrics.Samples) {
	to.Set("svcctl_relay_failed_connects_total", float64(s.FailedConnects))
	to.Set("svcctl_tls_handshake_failures_total", float64(s.FailedHandshakes))
	for protocol, l := range map[string]relay.Load{relay.TCP: s.TCP, relay.UDP: s.UDP} {
		to.Set("svcctl_relay_open", float64(l.Redirected), protocol, "services")
		to.Set("svcctl_relay_open", float64(l.Loopback), protocol, "loopback")
		to.Set("svcctl_relay_limit", float64(l.Limit), protocol)
		to.Set("svcctl_relay_accepted_total", float64(l.Taken), protocol)
		to.Set("svcctl_relay_turned_away_total", float64(l.TurnedAway), protocol)
	}
	taken, failed, open := map[[5]string]int64{}, map[[5]string]int64{}, map[[6]string]int{}
	for _, l := range loads {
		namespace, name, port := parts.PortOf(l.ID)
		labels := [5]string{namespace, name, port, l.Protocol, nft.FamilyOf(l.Listen.Addr()).Name()}
		taken[labels] += l.Taken
		failed[labels] += l.FailedConnects
		for endpoint, n := range l.Open {
			open[[6]string(append(labels[:], endpoint.String()))] += n
		}
	}
	for labels, n := range taken {
		to.Set("svcctl_relay_port_accepted_total", float64(n), labels[:]...)
		to.Set("svcctl_relay_port_failed_connects_total", float64(failed[labels]), labels[:]...)
	}
	for labels, n := range open {
		to.Set("svcctl_relay_port_open", float64(n), labels[:]...)
	}
}

// relayedClients returns a function that lists the open relayed connections. It maps each client and listener to the endpoints that the relay
// connected to.
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
