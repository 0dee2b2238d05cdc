package dns

import (
	"net"
	"net/netip"
)

// client is who asks.
type client struct {
	addr netip.Addr
	udp  bool
	// local says that it is on this box: nobody else can send from its address.
	local bool
	// trusted says that upstreams are asked for it.
	trusted   bool
	namespace string // "" when it is in none
}

// client tells who asks by where a question came from.
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

// addressOf is the address of a UDP or TCP peer; the zero Addr for any other.
func addressOf(peer net.Addr) (addr netip.Addr, udp bool) {
	switch a := peer.(type) {
	case *net.UDPAddr:
		addr, udp = a.AddrPort().Addr(), true
	case *net.TCPAddr:
		addr = a.AddrPort().Addr()
	}
	return addr.Unmap().WithZone(""), udp
}
