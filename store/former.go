package store

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// formerAddress is the reserved cluster IP that a Service seems to have had.
func (c *change) formerAddress(t *transaction, ipv4 bool) (netip.Addr, bool) {
	l := t.s.allocator
	in := l.addresses[ipv4]
	if len(l.reserved.addresses) == 0 || in == nil {
		return netip.Addr{}, false
	}
	addr, ok := in.Home(c.ref.Key())
	if owner, held := in.Owner(addr); !ok || !held || owner != reservedOwner {
		return netip.Addr{}, false
	}
	// Another Service may have been given the home of this one. Where few addresses are
	// taken, that is next to impossible.
	rare := uint64(len(l.reserved.addresses)) < in.Size()/100
	at := l.reserved.addresses[addr]
	return addr, c.resembles(at) && c.reaches(t, at, rare)
}

// formerIngress is the reserved load balancer IP that a Service seems to have had.
func (c *change) formerIngress(t *transaction, ipv4 bool) (netip.Addr, bool) {
	l := t.s.allocator
	if len(l.reserved.addresses) == 0 {
		return netip.Addr{}, false
	}
	addr, ok := l.pools.Home(ipv4, c.request.Internal, c.ref.Key())
	if _, held := l.pools.RequestOf(addr, reservedOwner); !ok || !held {
		return netip.Addr{}, false
	}
	at := l.reserved.addresses[addr]
	return addr, c.resembles(at) && c.reaches(t, at, false)
}

// formerPort is the reserved node port that a Service seems to have had, on all of some
// protocols.
func (c *change) formerPort(t *transaction, protocols []string, seed string) (uint16, bool) {
	l := t.s.allocator
	if len(l.reserved.nodePorts) == 0 {
		return 0, false
	}
	number, ok := l.ports.Home(seed)
	for _, protocol := range protocols {
		port := alloc.Port{Protocol: protocol, Number: number}
		owner, held := l.ports.Owner(port)
		ok = ok && held && owner == reservedOwner && c.reaches(t, l.reserved.nodePorts[port], false)
	}
	return number, ok
}

// resembles reports whether a Service serves the same ports as some frontends of one address.
func (c *change) resembles(frontends []ReservedFrontend) bool {
	var had, has []alloc.Port
	for _, f := range frontends {
		had = append(had, f.Port)
	}
	for _, port := range c.service().Spec.Ports {
		has = append(has, alloc.Port{Protocol: port.Protocol, Number: uint16(port.Port)})
	}
	return len(had) == len(has) && !slices.ContainsFunc(has, func(p alloc.Port) bool { return !slices.Contains(had, p) })
}

// reaches reports whether one of a Service's endpoints is behind some frontends; unknown is the
// answer when endpoints of one of the two are not known.
func (c *change) reaches(t *transaction, frontends []ReservedFrontend, unknown bool) bool {
	known := t.backing(c.service())
	if len(known) == 0 {
		// The frontends at its cluster IPs lead to them.
		for _, addr := range valuesOf(c.service()).clusterIPs {
			for _, f := range t.s.allocator.reserved.addresses[addr] {
				known = append(known, f.Endpoints...)
			}
		}
	}
	var behind []netip.Addr
	for _, f := range frontends {
		behind = append(behind, f.Endpoints...)
	}
	if len(known) == 0 || len(behind) == 0 {
		return unknown
	}
	return slices.ContainsFunc(known, func(a netip.Addr) bool { return slices.Contains(behind, a) })
}

// backing are the addresses of a Service's endpoints, and of the Pods that it selects, as of
// this transaction. It is for when values are reserved.
func (t *transaction) backing(svc *object.Service) (addrs []netip.Addr) {
	key := index.ServiceKey(svc)
	if t.feeding == nil {
		t.feeding = map[string][]object.Object{}
		for _, c := range t.changes {
			switch o := c.wanted.(type) {
			case nil, *object.Service:
			case *object.Pod:
				t.feeding[podsOf+o.Metadata.Namespace] = append(t.feeding[podsOf+o.Metadata.Namespace], o)
			default:
				if of := index.ServiceKey(o); of != "" {
					t.feeding[of] = append(t.feeding[of], o)
				}
			}
		}
	}
	_, stored, endpoints := t.s.table.index.Service(key)
	all := slices.Clone(t.feeding[key])
	for _, slice := range stored {
		all = append(all, slice)
	}
	if endpoints != nil {
		all = append(all, endpoints)
	}
	if len(svc.Spec.Selector) > 0 {
		all = append(all, t.feeding[podsOf+svc.Metadata.Namespace]...)
		for _, pod := range t.s.table.index.Selected(svc.Metadata.Namespace, svc.Spec.Selector) {
			all = append(all, pod)
		}
	}
	for _, o := range all {
		for _, text := range index.AddressesOf(o, svc.Spec.Selector) {
			if addr, err := netip.ParseAddr(text); err == nil {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

// podsOf, before a namespace, is no key of a Service.
const podsOf = "pods of "
