package diagnose

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// balance adds findings about the balancing of ports that do not give every endpoint an equal share.
func (d *diagnosis) balance() {
	for _, port := range d.ports() {
		for _, s := range d.states(port) {
			name := fmt.Sprintf("port %d/%s", port.Port, port.Protocol)
			if len(s.Endpoints) == 0 || s.Balance == "" || s.Balance == object.BalanceRandom && len(s.Weights)+len(s.Starting) == 0 && s.Refused == 0 && s.Client == "" {
				continue
			}
			by, written := s.Balance, d.Service.Metadata.Annotations[object.AnnotationBalance]
			if alias, err := object.ParseBalance(written); err == nil && alias == by && written != by {
				by += " (" + written + ")" // as the author wrote it
			}
			d.good("%s (%s) picks by %s%s", name, s.Family, by, weightsText(s))
			d.details(sharesText(s)...)
			d.details(d.chosen(s)...)
			if len(s.Adopted) > 0 {
				d.good("connections to %s go on when another box with the same endpoints takes over", strings.Join(s.Adopted, " and "))
			}
		}
	}
	d.portRanges()
	d.limits()
	if after, err := object.ParseRetryAfter(d.Service.Metadata.Annotations[object.AnnotationRetryAfter]); err == nil {
		d.good("a SYN that gets no answer for %s is forgotten: the client's next one chooses an endpoint again", after)
	}
}

// weightsText returns the weights of the endpoints that are used.
func weightsText(s wire.PortState) string {
	if len(s.Weights) == 0 {
		return ""
	}
	parts := object.Texts(slices.Sorted(maps.Keys(s.Weights)), func(ap string) string { return fmt.Sprintf("%s has %d", ap, s.Weights[ap]) })
	return ", with weights: " + strings.Join(shortened(parts), ", ")
}

// sharesText returns lines about endpoints and backends with unequal shares: current shares, refused shares, and new endpoints with growing shares.
func sharesText(s wire.PortState) (lines []string) {
	parts := object.Texts(slices.Sorted(maps.Keys(s.Shares)), func(ap string) string { return fmt.Sprintf("%s %.0f %%", ap, 100*s.Shares[ap]) })
	if len(parts) > 0 {
		lines = append(lines, "shares of new connections for now: "+strings.Join(shortened(parts), ", "))
	}
	if s.Refused > 0 {
		lines = append(lines, fmt.Sprintf("%.3g %% of new connections are refused, the shares of backends without a usable endpoint", 100*s.Refused))
	}
	if len(s.Starting) > 0 {
		lines = append(lines, "new, with a share that grows: "+strings.Join(shortened(s.Starting), ", "))
	}
	return lines
}

// chosen returns lines about the endpoint that the client in question gets at each frontend.
func (d *diagnosis) chosen(s wire.PortState) (lines []string) {
	if s.Client == "" {
		return nil
	}
	affinity := ""
	if d.Service.Spec.SessionAffinity == object.AffinityClientIP {
		affinity = ", unless session affinity remembers another"
	}
	for _, c := range s.Chosen {
		switch {
		case c.Excluded:
			lines = append(lines, fmt.Sprintf(excludedText, s.Client, c.Frontend))
		case c.Refused:
			lines = append(lines, fmt.Sprintf("%s is refused at %s: it gets the share of a backend without a usable endpoint%s", s.Client, c.Frontend, affinity))
		case c.Endpoint != "":
			lines = append(lines, fmt.Sprintf("%s gets %s at %s%s", s.Client, c.Endpoint, c.Frontend, affinity))
		case s.Balance == object.BalanceRoundRobin:
			lines = append(lines, fmt.Sprintf("the endpoint of %s at %s depends on earlier connections%s", s.Client, c.Frontend, affinity))
		case s.Balance == object.BalanceMaglev:
			lines = append(lines, fmt.Sprintf("what %s gets at %s depends on its port: ask with --client ADDRESS:PORT", s.Client, c.Frontend))
		default:
			lines = append(lines, fmt.Sprintf("what %s gets at %s is left to chance%s", s.Client, c.Frontend, affinity))
		}
	}
	return lines
}

// standsBy returns why an endpoint gets no new connections because of its weight or priority; "" if neither excludes it.
func (d *diagnosis) standsBy(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	weight, priority, best := uint16(0), uint8(object.MaxPriority), uint8(object.MaxPriority)
	weights := d.weights()
	for _, s := range d.Slices {
		for i := range s.Endpoints {
			w := weights.in(s, &s.Endpoints[i])
			if w > 0 {
				best = min(best, s.Metadata.PriorityOf())
			}
			if a := s.Endpoints[i].Addresses; len(a) > 0 && a[0] == addr.String() {
				weight, priority = max(weight, w), min(priority, s.Metadata.PriorityOf())
			}
		}
	}
	switch {
	case weight == 0:
		return "gets no new connections: its weight is 0"
	case priority > best:
		return fmt.Sprintf("stands by: its priority is %d, and endpoints of a lower one serve", priority)
	}
	return ""
}

// weights maps addresses to the weights that the Service's annotation gives them.
type weights map[string]uint16

func (d *diagnosis) weights() weights {
	list, _ := object.ParseWeights(d.Service.Metadata.Annotations[object.AnnotationWeights])
	of := make(weights, len(list))
	for _, w := range list {
		of[w.Addr.String()] = w.Weight
	}
	return of
}

// in returns the weight of the endpoint e of the slice s: the weight that w has for its address, or else the weight of the slice.
func (w weights) in(s *object.EndpointSlice, e *object.Endpoint) uint16 {
	if len(e.Addresses) > 0 {
		if own, given := w[e.Addresses[0]]; given {
			return own
		}
	}
	return s.Metadata.WeightOf()
}

// hasBalance reports whether weights or priorities may exclude endpoints: an endpoint has the weight 0, or an EndpointSlice has a priority other than
// 0.
func (d *diagnosis) hasBalance() bool {
	weights := d.weights()
	return slices.ContainsFunc(d.Slices, func(s *object.EndpointSlice) bool {
		return s.Metadata.PriorityOf() > 0 || slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool { return weights.in(s, &e) == 0 })
	})
}

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

// picked describes the algorithm by which a relayed port chooses an endpoint.
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
		if s.Service == "" {
			d.details(fmt.Sprintf("clients that ask for %s by TLS are reset", s.ServerName))
			continue
		}
		d.details(fmt.Sprintf("clients that ask for %s by TLS go to Service %s, without decrypting", s.ServerName, s.Service))
	}
}

// RangeAt reports whether one of a Service's port ranges contains a port of a protocol; "" means any protocol.
func RangeAt(svc *object.Service, port uint16, protocol string) bool {
	return slices.ContainsFunc(svc.PortRanges(), func(r object.PortRange) bool {
		return r.First <= port && port <= r.Last && (protocol == "" || protocol == r.Protocol)
	})
}

// ranges returns the port ranges of the Service that the Question is about; none if the port of the Question is in spec.ports.
func (d *diagnosis) ranges() (list []object.PortRange) {
	q := d.Question
	if d.asksNodePort() || d.Service.Headless() {
		return nil
	}
	for _, r := range d.Service.PortRanges() {
		exact := slices.ContainsFunc(d.Service.Spec.Ports, func(p object.ServicePort) bool {
			return q.Port != 0 && p.Port == int32(q.Port) && p.Protocol == r.Protocol
		})
		if !exact && (q.Port == 0 || r.First <= q.Port && q.Port <= r.Last) && (q.Protocol == "" || strings.EqualFold(q.Protocol, r.Protocol)) {
			list = append(list, r)
		}
	}
	return list
}

// behindRanges returns the ports whose endpoints serve the ranges that are asked for.
func (d *diagnosis) behindRanges() (ports []object.ServicePort) {
	for _, r := range d.ranges() {
		for _, p := range d.Service.Spec.Ports {
			if p.Name == r.Name && !slices.ContainsFunc(ports, func(o object.ServicePort) bool { return o.Name == p.Name }) {
				ports = append(ports, p)
			}
		}
	}
	return ports
}

// rangeFrontends returns the frontends of ranges, such as "TCP 192.0.2.1:8000-8010".
func (d *diagnosis) rangeFrontends() (list []string) {
	for _, r := range d.ranges() {
		for _, addr := range d.addresses() {
			if !d.Question.Address.IsValid() || addr == d.Question.Address {
				list = append(list, fmt.Sprintf("%s %s-%d", r.Protocol, netip.AddrPortFrom(addr, r.First), r.Last))
			}
		}
	}
	return list
}

// portRanges adds findings about the port ranges that are programmed.
func (d *diagnosis) portRanges() {
	if d.State == nil {
		return
	}
	for _, r := range d.ranges() {
		name := strings.TrimPrefix(fmt.Sprintf("%s/%s-%d-%d", r.Name, strings.ToLower(r.Protocol), r.First, r.Last), "/")
		at := slices.DeleteFunc(slices.Clone(d.State.Ports), func(s wire.PortState) bool {
			return s.Name != name || s.Protocol != r.Protocol || !d.wantsFamily(s.Family) || len(s.Frontends) == 0
		})
		for _, s := range at {
			if len(s.Endpoints) == 0 {
				d.add(Bad, d.makeReady(), "ports %d-%d/%s (%s) have no endpoint: clients are refused", r.First, r.Last, r.Protocol, s.Family)
				continue
			}
			d.good("ports %d-%d/%s (%s) go to the same port of %s, picked by %s%s", r.First, r.Last, r.Protocol, s.Family, count(len(s.Endpoints), "endpoint"), s.Balance, weightsText(s))
			d.details(d.chosen(s)...)
		}
	}
}

// limits adds a finding about the connection limits of a Service. For each limit it gives the number of packets refused by limits of that kind, of
// all Services together.
func (d *diagnosis) limits() {
	var parts []string
	for _, limit := range []struct{ key, of, reason string }{
		{object.AnnotationRateLimit, "%s new connections of each port", "rate-limit"},
		{object.AnnotationClientRateLimit, "%s new connections of a client", "client-rate-limit"},
		{object.AnnotationClientConnections, "%s open connections of a client", "client-connections"},
		{object.AnnotationEndpointConnections, "%s open connections of an endpoint", ""},
	} {
		value, given := d.Service.Metadata.Annotations[limit.key]
		if !given {
			continue
		}
		text := fmt.Sprintf(limit.of, value)
		if d.Traffic != nil && d.Traffic.Counted && d.Traffic.Refusals[limit.reason] > 0 {
			text += fmt.Sprintf(" (%d packets over such limits of all Services)", d.Traffic.Refusals[limit.reason])
		}
		parts = append(parts, text)
	}
	if len(parts) > 0 {
		d.good("limited to %s", strings.Join(parts, ", "))
	}
}
