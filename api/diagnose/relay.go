package diagnose

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// relayed tells of ports whose connections the appliance makes itself, why, and what that costs.
func (d *diagnosis) relayed() {
	for _, port := range d.ports() {
		var at []string
		for _, s := range d.states(port) {
			if s.Relay != "" {
				at = append(at, s.Relay)
			}
		}
		if len(at) == 0 {
			continue
		}
		how := annotation.RelayOf(d.Service)
		d.good("port %d/%s is relayed, as %s asks: the kernel redirects its clients to the appliance, at %s", port.Port, port.Protocol, how.Key, strings.Join(at, " and "))
		if how.ProxyProtocol > 0 && port.Protocol == object.ProtocolTCP {
			d.details(fmt.Sprintf("endpoints get a header of the PROXY protocol, version %d, with the client's address: they have to expect it", how.ProxyProtocol))
		}
		if len(how.ProxyFrom) > 0 && port.Protocol == object.ProtocolTCP {
			d.details("connections from " + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(how.ProxyFrom), "[]")), ", ") + " have to begin with a header of the PROXY protocol; it says who their client is")
		}
		d.details("endpoints take turns; one that does not accept a connection in "+how.ConnectTimeout.String()+" is passed over, up to "+count(how.ConnectRetries, "time"),
			"endpoints see the address of this box, and open connections end when svcctl stops; new ones are refused until it runs again")
	}
}
