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

// Host is a box: its ruleset and what its rules ask of the rest of the network stack.
// Only Ruleset and Route are needed by every packet. A Host must not be used by two
// goroutines at a time.
type Host struct {
	Ruleset nft.Ruleset
	// Route is where a packet to dst goes: out of an interface, to the box itself (oif
	// is the loopback interface then), or, with neither, nowhere.
	Route func(dst netip.Addr) (oif uint32, local bool)
	// IsLocal reports whether an address is the box's own.
	IsLocal func(netip.Addr) bool
	// MasqueradeAddr is the address of an interface that Masquerade takes, and to which
	// Redirect sends what came in there. The zero Addr: it has none.
	MasqueradeAddr func(iface uint32) netip.Addr

	learnt map[setID]map[string]memory
	clock  time.Time // of the last Send
}

// Packet is the first packet of a connection.
type Packet struct {
	Saddr, Daddr netip.Addr
	Proto        nft.Protocol // 0 with ICMPEcho
	ICMPEcho     bool         // a ping
	Sport, Dport uint16
	Iif          uint32 // the interface it came in by; 0: the box sends it
}

// String is the packet as `tcp 192.0.2.10:20000 -> 10.96.0.1:80 from interface 2`.
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

// Kind is what became of a packet.
type Kind uint8

const (
	Delivered Kind = iota + 1 // to Dst, on the box or beyond
	Dropped                   // the sender hears nothing
	Rejected                  // the sender is told RejectWith
)

// String is the kind in a word.
func (k Kind) String() string {
	switch k {
	case Delivered:
		return "delivered"
	case Dropped:
		return "dropped"
	case Rejected:
		return "rejected"
	}
	return "unknown"
}

// Result is what became of a packet, and why.
type Result struct {
	Kind       Kind
	RejectWith nft.RejectWith // when Rejected
	Dst        netip.AddrPort // after DNAT; port 0 for a ping
	Src        netip.Addr     // after SNAT
	// DNATed and SNATed are true if an address or port was changed. Translation of an
	// address to itself leaves them false (IPS_DST_NAT, IPS_SRC_NAT).
	DNATed, SNATed bool
	// Trace is the rules that matched in their order: the chain, the rule, and the
	// element when it looked one up.
	Trace []string
}

// String is the result in a line, without its Trace.
func (r Result) String() string {
	switch r.Kind {
	case Delivered:
		return fmt.Sprintf("delivered %s -> %s", r.Src, r.Dst)
	case Rejected:
		with := map[nft.RejectWith]string{
			nft.RejectTCPReset:        "TCP reset",
			nft.RejectPortUnreachable: "port unreachable",
			nft.RejectHostUnreachable: "host unreachable",
		}
		return "rejected with " + with[r.RejectWith]
	}
	return r.Kind.String()
}

// Send runs a packet through the ruleset at a time. What the packet makes the ruleset
// learn stays: time must not run backwards from one Send to the next. choose draws a
// number in [0, mod) for every numgen.
func (h *Host) Send(p Packet, now time.Time, choose func(mod uint32) uint32) Result {
	h.clock = now
	f := h.newFlow(p, choose)
	r := f.run()
	h.remember(f.learnt)
	return r
}

// Outcomes is everything that may become of a packet, over all that numgen may draw,
// at the time of the last Send. It learns nothing. The results are sorted and differ
// in more than their Trace.
func (h *Host) Outcomes(p Packet) []Result {
	var results []Result
	for _, r := range h.runs(p) {
		results = append(results, r)
	}
	slices.SortStableFunc(results, compareResults)
	return slices.CompactFunc(results, func(a, b Result) bool { return compareResults(a, b) == 0 })
}

// runs runs a packet once for each sequence of numbers that numgen may draw. The draws
// of a run are the digits of a number, of which only those are known that the run came
// to; counting it up leads to the next run.
func (h *Host) runs(p Packet) iter.Seq2[*flow, Result] {
	type draw struct{ value, mod uint32 }
	return func(yield func(*flow, Result) bool) {
		var draws []draw
		for {
			next := 0
			f := h.newFlow(p, func(mod uint32) uint32 {
				if next == len(draws) {
					draws = append(draws, draw{0, mod})
				}
				next++
				return draws[next-1].value
			})
			if !yield(f, f.run()) {
				return
			}
			for len(draws) > 0 && draws[len(draws)-1].value+1 >= draws[len(draws)-1].mod {
				draws = draws[:len(draws)-1]
			}
			if len(draws) == 0 {
				return
			}
			draws[len(draws)-1].value++
		}
	}
}

// compareResults orders results by everything but their Trace.
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
	)
}
