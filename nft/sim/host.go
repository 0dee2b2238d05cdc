package sim

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/nft"
)

// Host is a host with a ruleset and a network.
type Host struct {
	Ruleset nft.Ruleset
	Network
	Memory Memory // state left by earlier packets; nil: no state, and limits never apply
}

// Network is the part of the network stack that rules refer to.
type Network interface {
	// Route returns the outgoing interface for a packet to dst, and whether dst is local; oif is then the loopback interface. If oif is 0 and local
	// is false, the packet is dropped.
	Route(dst netip.Addr) (oif uint32, local bool)
	// IsLocal reports whether an address belongs to the host.
	IsLocal(netip.Addr) bool
	// MasqueradeAddr returns the source address that Masquerade uses for packets leaving by an interface, and the destination that Redirect uses for
	// packets arriving on it. The zero Addr means that there is none.
	MasqueradeAddr(iface uint32) netip.Addr
}

// Random draws the numbers of numgen. *rand.Rand implements it.
type Random interface {
	Uint32N(n uint32) uint32 // in [0, n)
}

// Packet is the first packet of a connection.
type Packet struct {
	Saddr, Daddr netip.Addr
	Proto        nft.Protocol // 0 for an ICMP echo request
	ICMPEcho     bool         // the packet is an ICMP echo request
	Sport, Dport uint16
	Iif          uint32 // index of the incoming interface; 0 if the host sent the packet
}

// String returns the packet in a form such as `tcp 192.0.2.10:20000 -> 10.96.0.1:80 from interface 2`.
func (p Packet) String() string {
	what, src, dst := "ping", p.Saddr.String(), p.Daddr.String()
	if !p.ICMPEcho {
		what = p.Proto.String()
		src, dst = netip.AddrPortFrom(p.Saddr, p.Sport).String(), netip.AddrPortFrom(p.Daddr, p.Dport).String()
	}
	from := "from the box"
	if p.Iif != 0 {
		from = fmt.Sprint("from interface ", p.Iif)
	}
	return what + " " + src + " -> " + dst + " " + from
}

// Kind is the outcome of a packet: delivered, dropped or rejected.
type Kind uint8

const (
	Delivered Kind = iota + 1 // delivered to Dst, local or remote
	Dropped                   // dropped without an answer to the sender
	Rejected                  // dropped with the answer RejectWith to the sender
)

// Result is the outcome of a packet, with the rules that it matched.
type Result struct {
	Kind       Kind
	RejectWith nft.RejectWith // the answer, if Kind is Rejected
	Dst        netip.AddrPort // destination after DNAT; its port is 0 for an echo request
	Src        netip.Addr     // source address after SNAT
	// DNATed and SNATed are true if an address or port was changed. Translation of an
	// address to itself leaves them false (IPS_DST_NAT, IPS_SRC_NAT).
	DNATed, SNATed bool
	// Timeout is the timeout object set by `ct timeout set`; the zero value if none was set.
	Timeout nft.Timeout

	trace []matched
}

// matched is a rule that a packet matched, with the elements that its lookups found.
type matched struct {
	family   nft.Family
	chain    string
	rule     nft.Rule
	elements []found
}

// Trace returns the matched rules in order, one string each: chain, rule and the elements found by its lookups.
func (r Result) Trace() []string {
	var all []string
	for _, m := range r.trace {
		text := m.chain + ": " + m.rule.Text(m.family)
		for _, e := range m.elements {
			text += " { " + nft.Printer{}.Element(e.set.Set, m.family, e.Element) + " }"
		}
		all = append(all, text)
	}
	return all
}

// Run evaluates the ruleset for a packet. It returns the result, and the Trail of the packet. It does not change the Host's Memory, except that rate
// limits count the packet.
func (h *Host) Run(p Packet, random Random) (Result, Trail) {
	f := h.newFlow(p, random)
	f.limited = h.Memory != nil
	return f.run(), f.trail
}

// RunAnswer evaluates the ruleset for the first reply packet to p, sent by the endpoint to which Run delivered p with result r. It returns the Trail
// of the reply. NAT of the connection is decided already, so only chains of type filter see the packet.
func (h *Host) RunAnswer(p Packet, r Result) Trail {
	f := h.newFlow(p, nil)
	f.isAnswer, f.dnated, f.dnatDone, f.snatDone = true, r.DNATed, true, true
	f.packet.Saddr, f.packet.Sport = r.Dst.Addr(), r.Dst.Port()
	f.packet.Daddr, f.packet.Dport = p.Saddr, p.Sport
	hook := nft.HookPrerouting
	if h.IsLocal(r.Dst.Addr()) {
		hook = nft.HookOutput
	}
	for _, c := range f.bases {
		if c.Hook == hook && c.Filter {
			f.chain(c, 0)
		}
	}
	return f.trail
}

// Outcomes returns all possible results of a packet, over all random numbers that numgen can draw, if the packet exceeds no limit. The results are
// sorted. No two results are equal except for the trace.
func (h *Host) Outcomes(p Packet) []Result {
	var results []Result
	for _, r := range h.runs(p) {
		if i, has := slices.BinarySearchFunc(results, r, compareResults); !has {
			r.trace = slices.Clone(r.trace)
			results = slices.Insert(results, i, r)
		}
	}
	return results
}

// runs evaluates the ruleset for a packet once for each sequence of random numbers. The trace of a result is valid until the next iteration.
func (h *Host) runs(p Packet) iter.Seq2[*flow, Result] {
	return func(yield func(*flow, Result) bool) {
		s := &sequence{}
		first := h.newFlow(p, s)
		for more := true; more; more = s.advance() {
			if f := *first; !yield(&f, f.run()) {
				return
			}
		}
	}
}

// sequence is a Random that enumerates all sequences of draws, each once. The draws of a run are the digits of a mixed-radix number, which has only
// the digits that the run used. Incrementing the number gives the next sequence.
type sequence struct {
	draws []draw
	used  int
}

type draw struct{ value, mod uint32 }

func (s *sequence) Uint32N(mod uint32) uint32 {
	if s.used == len(s.draws) {
		s.draws = append(s.draws, draw{0, mod})
	}
	s.used++
	return s.draws[s.used-1].value
}

// advance moves to the next sequence and reports whether there is one.
func (s *sequence) advance() bool {
	s.used = 0
	for len(s.draws) > 0 && s.draws[len(s.draws)-1].value+1 >= s.draws[len(s.draws)-1].mod {
		s.draws = s.draws[:len(s.draws)-1]
	}
	if len(s.draws) == 0 {
		return false
	}
	s.draws[len(s.draws)-1].value++
	return true
}

// compareResults orders results by all fields but the trace.
func compareResults(a, b Result) int {
	bit := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.RejectWith, b.RejectWith),
		a.Dst.Compare(b.Dst),
		a.Src.Compare(b.Src),
		cmp.Compare(bit(a.DNATed), bit(b.DNATed)),
		cmp.Compare(bit(a.SNATed), bit(b.SNATed)),
		cmp.Compare(a.Timeout.Protocol, b.Timeout.Protocol),
		cmp.Compare(a.Timeout.Idle, b.Timeout.Idle),
	)
}

// ICMP protocol numbers (IANA), and the destination ports that conntrack assigns to echo requests: ICMP type and code as one number (RFC 792, RFC
// 4443).
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
	table    *nft.Table   // nil if the ruleset has no table of the packet's family
	bases    []*nft.Chain // base chains of the table, by priority
	random   Random
	packet   Packet         // the packet with its current headers
	original netip.AddrPort // the destination before NAT
	oif      uint32         // index of the outgoing interface; 0 before routing
	hook     nft.Hook
	dnatDone bool // DNAT of the connection is decided, with or without translation
	snatDone bool
	dnated   bool // DNAT changed the destination
	snated   bool
	isReset  bool   // the packet is the TCP reset of a refused connection
	isAnswer bool   // the packet is the endpoint's first reply
	limited  bool   // limits on rates and connections apply
	in       string // name of the current chain
	timeout  nft.Timeout
	trail    Trail
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
	if f.table = h.Ruleset[f.family]; f.table != nil {
		for _, c := range f.table.Chains {
			if c.Hook != nft.HookNone {
				f.bases = append(f.bases, c)
			}
		}
	}
	slices.SortFunc(f.bases, func(a, b *nft.Chain) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	f.trace = make([]matched, 0, 16)
	return f
}

// run passes the packet through the hooks:
//
//	from outside   prerouting, route, then input or postrouting
//	from the box   route, output, route again when the destination changed, postrouting
//
// A packet from the box to itself leaves by the loopback interface and comes back through prerouting and input. Its NAT is already decided then, so
// NAT chains do not see it again.
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

// visit runs the base chains of a hook by priority, until the NAT of the connection is decided or the packet is dropped or rejected. If the packet is
// dropped or rejected, it returns the result and true.
func (f *flow) visit(hook nft.Hook) (Result, bool) {
	f.hook = hook
	done := &f.dnatDone
	if hook == nft.HookInput || hook == nft.HookPostrouting {
		done = &f.snatDone
	}
	if *done {
		return Result{}, false
	}
	for _, c := range f.bases {
		if c.Hook != hook {
			continue
		}
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

// rejected returns the result of a rejected packet. A TCP reset belongs to the connection, so it passes the NAT chains of hooks where NAT is not yet
// decided, which may drop it. An ICMP error belongs to no connection and passes no NAT chain.
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

// dnat translates the destination of the connection to the given address and port. An echo request has no port to translate. A TCP reset is a reply,
// so its own addresses stay unchanged.
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

// masquerade translates the source of the connection to the address of the outgoing interface. If that has no address, the packet is dropped
// (nf_nat_masquerade_ipv4).
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

// snat translates the source of the connection to the given address and port.
func (f *flow) snat(to netip.AddrPort) {
	f.snatDone = true
	if !f.isReset {
		f.snated = to != netip.AddrPortFrom(f.packet.Saddr, f.packet.Sport)
		f.packet.Saddr, f.packet.Sport = to.Addr(), to.Port()
	}
}

// redirect translates the destination to an address of the host: of the incoming interface, or the loopback address for a packet sent by the host
// (nf_nat_redirect_ipv4).
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
