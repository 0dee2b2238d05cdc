package oracle

import (
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The annotations about what endpoints begin themselves (docs, egress; behaviors 1030 to 1037).
const (
	annotationEgress   = "svcctl.io/egress"
	annotationEgressTo = "svcctl.io/egress-to"
)

// Leaves returns the source that a packet has behind the box, of a host that begins a connection to another one past all Services:
// the address of the first Service by name that has the host among its endpoints and an address for it, if the host may leave with
// one and the destination is outside; else the host's own.
func (w *World) Leaves(p Packet) netip.Addr {
	source, to := p.From.Addr(), p.To.Addr()
	stays := anyContains(w.Box.EgressFrom, to) || w.isInternal(to) || w.isLocal(to) // docs, Where to
	if stays || !w.mayLeave(source) {
		return source
	}
	for _, service := range w.leavers(source) {
		if addr := w.egressAddress(service, familyOf(source)); addr.IsValid() {
			if !w.isDestination(service, to) {
				return source
			}
			return addr
		}
	}
	return source
}

// MayLeaveWith returns the addresses of load balancers and external IPs of all Services that ask for a host to leave with one.
func (w *World) MayLeaveWith(source netip.Addr) (all []netip.Addr) {
	for _, service := range w.leavers(source) {
		for _, vip := range w.vipsOf(service) {
			if vip.place != atClusterIP {
				all = append(all, vip.address)
			}
		}
	}
	return all
}

// onlyLeave reports whether the endpoints of a Service are written to be not ready, and some may leave with its address (docs, Who
// leaves).
func (w *World) onlyLeave(service *object.Service) bool {
	for _, slice := range w.Slices {
		if serviceOf(slice) == object.RefOf(service).Key() && (slice.Metadata.Labels[object.LabelManagedBy] != "" ||
			slices.ContainsFunc(slice.Endpoints, func(e object.Endpoint) bool {
				c := e.Conditions
				return c.Ready == nil || *c.Ready || c.Terminating != nil && *c.Terminating
			})) {
			return false
		}
	}
	return slices.ContainsFunc(w.hostsOf(service), func(source netip.Addr) bool {
		return w.mayLeave(source) && slices.Contains(w.leavers(source), service)
	})
}

// mayLeave reports whether the operator lets a host leave with an address of a Service: never the box and its gateways (docs, Who may).
func (w *World) mayLeave(source netip.Addr) bool {
	return anyContains(w.Box.EgressFrom, source) && !w.isLocal(source) && !w.isHosts(source)
}

// leavers returns the Services that ask for a host to leave with their address, by namespace and name.
func (w *World) leavers(source netip.Addr) (all []*object.Service) {
	for _, service := range w.Services {
		// Nothing is served for these types, so they have no address.
		if service.Spec.Type != object.TypeExternalName && !isHeadless(service) && w.asksEgress(service) && slices.Contains(w.hostsOf(service), source) {
			all = append(all, service)
		}
	}
	slices.SortFunc(all, func(a, b *object.Service) int {
		return strings.Compare(object.RefOf(a).Key(), object.RefOf(b).Key())
	})
	return all
}

// asksEgress reports whether a Service asks for egress and is understood: a value or a source set that is not has endpoints leave with
// their own addresses.
func (w *World) asksEgress(service *object.Service) bool {
	_, given := service.Metadata.Annotations[annotationEgress]
	for _, name := range splitNames(service.Metadata.Annotations[annotationEgressTo]) {
		_, known := w.Box.SourceSets[strings.TrimPrefix(name, "!")]
		given = given && known
	}
	return given
}

// hostsOf returns the addresses of all endpoints of a Service, ready or not, of its own slices and of those that mirror Endpoints.
func (w *World) hostsOf(service *object.Service) (all []netip.Addr) {
	for _, slice := range w.Slices {
		if serviceOf(slice) == object.RefOf(service).Key() && slices.Contains(families, slice.AddressType) {
			for _, endpoint := range slice.Endpoints {
				all = append(all, netip.MustParseAddr(endpoint.Addresses[0]))
			}
		}
	}
	for _, endpoints := range w.Endpoints {
		if len(service.Spec.Selector) > 0 || object.RefOf(endpoints).Key() != object.RefOf(service).Key() || endpoints.Metadata.Labels[labelSkipMirror] == "true" {
			continue
		}
		for _, subset := range endpoints.Subsets {
			for _, address := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
				all = append(all, netip.MustParseAddr(address.IP))
			}
		}
	}
	return all
}

// egressAddress returns the address of a family that endpoints leave with, if the Service has it: the first load balancer IP, else
// the first external IP, of those that the annotation names.
func (w *World) egressAddress(service *object.Service, family string) netip.Addr {
	value := service.Metadata.Annotations[annotationEgress]
	for _, vip := range w.vipsOf(service) {
		named := value == "vip" || slices.Contains(splitNames(value), vip.address.String())
		if vip.place == atClusterIP || familyOf(vip.address) != family || !named {
			continue
		}
		for i, f := range w.frontends() {
			if f.service == service && f.address == vip.address && w.isFirst(i) {
				return vip.address
			}
		}
		return netip.Addr{} // another Service has it
	}
	return netip.Addr{}
}

// isDestination reports whether the destinations of a Service have an address (docs, Where to).
func (w *World) isDestination(service *object.Service, to netip.Addr) bool {
	named, within := false, false
	for _, name := range splitNames(service.Metadata.Annotations[annotationEgressTo]) {
		name, but := strings.CutPrefix(name, "!")
		in := anyContains(w.Box.SourceSets[name], to)
		if but && in {
			return false
		}
		named, within = named || !but, within || !but && in
	}
	return within || !named
}

// EgressFrom are the hosts of the worlds that may leave with an address of a Service (--egress-from).
var EgressFrom = prefixes("10.180.0.0/16", "fd00:10:180::/64")

// Egress has hosts of a world leave with addresses of Services, of some for some destinations alone.
func (w *World) Egress(r randSource) {
	w.Box.EgressFrom = EgressFrom
	for i := range w.Services {
		if _, given := w.Services[i].Metadata.Annotations[annotationEgress]; given && r.IntN(2) == 0 {
			continue // of the world before
		}
		w.Services[i] = object.DeepCopy(w.Services[i])
		AnnotateEgress(w.Services[i], r)
	}
}

// AnnotateEgress has most Services ask for egress.
func AnnotateEgress(service *object.Service, r randSource) {
	own := slices.Clone(service.Spec.ExternalIPs)
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		own = append(own, ingress.IP)
	}
	annotations := service.Metadata.Annotations
	if annotations == nil {
		annotations = map[string]string{}
		service.Metadata.Annotations = annotations
	}
	delete(annotations, annotationEgress)
	delete(annotations, annotationEgressTo)
	switch r.IntN(9) {
	case 0, 1:
		return
	case 2:
		annotations[annotationEgress] = []string{"198.51.100.77", "pool-a", "2001:db8:198::77"}[r.IntN(3)] // not its own
	case 3, 4:
		if len(own) > 0 {
			annotations[annotationEgress] = own[r.IntN(len(own))]
			break
		}
		fallthrough
	default:
		annotations[annotationEgress] = "vip"
	}
	if r.IntN(2) == 0 {
		annotations[annotationEgressTo] = EgressTo[r.IntN(len(EgressTo))]
	}
}

// WithoutDestinations returns a Service whose hosts leave with its address wherever they connect to.
func WithoutDestinations(service *object.Service) *object.Service {
	service = object.DeepCopy(service)
	delete(service.Metadata.Annotations, annotationEgressTo)
	return service
}

// EgressTo are destinations of Services that leave with their address. No box has a set nowhere.
var EgressTo = []string{"office", "office, !scanners", "!scanners", "office,vpn", "vpn,!office", "!vpn", "vpn", "office,nowhere", "!nowhere"}

// travelers are hosts that begin connections, and the interface that each is behind; destinations are where these lead.
var (
	travelers = []client{
		{"int0", addrs("10.180.0.1", "fd00:10:180::1")}, {"int0", addrs("10.180.0.2", "fd00:10:180::2")}, {"int0", addrs("10.180.0.77", "fd00:10:180::77")},
		{"int1", addrs("10.181.1.1", "fd00:10:181::1")},
	}
	destinations = [][]netip.Addr{
		addrs("203.0.113.2", "203.0.113.2", "203.0.113.130", "192.0.2.254", "192.0.3.254", "10.181.1.2", "10.180.0.2", "10.0.0.2"),
		addrs("2001:db8:203::2", "2001:db8:203::2", "2001:db8:203:0:8000::2", "2001:db8::fe", "2001:db8:1::fe", "fd00:10:181::2", "fd00:10:180::2", "fd00:10::2"),
	}
)

// OutgoingPacket returns a packet of a host to another one, which is mostly no Service's.
func (w *World) OutgoingPacket(r randSource) Packet {
	for {
		family, from := r.IntN(len(families)), travelers[r.IntN(len(travelers))]
		p := Packet{Interface: from.behind, Protocol: []Protocol{TCP, UDP, SCTP, Ping}[r.IntN(4)], From: netip.AddrPortFrom(from.addresses[family], 40000),
			To: netip.AddrPortFrom(destinations[family][r.IntN(len(destinations[family]))], 5353)}
		if p.From.Addr() != p.To.Addr() {
			return p
		}
	}
}
