package store

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// External IPs. They are not allocated: if files request the same one for the same port, the older
// Service serves it, and the other gets a problem. A client of the API is refused at once.

// checkExternalPorts returns an error for each port on an external IP that a new version of a Service adds although another Service already has it.
func (t *transaction) checkExternalPorts(c *change, svc *object.Service) object.Errors {
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
				errs = append(errs, object.Invalid(fmt.Sprintf("spec.externalIPs[%d]", i), text, fmt.Sprintf("it is %s, which stays: choose another one", use)))
				continue
			}
		}
		for _, port := range portsOf(svc) {
			if before != nil && slices.Contains(index.ExternalIPs(before), addr) && slices.Contains(portsOf(before), port) {
				continue
			}
			if why := t.externalPortUse(addr, port, c.ref.Key()); why != "" {
				errs = append(errs, object.Invalid(fmt.Sprintf("spec.externalIPs[%d]", i), text, why))
			}
		}
	}
	return errs
}

// externalPortUse returns the reason that a Service cannot have a port on an external IP, "" if it can.
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

// onHostAddress finds an external IP that is an address of the host at which node ports answer, and at which a Service other than except has the
// port. It returns the Service and the address; "" if there is none.
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

// checkClusterIPs returns an error for each cluster IP that a client newly requests although it is an external IP of another Service with the same
// port.
func (t *transaction) checkClusterIPs(svc, before *object.Service) (errs object.Errors) {
	for i, addr := range added(svc, before, clusterIPsOf) {
		for _, port := range portsOf(svc) {
			if holder := t.onExternal(addr, port, object.RefOf(svc).Key()); holder != "" {
				errs = append(errs, object.Invalid(fmt.Sprintf("spec.clusterIPs[%d]", i), svc.Spec.ClusterIPs[i], fmt.Sprintf("%s on it is already served by Service %s", port, holder)))
			}
		}
	}
	return errs
}

// usedAs returns a description of another use of an address, as an endpoint or load balancer IP, that would lose its traffic if the address became an
// external IP. It returns "" if there is none.
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

// externalHolder returns the other Service that serves a port on an external IP, given the changes decided so far in the transaction; "" if there is
// none. A Service with the address as cluster IP or load balancer IP takes precedence over one with the address in its externalIPs.
func (t *transaction) externalHolder(addr netip.Addr, port alloc.Port, except string) string {
	if owner, held := t.s.allocator.owner(addr); held && owner != except {
		if r := t.record(object.ServiceRef(owner)); r != nil && slices.Contains(portsOf(r.Object.(*object.Service)), port) {
			return owner
		}
	}
	return t.onExternal(addr, port, except)
}

// onExternal returns the other Service that has the address in its externalIPs and has the port; "" if there is none. Of several Services, it returns
// the one that has requested the port there for the longest time.
func (t *transaction) onExternal(addr netip.Addr, port alloc.Port, except string) string {
	holder, first := "", uint64(0)
	for _, all := range []index.Externals{t.s.table.index.Externals(), t.externals, t.joint} {
		for _, key := range all[addr] {
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

// version returns a Service as of this transaction and its age; nil if there is none. A new object is
// younger than all stored ones.
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

// avoidIngress reports whether an address must not be allocated as a load balancer IP: it is an address of the host, an endpoint, or an external IP
// of another Service with one of the ports.
func (t *transaction) avoidIngress(addr netip.Addr, request alloc.Request) bool {
	return t.otherUse(nil, addr, request) != ""
}

// otherUse returns a description of a use of an address that prevents its use as a load balancer IP; "" if there is none.
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

// avoidAddress reports whether an address is not to be given as a cluster IP: the host uses it, or it lies in a network of the host.
func (t *transaction) avoidAddress(addr netip.Addr) bool {
	isEndpoint := func() bool { return len(t.s.table.endpointsAt(addr)) > 0 }
	return t.host.Reserved(nil, addr) != "" || t.host.Avoid(addr, isEndpoint)
}

// checkReserved returns an error for each cluster IP that the new version adds although the host uses the address.
func (c *change) checkReserved(host Host, svc *object.Service) (errs object.Errors) {
	for i, addr := range added(svc, c.oldService(), clusterIPsOf) {
		if what := host.Reserved(svc, addr); what != "" {
			errs = append(errs, object.Invalid(fmt.Sprintf("spec.clusterIPs[%d]", i), svc.Spec.ClusterIPs[i],
				fmt.Sprintf("it is %s, which would not be reached any more: choose another one", what)))
		}
	}
	return errs
}

// losesIngress reports whether a Service has to give up a load balancer IP that was allocated to it automatically. That is so if another Service has
// one of its ports at that address by an older external IP, since then the port is not served there. A port that the previous version lacks counts as
// younger than any external IP.
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

// Load balancer IPs. A Service is never refused for the lack of one: it waits, with a
// note. It has those that it asks for, and one of each of its families of which it asks
// for none.

// wantedIngress returns the number of load balancer IPs that a Service should have: for each of its IP families, the number that it requests, but at
// least one.
func wantedIngress(svc *object.Service) int {
	n, requested := 0, requestOf(svc).Requested
	for _, family := range svc.Spec.IPFamilies {
		n += max(len(ofFamily(requested, family)), 1)
	}
	return n
}

// ofFamily returns those addresses that are of an IP family.
func ofFamily(addrs []netip.Addr, family string) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(addr netip.Addr) bool { return object.FamilyOf(addr) != family })
}

// keepsIngress reports whether the new version of the Service keeps a load balancer IP. If it requests none of that IP family, it keeps its first one
// of the family.
func (c *change) keepsIngress(l *allocator, addr netip.Addr) bool {
	svc, family := c.service(), object.FamilyOf(addr)
	if !isOurLoadBalancer(svc) || !slices.Contains(svc.Spec.IPFamilies, family) {
		return false
	}
	switch before := c.oldService(); {
	case c.request.Internal && l.pools.Contains(addr) && !l.pools.IsInternal(addr), // everybody reaches it
		c.request.Internal && !l.pools.Contains(addr) && l.pools.Serves(addr.Is4(), true): // it is of a pool that has gone
		return false
	case !c.request.Internal && before != nil && annotation.InternalOf(before).Key != "" && l.pools.IsInternal(addr):
		return slices.Contains(c.request.Requested, addr) // it is internal no more
	}
	if l.pools.Elsewhere(addr, &c.request) && l.pools.Suits(addr.Is4(), &c.request) {
		return false // it asks for another pool by now; if there is none of that name, a pool may be being renamed
	}
	if asked := ofFamily(c.request.Requested, family); len(asked) > 0 {
		return slices.Contains(asked, addr)
	}
	return ofFamily(c.held().ingress, family)[0] == addr
}

// takeAskedIngress allocates the load balancer IPs that the Service keeps or requests.
func (c *change) takeAskedIngress(t *transaction) error {
	svc, l := c.service(), t.s.allocator
	if !isOurLoadBalancer(svc) {
		return nil
	}
	for _, addr := range c.held().ingress {
		if !c.keepsIngress(l, addr) {
			continue
		}
		if t.losesIngress(svc, c.oldService(), c.old.Since(), addr) {
			l.release(loadBalancerIP(addr), c.request.Owner)
			continue
		}
		if l.take(loadBalancerIP(addr), c.request) == nil {
			c.ingress = append(c.ingress, addr)
		} else {
			// It shared the IP, and what it serves now is no more in keeping with that.
			l.release(loadBalancerIP(addr), c.request.Owner)
		}
	}
	for _, a := range askedIngress(svc) {
		if !slices.Contains(c.ingress, a.addr) {
			c.takeIngress(t, a)
		}
	}
	return nil
}

// takeIngress allocates a load balancer IP that the Service requests, or records the reason why it cannot have it.
func (c *change) takeIngress(t *transaction, a asked) {
	families, l := c.service().Spec.IPFamilies, t.s.allocator
	switch {
	case !a.addr.IsValid():
		return // the object package warns of it, and the rules of annotations
	case !slices.Contains(families, object.FamilyOf(a.addr)):
		c.wait(a.field, fmt.Sprintf("%s is not of the Service's family, %s: name an address of that family", a.addr, families))
		return
	}
	if use := t.otherUse(c.service(), a.addr, c.request); use != "" {
		c.wait(a.field, fmt.Sprintf("%s cannot be given: %s; the Service waits for it", a.addr, use))
		c.outcome[len(c.outcome)-1].asked, c.outcome[len(c.outcome)-1].use = a.addr, use
		return
	}
	err := l.take(loadBalancerIP(a.addr), c.request)
	var held *alloc.HeldError
	var other *alloc.PoolError
	switch {
	case err == nil:
		c.ingress = append(c.ingress, a.addr)
	case errors.As(err, &held), errors.As(err, &other):
		c.wait(a.field, fmt.Sprintf("%s cannot be given: %v; the Service waits for it", a.addr, err))
		c.outcome[len(c.outcome)-1].asked = a.addr
	case c.request.Internal:
		c.wait(a.field, fmt.Sprintf("%s lies in no internal load balancer pool (%s), and %s asks for an internal load balancer: name another address, or add a pool with --load-balancer-internal-pool",
			a.addr, orNone(l.pools.Internal()), annotation.InternalOf(c.service()).Key))
	default:
		c.wait(a.field, fmt.Sprintf("%s lies in no load balancer pool (%s): name another address, or add a pool with loadBalancerPool (--load-balancer-pool) or an IPAddressPool",
			a.addr, poolsText(l.pools)))
	}
}

// takeAnyIngress allocates a free load balancer IP for each IP family of the Service in which it has none and requests none.
func (c *change) takeAnyIngress(t *transaction) error {
	svc, l := c.service(), t.s.allocator
	otherFamily := func(addr netip.Addr) bool { return !slices.Contains(svc.Spec.IPFamilies, object.FamilyOf(addr)) }
	if !isOurLoadBalancer(svc) || slices.ContainsFunc(c.request.Requested, otherFamily) {
		return nil
	}
	for _, family := range svc.Spec.IPFamilies {
		has := ofFamily(c.ingress, family)
		if len(has) > 0 && l.pools.Elsewhere(has[0], &c.request) {
			c.wait("spec.type", c.noPool("load balancer pool", family))
		}
		if len(has)+len(ofFamily(c.request.Requested, family)) > 0 {
			continue
		}
		ipv4 := family == object.IPv4
		if addr, was := c.formerIngress(t, ipv4); was && l.take(loadBalancerIP(addr), c.request) == nil {
			c.ingress = append(c.ingress, addr)
			continue
		}
		if addr, err := l.nextIngress(ipv4, c.request, func(addr netip.Addr) bool { return t.avoidIngress(addr, c.request) }); err == nil {
			c.ingress = append(c.ingress, addr)
			continue
		}
		internal := c.request.Internal
		field, kind, flag := "spec.type", "load balancer pool", "loadBalancerPool (--load-balancer-pool) or an IPAddressPool"
		if internal {
			field, kind, flag = annotation.Field(annotation.InternalOf(svc).Key), "internal load balancer pool", "--load-balancer-internal-pool"
		}
		switch {
		case l.pools.Serves(ipv4, internal) && !l.pools.Suits(ipv4, &c.request):
			c.wait(field, c.noPool(kind, family))
		case l.pools.Serves(ipv4, internal):
			c.wait(field, c.fullPools(l.pools, kind, family))
		case object.Deref(svc.Spec.IPFamilyPolicy) == object.PreferDualStack && len(svc.Spec.IPFamilies) > 1 && l.pools.Serves(!ipv4, internal):
			// It takes what there is.
		default:
			c.wait(field, fmt.Sprintf("there is no %s of %s addresses: add one with %s", kind, family, flag))
		}
	}
	return nil
}

// fullPools returns the message for a Service whose pools have no free address of a family.
func (c *change) fullPools(pools *alloc.Pools, kind, family string) string {
	ranges, size, holders := pools.Offered(family == object.IPv4, &c.request)
	if c.request.Pool == "" {
		return fmt.Sprintf("every %s address of the %ss (%s) is taken: the Service waits for one", family, kind, ranges)
	}
	const most = 3 // holders by name
	text := fmt.Sprintf("the pool %s (%s, 1 address) is full", c.request.Pool, ranges)
	if size > 1 {
		text = fmt.Sprintf("the pool %s (%s, %d %s addresses) is full", c.request.Pool, ranges, size, family)
	}
	switch n := len(holders); {
	case n == 1 && size == 1:
		text += ": Service " + holders[0] + " has it"
	case n == 1:
		text += ": Service " + holders[0] + " has its addresses"
	case n > most:
		text += fmt.Sprintf(": Services %s and %d more have its addresses", strings.Join(holders[:most], ", "), n-most)
	case n > 1:
		text += ": Services " + strings.Join(holders, ", ") + " have its addresses"
	}
	return text + "; the Service waits for one: name another pool, or widen this one"
}

// noPool returns the message for a Service that may use no pool with addresses of a family.
func (c *change) noPool(kind, family string) string {
	if c.request.Pool != "" {
		return fmt.Sprintf("there is no %s of the name %s with %s addresses for the Service: name another one, or add an IPAddressPool of that name", kind, c.request.Pool, family)
	}
	return fmt.Sprintf("no %s with %s addresses is for the Service: each has autoAssign false, or a serviceAllocation that leaves the Service out; name a pool by the annotation metallb.io/address-pool", kind, family)
}

// wait records that the Service waits for a load balancer IP, with a warning about a field.
func (c *change) wait(field, message string) {
	c.waits = true
	c.outcome = append(c.outcome, note{path: c.owner.File, field: field, reason: ReasonPending, message: message, warning: true})
}

// finish writes the load balancer IPs to the status, sorted by family and within a family in
// the requested order. It adds notes about values that lie outside of all ranges and are
// kept.
func (c *change) finish(t *transaction) error {
	svc := c.service()
	if isOurLoadBalancer(svc) {
		before := svc.Status.LoadBalancer.Ingress
		svc.Status.LoadBalancer.Ingress = nil
		slices.SortStableFunc(c.ingress, func(a, b netip.Addr) int {
			return cmp.Or(
				cmp.Compare(slices.Index(svc.Spec.IPFamilies, object.FamilyOf(a)), slices.Index(svc.Spec.IPFamilies, object.FamilyOf(b))),
				cmp.Compare(slices.Index(c.request.Requested, a), slices.Index(c.request.Requested, b)))
		})
		for _, addr := range c.ingress {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, ingressPoint(addr, before))
		}
	}
	c.outcome = append(c.outcome, t.s.allocator.outside(svc, c.owner)...)
	return nil
}

// ingressPoint returns the status entry of a load balancer IP: the entry in written, which has its ipMode, or else a new one with ipMode VIP (packets
// arrive with their destination unchanged).
func ingressPoint(addr netip.Addr, written []object.LoadBalancerIngress) object.LoadBalancerIngress {
	text, mode := addr.String(), object.IPModeVIP
	for _, ingress := range written {
		if ingress.IP == text && ingress.IPMode != nil {
			return object.LoadBalancerIngress{IP: text, IPMode: ingress.IPMode, Ports: ingress.Ports}
		}
	}
	return object.LoadBalancerIngress{IP: text, IPMode: &mode}
}

// outside returns a warning for each value of a Service that lies outside of the current ranges and pools.
func (l *allocator) outside(svc *object.Service, owner Owner) []note {
	var notes []note
	add := func(field, format string, args ...any) {
		notes = append(notes, note{path: owner.File, field: field, reason: ReasonOutside, message: fmt.Sprintf(format, args...), warning: true})
	}
	v := valuesOf(svc)
	for i, addr := range v.clusterIPs {
		if addresses := l.addresses[addr.Is4()]; addresses == nil || !addresses.Contains(addr) {
			add(fmt.Sprintf("spec.clusterIPs[%d]", i), "%s lies outside of the range of cluster IPs; the Service keeps it: delete and create it to give it another one", addr)
		}
	}
	for _, port := range v.ports {
		if !l.ports.Contains(port.Number) {
			add("spec.ports", "node %s lies outside of the range %s; the Service keeps it: set another one, or delete and create it", port, l.ports.Range())
		}
	}
	internal := annotation.InternalOf(svc).Key
	for _, addr := range v.ingress {
		switch {
		case internal != "" && !l.pools.IsInternal(addr):
			add(annotation.Field(internal), "%s lies in no internal load balancer pool (%s) and is not served: add the pool with --load-balancer-internal-pool", addr, orNone(l.pools.Internal()))
		case !l.pools.Contains(addr):
			add("spec.loadBalancerIP", "%s lies in no load balancer pool (%s); the Service keeps it until it asks for another one", addr, poolsText(l.pools))
		case internal == "" && l.pools.IsInternal(addr) && !slices.ContainsFunc(askedIngress(svc), func(a asked) bool { return a.addr == addr }):
			add("spec.loadBalancerIP", "%s lies in an internal load balancer pool, and only internal clients reach it; the Service keeps it until it asks for another one", addr)
		}
	}
	return notes
}

// couldBeInternal reports whether an internal load balancer has an address that an internal one could replace: an address of a pool that is not
// internal, or of no pool although an internal pool exists.
func (l *allocator) couldBeInternal(svc *object.Service) bool {
	return annotation.InternalOf(svc).Key != "" && slices.ContainsFunc(valuesOf(svc).ingress, func(addr netip.Addr) bool {
		return !l.pools.IsInternal(addr) && (l.pools.Contains(addr) || l.pools.Serves(addr.Is4(), true))
	})
}

func poolsText(pools *alloc.Pools) string { return orNone(pools.String()) }

func orNone(text string) string {
	if text == "" {
		return "there is none"
	}
	return text
}

// lacksIngress reports whether a Service waits for a load balancer IP.
func (s *Store) lacksIngress(svc *object.Service) bool {
	return isOurLoadBalancer(svc) && (len(svc.Status.LoadBalancer.Ingress) < wantedIngress(svc) || s.allocator.couldBeInternal(svc))
}
