package resolve

import (
	"fmt"
	"slices"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// readAdopt reads the annotation: whether TCP connections are to go on when another box takes over. Where that cannot
// be, because the other box would pick another endpoint or has no part of the connection, it says so.
func (r *resolver) readAdopt(balance nft.Balance, idle bool) bool {
	value, given := r.Service.Metadata.Annotations[object.AnnotationAdopt]
	if !given {
		return false
	}
	field := annotation.Field(object.AnnotationAdopt)
	wanted, err := object.ParseAdopt(value)
	why := ""
	switch {
	case err != nil:
		r.warn(r.ref, field, reasonUnknownValue, "%v: connections end with the box that they began at", err)
		return false
	case !wanted:
		return false
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolTCP }):
		why = "the Service has no port of TCP"
	case r.Service.Spec.Type != object.TypeLoadBalancer && len(r.Service.Spec.ExternalIPs) == 0:
		why = "the Service has no load balancer IP and no external IP, and other addresses do not move to another box"
	case r.relayed.Key != "":
		why = fmt.Sprintf("%s has ports relayed, whose connections end with the program", r.relayed.Key)
	case idle:
		why = fmt.Sprintf("with %s only a SYN gets to an endpoint: take one of the two away", AnnotationIdle)
	case r.affinity() > 0:
		why = "session affinity is the memory of one box, and another one may pick another endpoint: write sessionAffinity: None, and svcctl.io/balance: source-hash for the same endpoint each time"
	case byChance(balance):
		why = fmt.Sprintf("with %s another box picks another endpoint: write svcctl.io/balance: maglev, source-hash or destination-hash", BalanceName(balance))
	case r.Service.Spec.ExternalTrafficPolicy != object.PolicyLocal:
		why = "with externalTrafficPolicy Cluster endpoints see this box in place of clients, and answer no other one: write Local"
	default:
		if r.out.EndpointConnections > 0 || r.out.SlowStart > 0 {
			r.warn(r.ref, field, reasonBoxesDiffer, "%s and %s make boxes pick different endpoints for a while: connections that are taken over then may end", object.AnnotationEndpointConnections, object.AnnotationSlowStart)
		}
		if _, ranges := r.Service.Metadata.Annotations[object.AnnotationPortRanges]; ranges {
			r.warn(r.ref, field, reasonNoEffect, "has no effect on ranges of ports where an endpoint speaks first after the takeover")
		}
		return true
	}
	r.warn(r.ref, field, reasonNoEffect, "has no effect: %s", why)
	return false
}

// reasonBoxesDiffer: boxes with the same objects may pick different endpoints.
const reasonBoxesDiffer = "BoxesDiffer"

// adopt has the connections of a port adopted that clients made to its load balancer IPs and external IPs.
func adopt(p *nft.ServicePort) {
	for i := range p.Frontends {
		fe := &p.Frontends[i]
		external := fe.Kind == nft.LoadBalancerIP || fe.Kind == nft.ExternalIP
		fe.Adopt = p.Protocol == nft.TCP && external && !fe.HostOwned && fe.SNAT != nft.SNATAlways
	}
}
