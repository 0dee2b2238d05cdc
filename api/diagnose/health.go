package diagnose

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// health adds findings about the health of endpoints: the results of their health checks, and endpoints without a check that do not accept
// connections.
func (d *diagnosis) health() {
	if d.State == nil || d.isNewer() {
		return
	}
	for _, port := range d.ports() {
		var lines, dead []string
		var checked, up, down, silent int
		ejected := false
		worst := map[string]*wire.EndpointHealth{} // by endpoint: the probes of a Pod are several checks
		for i := range d.State.Health {
			e := &d.State.Health[i]
			if !d.isOf(e, port) {
				continue
			}
			if e.Check == wire.CheckOfFailures {
				dead, ejected = append(dead, verdictText(e)), e.Ejected
				continue
			}
			if e.State == wire.HealthOut {
				lines = append(lines, e.Endpoint+" is taken out by the annotation svcctl.io/out: `svcctl in` lets it in again")
				continue
			}
			if e.State != wire.HealthUp {
				lines = append(lines, verdictText(e))
			}
			if w := worst[e.Endpoint]; w == nil || w.State == wire.HealthUp || e.State == wire.HealthDown {
				worst[e.Endpoint] = e
			}
		}
		for _, e := range worst {
			checked++
			switch e.State {
			case wire.HealthUp:
				up++
			case wire.HealthDown:
				down++
				if strings.HasPrefix(e.Why, "no answer") {
					silent++
				}
			}
		}
		d.healthOf(fmt.Sprintf("port %d/%s", port.Port, port.Protocol), checked, up, down, silent)
		switch {
		case port.Protocol == object.ProtocolTCP:
			d.withoutCheck(port, checked, dead, ejected)
		case d.Probed != nil:
			d.add(Note, "svcctl.io/health-check has its servers asked in their own protocol: `svcctl explain svcctl.io/health-check`", "port %d/%s was not probed: only a connection of TCP shows whether an endpoint accepts", port.Port, port.Protocol)
		}
		if checked == 0 && len(lines) > 0 {
			d.add(Doubt, "", "port %d/%s has endpoints that are taken out", port.Port, port.Protocol)
		}
		if len(lines) > 0 {
			d.details(shortened(lines)...)
		}
	}
}

// withoutCheck adds findings about a TCP port without health checks: which of its endpoints are dead, and the results
// of the box's own connections to them.
func (d *diagnosis) withoutCheck(port object.ServicePort, checked int, dead []string, ejected bool) {
	name := fmt.Sprintf("port %d/%s", port.Port, port.Protocol)
	switch used := len(d.inUse(port, false)); {
	case len(dead) > 0 && len(dead) >= used && !ejected, len(dead) > 0 && used == 0:
		d.add(Bad, "start one of its servers, or correct their addresses in the EndpointSlice", "%s: none of its endpoints accepts connections (%d): clients fail", name, len(dead))
	case len(dead) > 0 && ejected:
		d.add(Doubt, "start that server", "%s: %s not accept connections and is taken out (svcctl.io/eject)", name, number(len(dead), "endpoint does", "endpoints do"))
	case len(dead) > 0:
		d.add(Doubt, "start that server; with svcctl.io/eject: \"true\", or svcctl.io/health-check, clients get other endpoints meanwhile", "%s: %s not accept connections, and clients still get it", name, number(len(dead), "endpoint does", "endpoints do"))
	case checked == 0 && used > 0 && d.Probed == nil:
		d.add(Note, fmt.Sprintf("`svcctl explain --probe svc/%s -n %s` connects to each endpoint now; svcctl.io/health-check: tcp has the box ask always", d.Name, d.Namespace),
			"%s has no health check: a dead endpoint shows only when connections of clients to it fail", name)
	}
	if len(dead) > 0 {
		d.details(shortened(dead)...)
	}
	var failed []string
	asked := 0
	for _, p := range d.Probed {
		if p.Port != port.Name || p.Protocol != port.Protocol {
			continue
		}
		if asked++; p.Why != "" {
			failed = append(failed, p.Endpoint+": "+p.Why)
		}
	}
	switch {
	case asked == 0:
	case len(failed) == 0:
		d.good("%s: %s accepted a connection of this box just now", name, each(asked))
	case len(failed) == asked:
		d.own(Bad, "see whether the servers run, and whether their firewall lets this box in", "%s: none of its endpoints accepted a connection of this box just now (%d)", name, asked)
	default:
		d.add(Doubt, "see whether that server runs, and whether its firewall lets this box in", "%s: %d of %d endpoints accepted no connection of this box just now", name, len(failed), asked)
	}
	if len(failed) > 0 {
		d.details(shortened(failed)...)
	}
}

// each returns "its endpoint" or "each of its 2 endpoints".
func each(n int) string {
	if n == 1 {
		return "its endpoint"
	}
	return fmt.Sprintf("each of its %d endpoints", n)
}

// healthOf adds the finding about the health checks of one port.
func (d *diagnosis) healthOf(name string, checked, up, down, silent int) {
	next := "look at that server, or correct the check in the Service's annotations; `svcctl health svc/" + d.Name + " -n " + d.Namespace + "` follows it"
	if silent > 0 && silent == down {
		next = "see whether the server runs, and whether its firewall lets this box in: checks come from the address that the routing table gives"
	}
	switch {
	case checked == 0:
	case up == checked:
		d.good("%s has health checks: %s up", name, of(up, checked))
	case down == 0:
		d.add(Doubt, "they are used as soon as they answer", "%s: %s new and did not answer yet", name, of(checked-up, checked))
	case up == 0:
		d.add(Bad, next, "%s: %s, so traffic still goes to %s", name, allDown(checked), map[bool]string{true: "it", false: "all that are ready"}[checked == 1])
	default:
		d.add(Doubt, next, "%s: %s down and %s no new connections", name, of(down, checked), map[bool]string{true: "gets", false: "get"}[down == 1])
	}
}

// allDown returns the text for n endpoints that are all down.
func allDown(n int) string {
	switch n {
	case 1:
		return "its only endpoint is down"
	case 2:
		return "both endpoints are down"
	}
	return fmt.Sprintf("all %d endpoints are down", n)
}

// of formats the number of endpoints out of all with a verb: "1 of 4 endpoints is", "2 of 4 endpoints are".
func of(n, all int) string {
	verb := "are"
	if n == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %s %s", n, count(all, "endpoint"), verb)
}

// verdictText describes the health state of an endpoint: since when, why, and by which check.
func verdictText(e *wire.EndpointHealth) string {
	since := "the first check" // of a new Service, or by this process
	if e.Since != nil {
		since = e.Since.Format("2006-01-02 15:04:05Z")
	}
	text := e.Endpoint + " is " + e.State + " since " + since
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text + " (" + e.Check + ")"
}

// isOf reports whether e is about an endpoint of the port, in an IP family that the Question is about.
func (d *diagnosis) isOf(e *wire.EndpointHealth, port object.ServicePort) bool {
	at, err := netip.ParseAddrPort(e.Endpoint)
	family := object.FamilyOf(at.Addr())
	return err == nil && e.Port == port.Name && e.Protocol == port.Protocol && d.wantsFamily(family)
}

// kept returns the addresses of the endpoints of a port that get no new connections because of their health, or because
// svcctl.io/out lists them.
func (d *diagnosis) kept(port object.ServicePort) map[string]bool {
	addrs := map[string]bool{}
	for i := range d.State.Health {
		e := &d.State.Health[i]
		if e.State == wire.HealthUp || !d.isOf(e, port) {
			continue
		}
		if at, err := netip.ParseAddrPort(e.Endpoint); err == nil {
			addrs[at.Addr().String()] = true
		}
	}
	return addrs
}

// traffic adds findings about refused clients of a Service that otherwise serves, and about
// endpoints that do not answer.
func (d *diagnosis) traffic() {
	if d.Traffic == nil {
		return
	}
	for i := range d.Traffic.Ports {
		p := &d.Traffic.Ports[i]
		port := ""
		if p.Port != "" {
			port = " at port " + p.Port
		}
		if p.Unanswered > 0 && p.Unanswered > p.Open {
			d.add(Doubt, "`svcctl top svc/"+d.Name+" -n "+d.Namespace+"` names the endpoint: check that it listens, and that its answers come back through this box",
				"%s%s without an answer of the endpoint, more than the %d that were answered", count(p.Unanswered, "connection"), port, p.Open)
		}
		if p.Failed > 0 {
			d.add(Note, "`svcctl top svc/"+d.Name+" -n "+d.Namespace+"` counts them by endpoint", "%s%s failed in all: an endpoint refused them, or did not answer", count(int(p.Failed), "connection"), port)
		}
		switch {
		case p.Refused == nil:
		case p.RefusedRate != nil && *p.RefusedRate > 0:
			d.add(Doubt, "look at its endpoints: `svcctl describe svc/"+d.Name+" -n "+d.Namespace+"`",
				"clients are refused%s, as there is no endpoint: %s, %d in all", port, d.pace(*p.RefusedRate), *p.Refused)
		case *p.Refused > 0 && p.RefusedRate == nil:
			d.good("%s in all%s, whether lately is not known yet: ask once more; %s", number(int(*p.Refused), "packet found no endpoint and was refused", "packets found no endpoint and were refused"), port, count(int(*p.Connections), "connection")+" made")
		case *p.Refused > 0:
			d.good("%s in all%s, none lately; %s", number(int(*p.Refused), "packet found no endpoint and was refused", "packets found no endpoint and were refused"), port, count(int(*p.Connections), "connection")+" made")
		case d.Wide:
			d.good("%s in all%s, and none refused", count(int(*p.Connections), "connection"), port)
		}
	}
}

// pace formats the rate of packets between the last two readings, which may be minutes apart.
func (d *diagnosis) pace(rate float64) string {
	if rate >= 0.05 {
		return fmt.Sprintf("%.1f packets a second", rate)
	}
	n := uint64(math.Round(rate * d.Traffic.Seconds))
	return fmt.Sprintf("%d in the last %s", max(n, 1), (time.Duration(d.Traffic.Seconds) * time.Second).String())
}
