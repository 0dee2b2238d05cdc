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
	Memory Memory // what earlier packets left behind; nil: nothing, and no packet exceeds a limit
}

// Network is the part of the network stack that rules refer to.
type Network interface {
	// Route returns the outgoing interface of a packet to dst, and whether dst is local
	// (oif is then the loopback interface). With neither, the packet is dropped.
	Route(dst netip.Addr) (oif uint32, local bool)
	// IsLocal reports whether an address belongs to the host.
	IsLocal(netip.Addr) bool
	// MasqueradeAddr returns the address of an interface for Masquerade, and for Redirect
	// of packets that came in there. The zero Addr means none.
	MasqueradeAddr(iface uint32) netip.Addr
}

// Random draws the numbers of numgen; a *rand.Rand does.
type Random interface {
	Uint32N(n uint32) uint32 // in [0, n)
}

// Packet is the first packet of a connection.
type Packet struct {
	Saddr, Daddr netip.Addr
	Proto        nft.Protocol // 0 with ICMPEcho
	ICMPEcho     bool         // an echo request
	Sport, Dport uint16
	Iif          uint32 // the incoming interface; 0: sent by the host
}

// String returns the packet as in `tcp 192.0.2.10:20000 -> 10.96.0.1:80 from interface
// 2`.
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

// Kind is the fate of a packet: delivered, refused, dropped and others.
type Kind uint8

const (
	Delivered Kind = iota + 1 // to Dst, local or remote
	Dropped                   // the sender gets no answer
	Rejected                  // the sender gets RejectWith
)

// Result is the fate of a packet, with its trace.
type Result struct {
	Kind       Kind
	RejectWith nft.RejectWith // if Rejected
	Dst        netip.AddrPort // after DNAT; port 0 for an echo request
	Src        netip.Addr     // after SNAT
	// DNATed and SNATed are true if an address or port was changed. Translation of an
	// address to itself leaves them false (IPS_DST_NAT, IPS_SRC_NAT).
	DNATed, SNATed bool
	// Timeout is the timeout that `ct timeout set` gave the connection; zero: none.
	Timeout nft.Timeout

	trace []matched
}

// matched is a rule that matched, with the elements of its lookups.
type matched struct {
	family   nft.Family
	chain    string
	rule     nft.Rule
	elements []found
}

// Trace lists the rules that matched in order: chain, rule and, for a lookup, the element.
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

// Run runs a packet through the ruleset, and returns what it leaves behind. It changes nothing in the Host's Memory but the use of rate
// limits.
func (h *Host) Run(p Packet, random Random) (Result, Trail) {
	f := h.newFlow(p, random)
	f.limited = h.Memory != nil
	return f.run(), f.trail
}

// RunAnswer runs the first reply packet of the endpoint that Run delivered a packet to through the ruleset, and returns what it leaves
// behind. Its NAT is decided already, so only chains of type filter see it.
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

// Outcomes returns all possible results of a packet that exceeds no limit, over all draws of numgen. The results are sorted; no two differ
// only in their trace.
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

// runs runs a packet once for each sequence of draws. A trace is valid until the next run.
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

// sequence is a Random that draws each sequence of numbers once. The draws are the digits of a mixed-radix number, and only digits that a
// run has used exist. Incrementing the number gives the next sequence.
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

// advance begins the next sequence. It reports whether there is one.
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
	table    *nft.Table   // nil: no table of its family
	bases    []*nft.Chain // of the table, by priority
	random   Random
	packet   Packet         // its current headers
	original netip.AddrPort // the destination before NAT
	oif      uint32         // 0 before routing
	hook     nft.Hook
	dnatDone bool // the decision about DNAT is made, possibly against it
	snatDone bool
	dnated   bool // DNAT changed the destination
	snated   bool
	isReset  bool   // the packet is the TCP reset of a refused connection
	isAnswer bool   // the packet is the first one from the endpoint
	limited  bool   // limits on rates and connections apply
	in       string // the current chain
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
