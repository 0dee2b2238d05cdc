package sim

import (
	"cmp"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// Protocol numbers of ICMP (IANA), and the destination port that conntrack assigns to an
// echo request: type and code of the message (RFC 792, RFC 4443).
const (
	protoICMP   = 1
	protoICMPv6 = 58
	echo        = 8 << 8
	echo6       = 128 << 8
)

// flow is the state of one packet on its path. It has more than 15 fields: a rule may read and change
// any of them.
type flow struct {
	host     *Host
	family   nft.Family
	table    *nft.Table // nil: no table of its family
	random   Random
	packet   Packet         // its current headers
	original netip.AddrPort // the destination before NAT
	oif      uint32         // 0 before routing
	hook     nft.Hook
	dnatDone bool // the decision about DNAT is made, possibly for none
	snatDone bool
	dnated   bool // DNAT changed the destination
	snated   bool
	isReset  bool // the packet is the TCP reset of a refused connection
	isAnswer bool // the packet is the first one from the endpoint
	sent     bool // by Send: limits count
	opens    []limited
	in       string // the chain
	timeout  nft.Timeout
	learnt   []lesson
	trace    []matched
}

func (h *Host) newFlow(p Packet, random Random) *flow {
	f := &flow{host: h, family: nft.IPv4, packet: p, random: random, trace: make([]matched, 0, 8)}
	port := p.Dport
	if p.ICMPEcho {
		port = echo
	}
	if p.Daddr.Is6() {
		f.family = nft.IPv6
		if p.ICMPEcho {
			port = echo6
		}
	}
	f.original = netip.AddrPortFrom(p.Daddr, port)
	f.table = h.Ruleset[f.family]
	return f
}

// run takes the packet through the hooks:
//
//	from outside   prerouting, route, then input or postrouting
//	from the box   route, output, route again when the destination changed, postrouting
//
// A packet from the box to itself leaves by the loopback interface and comes back in
// by prerouting and input, but there its NAT is decided already, so no chain sees it.
func (f *flow) run() Result {
	var local bool
	if f.packet.Iif != 0 {
		if r, ended := f.visit(nft.HookPrerouting); ended {
			return r
		}
		f.oif, local = f.host.Route(f.packet.Daddr)
		if local {
			f.oif = 0 // input has no outgoing interface
			if r, ended := f.visit(nft.HookInput); ended {
				return r
			}
			return f.result(Delivered)
		}
	} else {
		if f.oif, local = f.host.Route(f.packet.Daddr); f.oif == 0 && !local {
			return f.result(Dropped)
		}
		if r, ended := f.visit(nft.HookOutput); ended {
			return r
		}
		f.oif, local = f.host.Route(f.packet.Daddr)
	}
	if f.oif == 0 && !local {
		return f.result(Dropped)
	}
	if r, ended := f.visit(nft.HookPostrouting); ended {
		return r
	}
	return f.result(Delivered)
}

// visit runs the base chains of a hook by priority, until one decides about the
// connection's NAT or stops the packet.
func (f *flow) visit(hook nft.Hook) (Result, bool) {
	f.hook = hook
	done := &f.dnatDone
	if hook == nft.HookInput || hook == nft.HookPostrouting {
		done = &f.snatDone
	}
	if *done {
		return Result{}, false
	}
	for _, c := range f.baseChains(hook) {
		switch v := f.chain(c, 0); v.kind {
		case dropped:
			return f.result(Dropped), true
		case rejected:
			return f.rejected(v.with), true
		}
		if *done {
			break
		}
	}
	*done = true
	return Result{}, false
}

// rejected returns the result of a refused packet. A TCP reset belongs to the connection,
// so it passes the NAT chains that are still undecided, which may stop it. An ICMP error
// belongs to no connection and passes no NAT chain.
func (f *flow) rejected(with nft.RejectWith) Result {
	if f.isReset {
		return f.result(Dropped)
	}
	r := f.result(Rejected)
	r.RejectWith = with
	if with == nft.RejectTCPReset {
		p := f.packet
		f.isReset = true
		f.packet = Packet{Saddr: p.Daddr, Daddr: p.Saddr, Proto: p.Proto, Sport: p.Dport, Dport: p.Sport}
		if reset := f.run(); reset.Kind != Delivered {
			r.Kind, r.RejectWith = Dropped, 0
		}
		r.trace = f.trace
	}
	return r
}

func (f *flow) baseChains(hook nft.Hook) []*nft.Chain {
	if f.table == nil {
		return nil
	}
	var chains []*nft.Chain
	for _, c := range f.table.Chains {
		if c.Hook == hook {
			chains = append(chains, c)
		}
	}
	slices.SortFunc(chains, func(a, b *nft.Chain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	return chains
}

func (f *flow) result(k Kind) Result {
	return Result{
		Kind:   k,
		Dst:    netip.AddrPortFrom(f.packet.Daddr, f.packet.Dport),
		Src:    f.packet.Saddr,
		DNATed: f.dnated,
		SNATed: f.snated,

		Timeout: f.timeout,
		trace:   f.trace,
	}
}

// dnat sets the connection's destination. An echo request has no port to change; a TCP
// reset comes from that destination and keeps its own addresses.
func (f *flow) dnat(to netip.AddrPort) {
	from := netip.AddrPortFrom(f.packet.Daddr, f.packet.Dport)
	if f.isReset {
		from = netip.AddrPortFrom(f.packet.Saddr, f.packet.Sport)
	}
	if f.packet.ICMPEcho {
		to = netip.AddrPortFrom(to.Addr(), from.Port())
	}
	f.dnatDone, f.dnated = true, to != from
	if !f.isReset {
		f.packet.Daddr, f.packet.Dport = to.Addr(), to.Port()
	}
}

// masquerade sets the connection's source. If the interface has no address, the packet is
// dropped (nf_nat_masquerade_ipv4).
func (f *flow) masquerade() verdict {
	addr := f.host.MasqueradeAddr(f.oif)
	if !addr.IsValid() {
		return verdict{kind: dropped}
	}
	f.snatDone = true
	if !f.isReset {
		f.snated = addr != f.packet.Saddr
		f.packet.Saddr = addr
	}
	return verdict{kind: accepted}
}

// snat sets the connection's source.
func (f *flow) snat(to netip.AddrPort) {
	f.snatDone = true
	if !f.isReset {
		f.snated = to != netip.AddrPortFrom(f.packet.Saddr, f.packet.Sport)
		f.packet.Saddr, f.packet.Sport = to.Addr(), to.Port()
	}
}

// redirect sends the packet to the host: an incoming one to the address of its interface,
// an outgoing one to the loopback address (nf_nat_redirect_ipv4).
func (f *flow) redirect() verdict {
	var addr netip.Addr
	switch {
	case f.hook != nft.HookOutput:
		addr = f.host.MasqueradeAddr(f.packet.Iif)
	case f.family == nft.IPv6:
		addr = netip.IPv6Loopback()
	default:
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if !addr.IsValid() {
		return verdict{kind: dropped}
	}
	f.dnat(netip.AddrPortFrom(addr, f.packet.Dport))
	return verdict{kind: accepted}
}
