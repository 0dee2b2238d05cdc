package store

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// mostPassed bounds the values that are looked at for one that a Service had.
const mostPassed = 64

// search looks for the value that a Service had among those that are reserved. The first one that its name leads to may have been
// taken by another Service: it had the next one then.
type search struct {
	seen  int
	found bool
}

// passes reports whether the Service did not have a value and would have been given the next one: it is not free, and is
// not both reserved and like its own.
func (s *search) passes(free, reserved bool, resembles func() bool) bool {
	s.seen++
	if free || s.seen > mostPassed {
		return false
	}
	s.found = reserved && resembles()
	return !s.found
}

// formerAddress is the reserved cluster IP that a Service seems to have had.
func (c *change) formerAddress(t *transaction, ipv4 bool) (netip.Addr, bool) {
	l := t.s.allocator
	in := l.addresses[ipv4]
	if len(l.reserved.addresses) == 0 || in == nil {
		return netip.Addr{}, false
	}
	// Another Service may have been given the home of this one. Where few addresses are
	// taken, that is next to impossible.
	rare := uint64(len(l.reserved.addresses)) < in.Size()/100
	var s search
	addr, _ := in.Home(c.ref.Key(), func(addr netip.Addr) bool {
		owner, held := in.Owner(addr)
		at := l.reserved.addresses[addr]
		return s.passes(!held && !t.avoidAddress(addr), owner == reservedOwner, func() bool { return c.resembles(at, false) && c.reaches(t, at, rare && s.seen == 1) })
	})
	return addr, s.found
}

// formerIngress is the reserved load balancer IP that a Service seems to have had.
func (c *change) formerIngress(t *transaction, ipv4 bool) (netip.Addr, bool) {
	l := t.s.allocator
	if len(l.reserved.addresses) == 0 {
		return netip.Addr{}, false
	}
	var s search
	addr, _ := l.pools.Home(ipv4, &c.request, func(addr netip.Addr) bool {
		_, reserved := l.pools.RequestOf(addr, reservedOwner)
		at := l.reserved.addresses[addr]
		free := len(l.pools.Sharing(addr)) == 0 && !t.avoidIngress(addr, c.request)
		return s.passes(free, reserved, func() bool { return c.resembles(at, c.request.SharingKey != "") && c.reaches(t, at, false) })
	})
	return addr, s.found
}

// formerPort is the reserved node port that a Service seems to have had, on all of some
// protocols.
func (c *change) formerPort(t *transaction, protocols []string, seed string) (uint16, bool) {
	l := t.s.allocator
	if len(l.reserved.nodePorts) == 0 {
		return 0, false
	}
	var s search
	number, _ := l.ports.Home(seed, func(number uint16) bool {
		free, reserved := true, true
		var at []ReservedFrontend
		for _, protocol := range protocols {
			port := alloc.Port{Protocol: protocol, Number: number}
			owner, held := l.ports.Owner(port)
			free, reserved = free && !held, reserved && held && owner == reservedOwner
			at = append(at, l.reserved.nodePorts[port]...)
		}
		return s.passes(free, reserved, func() bool { return c.reaches(t, at, false) })
	})
	return number, s.found
}

// resembles reports whether a Service serves the same ports as some frontends of one address; shares is set when others may serve
// some of them.
func (c *change) resembles(frontends []ReservedFrontend, shares bool) bool {
	var had, has []alloc.Port
	for _, f := range frontends {
		had = append(had, f.Port)
	}
	for _, port := range c.service().Spec.Ports {
		has = append(has, alloc.Port{Protocol: port.Protocol, Number: uint16(port.Port)})
	}
	return (shares || len(had) == len(has)) && !slices.ContainsFunc(has, func(p alloc.Port) bool { return !slices.Contains(had, p) })
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
