package store

import (
	"fmt"
	"net/netip"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// reservedKey marks in the data directory that values are reserved, over restarts.
const reservedKey = "reserved"

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
// one that its name leads to, or follows on values that others have; it serves the same ports there, and one of its endpoints is among
// those of the frontend. (A cluster IP of a range with few reserved ones it gets also while no
// endpoints of it are known.) Who asks for a value by name gets it. That
// values are reserved is remembered over restarts, but not which: the caller learns them from
// the kernel. After an error they are reserved all the same, until the next restart.
func (s *Store) Reserve(frontends []ReservedFrontend) (err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !s.reserves {
		err = s.write(engine.Transaction{Puts: []engine.Pair{{Key: reservedKey, Value: []byte("1"), Revision: s.feed.revision}}}, s.feed.revision)
		if err != nil {
			err = fmt.Errorf("remember that the kernel serves unknown Services: %w", err)
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
	return err
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
