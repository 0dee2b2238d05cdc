package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// Load balancer IPs. A Service is never refused for the lack of one: it waits, with a
// note. It has one for each of its families.

// keepsIngress tells whether a load balancer IP that the Service has is still what its
// new version asks for.
func (c *change) keepsIngress(addr netip.Addr) bool {
	svc := c.service()
	if !isOurLoadBalancer(svc) || !slices.Contains(svc.Spec.IPFamilies, familyOf(addr)) {
		return false
	}
	return !c.asks(addr.Is4()) || c.claim.Requested == addr
}

// asks tells whether the Service names its IP of a family.
func (c *change) asks(ipv4 bool) bool {
	return c.claim.Requested.IsValid() && c.claim.Requested.Is4() == ipv4
}

// takeAskedIngress takes the IPs that the Service has or names.
func (c *change) takeAskedIngress(l *ledger) error {
	svc := c.service()
	if !isOurLoadBalancer(svc) {
		return nil
	}
	for _, addr := range c.held().ingress {
		if !c.keepsIngress(addr) {
			continue
		}
		if l.takeIngress(addr, c.claim) == nil {
			c.ingress[addr.Is4()] = addr
		} else {
			// It shared the IP, and what it serves now is no more in keeping with that.
			l.releaseIngress(addr, c.claim.Owner)
		}
	}
	requested := c.claim.Requested
	if _, has := c.ingress[requested.Is4()]; has || !requested.IsValid() {
		return nil
	}
	if !slices.Contains(svc.Spec.IPFamilies, familyOf(requested)) {
		c.wait("spec.loadBalancerIP", fmt.Sprintf("%s is not of the Service's family, %s: name an address of that family",
			requested, svc.Spec.IPFamilies))
		return nil
	}
	err := l.takeIngress(requested, c.claim)
	var held *alloc.HeldError
	switch {
	case err == nil:
		c.ingress[requested.Is4()] = requested
	case errors.As(err, &held):
		c.wait("spec.loadBalancerIP", fmt.Sprintf("%s cannot be given: %v; the Service waits for it", requested, err))
	default:
		c.wait("spec.loadBalancerIP", fmt.Sprintf("%s lies in no load balancer pool (%s): name another address, or add a pool with --load-balancer-pool",
			requested, poolsText(l.pools)))
	}
	return nil
}

// takeAnyIngress takes an IP of each family for which the Service has and names none.
func (c *change) takeAnyIngress(l *ledger) error {
	svc := c.service()
	requested := c.claim.Requested
	if !isOurLoadBalancer(svc) || requested.IsValid() && !slices.Contains(svc.Spec.IPFamilies, familyOf(requested)) {
		return nil
	}
	for _, family := range svc.Spec.IPFamilies {
		ipv4 := family == object.IPv4
		if _, has := c.ingress[ipv4]; has || c.asks(ipv4) {
			continue
		}
		if addr, err := l.nextIngress(ipv4, c.claim); err == nil {
			c.ingress[ipv4] = addr
			continue
		}
		switch {
		case l.pools.Serves(ipv4):
			c.wait("spec.type", fmt.Sprintf("every %s address of the load balancer pools (%s) is taken: the Service waits for one", family, poolsText(l.pools)))
		case c.prefersFamilies() && len(svc.Spec.IPFamilies) > 1 && l.pools.Serves(!ipv4):
			// It takes what there is.
		default:
			c.wait("spec.type", fmt.Sprintf("there is no load balancer pool of %s addresses: add one with --load-balancer-pool", family))
		}
	}
	return nil
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

// finish writes the load balancer IPs into the status, in the order of the families, and
// notes which values the Service only has because it had them before.
func (c *change) finish(l *ledger) error {
	svc := c.service()
	if isOurLoadBalancer(svc) {
		svc.Status.LoadBalancer.Ingress = nil
		mode := object.IPModeVIP
		for _, family := range svc.Spec.IPFamilies {
			if addr, has := c.ingress[family == object.IPv4]; has {
				svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress,
					object.LoadBalancerIngress{IP: addr.String(), IPMode: &mode})
			}
		}
	}
	c.outcome = append(c.outcome, l.outside(svc, c.owner)...)
	return nil
}

// outside notes the values of a Service that lie outside of all ranges by now.
func (l *ledger) outside(svc *object.Service, owner Owner) []note {
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
	for _, addr := range v.ingress {
		if !l.pools.Contains(addr) {
			add("spec.loadBalancerIP", "%s lies in no load balancer pool (%s); the Service keeps it until it asks for another one", addr, poolsText(l.pools))
		}
	}
	return notes
}

func poolsText(pools *alloc.Pools) string {
	if text := pools.String(); text != "" {
		return text
	}
	return "there is none"
}
