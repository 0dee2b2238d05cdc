package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// tally counts the endpoints of a Service port.
type tally struct {
	ready, draining, unfit int
	local                  int // number of ready and draining endpoints on this box
	why                    []string
	// usable has the addresses of the ready endpoints, drains those of the draining ones.
	usable []string
	drains []string
	shared bool // the endpoints are of the other IP family than the addresses, and used by a relay
}

func (t *tally) total() int { return t.ready + t.draining + t.unfit }

// maxDetails bounds the lines of details of a finding, such as one for each endpoint.
const maxDetails = 10

// shortened returns at most maxDetails lines of a list, and a line with the number of the others.
func shortened(lines []string) []string {
	if len(lines) <= maxDetails {
		return lines
	}
	return append(lines[:maxDetails:maxDetails], fmt.Sprintf("and %d more", len(lines)-maxDetails)) // in a copy: the list is the caller's
}

// endpoints checks that each port that is asked for has a usable endpoint.
func (d *diagnosis) endpoints() {
	if !slices.ContainsFunc(d.Slices, func(s *object.EndpointSlice) bool { return len(s.Endpoints) > 0 }) {
		if slices.ContainsFunc(d.ports(), func(p object.ServicePort) bool { return !d.leadsOn(&p) }) {
			d.noEndpoints()
		}
		for _, port := range d.ports() {
			if d.leadsOn(&port) {
				d.goodAlone(&port)
			}
		}
		return
	}
	for _, port := range d.ports() {
		name := fmt.Sprintf("port %d/%s", port.Port, port.Protocol)
		t, others := d.tally(port)
		total := t.total()
		if t.shared {
			d.good("%s uses endpoints of the other family: the relay connects to either", name)
		}
		d.oneSided(port, name)
		if d.notUsed(port, name, t, total) {
			continue
		}
		switch {
		case t.ready > 0 && t.ready == total && d.State != nil && !d.isNewer() && len(d.kept(port)) > 0:
			d.good("%s has %s; their health is below", name, count(total, "endpoint"))
		case t.ready > 0 && t.ready == total:
			d.good("%s has %s, all ready", name, count(total, "endpoint"))
		case t.ready > 0:
			d.good("%s has %s, %d of them ready", name, count(total, "endpoint"), t.ready)
			d.details(t.why...)
		case t.draining > 0:
			d.add(Doubt, "make one ready: what is left goes when it has finished", "%s has no endpoint that is ready: it uses %s terminating", name, number(t.draining, "endpoint that is", "endpoints that are"))
			d.details(t.why...)
		case d.leadsOn(&port):
			d.goodAlone(&port)
		case total > 0 && d.onlyLeave():
			d.add(Doubt, "", "%s has %s, which only begin connections: clients are refused, as is written", name, count(total, "endpoint"))
		case total > 0:
			d.add(Bad, d.makeReady(), "%s has %s, and none is ready: clients are refused", name, count(total, "endpoint"))
			d.details(t.why...)
		case len(others) > 0:
			d.add(Bad, "name it in the EndpointSlice as in the Service", "%s is called %q, and no EndpointSlice has a port of that name and protocol: they have %s", name, port.Name, strings.Join(others, ", "))
		default:
			d.own(Bad, d.makeReady()+useOtherFamily(&port), "%s has no endpoints of the family of its addresses: clients are refused", name)
		}
	}
}

// useOtherFamily returns advice to use a relay for a port that has endpoints only in the other IP family than its addresses. It returns "" for SCTP,
// which cannot be relayed.
func useOtherFamily(port *object.ServicePort) string {
	if port.Protocol == object.ProtocolSCTP {
		return ""
	}
	return ", or write " + annotation.ProxyMode + ": userspace: a relay uses endpoints of either family"
}

// isRelayed reports whether a port of the Service is relayed.
func (d *diagnosis) isRelayed(port object.ServicePort) bool {
	relay := annotation.RelayOf(d.Service)
	i := slices.IndexFunc(d.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Name == port.Name && p.Protocol == port.Protocol })
	return i >= 0 && relay.Relays(d.Service, i)
}

// oneSided adds a finding about a port that has endpoints in one family only.
func (d *diagnosis) oneSided(port object.ServicePort, name string) {
	states := d.states(port)
	if d.isNewer() || !slices.ContainsFunc(states, func(s wire.PortState) bool { return len(s.Endpoints) > 0 }) {
		return
	}
	for _, s := range states {
		if len(s.Endpoints) == 0 && len(s.Frontends) > 0 {
			d.add(Doubt, "add endpoints of that family, or leave it out of spec.ipFamilies"+useOtherFamily(&port), "%s has no %s endpoint that is used: clients of its %s addresses are refused", name, s.Family, s.Family)
		}
	}
}

// notUsed adds findings about endpoints that the objects offer but the appliance does not use. If the whole port is refused, the finding is about
// that instead. notUsed reports whether it added a finding.
func (d *diagnosis) notUsed(port object.ServicePort, name string, t tally, total int) bool {
	if d.State == nil || d.Service.Headless() || t.ready+t.draining == 0 || d.isNewer() {
		return false
	}
	if why := d.refusal(port); len(why) > 0 {
		outcome := "clients are refused"
		if !slices.ContainsFunc(d.State.Ports, func(s wire.PortState) bool { return len(s.Frontends) > 0 }) {
			outcome = "clients get no answer"
		}
		d.add(Bad, "fix that in the Service, or in the Secret that it names: its endpoints are not the reason", "%s is not served, and %s", name, outcome)
		d.details(shortened(why)...)
		return true
	}
	usable := t.usable
	if t.ready == 0 {
		usable = t.drains
	}
	kept := d.kept(port)
	usable = slices.DeleteFunc(slices.Clone(usable), func(addr string) bool { return kept[addr] }) // health lists them
	lines, n := d.leftOut(port, usable)
	if n == 0 {
		return false
	}
	lines = append(lines, t.why...)
	next := "correct the addresses, or the ports, of these endpoints where they are written"
	switch used := len(usable) - n; {
	case used == 0:
		d.add(Bad, next, "%s has %s, and none of them is used: clients are refused", name, count(total, "endpoint"))
	case (d.hasTopology() || d.hasBalance()) && !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "is left out") }):
		d.good("%s has %s, and this box uses %d of them", name, count(total, "endpoint"), used)
	default:
		d.add(Doubt, next, "%s has %s, and uses %d of them", name, count(total, "endpoint"), used)
	}
	d.details(lines...)
	return true
}

// tally counts the endpoints of a port in the IP families of the Question. If a relayed port has none there, it counts those of the other family. If
// no EndpointSlice has the port, others lists the ports that the EndpointSlices have.
func (d *diagnosis) tally(port object.ServicePort) (t tally, others []string) {
	if t, others = d.tallyOf(port, d.wantsFamily); t.total() == 0 && d.isRelayed(port) {
		if all, _ := d.tallyOf(port, func(string) bool { return true }); all.total() > 0 {
			all.shared = true
			return all, nil
		}
	}
	return t, others
}

func (d *diagnosis) tallyOf(port object.ServicePort, wants func(addressType string) bool) (t tally, others []string) {
	var different []object.EndpointPort
	found := false
	seen := map[string]bool{}
	for _, s := range d.Slices {
		if !wants(s.AddressType) {
			continue
		}
		for _, p := range s.Ports {
			p.Protocol = new(cmp.Or(object.Deref(p.Protocol), object.ProtocolTCP))
			if object.Deref(p.Name) != port.Name || *p.Protocol != port.Protocol {
				different = append(different, p)
				continue
			}
			found = true
			for i := range s.Endpoints {
				if e := &s.Endpoints[i]; len(e.Addresses) > 0 && !seen[e.Addresses[0]] {
					seen[e.Addresses[0]] = true
					d.count(&t, s, e)
				}
			}
		}
	}
	if !found {
		others = object.Texts(different, func(p object.EndpointPort) string { return fmt.Sprintf("%q/%s", object.Deref(p.Name), *p.Protocol) })
	}
	slices.Sort(others)
	t.why = shortened(t.why)
	return t, slices.Compact(others)
}

// wantsFamily reports whether endpoints of an address type matter for the Question.
func (d *diagnosis) wantsFamily(addressType string) bool {
	if a := d.Question.Address; a.IsValid() {
		return addressType == map[bool]string{true: object.IPv4, false: object.IPv6}[a.Is4()]
	}
	families := d.Service.Spec.IPFamilies
	return len(families) == 0 || slices.Contains(families, addressType)
}

// count adds one endpoint of an EndpointSlice to a tally.
func (d *diagnosis) count(t *tally, s *object.EndpointSlice, e *object.Endpoint) {
	c := e.Conditions
	used, terminating := true, object.Deref(c.Terminating)
	state := ""
	switch {
	case c.Ready == nil || *c.Ready:
		t.ready++
		t.usable = append(t.usable, e.Addresses[0])
	case (c.Serving == nil || *c.Serving) && terminating:
		t.draining++
		t.drains = append(t.drains, e.Addresses[0])
		state = "is terminating and still serves"
	case terminating:
		used, state = false, "is terminating"
		t.unfit++
	default:
		used, state = false, "is not ready"
		t.unfit++
	}
	if used && d.isLocal(e.NodeName) {
		t.local++
	}
	if state != "" {
		t.why = append(t.why, fmt.Sprintf("%s %s%s, in EndpointSlice %s", e.Addresses[0], state, d.podState(e.TargetRef), s.Metadata.Name))
	}
}

// podState describes the Pod behind an endpoint.
func (d *diagnosis) podState(ref *object.ObjectReference) string {
	if ref == nil || ref.Kind != object.KindPod {
		return ""
	}
	text := ": Pod " + ref.Name
	switch i := slices.IndexFunc(d.Pods, func(p *object.Pod) bool { return p.Metadata.Name == ref.Name }); {
	case i < 0:
		return text
	case d.Pods[i].Terminating():
		return text + " is being deleted"
	case d.Pods[i].Terminal():
		return text + " is " + d.Pods[i].Status.Phase
	case !d.Pods[i].Ready():
		return text + " has not the condition Ready"
	}
	return text
}

// makeReady returns the next step for endpoints that are not ready.
func (d *diagnosis) makeReady() string {
	return fmt.Sprintf("make one ready, and look at `svcctl get endpointslices -n %s -l kubernetes.io/service-name=%s -o yaml`", d.Namespace, d.Name)
}

// leadsOn reports whether a port passes clients on to other Services by server name.
func (d *diagnosis) leadsOn(port *object.ServicePort) bool {
	return len(d.front(new(annotation.RelayOf(d.Service)), port).Services) > 0
}

// goodAlone adds a good finding about a port without its own endpoints that forwards TLS clients by server name (SNI).
func (d *diagnosis) goodAlone(port *object.ServicePort) {
	d.good("port %d/%s has no endpoint of its own: clients that ask for a server name that leads to no Service are refused", port.Port, port.Protocol)
}

// noEndpoints adds the finding about why the Service has no endpoints.
func (d *diagnosis) noEndpoints() {
	switch selector := d.Service.Spec.Selector; {
	case annotation.HasSources(d.Service.Metadata.Annotations):
		d.add(Bad, "see its problems above and `journalctl -u svcctl-discover`; `systemctl start svcctl-discover` if it does not run",
			"svcctl discover has written no endpoints for its %s: clients are refused", annotation.EndpointsFrom)
	case len(selector) == 0:
		d.add(Bad, fmt.Sprintf("apply an EndpointSlice with the label kubernetes.io/service-name=%s in the namespace %s, or give the Service a selector", d.Name, d.Namespace),
			"no EndpointSlice names endpoints of it, and it has no selector to find some: clients are refused")
	case len(d.Pods) == 0:
		d.add(Bad, fmt.Sprintf("label a Pod so, or change the selector: `svcctl get pods -n %s --show-labels`", d.Namespace),
			"no Pod has the labels %s: it has no endpoints, and clients are refused", object.Pairs(selector))
	default:
		d.add(Bad, fmt.Sprintf("see whether they have IPs: `svcctl get pods -n %s -o wide`", d.Namespace),
			"%s the labels %s, and no EndpointSlice has them: clients are refused", number(len(d.Pods), "Pod has", "Pods have"), object.Pairs(selector))
	}
}

// isLocal reports whether an endpoint is on this box.
func (d *diagnosis) isLocal(node *string) bool {
	if object.Deref(node) == "" {
		return d.NodelessLocal
	}
	return *node == d.Status.NodeName
}

// policies checks that each port has an endpoint on this box if the traffic policy for the Question is Local.
func (d *diagnosis) policies() {
	spec := &d.Service.Spec
	external := spec.ExternalTrafficPolicy == object.PolicyLocal && d.external()
	if internal := object.Deref(spec.InternalTrafficPolicy) == object.PolicyLocal && d.internal(); !external && !internal {
		return
	}
	for _, port := range d.ports() {
		t, _ := d.tally(port)
		if t.ready+t.draining == 0 {
			continue // a finding has that there are no endpoints at all
		}
		which := "externalTrafficPolicy"
		if !external {
			which = "internalTrafficPolicy"
		}
		if d.State != nil && !d.isNewer() {
			t.local = len(d.inUse(port, true)) // from the appliance
		}
		if t.local > 0 {
			d.good("%s is Local, and port %d/%s has %s on this box (%s)", which, port.Port, port.Protocol, count(t.local, "endpoint"), d.Status.NodeName)
			continue
		}
		d.add(Bad, fmt.Sprintf("run one here, write nodeName: %s at an endpoint that is here, or set the policy to Cluster", d.Status.NodeName),
			"%s is Local, and no usable endpoint of port %d/%s is on this box (%s): clients get no answer", which, port.Port, port.Protocol, d.Status.NodeName)
	}
}

// external reports whether the Question may be about an address other than a cluster IP.
func (d *diagnosis) external() bool {
	if d.Question.Address.IsValid() {
		return !d.isClusterIP(d.Question.Address)
	}
	return d.Service.Spec.Type != object.TypeClusterIP || len(d.Service.Spec.ExternalIPs) > 0
}

// internal reports whether the Question may be about a cluster IP.
func (d *diagnosis) internal() bool {
	return !d.asksNodePort() && (!d.Question.Address.IsValid() || d.isClusterIP(d.Question.Address))
}

func (d *diagnosis) isClusterIP(addr netip.Addr) bool {
	return addr.IsValid() && slices.Contains(d.Service.Spec.ClusterIPs, addr.String())
}

// excludedText has a client and a frontend that it may not connect to.
const excludedText = "%s gets no answer at %s: it is not among the clients that may connect"

// excluded adds a finding if the address and port of the Question do not answer its client.
func (d *diagnosis) excluded() {
	at := netip.AddrPortFrom(d.Question.Address, d.Question.Port).String()
	if d.asksNodePort() {
		at = fmt.Sprintf(":%d", d.Question.Port)
	}
	for _, port := range d.ports() {
		for _, s := range d.states(port) {
			for _, c := range s.Chosen {
				if c.Excluded && c.Frontend == at {
					d.add(Bad, "add its network to those that may connect, or ask from one of them", excludedText, s.Client, at)
				}
			}
		}
	}
}

// clients adds findings about restrictions on which clients may connect.
func (d *diagnosis) clients() {
	d.excluded()
	if internal := annotation.InternalOf(d.Service).Key; internal != "" && !d.isClusterIP(d.Question.Address) {
		d.add(Doubt, "ask from inside, or add the client's network to --load-balancer-internal-from",
			"it is internal, as %s asks: its load balancer IP and node ports answer only the box, --cluster-cidr and --load-balancer-internal-from", internal)
	}
	if d.clusterIPInside() {
		d.add(Doubt, "ask from inside, or add the client's network to --load-balancer-internal-from",
			"its cluster IP answers only the box, --cluster-cidr and --load-balancer-internal-from, as --cluster-ip-clients internal asks")
	}
	annotations, balanced := d.Service.Metadata.Annotations, d.Service.Spec.Type == object.TypeLoadBalancer
	apply := annotations[annotationRangesApply]
	everywhere := apply != "" && apply != "load-balancer" || apply == "" && annotation.IsNLB(d.Service)
	if d.isClusterIP(d.Question.Address) {
		return
	}
	ranges := d.Service.Spec.LoadBalancerSourceRanges
	if len(ranges) == 0 {
		ranges, _ = annotation.SourceRanges(annotations)
	}
	if len(ranges) > 0 && balanced && (everywhere || !d.asksNodePort()) {
		what := "its load balancer IP answers"
		if everywhere {
			what = "its addresses and node ports answer"
		}
		d.add(Doubt, "add the client's network to loadBalancerSourceRanges if it is not among them",
			"%s only clients from %s", what, strings.Join(ranges, ", "))
	}
	for _, key := range annotationsOfSets {
		names := annotations[key]
		if names == "" || !balanced && key != annotationSourceSets || balanced && !everywhere && d.asksNodePort() {
			continue
		}
		d.add(Doubt, "look whether the client is in the files that --source-set of the box names for them",
			"source sets limit which of its clients may connect: %s", names)
	}
}

// clusterIPInside reports whether the Question may be about a cluster IP that only internal clients reach.
func (d *diagnosis) clusterIPInside() bool {
	return d.State != nil && d.internal() && slices.ContainsFunc(d.State.InsideOnly, func(frontend string) bool {
		at, err := netip.ParseAddrPort(frontend)
		return err == nil && d.isClusterIP(at.Addr())
	})
}

// Annotations that restrict clients, as the appliance reads them.
const (
	annotationRangesApply = "svcctl.io/source-ranges-apply"
	annotationSourceSets  = "svcctl.io/source-sets"
)

var annotationsOfSets = []string{
	annotationSourceSets,
	"service.beta.kubernetes.io/aws-load-balancer-extra-security-groups",
	"service.beta.kubernetes.io/aws-load-balancer-security-groups",
}

// bridged adds a finding about endpoints that are behind a bridge and therefore do not reach themselves through the Service.
func (d *diagnosis) bridged() {
	if d.State == nil || len(d.State.Bridged) == 0 {
		return
	}
	first := d.State.Bridged[0]
	addresses := object.Texts(d.State.Bridged, func(e wire.BridgedEndpoint) string {
		return e.Address + " is behind " + e.Bridge + ", and " + e.Setting + " is 1"
	})
	d.add(Doubt, "if endpoints are clients of this Service, run `sysctl -w "+first.Setting+"=0`; iptables rules that filter between the ports of a bridge need 1",
		"an endpoint that is balanced to itself gets no answer: it has %s behind a bridge whose packets pass the rules for routed ones", number(len(addresses), "endpoint that is", "endpoints that are"))
	d.details(shortened(addresses)...)
}
