package resolve

import (
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Reasons of Problems about ranges of ports.
const (
	// reasonRangeByHash: clients of a range keep their endpoint by a hash and not by memory.
	reasonRangeByHash = "RangeByHash"
	// reasonRangeNotServed: a range has no effect at an address.
	reasonRangeNotServed = "RangeNotServed"
)

// readPortRanges reads the annotation.
func (r *resolver) readPortRanges(balance nft.Balance, idle bool) []object.PortRange {
	value, given := r.Service.Metadata.Annotations[object.AnnotationPortRanges]
	if !given {
		return nil
	}
	field := annotation.Field(object.AnnotationPortRanges)
	ranges, err := object.ParsePortRanges(value, r.Service.Spec.Ports)
	if err != nil {
		r.refuse(field, reasonUnknownValue, "%v: no range is served", err)
		return nil
	}
	if r.affinity() > 0 && byChance(balance) {
		r.warn(r.ref, field, reasonRangeByHash,
			"clients of a range keep their endpoint by a hash of their address, and at the ports of spec by memory, so the two may differ: svcctl.io/balance: source-hash without sessionAffinity gives a client one endpoint for all ports")
	}
	if idle {
		r.warn(r.ref, field, reasonNoEffect, "%s has no effect on ranges: their connections live by the settings of the host", AnnotationIdle)
	}
	if key := r.relayed.Key; key != "" {
		r.warn(r.ref, field, ReasonNotRelayed, "%s has no effect on ranges: they are served by the kernel, and endpoints see no header and no other endpoint is tried", key)
	}
	return slices.DeleteFunc(ranges, func(pr object.PortRange) bool {
		i := slices.IndexFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Name == pr.Name })
		key := r.front(i).Key
		if key == "" || pr.Protocol != object.ProtocolTCP {
			return false
		}
		r.refuse(field, reasonTLSNotTerminated, "%s is not served, rather than passed through as it is: %s asks for TLS or HTTP at that port, and ranges are not relayed: "+
			"list the ports in spec.ports, or give the range to a port that %s.NAME: none excludes", pr, key, annotation.TLSSecret)
		return true
	})
}

// byChance reports whether an algorithm may give a client another endpoint each time.
func byChance(balance nft.Balance) bool {
	return balance == nft.Random || balance == nft.RoundRobin || balance == nft.LeastConnection
}

// portRanges are the Service ports of the ranges that are served by the endpoints of a port.
func (r *resolver) portRanges(ranges []object.PortRange, port *object.ServicePort, p *nft.ServicePort) (list []nft.ServicePort) {
	ranges = slices.DeleteFunc(slices.Clone(ranges), func(pr object.PortRange) bool { return pr.Name != port.Name })
	if len(ranges) == 0 {
		return nil // mostly
	}
	behind := withoutPorts(p)
	for _, pr := range ranges {
		added := behind
		added.Protocol, _ = nft.ProtocolNamed(pr.Protocol)
		added.ID = p.ID + "/" + strings.ToLower(pr.Protocol) + "-" + (&nft.Frontend{Port: pr.First, Last: pr.Last}).PortText()
		for _, fe := range p.Frontends {
			switch {
			case !fe.Addr.IsValid():
				continue // one node port cannot stand for many
			case fe.HostOwned:
				r.refuse(annotation.Field(object.AnnotationPortRanges), reasonRangeNotServed,
					"%s is an address of this host, whose programs would lose the ports %s: choose another address for the Service, or list its ports in spec.ports", fe.Addr, pr)
				continue
			}
			fe.Port, fe.Last = pr.First, pr.Last
			added.Frontends = append(added.Frontends, fe)
		}
		if len(added.Frontends) > 0 {
			list = append(list, added)
		}
	}
	return list
}

// withoutPorts is a Service port with the endpoints and settings of one for its ranges, which share them: endpoints are
// addresses with port 0, each once.
func withoutPorts(p *nft.ServicePort) nft.ServicePort {
	behind := nft.ServicePort{Family: p.Family, Balance: p.Balance, Serving: addressesOf(p.Serving), Limits: p.Limits}
	switch {
	case p.Affinity > 0 && byChance(p.Balance):
		behind.Balance = nft.SourceHash
	case p.Balance == nft.LeastConnection: // whose feedback is that of the exact port
		behind.Balance = nft.Random
	}
	for pool := range p.Pools {
		behind.Pools[pool] = addressesOf(p.Pools[pool])
	}
	if len(p.Weights) > 0 {
		behind.Weights = make(map[netip.AddrPort]uint16, len(p.Weights))
	}
	for ap, w := range p.Weights {
		at := netip.AddrPortFrom(ap.Addr(), 0)
		behind.Weights[at] = max(behind.Weights[at], w)
	}
	return behind
}

// addressesOf are the addresses of endpoints, each once, with port 0.
func addressesOf(endpoints []netip.AddrPort) []netip.AddrPort {
	list, seen := make([]netip.AddrPort, 0, len(endpoints)), make(map[netip.Addr]bool, len(endpoints))
	for _, ap := range endpoints {
		if !seen[ap.Addr()] {
			seen[ap.Addr()] = true
			list = append(list, netip.AddrPortFrom(ap.Addr(), 0))
		}
	}
	return list
}
