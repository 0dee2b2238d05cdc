package store

import (
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// What nobody is given: addresses that are of use to somebody else already.

// avoidIngress reports load balancer IPs that a Service would not be served on: one of the host,
// an endpoint, or an external IP of another Service with one of the ports.
func (t *transaction) avoidIngress(addr netip.Addr, claim alloc.Claim) bool {
	return t.otherUse(nil, addr, claim) != ""
}

// otherUse says who has a use of an address that is in the way of a load balancer; "" when
// nobody has.
func (t *transaction) otherUse(svc *object.Service, addr netip.Addr, claim alloc.Claim) string {
	if what := t.host.Reserved(svc, addr); what != "" {
		return "it is " + what
	}
	if keys := t.s.table.index.EndpointsAt(addr); len(keys) > 0 {
		return "it is an endpoint of Service " + keys[0]
	}
	for _, port := range claim.Ports {
		if holder := t.onExternal(addr, port, claim.Owner); holder != "" {
			return fmt.Sprintf("Service %s has %s there by its externalIPs", holder, port)
		}
	}
	return ""
}

// avoidAddress reports cluster IPs that are of use to the host or on its networks.
func (t *transaction) avoidAddress(addr netip.Addr) bool {
	isEndpoint := func() bool { return len(t.s.table.index.EndpointsAt(addr)) > 0 }
	return t.host.Reserved(nil, addr) != "" || t.host.Avoid(addr, isEndpoint)
}

// checkReserved refuses cluster IPs of the host that a client asks for anew.
func (c *change) checkReserved(host Host) object.Errors {
	svc, isService := c.wanted.(*object.Service)
	if !isService {
		return nil
	}
	before := c.oldService()
	var errs object.Errors
	for i, text := range svc.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil || before != nil && slices.Contains(before.Spec.ClusterIPs, text) {
			continue
		}
		if what := host.Reserved(svc, addr); what != "" {
			errs = append(errs, object.Error{
				Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.clusterIPs[%d]", i), Value: text,
				Detail: fmt.Sprintf("it is %s, which would not be reached any more: choose another one", what),
			})
		}
	}
	return errs
}

// losesIngress reports whether a load balancer IP that a Service was given, without asking for
// it by name, has a port that another Service has there by an older external IP: then the
// Service is not served there, and gets another one.
func (t *transaction) losesIngress(svc *object.Service, since Since, addr netip.Addr) bool {
	claim := claimOf(svc)
	if slices.Contains(claim.Requested, addr) {
		return false
	}
	return slices.ContainsFunc(claim.Ports, func(port alloc.Port) bool {
		holder := t.onExternal(addr, port, claim.Owner)
		if holder == "" {
			return false
		}
		at := netip.AddrPortFrom(addr, port.Number)
		_, holding := t.version(holder)
		return holding.Of(port.Protocol, at) < since.Of(port.Protocol, at)
	})
}
