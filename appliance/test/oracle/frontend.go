package oracle

import (
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// place is the kind of a frontend's address.
type place string

const (
	atClusterIP    place = "cluster IP"
	atLoadBalancer place = "load balancer IP"
	atExternalIP   place = "external IP"
	atNodePort     place = "node port"
)

// allowHostAddress is the annotation that allows a VIP that is an address of the host
// (docs, services: Addresses that stay the box's).
const allowHostAddress = "svcctl.io/allow-host-address"

// frontend is one port of one Service at one address. For a node port the address is
// invalid: it stands for every node port address of the host.
type frontend struct {
	service  *object.Service
	port     object.ServicePort
	place    place
	family   string // object.IPv4 or IPv6
	address  netip.Addr
	number   uint16 // port, or node port; of a range the first one
	last     uint16 // of a range; else 0
	protocol Protocol
}

// frontends returns all frontends that Services request, by precedence: older Services
// first, then by namespace/name (behavior 44). If two request the same, both are in the
// list, and the first one wins.
func (w *World) frontends() []frontend {
	if w.holder == w {
		return w.held
	}
	services := slices.Clone(w.Services)
	slices.SortStableFunc(services, byAge)
	var all []frontend
	for _, service := range services {
		// "No proxying of any kind is set up" for ExternalName; "there is no load balancing
		// or proxying done by the platform" for headless Services (Service page), and no
		// rule for the external IPs of either (behavior 41).
		if service.Spec.Type == object.TypeExternalName || isHeadless(service) {
			continue
		}
		for _, port := range service.Spec.Ports {
			if asksTLS(service, port) {
				continue
			}
			all = append(all, w.frontendsOf(service, port)...)
			all = append(all, w.rangesOf(service, port)...)
		}
	}
	all = slices.DeleteFunc(all, w.isTaken)
	claims := slices.Clone(all)
	// A load balancer IP of an older Service cannot be an external IP of another, whatever the port.
	return slices.DeleteFunc(all, func(f frontend) bool {
		return w.isRivaled(f, claims) || f.place == atExternalIP && slices.ContainsFunc(all, func(other frontend) bool {
			return other.place == atLoadBalancer && other.address == f.address && byAge(other.service, f.service) < 0
		})
	})
}

// isRivaled reports whether an older Service has the place of a frontend: a node port answers on addresses of the host, where
// another Service may have its port (behavior 680).
func (w *World) isRivaled(f frontend, claims []frontend) bool {
	onHost := func(f frontend) bool {
		return f.place != atNodePort && w.isHosts(f.address) && w.isNodePortAddress(f.address)
	}
	for i := range claims {
		other := &claims[i]
		samePort := other.number == f.number && other.protocol == f.protocol && other.family == f.family && !f.isRange() && !other.isRange()
		if !samePort || other.service == f.service || byAge(other.service, f.service) >= 0 {
			continue
		}
		if !(other.place == atNodePort && onHost(f)) && !(f.place == atNodePort && onHost(*other)) {
			continue
		}
		if !slices.ContainsFunc(claims[:i], func(c frontend) bool {
			return !c.isRange() && c.address == other.address && c.family == other.family && c.protocol == other.protocol && c.number == other.number
		}) {
			return true
		}
	}
	return false
}

func (w *World) frontendsOf(service *object.Service, port object.ServicePort) []frontend {
	var all []frontend
	add := func(at place, addr netip.Addr, family string, number int32) {
		all = append(all, frontend{service: service, port: port, place: at, family: family, address: addr, number: uint16(number), protocol: Protocol(port.Protocol)})
	}
	for _, vip := range w.vipsOf(service) {
		add(vip.place, vip.address, familyOf(vip.address), port.Port)
	}
	// "Each node proxies that port (the same port number on every Node) into your
	// Service" (Service page), in the families of the Service (behavior 21).
	if port.NodePort != 0 {
		for _, family := range familiesOf(service) {
			add(atNodePort, netip.Addr{}, family, port.NodePort)
		}
	}
	return all
}

// vip is an address of a Service.
type vip struct {
	place   place
	address netip.Addr
}

// vipsOf returns the addresses of a Service, the strictest use first: source ranges apply
// to an address that is in two fields.
func (w *World) vipsOf(service *object.Service) []vip {
	var all []vip
	for _, text := range service.Spec.ClusterIPs {
		all = append(all, vip{atClusterIP, netip.MustParseAddr(text)})
	}
	families := familiesOf(service)
	accept := func(at place, text string) {
		addr := netip.MustParseAddr(text)
		// Each family uses only its own VIPs (behavior 136).
		if slices.Contains(families, familyOf(addr)) && w.mayServe(service, at, addr) {
			all = append(all, vip{at, addr})
		}
	}
	if service.Spec.Type == object.TypeLoadBalancer {
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			// Mode Proxy: the load balancer talks to the node port or the endpoint; its IP is
			// not to be served by the node (LoadBalancerIngress.ipMode).
			if ingress.IP != "" && (ingress.IPMode == nil || *ingress.IPMode == object.IPModeVIP) {
				accept(atLoadBalancer, ingress.IP)
			}
		}
	}
	for _, text := range service.Spec.ExternalIPs {
		accept(atExternalIP, text)
	}
	return all
}

// mayServe reports whether the host allows the Service to have the address.
func (w *World) mayServe(service *object.Service, at place, addr netip.Addr) bool {
	// --external-ip-range: "which externalIPs are accepted".
	if at == atExternalIP && len(w.Box.ExternalIPRanges) > 0 && !anyContains(w.Box.ExternalIPRanges, addr) {
		return false
	}
	// An internal load balancer has no address that everybody reaches (behavior 193).
	if at != atClusterIP && asksInternal(service) && !w.isInternalAddress(addr) {
		return false
	}
	// Nobody takes a cluster IP by naming it: "externalIPs ... in the service range" are refused
	// (docs, services: Addresses that stay where they are).
	if at == atExternalIP && anyContains(w.Box.ServiceRanges, addr) {
		return false
	}
	// Behavior 45: an address of the host, or of a gateway, is refused unless annotated.
	return service.Metadata.Annotations[allowHostAddress] == "true" || !w.isHosts(addr)
}

// isHosts reports whether the address is the host's, or a gateway's, for purposes other
// than Services.
func (w *World) isHosts(addr netip.Addr) bool {
	for _, i := range w.Box.Interfaces {
		for _, p := range i.Addresses {
			// A host prefix (/32, /128) is how a VIP is bound to an interface.
			if p.Addr() == addr && !p.IsSingleIP() {
				return true
			}
		}
	}
	return slices.Contains(w.Box.Gateways, addr)
}

// isSetAside reports whether all ports of an external IP are for Services: it lies in a range or
// pool that says so. Of the others they have the ports that they name.
func (w *World) isSetAside(addr netip.Addr) bool {
	return anyContains(w.Box.ExternalIPRanges, addr) || anyContains(w.Box.Pools, addr) || w.isInternalAddress(addr)
}

// isVIP reports whether some Service has the address for its own. One of the host's,
// where a Service may have it, stays the host's but for the Service's ports: the
// host's own services there, as SSH, are what behavior 45 protects.
func (w *World) isVIP(addr netip.Addr) bool {
	if w.isHosts(addr) {
		return false
	}
	for i, f := range w.frontends() {
		whole := f.place != atNodePort && (f.place != atExternalIP || w.isSetAside(addr))
		if whole && f.address == addr && w.isFirst(i) {
			return true
		}
	}
	return false
}

// isNamed reports whether some Service has ports of an address that is not one of the host's.
func (w *World) isNamed(addr netip.Addr) bool {
	return !w.isHosts(addr) && slices.ContainsFunc(w.frontends(), func(f frontend) bool { return f.place != atNodePort && f.address == addr })
}

// isNodePortAddress reports whether node ports answer on the address: one of the box's
// that is no loopback address and no VIP (behaviors 20, 28), and that
// --nodeport-addresses selects. A family without a prefix in the list is not
// restricted (behavior 22).
func (w *World) isNodePortAddress(addr netip.Addr) bool {
	if !w.isLocal(addr) || addr.IsLoopback() || w.isNamed(addr) {
		return false
	}
	if w.Box.NodePortPrimary {
		return slices.Contains(w.Box.Primary, addr)
	}
	restricted := false
	for _, p := range w.Box.NodePortAddresses {
		if p.Addr().Is4() == addr.Is4() {
			restricted = true
		}
	}
	return !restricted || anyContains(w.Box.NodePortAddresses, addr)
}

// isLocal reports whether the address is the host's.
func (w *World) isLocal(addr netip.Addr) bool {
	for _, i := range w.Box.Interfaces {
		for _, p := range i.Addresses {
			if p.Addr() == addr {
				return true
			}
		}
	}
	return false
}

func byAge(a, b *object.Service) int {
	if order := a.Metadata.CreationTimestamp.Compare(*b.Metadata.CreationTimestamp); order != 0 {
		return order
	}
	if a, b := isGenerated(a), isGenerated(b); a != b { // after what it was generated of, and all that came with that
		if a {
			return 1
		}
		return -1
	}
	if order := strings.Compare(a.Metadata.Namespace, b.Metadata.Namespace); order != 0 {
		return order
	}
	return strings.Compare(a.Metadata.Name, b.Metadata.Name)
}

// isGenerated reports whether a Service is a Gateway's.
func isGenerated(s *object.Service) bool {
	return slices.ContainsFunc(s.Metadata.OwnerReferences, func(o object.OwnerReference) bool { return o.Kind == object.KindGateway })
}

func isHeadless(service *object.Service) bool {
	return slices.Contains(service.Spec.ClusterIPs, object.ClusterIPNone)
}

// familiesOf returns the families of a Service's cluster IPs.
func familiesOf(service *object.Service) []string {
	var families []string
	for _, text := range service.Spec.ClusterIPs {
		families = append(families, familyOf(netip.MustParseAddr(text)))
	}
	return families
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return object.IPv4
	}
	return object.IPv6
}

func anyContains(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
