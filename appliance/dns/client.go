package dns

import (
	"net"
	"net/netip"
)

// client describes the sender of a question.
type client struct {
	addr netip.Addr
	udp  bool
	// local means that it is on this host: no other host can send from its address.
	local bool
	// trusted means that its questions may go to upstreams.
	trusted   bool
	namespace string // "" when it is in none
}

// client classifies the sender of a question by its address.
func (s *Server) client(from net.Addr) client {
	addr, udp := addressOf(from)
	c := client{addr: addr, udp: udp, local: addr.IsLoopback()}
	if local := s.local.Load(); local != nil && (*local)[addr] {
		c.local = true
	}
	c.trusted = c.local
	for _, p := range s.cfg.Internal {
		c.trusted = c.trusted || p.Contains(addr)
	}
	for _, n := range s.namespaces {
		if n.Prefix.Contains(addr) {
			c.namespace = n.Namespace
			break
		}
	}
	return c
}

// addressOf returns the address of a UDP or TCP peer; the zero Addr for any other.
func addressOf(peer net.Addr) (addr netip.Addr, udp bool) {
	switch a := peer.(type) {
	case *net.UDPAddr:
		addr, udp = a.AddrPort().Addr(), true
	case *net.TCPAddr:
		addr = a.AddrPort().Addr()
	}
	return addr.Unmap().WithZone(""), udp
}
