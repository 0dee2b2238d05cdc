package oracle

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The annotations of the seeds that change what becomes of packets.
const (
	annotationInternal  = "service.beta.kubernetes.io/openstack-internal-load-balancer"
	annotationCrossZone = "service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled"
	annotationCert      = "service.beta.kubernetes.io/aws-load-balancer-ssl-cert"
	annotationSSLPorts  = "service.beta.kubernetes.io/aws-load-balancer-ssl-ports"
)

// asksInternal reports whether a load balancer is to be reached from inside only.
func asksInternal(service *object.Service) bool {
	return service.Spec.Type == object.TypeLoadBalancer && service.Metadata.Annotations[annotationInternal] == "true"
}

// insideOnly reports whether only clients inside reach a frontend (behaviors 190 and 191): one
// at an address of an internal pool, and a node port of an internal load balancer.
func (w *World) insideOnly(f frontend) bool {
	if f.place == atNodePort {
		return asksInternal(f.service)
	}
	return w.isInternalAddress(f.address)
}

// isInternalAddress reports whether an address lies in an internal pool, or is a cluster IP for
// clients inside alone (behavior 801).
func (w *World) isInternalAddress(addr netip.Addr) bool {
	return anyContains(w.Box.InternalPools, addr) || w.Box.ClusterIPsInside && anyContains(w.Box.ServiceRanges, addr)
}

// isInside reports whether the sender of a packet is inside.
func (w *World) isInside(p Packet) bool {
	from := p.From.Addr()
	return p.bySelf() || w.isInternal(from) || anyContains(w.Box.InsideSources, from) || slices.Contains(w.Box.InsideInterfaces, p.Interface)
}

// asksTLS reports whether a port asks for TLS, or may: with a certificate or a list of ports, the TCP ports that are
// listed by number or name, or all without a list (behavior 195). An entry that is no TCP port may be any that is not
// listed; where another entry is one, not the one of HTTP (behavior 700).
func asksTLS(service *object.Service, port object.ServicePort) bool {
	annotations := service.Metadata.Annotations
	_, certified := annotations[annotationCert]
	list, has := annotations[annotationSSLPorts]
	if port.Protocol != object.ProtocolTCP || !certified && !has {
		return false
	}
	entries := strings.Split(list, ",")
	names := func(entry string, p object.ServicePort) bool {
		return p.Protocol == object.ProtocolTCP && (entry == strconv.Itoa(int(p.Port)) || p.Name != "" && strings.EqualFold(entry, p.Name))
	}
	known := 0
	for _, entry := range entries {
		if names(entry, port) {
			return true
		}
		if slices.ContainsFunc(service.Spec.Ports, func(p object.ServicePort) bool { return names(entry, p) }) {
			known++
		}
	}
	switch known {
	case len(entries):
		return false
	case 0:
		return true
	}
	return port.Port != 80 && port.Name != "http" && (port.AppProtocol == nil || *port.AppProtocol != "http")
}

// prefersZone reports whether cross-zone balancing is off and nothing else says where to go
// (behavior 197).
func prefersZone(service *object.Service) bool {
	return service.Spec.Type == object.TypeLoadBalancer && service.Metadata.Annotations[annotationCrossZone] == "false"
}

// annotations adds those of the seeds that change what becomes of packets, on whatever type.
func (g *generator) annotations(service *object.Service) {
	annotations := service.Metadata.Annotations
	if len(g.world.Box.InternalPools) > 0 && oneIn(g.Rand, 2) || oneIn(g.Rand, 20) {
		annotations[annotationInternal] = pick(g.Rand, []string{"true", "true", "false"})
	}
	if oneIn(g.Rand, 5) {
		annotations[annotationCrossZone] = pick(g.Rand, []string{"true", "false"})
	}
	if oneIn(g.Rand, 8) {
		cert := pick(g.Rand, []string{"arn:aws:acm:x", "arn:aws:acm:x", "", "no"})
		if cert != "no" {
			annotations[annotationCert] = cert
		}
		if cert == "no" || oneIn(g.Rand, 2) {
			annotations[annotationSSLPorts] = pick(g.Rand, []string{"443,8443", "a,53"})
		}
	}
}

// generateInternal gives a box internal pools, and who is inside.
func generateInternal(box *Box, r *rand.Rand) {
	box.InternalPools = pick(r, [][]netip.Prefix{
		prefixes("198.51.100.4/30", "2001:db8:198::4/126"),
		prefixes("198.51.100.4/31", "198.51.100.98/32", "2001:db8:198::4/127"),
	})
	box.InsideSources = pick(r, [][]netip.Prefix{nil, prefixes("203.0.113.128/25", "2001:db8:203::/64")})
	// Not one of ext0 and alt0: behind both is the router, which sends by ext0 alone.
	box.InsideInterfaces = pick(r, [][]string{nil, {"int1"}, {"int0", "int2"}})
	box.ClusterIPsInside = oneIn(r, 3)
}
