package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// onlyLeave reports whether the Service only sets the source address of its endpoints' own connections (egress): the appliance found no endpoint that
// serves clients.
func (d *diagnosis) onlyLeave() bool {
	return d.Service.Metadata.Annotations[object.AnnotationEgress] != "" && slices.ContainsFunc(d.Status.Problems, func(p wire.Problem) bool {
		return p.Reason == "NoEndpoints" && p.Object == d.ref()
	})
}

// leaves adds findings about connections that an endpoint opens: the source address with which they leave the box, or why that is not an address of
// its Services.
func (d *diagnosis) leaves(source netip.Addr, backends []Backend) {
	var mentioned []string
	for i := range d.Traffic.Egress {
		e := &d.Traffic.Egress[i]
		for _, s := range e.Sources {
			if s.Address != source.String() {
				continue
			}
			text := fmt.Sprintf("it leaves with %s of %s/%s", e.Address, e.Namespace, e.Service)
			if e.To != "" {
				text += ", for destinations of " + e.To + " alone"
			}
			if s.Uplink != "" {
				text += fmt.Sprintf(", by %s (most connections to %s)", s.Uplink, s.Towards)
			}
			d.good("%s", text)
			mentioned = append(mentioned, e.Address)
			if s.Open == 0 && s.Connections != nil && *s.Connections == 0 {
				d.add(Doubt, "look at its routes: `ip route` there", "no connection that it began has passed this box: is it the default route of %s?", source)
			}
		}
	}
	for _, p := range d.Status.Problems {
		subject, _, ofAddress := strings.Cut(p.Message, " is announced nowhere: ")
		about := strings.FieldsFunc(p.Message, func(r rune) bool { return r == ' ' || r == ',' })
		some := p.Reason == "EgressNotAllowed" && !strings.HasPrefix(p.Message, "endpoints ") || p.Reason == "SharedEndpoint" || p.Reason == "EgressPorts"
		// "and 2 more" may be this one; a problem about no address in particular is about all endpoints.
		others := !some || len(mentioned) == 0 && slices.Contains(about, "more")
		if ofAddress && slices.Contains(mentioned, subject) {
			d.add(Doubt, "`svcctl explain "+subject+"` has the next step", "answers to its connections may not come back: %s", p.Message)
		} else if some && slices.Contains(about, source.String()) || others && strings.Contains(p.Field, object.AnnotationEgress) &&
			slices.ContainsFunc(backends, func(b Backend) bool { return p.Object == "Service "+b.Service }) {
			d.add(Doubt, "", "%s: %s", p.Object, p.Message)
		}
	}
}
