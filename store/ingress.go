package store

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Load balancer IPs. A Service is never refused for the lack of one: it waits, with a
// note. It has those that it asks for, and one of each of its families of which it asks
// for none.

// wantedIngress returns the number of load balancer IPs of a Service that waits for none.
func wantedIngress(svc *object.Service) int {
	n := 0
	for _, family := range svc.Spec.IPFamilies {
		here := 0
		for _, a := range askedIngress(svc) {
			if a.addr.IsValid() && familyOf(a.addr) == family {
				here++
			}
		}
		n += max(here, 1)
	}
	return n
}

// keepsIngress reports whether a load balancer IP that the Service has is still what its
// new version asks for. Of those of a family of which it asks for none it keeps one.
func (c *change) keepsIngress(l *allocator, addr netip.Addr) bool {
	svc, family := c.service(), familyOf(addr)
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
	if pool, inPool := l.pools.NameOf(addr); c.request.Pool != "" && inPool && !c.request.Names(pool) {
		return false // it asks for another pool by now
	}
	if c.asks(family) {
		return slices.Contains(c.request.Requested, addr)
	}
	has := c.held().ingress
	return has[slices.IndexFunc(has, func(other netip.Addr) bool { return familyOf(other) == family })] == addr
}

// asks reports whether the Service names IPs of a family.
func (c *change) asks(family string) bool {
	return slices.ContainsFunc(c.request.Requested, func(addr netip.Addr) bool { return familyOf(addr) == family })
}

// takeAskedIngress takes the IPs that the Service has or names.
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
			l.releaseIngress(addr, c.request.Owner)
			continue
		}
		if l.takeIngress(addr, c.request) == nil {
			c.ingress = append(c.ingress, addr)
		} else {
			// It shared the IP, and what it serves now is no more in keeping with that.
			l.releaseIngress(addr, c.request.Owner)
		}
	}
	for _, a := range askedIngress(svc) {
		if !slices.Contains(c.ingress, a.addr) {
			c.takeIngress(t, a)
		}
	}
	return nil
}

// takeIngress takes an IP that the Service names, or notes why it cannot have it.
func (c *change) takeIngress(t *transaction, a asked) {
	families, l := c.service().Spec.IPFamilies, t.s.allocator
	switch {
	case !a.addr.IsValid() && (a.field == "spec.loadBalancerIP" || t.s.cfg.Rules != nil):
		return // the object package warns of it, and the rules of annotations
	case !a.addr.IsValid():
		c.outcome = append(c.outcome, note{path: c.owner.File, field: a.field, reason: ReasonUnusual,
			message: fmt.Sprintf("%q is not an IP address and is ignored: write addresses with commas between them", a.text), warning: true})
		return
	case !slices.Contains(families, familyOf(a.addr)):
		c.wait(a.field, fmt.Sprintf("%s is not of the Service's family, %s: name an address of that family", a.addr, families))
		return
	}
	if use := t.otherUse(c.service(), a.addr, c.request); use != "" {
		c.wait(a.field, fmt.Sprintf("%s cannot be given: %s; the Service waits for it", a.addr, use))
		return
	}
	err := l.takeIngress(a.addr, c.request)
	var held *alloc.HeldError
	var other *alloc.PoolError
	switch {
	case err == nil:
		c.ingress = append(c.ingress, a.addr)
	case errors.As(err, &held), errors.As(err, &other):
		c.wait(a.field, fmt.Sprintf("%s cannot be given: %v; the Service waits for it", a.addr, err))
	case c.request.Internal:
		c.wait(a.field, fmt.Sprintf("%s lies in no internal load balancer pool (%s), and %s asks for an internal load balancer: name another address, or add a pool with --load-balancer-internal-pool",
			a.addr, orNone(l.pools.Internal()), annotation.InternalOf(c.service()).Key))
	default:
		c.wait(a.field, fmt.Sprintf("%s lies in no load balancer pool (%s): name another address, or add a pool with loadBalancerPool (--load-balancer-pool) or an IPAddressPool",
			a.addr, poolsText(l.pools)))
	}
}

// takeAnyIngress takes an IP of each family for which the Service has and names none.
func (c *change) takeAnyIngress(t *transaction) error {
	svc, l := c.service(), t.s.allocator
	otherFamily := func(addr netip.Addr) bool { return !slices.Contains(svc.Spec.IPFamilies, familyOf(addr)) }
	if !isOurLoadBalancer(svc) || slices.ContainsFunc(c.request.Requested, otherFamily) {
		return nil
	}
	for _, family := range svc.Spec.IPFamilies {
		has := slices.ContainsFunc(c.ingress, func(addr netip.Addr) bool { return familyOf(addr) == family })
		if has || c.asks(family) {
			continue
		}
		ipv4 := family == object.IPv4
		if addr, was := c.formerIngress(t, ipv4); was && l.takeIngress(addr, c.request) == nil {
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
		case c.prefersFamilies() && len(svc.Spec.IPFamilies) > 1 && l.pools.Serves(!ipv4, internal):
			// It takes what there is.
		default:
			c.wait(field, fmt.Sprintf("there is no %s of %s addresses: add one with %s", kind, family, flag))
		}
	}
	return nil
}

// fullPools is the text for a Service whose pools have no free address of a family.
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

// noPool is the text for a Service that no pool has an address of a family for.
func (c *change) noPool(kind, family string) string {
	if c.request.Pool != "" {
		return fmt.Sprintf("there is no %s of the name %s with %s addresses for the Service: name another one, or add an IPAddressPool of that name", kind, c.request.Pool, family)
	}
	return fmt.Sprintf("no %s with %s addresses is for the Service: each has autoAssign false, or a serviceAllocation that leaves the Service out; name a pool by the annotation metallb.io/address-pool", kind, family)
}

func (c *change) prefersFamilies() bool {
	policy := c.service().Spec.IPFamilyPolicy
	return policy != nil && *policy == object.PreferDualStack
}

// wait notes what a load balancer waits for.
func (c *change) wait(field, message string) {
	c.waits = true
	c.outcome = append(c.outcome, note{path: c.owner.File, field: field, reason: ReasonPending, message: message, warning: true})
}

// finish writes the load balancer IPs into the status, in the order of the families and,
// of one family, as they were asked for, and notes which values the Service only has
// because it had them before.
func (c *change) finish(t *transaction) error {
	svc := c.service()
	if isOurLoadBalancer(svc) {
		before := svc.Status.LoadBalancer.Ingress
		svc.Status.LoadBalancer.Ingress = nil
		slices.SortStableFunc(c.ingress, func(a, b netip.Addr) int {
			return cmp.Or(
				cmp.Compare(slices.Index(svc.Spec.IPFamilies, familyOf(a)), slices.Index(svc.Spec.IPFamilies, familyOf(b))),
				cmp.Compare(slices.Index(c.request.Requested, a), slices.Index(c.request.Requested, b)))
		})
		for _, addr := range c.ingress {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, ingressPoint(addr, before))
		}
	}
	c.outcome = append(c.outcome, t.s.allocator.outside(svc, c.owner)...)
	return nil
}

// ingressPoint returns the status of a load balancer IP: the written one, or the mode VIP (packets
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

// outside notes the values of a Service that lie outside of all ranges by now.
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
		}
	}
	return notes
}

// couldBeInternal reports whether an internal load balancer has an address that is not internal, or
// one of a removed pool while there is another one.
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
