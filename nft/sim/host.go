package sim

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
)

// Host is a host with a ruleset and a network. It is not safe for concurrent use.
type Host struct {
	Ruleset nft.Ruleset
	Network

	learnt map[setID]map[string]memory
	clock  time.Time // of the last Send
	limits limits
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

// Kind is the fate of a packet.
type Kind uint8

const (
	Delivered Kind = iota + 1 // to Dst, local or remote
	Dropped                   // the sender gets no answer
	Rejected                  // the sender gets RejectWith
)

// String returns the kind as a word.
func (k Kind) String() string {
	return [...]string{Delivered: "delivered", Dropped: "dropped", Rejected: "rejected"}[k]
}

// Result is the fate of a packet, with its trace.
type Result struct {
	Kind       Kind
	RejectWith nft.RejectWith // if Rejected
	Dst        netip.AddrPort // after DNAT; port 0 for an echo request
	Src        netip.Addr     // after SNAT
	// DNATed and SNATed are true if an address or port was changed. Translation of an
	// address to itself leaves them false (IPS_DST_NAT, IPS_SRC_NAT).
	DNATed, SNATed bool
	// Timeout is the connection's, by `ct timeout set`; the zero one: none.
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

// String returns the result on one line, without its trace.
func (r Result) String() string {
	switch r.Kind {
	case Delivered:
		return fmt.Sprintf("delivered %s -> %s", r.Src, r.Dst)
	case Rejected:
		with := map[nft.RejectWith]string{nft.RejectTCPReset: "TCP reset", nft.RejectPortUnreachable: "port unreachable", nft.RejectHostUnreachable: "host unreachable"}
		return "rejected with " + with[r.RejectWith]
	}
	return r.Kind.String()
}

// Send runs a packet through the ruleset at the given time, which must not precede that
// of an earlier Send. Elements that the packet adds to dynamic sets stay, and what it uses of
// limits; its connection stays open.
func (h *Host) Send(p Packet, now time.Time, random Random) Result {
	h.clock = now
	f := h.newFlow(p, random)
	f.sent = true
	r := f.run()
	h.remember(f.learnt)
	if r.Kind == Delivered {
		h.limits.opened(f.opens)
	}
	return r
}

// Answer runs the first answer of the endpoint to which Send delivered a packet through the
// ruleset, at the time of the last Send. Its NAT is decided already, so only chains of type
// filter see it. What it makes the ruleset learn stays.
func (h *Host) Answer(p Packet, r Result) {
	f := h.newFlow(p, nil)
	f.isAnswer, f.dnated, f.dnatDone, f.snatDone = true, r.DNATed, true, true
	f.packet.Saddr, f.packet.Sport = r.Dst.Addr(), r.Dst.Port()
	f.packet.Daddr, f.packet.Dport = p.Saddr, p.Sport
	hook := nft.HookPrerouting
	if h.IsLocal(r.Dst.Addr()) {
		hook = nft.HookOutput
	}
	for _, c := range f.baseChains(hook) {
		if c.Filter {
			f.chain(c, 0)
		}
	}
	h.remember(f.learnt)
}

// Outcomes returns all possible results of a packet under every limit, over all draws of numgen, at the
// time of the last Send. It changes no dynamic set. The results are sorted and differ in
// more than their trace.
func (h *Host) Outcomes(p Packet) []Result {
	var results []Result
	for _, r := range h.runs(p) {
		results = append(results, r)
	}
	slices.SortStableFunc(results, compareResults)
	return slices.CompactFunc(results, func(a, b Result) bool { return compareResults(a, b) == 0 })
}

// runs runs a packet once for each sequence of draws.
func (h *Host) runs(p Packet) iter.Seq2[*flow, Result] {
	return func(yield func(*flow, Result) bool) {
		for s, more := (&sequence{}), true; more; more = s.advance() {
			if f := h.newFlow(p, s); !yield(f, f.run()) {
				return
			}
		}
	}
}

// sequence is a Random that draws each sequence of numbers once. The draws are the digits of a number,
// of which only those are known that a run has used; incrementing it gives the next run.
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
		cmp.Compare(a.Timeout.Name(), b.Timeout.Name()),
	)
}
