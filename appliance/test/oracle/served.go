package oracle

import (
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Attempt is a connection of a client that is entitled to an answer, to an address and port that a Service asks for.
type Attempt struct {
	Packet Packet           // the zero Packet where there is no address to send one to
	Lacks  []Lack           // why no answer comes; empty: one comes
	To     []netip.AddrPort // the endpoints that new connections may go to
}

// Lack is why clients of an address and port get no answer.
type Lack string

const (
	LacksIngress   Lack = "there is no load balancer IP"
	LacksAddress   Lack = "the box does not serve the address"
	LacksTLS       Lack = "TLS is asked for in vain"
	LacksClaim     Lack = "another Service has it"
	LacksPort      Lack = "a program has the port"
	LacksRange     Lack = "a range is not served there"
	LacksClients   Lack = "it cannot be read who may connect"
	LacksEndpoint  Lack = "no endpoint takes connections"
	LacksLocal     Lack = "no endpoint of this box takes connections"
	LacksAnyUp     Lack = "all of its endpoints are down"
	LacksBalancing Lack = "nothing is balanced for its type"
)

// Attempts returns a connection of each client to each address and port that a Service asks for. Clients that are not
// entitled to an answer, by source ranges or because they are not inside, make none.
func (w *World) Attempts(service *object.Service) []Attempt {
	if service.Spec.Type == object.TypeExternalName || isHeadless(service) {
		var lacks []Lack
		if len(service.Spec.ExternalIPs) > 0 {
			lacks = append(lacks, LacksBalancing)
		}
		switch {
		case !isHeadless(service):
		case len(w.named(service)) == 0:
			lacks = append(lacks, LacksEndpoint) // its name leads nowhere
		case w.allDown(service, families):
			lacks = append(lacks, LacksAnyUp)
		}
		return []Attempt{{Lacks: lacks}}
	}
	all := w.withoutIngress(service)
	for _, port := range service.Spec.Ports {
		for _, f := range w.asked(service, port) {
			lacks := w.lacks(f)
			if w.takesWhatThereIs(service, f.family) {
				if lacks = slices.DeleteFunc(lacks, func(l Lack) bool { return l == LacksEndpoint }); len(lacks) == 0 {
					continue
				}
			}
			if len(lacks) > 0 {
				all = append(all, Attempt{Lacks: lacks})
			}
			for _, packet := range w.packetsTo(f) {
				if w.insideOnly(f) && !w.isInside(packet) || !w.admits(f, packet.From.Addr(), true) {
					continue // behaviors 32, 33, 37 and 190
				}
				a := Attempt{Packet: packet, Lacks: lacks}
				if len(lacks) == 0 {
					a.To, a.Lacks = w.answers(f, packet)
				}
				all = append(all, a)
			}
		}
	}
	return all
}

// takesWhatThereIs reports whether a Service that prefers both families has endpoints of the other one alone.
func (w *World) takesWhatThereIs(service *object.Service, family string) bool {
	policy, named := service.Spec.IPFamilyPolicy, w.named(service)
	both := len(familiesOf(service)) == 2 && policy != nil && *policy == object.PreferDualStack
	return both && !slices.Contains(named, family) && (slices.Contains(named, families[0]) || slices.Contains(named, families[1]))
}

// withoutIngress returns an attempt for each family of a load balancer that has no address of it. One that prefers both
// families takes what there is (docs, allocation).
func (w *World) withoutIngress(service *object.Service) (all []Attempt) {
	if service.Spec.Type != object.TypeLoadBalancer {
		return nil
	}
	pools := w.Box.Pools
	if asksInternal(service) {
		pools = w.Box.InternalPools
	}
	has := func(family string) bool {
		return slices.ContainsFunc(service.Status.LoadBalancer.Ingress, func(i object.LoadBalancerIngress) bool {
			return i.IP != "" && familyOf(netip.MustParseAddr(i.IP)) == family
		})
	}
	given := func(family string) bool {
		return slices.ContainsFunc(pools, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
	}
	for _, family := range familiesOf(service) {
		prefers := service.Spec.IPFamilyPolicy != nil && *service.Spec.IPFamilyPolicy == object.PreferDualStack
		other := slices.ContainsFunc(familiesOf(service), func(f string) bool { return f != family && given(f) })
		if !has(family) && !(prefers && other && !given(family)) {
			all = append(all, Attempt{Lacks: []Lack{LacksIngress}})
		}
	}
	return all
}

// asked returns the frontends that a port asks for, at addresses that the box does not serve too.
func (w *World) asked(service *object.Service, port object.ServicePort) []frontend {
	open := *w
	open.Box.ExternalIPRanges, open.Box.Gateways, open.Box.Interfaces, open.Box.ServiceRanges = nil, nil, nil, nil
	plain := object.DeepCopy(service)
	delete(plain.Metadata.Annotations, annotationInternal)
	plain.Spec.ExternalIPs = nil
	all := append(open.frontendsOf(plain, port), open.rangesOf(plain, port)...)
	for _, text := range service.Spec.ExternalIPs {
		addr := netip.MustParseAddr(text)
		named := func(f frontend) bool { return f.address == addr }
		if slices.ContainsFunc(all, named) {
			continue // it is a load balancer IP too
		}
		plain.Spec.ClusterIPs, plain.Spec.ClusterIP, plain.Status.LoadBalancer.Ingress = []string{text}, text, nil
		each := port
		each.NodePort = 0
		for _, f := range append(open.frontendsOf(plain, each), open.rangesOf(plain, each)...) {
			f.place = atExternalIP
			all = append(all, f)
		}
	}
	for i := range all {
		all[i].service, all[i].port = service, port
	}
	return all
}

// packetsTo returns one packet of each client to a frontend; of a range to a port that only it has, and to a node port at
// each address.
func (w *World) packetsTo(f frontend) (all []Packet) {
	to := []netip.Addr{f.address}
	if f.place == atNodePort {
		to = nil
		for _, i := range w.Box.Interfaces {
			for _, p := range i.Addresses {
				if familyOf(p.Addr()) == f.family && w.isNodePortAddress(p.Addr()) {
					to = append(to, p.Addr())
				}
			}
		}
	}
	index := slices.Index(families, f.family)
	for _, addr := range to {
		for _, from := range clients {
			p := Packet{Interface: from.behind, Protocol: f.protocol, From: netip.AddrPortFrom(from.addresses[index], 40000), To: netip.AddrPortFrom(addr, f.number)}
			if f.isRange() {
				p.To = netip.AddrPortFrom(addr, f.last)
				if g, ok := w.frontendFor(p); ok && !g.isRange() {
					continue // behavior 389: an exact port comes first
				}
			}
			all = append(all, p)
		}
	}
	return all
}

// lacks returns why no client gets an answer from a frontend.
func (w *World) lacks(f frontend) (all []Lack) {
	add := func(l Lack, is bool) {
		if is {
			all = append(all, l)
		}
	}
	allowed := f.service.Metadata.Annotations[allowHostAddress] == "true"
	add(LacksTLS, asksTLS(f.service, f.port))
	add(LacksAddress, f.place != atClusterIP && f.place != atNodePort && !w.mayServe(f.service, f.place, f.address) ||
		f.place != atNodePort && !slices.Contains(familiesOf(f.service), f.family) || f.place == atClusterIP && w.isHosts(f.address) && !allowed)
	exact := f
	exact.last = 0
	add(LacksRange, f.isRange() && (w.isHosts(f.address) || len(w.candidates(f)) == 0 && len(w.backendsOf(exact)) > 0))
	add(LacksPort, w.isTaken(f))
	if len(all) == 0 {
		granted := false
		for i, g := range w.frontends() {
			same := g.service == f.service && g.place == f.place && g.address == f.address && g.number == f.number && g.last == f.last && g.protocol == f.protocol
			granted = granted || same && g.family == f.family && (w.isFirst(i) || f.place == atNodePort)
		}
		add(LacksClaim, !granted)
	}
	backends := w.backendsOf(f)
	switch {
	case len(w.everywhere(f, backends)) == 0:
		add(LacksEndpoint, true)
	case w.localOnly(f, Packet{Interface: "ext0"}):
		add(LacksLocal, len(onBox(backends)) == 0)
	}
	return all
}

// answers returns the endpoints that a client of a frontend may get, or why it gets none that answers.
func (w *World) answers(f frontend, p Packet) (to []netip.AddrPort, lacks []Lack) {
	granted, ok := w.frontendFor(p)
	switch {
	case !ok || granted.service != f.service || granted.port.Name != f.port.Name && !f.isRange():
		return nil, []Lack{LacksClaim}
	case !w.mayConnect(f, p.From.Addr()):
		return nil, []Lack{LacksClients}
	}
	all := w.backendsOf(f)
	chosen := w.everywhere(f, all)
	if w.localOnly(f, p) {
		if chosen = onBox(all); len(chosen) == 0 {
			return nil, []Lack{LacksLocal}
		}
	}
	lacks = []Lack{LacksAnyUp}
	for _, b := range chosen {
		if at, is := checkedAt(f, b.address); !is || !w.Down[at] {
			lacks = nil
		}
		if f.isRange() {
			b.address = netip.AddrPortFrom(b.address.Addr(), p.To.Port())
		}
		to = append(to, b.address)
	}
	return to, lacks
}

// Explains reports whether a Reason for which a Service is not Ready is true.
func (w *World) Explains(service *object.Service, reason string) bool {
	lacks := map[Lack]bool{}
	for _, a := range w.Attempts(service) {
		for _, l := range a.Lacks {
			lacks[l] = true
		}
	}
	named := w.named(service)
	matching := func(port object.ServicePort, family string) []backend {
		return w.backendsOf(frontend{service: service, port: port, family: family})
	}
	anyPort := func(is func(port object.ServicePort, family string) bool) bool {
		return slices.ContainsFunc(service.Spec.Ports, func(port object.ServicePort) bool {
			return slices.ContainsFunc(familiesOf(service), func(family string) bool { return is(port, family) })
		})
	}
	switch reason {
	case "NoEndpoints":
		return lacks[LacksEndpoint] && (len(named) == 0 || w.onlyLeave(service) || anyPort(func(port object.ServicePort, family string) bool { return w.emptyPort(service, port, family) }))
	case "OtherFamily":
		return lacks[LacksEndpoint] && len(named) > 0 && slices.ContainsFunc(familiesOf(service), func(f string) bool { return !slices.Contains(named, f) })
	case "PortMismatch":
		return lacks[LacksEndpoint] && len(named) > 0 && anyPort(func(port object.ServicePort, family string) bool { return len(matching(port, family)) == 0 })
	case "NoReadyEndpoint":
		return lacks[LacksEndpoint] && len(named) > 0
	case "NoLocalEndpoint":
		return lacks[LacksLocal]
	case "FailingOpen":
		return lacks[LacksAnyUp] || !isHeadless(service) && w.allDown(service, familiesOf(service))
	case "Pending":
		return lacks[LacksIngress]
	case "HostAddress", "OutsideExternalIPRange", "ServiceRange", "FamilyNotServed", "NotInternal":
		return lacks[LacksAddress]
	case "TLSNotTerminated":
		return lacks[LacksTLS]
	case "PortInUse":
		return lacks[LacksPort]
	case "RangeNotServed":
		return lacks[LacksRange]
	case "UnknownSourceSet":
		return w.namesUnknownSet(service)
	case "UnknownValue":
		return service.Spec.Type == object.TypeLoadBalancer
	case "NotServed":
		return lacks[LacksBalancing]
	case "PortConflict":
		return lacks[LacksClaim]
	}
	return false
}

// allDown reports whether all endpoints of a port that take connections are down, in one of some families.
func (w *World) allDown(service *object.Service, of []string) bool {
	for _, port := range service.Spec.Ports {
		for _, family := range of {
			f := frontend{service: service, port: port, family: family}
			usable := keep(w.backendsOf(f), func(b backend) bool { return (b.ready || b.draining) && b.weight > 0 })
			for _, of := range usable { // a group fails open by itself
				group := keep(usable, func(b backend) bool { return b.group == of.group })
				if !slices.ContainsFunc(group, func(b backend) bool { at, is := checkedAt(f, b.address); return !is || !w.Down[at] }) {
					return true
				}
			}
		}
	}
	return false
}

// emptyPort reports whether slices name a port in a family, and no endpoint with it.
func (w *World) emptyPort(service *object.Service, port object.ServicePort, family string) bool {
	f := frontend{service: service, port: port, family: family}
	is, endpoints := false, len(w.fromEndpoints(f))
	for _, slice := range w.Slices {
		if serviceOf(slice) == object.RefOf(service).Key() && slice.AddressType == family && slices.ContainsFunc(slice.Ports, func(p object.EndpointPort) bool {
			_, matches := matchPort(p, f)
			return matches
		}) {
			is, endpoints = true, endpoints+len(slice.Endpoints)
		}
	}
	return is && endpoints == 0
}

// named are the families of the endpoints that objects name for a Service, ready or not; FQDN is none.
func (w *World) named(service *object.Service) (of []string) {
	for _, slice := range w.Slices {
		if slice.Metadata.Namespace == service.Metadata.Namespace && slice.Metadata.Labels[object.LabelServiceName] == service.Metadata.Name && len(slice.Endpoints) > 0 {
			of = append(of, slice.AddressType)
		}
	}
	for _, port := range service.Spec.Ports {
		for _, family := range families {
			if slices.ContainsFunc(w.fromEndpoints(frontend{service: service, port: port, family: family}), func(b backend) bool {
				return !anyContains(w.Box.ServiceRanges, b.address.Addr()) // which is not mirrored
			}) {
				of = append(of, family)
			}
		}
	}
	return of
}

// namesUnknownSet reports whether a Service with addresses that source sets hold for names one that the box does not have.
func (w *World) namesUnknownSet(service *object.Service) bool {
	annotations := service.Metadata.Annotations
	names := splitNames(annotations[annotationSets])
	if service.Spec.Type == object.TypeLoadBalancer {
		names = slices.Concat(names, splitNames(annotations[annotationGroups]), splitNames(annotations[annotationExtraGroups]))
	}
	return (service.Spec.Type != object.TypeClusterIP || len(service.Spec.ExternalIPs) > 0) && slices.ContainsFunc(names, func(name string) bool {
		_, known := w.Box.SourceSets[strings.TrimPrefix(name, "!")]
		return !known
	})
}

// Program listens on a port of the host.
type Program struct {
	Protocol Protocol
	At       netip.AddrPort // the unspecified address: all of the host
}

// isTaken reports whether a program has the place of a frontend: a node port, or a port of an address of the host
// (behavior 681).
func (w *World) isTaken(f frontend) bool {
	return slices.ContainsFunc(w.Programs, func(p Program) bool {
		if p.Protocol != f.protocol || p.At.Port() != f.number || f.isRange() {
			return false
		}
		if f.place != atNodePort {
			return w.isHosts(f.address) && (p.covers(f.address))
		}
		for _, i := range w.Box.Interfaces {
			for _, a := range i.Addresses {
				if familyOf(a.Addr()) == f.family && w.isHosts(a.Addr()) && w.isNodePortAddress(a.Addr()) && p.covers(a.Addr()) {
					return true
				}
			}
		}
		return false
	})
}

func (p Program) covers(addr netip.Addr) bool {
	return p.At.Addr() == addr || p.At.Addr().IsUnspecified() && (p.At.Addr().Is6() || addr.Is4())
}

// Complicate adds what keeps Services from being served and is rare in Generate: slices whose label is mistyped, node
// ports that programs have, pools that are too small, relays.
func (w *World) Complicate(r randSource) {
	for _, slice := range w.Slices {
		if name := slice.Metadata.Labels[object.LabelServiceName]; name != "" && r.IntN(12) == 0 {
			slice.Metadata.Labels[object.LabelServiceName] = name + "x"
		}
	}
	for _, service := range w.Services {
		if r.IntN(4) == 0 {
			service.Metadata.Annotations[annotationMode] = "userspace"
		}
		if policy := service.Spec.IPFamilyPolicy; policy != nil && *policy == object.PreferDualStack && r.IntN(2) == 0 {
			*policy = object.RequireDualStack
		}
	}
	if r.IntN(2) == 0 {
		at := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), interfaces[1].Addresses[0].Addr(), interfaces[2].Addresses[0].Addr()}[r.IntN(4)]
		port := nodePorts[r.IntN(len(nodePorts))]
		if r.IntN(3) == 0 {
			port = ports[r.IntN(len(ports))]
		}
		w.Programs = append(w.Programs, Program{[]Protocol{TCP, UDP}[r.IntN(2)], netip.AddrPortFrom(at, uint16(port))})
	}
	if len(w.Box.Pools) > 0 && r.IntN(2) == 0 {
		w.Box.Pools = prefixes("198.51.100.4/31", "2001:db8:198::4/128")
	}
	if i := r.IntN(len(w.Services)); w.Services[i].Spec.Type == object.TypeClusterIP && !isHeadless(w.Services[i]) {
		w.twin(w.Services[i])
	}
}

// twin adds a Service with the endpoints and external IPs of another one, which asked for them first.
func (w *World) twin(of *object.Service) {
	if len(of.Spec.ExternalIPs) == 0 {
		of.Spec.ExternalIPs = []string{externalIPs[slices.Index(families, familiesOf(of)[0])][0].String()}
		of.Spec.ExternalTrafficPolicy = object.PolicyCluster
	}
	name := of.Metadata.Name + "z"
	twin := object.DeepCopy(of)
	twin.Metadata.Name, twin.Spec.ClusterIP, twin.Spec.ClusterIPs = name, "", nil
	w.Services = append(w.Services, twin)
	for _, o := range slices.Clone(w.Slices) {
		if serviceOf(o) == object.RefOf(of).Key() {
			slice := object.DeepCopy(o)
			slice.Metadata.Name, slice.Metadata.Labels[object.LabelServiceName] = "z"+slice.Metadata.Name, name
			w.Slices = append(w.Slices, slice)
		}
	}
}
