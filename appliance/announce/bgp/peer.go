package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Port is the TCP port of BGP.
const Port = 179

// asTrans stands for a four-octet AS where only two octets fit (RFC 6793).
const asTrans = 23456

// maxPassword is the longest key of TCP_MD5SIG.
const maxPassword = 80

// Dynamic restricts the AS of a peer whose number is not configured.
type Dynamic string

// The values of Dynamic.
const (
	Internal Dynamic = "internal" // the same AS as ours
	External Dynamic = "external" // any other AS
)

// Peer is a neighbor, and how to speak with it.
type Peer struct {
	// Addr is the address and port of the peer; port 0 is 179. Either Addr or Interface is set.
	Addr netip.AddrPort
	// Interface names the interface on which the peer is found by its link-local address (an
	// unnumbered peer). Router advertisements with a lifetime of 0 are sent there.
	Interface string
	// Source is the local address; unset, the kernel chooses it.
	Source netip.Addr

	LocalAS uint32
	// RemoteAS is the AS of the peer; 0 with Dynamic.
	RemoteAS uint32
	Dynamic  Dynamic
	// RouterID is an IPv4 address that identifies this speaker. Unset, it is an IPv4
	// address of the host, or made from the local address.
	RouterID netip.Addr

	// IPv4 and IPv6 are the families of the routes that the session carries.
	IPv4, IPv6 bool
	Timers     Timers
	// Password is the key of TCP MD5 signatures (RFC 2385), at most 80 bytes.
	Password string
	// MultiHop lets an external peer be more than one hop away. Without it packets to an
	// external peer leave with a TTL of 1.
	MultiHop bool
	// TTLSecurity is the largest number of hops to the peer (GTSM, RFC 5082): 1 accepts packets
	// with TTL 255 only. 0 is off. The peer must send with TTL 255.
	TTLSecurity int
}

// Timers of a session. Those that are 0 have defaults: 90 s, a third of the hold time, 10 s;
// Restart has none.
type Timers struct {
	// Hold is the silence that ends the session: at least 3 s, and the smaller one of both
	// sides. NoHold asks for none.
	Hold time.Duration
	// Keepalive is the interval of keepalives, at most a third of the agreed hold time.
	Keepalive time.Duration
	// Connect is the longest wait between attempts; the first ones come after 1 s, 2 s, ...
	Connect time.Duration
	// Restart has the peer keep the routes for this long when the session breaks
	// (graceful restart, RFC 4724); at most 4095 s, 0 is off.
	Restart time.Duration
}

// NoHold as a hold time asks for a session without hold timer and keepalives.
const NoHold = time.Duration(-1)

const (
	defaultHold    = 90 * time.Second
	defaultConnect = 10 * time.Second
	minHold        = 3 * time.Second
	maxHold        = 65535 * time.Second
	maxRestart     = 4095 * time.Second
)

// Check returns all errors of a Peer.
func (p Peer) Check() error {
	var all []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	wrong(p.Addr.Addr().IsValid() == (p.Interface != ""), "give the peer either an address or an interface")
	wrong(p.Source.IsValid() && p.Addr.Addr().IsValid() && p.Source.Unmap().Is4() != p.Addr.Addr().Unmap().Is4(),
		"the source address %s and the peer's address %s are of different families", p.Source, p.Addr.Addr())
	wrong(p.LocalAS == 0, "the local AS is missing")
	wrong(p.LocalAS == asTrans || p.RemoteAS == asTrans, "AS %d stands for others and belongs to no network (RFC 6793)", asTrans)
	switch p.Dynamic {
	case "":
		wrong(p.RemoteAS == 0, "the peer's AS is missing")
	case Internal, External:
		wrong(p.RemoteAS != 0, "the peer's AS is given as %d and as %s: leave one out", p.RemoteAS, p.Dynamic)
	default:
		wrong(true, "the peer's AS is %q: use %q or %q", p.Dynamic, Internal, External)
	}
	wrong(p.RouterID.IsValid() && (!p.RouterID.Is4() || p.RouterID.IsUnspecified()), "the router ID %s is no IPv4 address", p.RouterID)
	wrong(!p.IPv4 && !p.IPv6, "the session would carry no routes: choose IPv4, IPv6 or both")
	wrong(len(p.Password) > maxPassword, "the password has %d bytes; TCP MD5 signatures take %d", len(p.Password), maxPassword)
	wrong(p.TTLSecurity < 0 || p.TTLSecurity > 254, "ttl security of %d hops is not from 0 to 254", p.TTLSecurity)
	wrong(p.TTLSecurity > 1 && !p.MultiHop, "ttl security of %d hops needs a multihop peer", p.TTLSecurity)
	t := p.Timers
	wrong(t.Hold != NoHold && t.Hold != 0 && (t.Hold < minHold || t.Hold > maxHold), "the hold time %s is not 0 or from 3 s to 65535 s", t.Hold)
	wrong(t.Keepalive < 0 || t.Connect < 0, "a time is negative")
	wrong(t.Keepalive > 0 && t.Hold > 0 && t.Keepalive >= t.Hold, "the keepalive time %s is not below the hold time %s", t.Keepalive, t.Hold)
	wrong(t.Restart < 0 || t.Restart > maxRestart, "the restart time %s is not from 0 to 4095 s", t.Restart)
	return errors.Join(all...)
}

// withDefaults sets fields that were left out.
func (p Peer) withDefaults() Peer {
	if p.Addr.IsValid() {
		p.Addr = netip.AddrPortFrom(p.Addr.Addr().Unmap(), cmp.Or(p.Addr.Port(), Port))
	}
	p.Source = p.Source.Unmap()
	switch p.Timers.Hold {
	case 0:
		p.Timers.Hold = defaultHold
	case NoHold:
		p.Timers.Hold = 0
	}
	p.Timers.Connect = cmp.Or(p.Timers.Connect, defaultConnect)
	return p
}

// SameRouter reports whether both have the same address and port, or interface: a router has one session with this box.
func (p Peer) SameRouter(o Peer) bool {
	p, o = p.withDefaults(), o.withDefaults()
	return p.Addr == o.Addr && p.Interface == o.Interface
}

// String names the peer: its address or its interface.
func (p Peer) String() string {
	switch {
	case p.Interface != "":
		return p.Interface
	case p.Addr.Port() == Port || p.Addr.Port() == 0:
		return p.Addr.Addr().String()
	}
	return p.Addr.String()
}

// internal reports whether an AS makes the session an internal one.
func (p Peer) internal(as uint32) bool { return as == p.LocalAS }
