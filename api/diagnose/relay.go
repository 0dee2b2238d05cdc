package diagnose

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// relayed adds findings about relayed ports: why they are relayed, and the consequences.
func (d *diagnosis) relayed() {
	for _, port := range d.ports() {
		var at, loads []string
		for _, s := range d.states(port) {
			if s.Relay != "" {
				at = append(at, s.Relay)
			}
			if s.RelayLoad != nil {
				loads = append(loads, loadText(&s))
			}
		}
		if len(at) == 0 {
			continue
		}
		how := annotation.RelayOf(d.Service)
		front := d.front(&how, &port)
		d.good("port %d/%s is relayed, as %s asks: the kernel redirects its clients to the appliance, at %s", port.Port, port.Protocol, cmp.Or(how.Key, front.Key), strings.Join(at, " and "))
		d.fronted(&front)
		if how.ProxyProtocol > 0 && port.Protocol == object.ProtocolTCP {
			d.details(fmt.Sprintf("endpoints get a header of the PROXY protocol, version %d, with the client's address: they have to expect it", how.ProxyProtocol))
		}
		if len(how.ProxyFrom) > 0 && port.Protocol == object.ProtocolTCP {
			d.details("connections from " + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(how.ProxyFrom), "[]")), ", ") + " have to begin with a header of the PROXY protocol; it names their client")
		}
		d.details(picked(d.states(port))+"; one that does not accept a connection in "+how.ConnectTimeout.String()+" is passed over, up to "+count(how.ConnectRetries, "time"),
			endpointsSee(&how, port.Protocol)+", and open connections end when svcctl stops, but not at an upgrade")
		d.details(loads...)
	}
}

// picked describes how a relayed port chooses an endpoint.
func picked(states []wire.PortState) string {
	i := slices.IndexFunc(states, func(s wire.PortState) bool { return s.Relay != "" })
	if i < 0 || states[i].Balance == object.BalanceRoundRobin {
		return "endpoints take turns"
	}
	return "endpoints are picked by " + states[i].Balance
}

// endpointsSee describes the source address that endpoints see.
func endpointsSee(how *annotation.Relay, protocol string) string {
	if how.Transparent && protocol == object.ProtocolTCP {
		return "endpoints see the client's address, as " + annotation.Transparent + " asks"
	}
	return "endpoints see the address of this box"
}

// loadText describes the present load of a relayed port in one family.
func loadText(s *wire.PortState) string {
	noun, open := "connection", 0
	if s.Protocol == object.ProtocolUDP {
		noun = "client"
	}
	var each []string
	for _, endpoint := range slices.Sorted(maps.Keys(s.RelayLoad.Open)) {
		n := s.RelayLoad.Open[endpoint]
		open += n
		each = append(each, fmt.Sprintf("%s %d", endpoint, n))
	}
	text := fmt.Sprintf("%s: %s now", s.Family, count(open, noun))
	if len(each) > 0 {
		text += " (" + strings.Join(shortened(each), ", ") + ")"
	}
	text += fmt.Sprintf(", %d since it is relayed", s.RelayLoad.Taken)
	if s.Protocol == object.ProtocolTCP {
		text += ", " + count(int(s.RelayLoad.FailedConnects), "endpoint") + " did not accept"
	}
	return text
}

// front returns the settings for TLS and HTTP of a port.
func (d *diagnosis) front(how *annotation.Relay, port *object.ServicePort) annotation.Front {
	for i := range how.Fronts {
		if p := &d.Service.Spec.Ports[i]; p.Name == port.Name && p.Port == port.Port && p.Protocol == port.Protocol {
			return how.Fronts[i]
		}
	}
	return annotation.Front{}
}

// fronted adds details about TLS and HTTP of a port: policy, certificates, headers.
func (d *diagnosis) fronted(f *annotation.Front) {
	if len(f.Secrets) > 0 {
		d.details(fmt.Sprintf("TLS of clients ends here, from version %s on, with the certificates of %s:", tls.VersionName(f.Policy.Min), strings.Join(f.Secrets, ", ")))
		for _, c := range d.State.Certificates {
			if slices.ContainsFunc(f.Secrets, func(name string) bool { return c.Secret == d.Namespace+"/"+name }) {
				d.details("  Secret " + c.String())
			}
		}
		switch {
		case f.ClientCA != "" && f.ClientOptional:
			d.details("clients may have a certificate, which has to be of the CA in Secret " + f.ClientCA)
		case f.ClientCA != "":
			d.details("clients need a certificate of the CA in Secret " + f.ClientCA)
		}
	}
	if f.HTTP {
		d.details("requests are passed on one by one, with X-Forwarded-For, -Proto and -Port; an endpoint takes " + f.ResponseTimeout.String() + " at most to begin its answer")
	}
	switch {
	case f.BackendTLS && f.BackendCA != "":
		d.details(fmt.Sprintf("connections to endpoints have TLS; their certificate has to be of the CA in Secret %s, for %s", f.BackendCA, f.BackendName))
	case f.BackendTLS:
		d.details("connections to endpoints have TLS; their certificate is not checked")
	}
	for _, s := range f.Services {
		d.details(fmt.Sprintf("clients that ask for %s by TLS go to Service %s, without decrypting", s.ServerName, s.Service))
	}
}
