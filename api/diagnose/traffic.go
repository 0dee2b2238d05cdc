package diagnose

import (
	"fmt"
	"math"
	"time"
)

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
				"%s%s without an answer of the endpoint, more than the %d that were answered", connections(uint64(p.Unanswered)), port, p.Open)
		}
		if p.Failed > 0 {
			d.add(Note, "`svcctl top svc/"+d.Name+" -n "+d.Namespace+"` counts them by endpoint", "%s%s failed in all: an endpoint refused them, or did not answer", connections(p.Failed), port)
		}
		switch {
		case p.Refused == nil:
		case p.RefusedRate != nil && *p.RefusedRate > 0:
			d.add(Doubt, "look at its endpoints: `svcctl describe svc/"+d.Name+" -n "+d.Namespace+"`",
				"clients are refused%s, as there is no endpoint: %s, %d in all", port, d.pace(*p.RefusedRate), *p.Refused)
		case *p.Refused > 0 && p.RefusedRate == nil:
			d.good("%s in all%s, whether lately is not known yet: ask once more; %s", refusals(*p.Refused), port, connections(*p.Connections)+" made")
		case *p.Refused > 0:
			d.good("%s in all%s, none lately; %s", refusals(*p.Refused), port, connections(*p.Connections)+" made")
		case d.Wide:
			d.good("%s in all%s, and none refused", connections(*p.Connections), port)
		}
	}
}

// pace is a rate of packets since the look before, which may be minutes ago.
func (d *diagnosis) pace(rate float64) string {
	if rate >= 0.05 {
		return fmt.Sprintf("%.1f packets a second", rate)
	}
	n := uint64(math.Round(rate * d.Traffic.Seconds))
	return fmt.Sprintf("%d in the last %s", max(n, 1), (time.Duration(d.Traffic.Seconds) * time.Second).String())
}

func connections(n uint64) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

func refusals(n uint64) string {
	if n == 1 {
		return "1 packet found no endpoint and was refused"
	}
	return fmt.Sprintf("%d packets found no endpoint and were refused", n)
}
