package diagnose

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"slices"
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
		front := d.front(&how, &port)
		d.good("port %d/%s is relayed, as %s asks: the kernel redirects its clients to the appliance, at %s", port.Port, port.Protocol, cmp.Or(how.Key, front.Key), strings.Join(at, " and "))
		d.fronted(&front)
		if how.ProxyProtocol > 0 && port.Protocol == object.ProtocolTCP {
			d.details(fmt.Sprintf("endpoints get a header of the PROXY protocol, version %d, with the client's address: they have to expect it", how.ProxyProtocol))
		}
		d.details("endpoints take turns; one that does not accept a connection in "+how.ConnectTimeout.String()+" is passed over, up to "+count(how.ConnectRetries, "time"),
			"endpoints see the address of this box, and open connections end when svcctl stops; new ones are refused until it runs again")
	}
}

// front is what a port does with TLS and HTTP.
func (d *diagnosis) front(how *annotation.Relay, port *object.ServicePort) annotation.Front {
	for i := range how.Fronts {
		if p := &d.Service.Spec.Ports[i]; p.Name == port.Name && p.Port == port.Port && p.Protocol == port.Protocol {
			return how.Fronts[i]
		}
	}
	return annotation.Front{}
}

// fronted tells what a port does with TLS and HTTP, and with which certificates.
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
