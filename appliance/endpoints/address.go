package endpoints

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// addressIndex finds the holders of an address, by key.
type addressIndex struct {
	byAddr map[netip.Addr][]string // nearly always one
	byKey  map[string][]netip.Addr
	shared map[netip.Addr]struct{} // those that more than one has
}

// set replaces the addresses of one, and gives those that came or went.
func (x *addressIndex) set(key string, addrs []netip.Addr) (changed []netip.Addr) {
	if x.byAddr == nil {
		x.byAddr, x.byKey, x.shared = map[netip.Addr][]string{}, map[string][]netip.Addr{}, map[netip.Addr]struct{}{}
	}
	before := x.byKey[key]
	for _, addr := range before {
		if !slices.Contains(addrs, addr) {
			x.byAddr[addr] = slices.DeleteFunc(x.byAddr[addr], func(other string) bool { return other == key })
			changed = append(changed, addr)
		}
	}
	for _, addr := range addrs {
		if slices.Contains(before, addr) {
			continue
		}
		x.byAddr[addr] = append(x.byAddr[addr], key)
		changed = append(changed, addr)
	}
	for _, addr := range changed {
		delete(x.shared, addr)
		switch n := len(x.byAddr[addr]); {
		case n == 0:
			delete(x.byAddr, addr)
		case n > 1:
			x.shared[addr] = struct{}{}
		}
	}
	if len(addrs) == 0 {
		delete(x.byKey, key)
	} else {
		x.byKey[key] = addrs
	}
	return changed
}

// keys returns the keys of the holders of an address, sorted.
func (x *addressIndex) keys(addr netip.Addr) []string {
	return slices.Sorted(slices.Values(x.byAddr[addr]))
}

// owners returns the keys of all that have an address.
func (x *addressIndex) owners() []string { return slices.Collect(maps.Keys(x.byKey)) }

// annotationHostAddress lets a Service have an address of the host itself; see package
// resolve.
const annotationHostAddress = "svcctl.io/allow-host-address"

// vipsOf are the addresses that clients find a Service at. Those of a host are where
// Pods may be, too.
func vipsOf(svc *object.Service) []netip.Addr {
	if svc == nil || svc.Spec.Type == object.TypeExternalName || svc.Headless() {
		return nil
	}
	texts := svc.Spec.ClusterIPs
	if svc.Metadata.Annotations[annotationHostAddress] != "true" {
		texts = slices.Concat(texts, svc.Spec.ExternalIPs)
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			texts = append(texts, ingress.IP)
		}
	}
	var addrs []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// families in the order in which they are counted here.
var families = [2]string{object.IPv4, object.IPv6}

func addressesOf(p *object.Pod) []netip.Addr {
	var addrs []netip.Addr
	for _, family := range families {
		if addr := p.Addr(family); addr.IsValid() {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// refusal returns why an address cannot be an endpoint, "" when it can: packets to it would loop on
// the box, or reach many hosts.
func (c *Controller) refusal(addr netip.Addr) string {
	if addr.Is4In6() || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
		return "it may not be loopback, link-local, multicast, unspecified or IPv4-mapped"
	}
	for _, prefix := range c.facts.ServiceRanges {
		if prefix.Contains(addr) {
			return fmt.Sprintf("it lies in the service range %s, and a cluster IP cannot be an endpoint", prefix)
		}
	}
	if owners := c.vips.keys(addr); len(owners) > 0 {
		return fmt.Sprintf("it is an address of Service %s, and connections would come back to the box", owners[0])
	}
	return ""
}

// shared are the problems of addresses that several Pods have: one for each address, of
// the Pod that comes second. Pods in the network of their host share its address rightly.
func (c *Controller) shared() []Problem {
	var all []Problem
	for addr := range c.hosts.shared {
		var keys []string
		for _, key := range c.hosts.keys(addr) {
			if pod := c.pods[key].object; pod != nil && !pod.Spec.HostNetwork && !pod.Terminal() && !pod.Terminating() {
				keys = append(keys, key)
			}
		}
		if len(keys) < 2 {
			continue
		}
		namespace, name := cutKey(keys[1])
		message := fmt.Sprintf("Pod %s has the address %s too: correct one of them, or set spec.hostNetwork where they share a host", keys[0], addr)
		if more := len(keys) - 2; more > 0 {
			message = fmt.Sprintf("Pod %s and %d more have the address %s too: correct them, or set spec.hostNetwork where they share a host", keys[0], more, addr)
		}
		all = append(all, Problem{
			Object: object.Ref{Kind: object.KindPod, Namespace: namespace, Name: name},
			Field:  "status.podIP", Reason: "SharedAddress", Message: message, Warning: true,
		})
	}
	return all
}

// clone returns an index of its own.
func (x *addressIndex) clone() addressIndex {
	c := addressIndex{maps.Clone(x.byAddr), maps.Clone(x.byKey), maps.Clone(x.shared)}
	for addr, keys := range c.byAddr {
		c.byAddr[addr] = slices.Clone(keys)
	}
	return c
}
