package store

import (
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// reservedKey marks in the data directory that values are reserved, over restarts.
const reservedKey = "reserved"

// reservedOwner holds the values that are reserved. No Service has that name.
const reservedOwner = "(unknown: in force in the kernel, see svcctl release)"

// ReservedFrontend is an address and port, or with the zero Addr a node port, that the kernel
// serves for a Service which the store does not know, since its data was lost.
type ReservedFrontend struct {
	Addr      netip.Addr
	Port      alloc.Port
	Endpoints []netip.Addr
}

// reserved are the values of ReservedFrontends.
type reserved struct {
	addresses map[netip.Addr][]ReservedFrontend
	nodePorts map[alloc.Port][]ReservedFrontend
}

// Blank reports whether the store knows nothing of Services: there is none, and none was
// removed in the past that it remembers. A store whose data was lost is blank, and so is a
// new one.
func (s *Store) Blank() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.table.index.Count() > 0 {
		return false
	}
	return !s.feed.journal.Concerns(object.KindService)
}

// CountUnstored returns the number of files that differ from those of the last successful
// SyncFiles.
func (s *Store) CountUnstored(files manifest.Files) (n int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	files.Changes(s.declared.files, func(_, _ *manifest.File) { n++ })
	return n
}

// HasUndeclared reports whether there are objects of files that no file that was read has a
// document for.
func (s *Store) HasUndeclared() bool {
	s.writer.Lock()
	defer s.writer.Unlock()
	return len(s.declared.undeclared) > 0
}

// HasReserved reports whether values are reserved, or were before the last restart.
func (s *Store) HasReserved() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.reserves
}

// Reserve keeps the addresses and node ports of frontends from being given automatically, until
// Unreserve, except to a Service that looks like the one which had them: the value is the first
// one that its name leads to, it serves the same ports there, and one of its endpoints is among
// those of the frontend. (A cluster IP of a range with few reserved ones it gets also while no
// endpoints of it are known.) Who asks for a value by name gets it. That
// values are reserved is remembered over restarts, but not which: the caller learns them from
// the kernel.
func (s *Store) Reserve(frontends []ReservedFrontend) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !s.reserves {
		err := s.write(engine.Transaction{Puts: []engine.Pair{{Key: reservedKey, Value: []byte("1"), Revision: s.feed.revision}}}, s.feed.revision)
		if err != nil {
			return fmt.Errorf("remember that the kernel serves unknown Services: %w", err)
		}
	}
	s.setReserves(true)
	r := &s.allocator.reserved
	*r = reserved{addresses: map[netip.Addr][]ReservedFrontend{}, nodePorts: map[alloc.Port][]ReservedFrontend{}}
	for _, f := range frontends {
		if f.Addr.IsValid() {
			r.addresses[f.Addr] = append(r.addresses[f.Addr], f)
		} else {
			r.nodePorts[f.Port] = append(r.nodePorts[f.Port], f)
		}
	}
	s.allocator.begin()
	for addr, all := range r.addresses {
		// An error says that a Service has the value, which is then no unknown one's.
		if in := s.allocator.addresses[addr.Is4()]; in != nil && in.Prefix().Contains(addr) {
			_ = s.allocator.holdAddress(addr, reservedOwner)
		} else if s.allocator.pools.Contains(addr) {
			request := alloc.Request{Owner: reservedOwner}
			for _, f := range all {
				request.Ports = append(request.Ports, f.Port)
			}
			_ = s.allocator.holdIngress(addr, request)
		}
	}
	for port := range r.nodePorts {
		_ = s.allocator.holdPort(port, reservedOwner)
	}
	s.allocator.begin()
	return nil
}

// Unreserve gives all values free that are still reserved.
func (s *Store) Unreserve() error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !s.reserves {
		return nil
	}
	err := s.write(engine.Transaction{Deletes: []string{reservedKey}}, s.feed.revision)
	if err != nil {
		return fmt.Errorf("forget that the kernel serves unknown Services: %w", err)
	}
	s.allocator.begin()
	for addr := range s.allocator.reserved.addresses {
		s.allocator.releaseAddress(addr, reservedOwner)
		s.allocator.releaseIngress(addr, reservedOwner)
	}
	for port := range s.allocator.reserved.nodePorts {
		s.allocator.releasePort(port, reservedOwner)
	}
	s.allocator.begin()
	s.allocator.reserved = reserved{}
	s.setReserves(false)
	return nil
}

func (s *Store) setReserves(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserves = is
}

// cedeAddress releases a reserved cluster IP for a Service that names it. The other two do so for a
// load balancer IP and a node port.
func (l *allocator) cedeAddress(addr netip.Addr) {
	if len(l.reserved.addresses) > 0 {
		released := l.released
		l.releaseAddress(addr, reservedOwner)
		l.released = released // no object waits for it
	}
}

func (l *allocator) cedeIngress(addr netip.Addr) {
	if len(l.reserved.addresses) > 0 {
		released := l.released
		l.releaseIngress(addr, reservedOwner)
		l.released = released
	}
}

func (l *allocator) cedePort(port alloc.Port) {
	if len(l.reserved.nodePorts) > 0 {
		released := l.released
		l.releasePort(port, reservedOwner)
		l.released = released
	}
}

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
