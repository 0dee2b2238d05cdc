package store

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// External IPs. They are not allocated: if files request the same one for the same port, the older
// Service serves it, and the other gets a problem. A client of the API is refused at once.

// checkExternalPorts refuses the ports on external IPs that a new version asks for and that
// another Service has.
func (t *transaction) checkExternalPorts(c *change) object.Errors {
	svc, isService := c.wanted.(*object.Service)
	if !isService {
		return nil
	}
	before := c.oldService()
	errs := t.checkClusterIPs(svc, before)
	if len(index.ExternalIPs(svc)) == 0 {
		return errs
	}
	for i, text := range svc.Spec.ExternalIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			continue // it is one of before the rules were as they are
		}
		if before == nil || !slices.Contains(index.ExternalIPs(before), addr) {
			if use := t.usedAs(addr, c.ref.Key()); use != "" {
				errs = append(errs, object.Error{
					Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.externalIPs[%d]", i), Value: text,
					Detail: fmt.Sprintf("it is %s, which stays: choose another one", use),
				})
				continue
			}
		}
		for _, port := range portsOf(svc) {
			if before != nil && slices.Contains(index.ExternalIPs(before), addr) && slices.Contains(portsOf(before), port) {
				continue
			}
			if why := t.externalPortUse(addr, port, c.ref.Key()); why != "" {
				errs = append(errs, object.Error{
					Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.externalIPs[%d]", i), Value: text, Detail: why,
				})
			}
		}
	}
	return errs
}

// externalPortUse returns why a Service cannot have a port at an external IP; "": it can.
func (t *transaction) externalPortUse(addr netip.Addr, port alloc.Port, service string) string {
	if err := t.host.HostPort(addr, port.Protocol, port.Number); err != nil {
		return fmt.Sprintf("%s on it is not free: %s", port, err)
	}
	if owner, held := t.s.allocator.ports.Owner(port); held && owner != service && t.host.AnswersNodePorts(addr) {
		return fmt.Sprintf("%s on it is a node port of Service %s: choose another port", port, owner)
	}
	if holder := t.externalHolder(addr, port, service); holder != "" {
		return fmt.Sprintf("%s on it is already served by Service %s", port, holder)
	}
	return ""
}

// onHostAddress returns the first other Service that has a port at an external IP which is an address of the host, and that
// address; "": none has.
func (t *transaction) onHostAddress(port alloc.Port, except string) (holder string, at netip.Addr) {
	for _, all := range []index.Externals{t.s.table.index.Externals(), t.externals, t.joint} {
		for addr := range all {
			if !t.host.AnswersNodePorts(addr) {
				continue
			}
			if holder := t.onExternal(addr, port, except); holder != "" {
				return holder, addr
			}
		}
	}
	return "", at
}

// checkClusterIPs refuses cluster IPs that a client asks for and that are external IPs of
// another Service with the same port.
func (t *transaction) checkClusterIPs(svc, before *object.Service) object.Errors {
	var errs object.Errors
	for i, text := range svc.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil || before != nil && slices.Contains(before.Spec.ClusterIPs, text) {
			continue
		}
		for _, port := range portsOf(svc) {
			if holder := t.onExternal(addr, port, object.RefOf(svc).Key()); holder != "" {
				errs = append(errs, object.Error{
					Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.clusterIPs[%d]", i), Value: text,
					Detail: fmt.Sprintf("%s on it is already served by Service %s", port, holder),
				})
			}
		}
	}
	return errs
}

// usedAs returns the other use of an address, which would lose its traffic if the address became
// an external IP; "" when there is none.
func (t *transaction) usedAs(addr netip.Addr, except string) string {
	if keys := t.s.table.endpointsAt(addr); len(keys) > 0 {
		return "an endpoint of Service " + keys[0]
	}
	for _, request := range t.s.allocator.pools.Sharing(addr) {
		if request.Owner != except {
			return "a load balancer IP of Service " + request.Owner
		}
	}
	return ""
}

// externalHolder returns another Service that has a port on an external IP after
// the changes settled so far; "" when there is none. One whose cluster IP or load balancer IP
// it is comes first.
func (t *transaction) externalHolder(addr netip.Addr, port alloc.Port, except string) string {
	if owner, held := t.s.allocator.owner(addr); held && owner != except {
		if r := t.record(object.ServiceRef(owner)); r != nil && slices.Contains(portsOf(r.Object.(*object.Service)), port) {
			return owner
		}
	}
	return t.onExternal(addr, port, except)
}

// onExternal returns the first other Service that has an address among its external IPs, and the
// port; "" when none has.
func (t *transaction) onExternal(addr netip.Addr, port alloc.Port, except string) string {
	holder, first := "", uint64(0)
	for _, all := range []index.Externals{t.s.table.index.Externals(), t.externals, t.joint} {
		for key := range all[addr] {
			if key == except {
				continue
			}
			now, since := t.version(key)
			if now == nil || !slices.Contains(index.ExternalIPs(now), addr) || !slices.Contains(portsOf(now), port) {
				continue
			}
			asked := since.Of(port.Protocol, netip.AddrPortFrom(addr, port.Number))
			if holder == "" || asked < first || asked == first && key < holder {
				holder, first = key, asked
			}
		}
	}
	return holder
}

// version is a Service as of this transaction, with the changes that are being allocated for
// together; nil when there is none. An object without a number is younger than all that have one.
func (t *transaction) version(key string) (*object.Service, record.Since) {
	ref := object.ServiceRef(key)
	if c := t.changes[ref]; c != nil && (c.remove || c.next != nil) {
		if c.remove {
			return nil, record.Since{}
		}
		if c.before() == nil {
			return c.service(), record.Since{Created: math.MaxUint64}
		}
		return c.service(), c.old.Since()
	}
	if r := t.record(ref); r != nil {
		return r.Object.(*object.Service), r.Since()
	}
	return nil, record.Since{}
}

// Addresses that are never allocated, because they are in use already.

// avoidIngress reports load balancer IPs that a Service would not be served on: one of the host,
// an endpoint, or an external IP of another Service with one of the ports.
func (t *transaction) avoidIngress(addr netip.Addr, request alloc.Request) bool {
	return t.otherUse(nil, addr, request) != ""
}

// otherUse names the use of an address that excludes a load balancer; "" when there is none.
func (t *transaction) otherUse(svc *object.Service, addr netip.Addr, request alloc.Request) string {
	if what := t.host.Reserved(svc, addr); what != "" {
		return "it is " + what
	}
	if keys := t.s.table.endpointsAt(addr); len(keys) > 0 {
		return "it is an endpoint of Service " + keys[0]
	}
	for _, port := range request.Ports {
		if holder := t.onExternal(addr, port, request.Owner); holder != "" {
			return fmt.Sprintf("Service %s has %s there by its externalIPs", holder, port)
		}
	}
	return ""
}

// avoidAddress reports cluster IPs that are of use to the host or on its networks.
func (t *transaction) avoidAddress(addr netip.Addr) bool {
	isEndpoint := func() bool { return len(t.s.table.endpointsAt(addr)) > 0 }
	return t.host.Reserved(nil, addr) != "" || t.host.Avoid(addr, isEndpoint)
}

// checkReserved refuses cluster IPs of the host that the stored version does not have.
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
// Service is not served there, and gets another one. A port that the version before did not have is the youngest.
func (t *transaction) losesIngress(svc, before *object.Service, since record.Since, addr netip.Addr) bool {
	request := requestOf(svc)
	if slices.Contains(request.Requested, addr) {
		return false
	}
	return slices.ContainsFunc(request.Ports, func(port alloc.Port) bool {
		holder := t.onExternal(addr, port, request.Owner)
		if holder == "" {
			return false
		}
		at := netip.AddrPortFrom(addr, port.Number)
		_, holding := t.version(holder)
		return !slices.Contains(portsOf(before), port) || holding.Of(port.Protocol, at) < since.Of(port.Protocol, at)
	})
}
