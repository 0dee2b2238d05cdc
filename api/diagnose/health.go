package diagnose

import (
	"fmt"
	"net/netip"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// health checks that the endpoints which are asked are up.
func (d *diagnosis) health() {
	if d.State == nil || d.isNewer() {
		return
	}
	for _, port := range d.ports() {
		var lines []string
		var checked, up, down, silent int
		worst := map[string]*wire.EndpointHealth{} // by endpoint: the probes of a Pod are several checks
		for i := range d.State.Health {
			e := &d.State.Health[i]
			if !d.isOf(e, port) {
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
		if checked == 0 && len(lines) > 0 {
			d.add(Doubt, "", "port %d/%s has endpoints that are taken out", port.Port, port.Protocol)
		}
		if len(lines) > 0 {
			d.details(shortened(lines)...)
		}
	}
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

// allDown says that each of n endpoints is down.
func allDown(n int) string {
	switch n {
	case 1:
		return "its only endpoint is down"
	case 2:
		return "both endpoints are down"
	}
	return fmt.Sprintf("all %d endpoints are down", n)
}

// of formats n of all endpoints with the verb: "1 of 4 endpoints is", "2 of 4 endpoints are".
func of(n, all int) string {
	verb := "are"
	if n == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %s %s", n, count(all, "endpoint"), verb)
}

// verdictText describes the health state of an endpoint: since when, why, and by which check.
func verdictText(e *wire.EndpointHealth) string {
	text := e.Endpoint + " is " + e.State
	if e.Since != nil {
		text += " since " + e.Since.Format("2006-01-02 15:04:05Z")
	} else {
		text += " since before the appliance started"
	}
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text + " (" + e.Check + ")"
}

// isOf reports whether an endpoint is one of a port, and of a family that is asked for.
func (d *diagnosis) isOf(e *wire.EndpointHealth, port object.ServicePort) bool {
	at, err := netip.ParseAddrPort(e.Endpoint)
	family := object.IPv6
	if at.Addr().Is4() {
		family = object.IPv4
	}
	return err == nil && e.Port == port.Name && e.Protocol == port.Protocol && d.wantsFamily(family)
}

// someAreKept reports whether an endpoint of a port is not up.
func (d *diagnosis) someAreKept(port object.ServicePort) bool {
	return d.State != nil && !d.isNewer() && len(d.kept(port)) > 0
}

// kept are the addresses of the endpoints of a port that get no connections for their health, or
// by hand.
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
