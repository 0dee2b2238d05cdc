package describe

import "svcctl.io/svcctl/api/wire"

// Egress writes the traffic of the hosts whose outgoing connections use addresses of a Service as their source.
func (p *Page) Egress(rows []wire.EgressTraffic) {
	for i := range rows {
		p.line("Egress", "%s", rows[i].Text())
	}
	if len(rows) == 0 {
		p.line("Egress", "no endpoint leaves with an address of the Service")
	}
}
