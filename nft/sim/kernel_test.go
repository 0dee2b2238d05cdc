package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// TestKernelAgrees sends random packets through random rulesets, in the kernel and
// here. What became of a packet in the kernel must be one of the outcomes here; the
// simulation goes on from that one.
func TestKernelAgrees(t *testing.T) {
	needRoot(t)
	const rulesets, packets = 60, 25
	b := newBox(t)
	b.openFence()
	var all tally
	for seed := range uint64(rulesets) {
		b.compare(seed, packets, &all)
		if t.Failed() {
			return
		}
	}
	t.Logf("%+v", all)
	const enough = rulesets * packets / 25
	if min(all.forwarded, all.local, all.dropped, all.rejected, all.dnated, all.snated) < enough {
		t.Errorf("the rulesets are too much alike to prove anything: %+v", all)
	}
}

// tally counts what became of packets.
type tally struct{ forwarded, local, dropped, rejected, dnated, snated int }

func (c *tally) count(r Result, local bool) {
	switch {
	case r.Kind == Dropped:
		c.dropped++
	case r.Kind == Rejected:
		c.rejected++
	case local:
		c.local++
	default:
		c.forwarded++
	}
	if r.DNATed {
		c.dnated++
	}
	if r.SNATed {
		c.snated++
	}
}

// compare runs packets through one random ruleset.
func (b *box) compare(seed uint64, packets int, all *tally) {
	u := &universes[seed%uint64(len(universes))]
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), universe: u}
	host := Host{Ruleset: g.ruleset(), Route: u.route, IsLocal: u.isLocal, MasqueradeAddr: u.masqueradeAddr}
	host.clock = time.Unix(0, 0)
	b.load(host.Ruleset)

	const firstID, lastID = 20000, 60000
	ids := firstID + uint16(seed*uint64(packets)%(lastID-firstID))
	sent := make([]Packet, packets)
	for i := range sent {
		sent[i] = g.packet(ids + uint16(i))
		b.send(sent[i], ids+uint16(i))
	}
	seen := b.settle()
	for i, p := range sent {
		real := observed(seen, ids+uint16(i), p.Saddr)
		f, r, ok := host.follow(p, real)
		if !ok {
			b.t.Errorf("ruleset %d, packet %d: %+v\nkernel: %s\nhere:   %s\n%s", seed, i, p, real, describe(host.Outcomes(p)), text(host.Ruleset))
			return
		}
		host.remember(f.learnt)
		all.count(r, real.local)
	}
}

func (g *generator) packet(id uint16) Packet {
	p := Packet{Sport: id, Iif: pick(g, []uint32{in0, in0, in0, out0, 0})}
	p.Daddr = pick(g, g.vips[:2])
	if g.IntN(6) == 0 {
		p.Daddr = pick(g, slices.Concat(g.vips[2:], g.endpoints[:2], g.box))
	}
	p.Saddr = pick(g, g.clients)
	if p.Iif == 0 {
		p.Saddr = pick(g, g.box)
	}
	if g.IntN(10) == 0 {
		p.ICMPEcho = true
		return p
	}
	p.Proto, p.Dport = pick(g, protocols), pick(g, ports)
	return p
}

// outcome is what was seen of a packet.
type outcome struct {
	Kind
	sighting
	deliveries int
}

func (o outcome) String() string {
	return fmt.Sprintf("%s %s -> %s (local %t, reject %d, delivered %d times)", o.Kind, o.src, o.dst, o.local, o.with, o.deliveries)
}

// observed is what the sightings say of a packet. The stack of a box that it was
// delivered to may refuse it still, which is no matter of the rules.
func observed(seen []sighting, id uint16, sender netip.Addr) outcome {
	o := outcome{Kind: Dropped}
	for _, s := range seen {
		switch {
		case s.id != id:
		case s.with == 0:
			o = outcome{Delivered, s, o.deliveries + 1}
		case o.Kind == Dropped && s.dst.Addr() == sender: // not what a refused reset's sender is told
			o = outcome{Kind: Rejected, sighting: s}
		}
	}
	return o
}

// follow finds the run that ends as it did in the kernel.
func (h *Host) follow(p Packet, real outcome) (*flow, Result, bool) {
	for f, r := range h.runs(p) {
		if r.Kind != real.Kind || real.Kind == Delivered && real.deliveries != 1 {
			continue
		}
		// What the box sends itself by IPv6 is masqueraded with an address that
		// depends on the destination (RFC 6724), which a Host does not know.
		anySource := real.local && p.Iif == 0 && p.Daddr.Is6() && len(r.Trace) > 0 && strings.Contains(r.Trace[len(r.Trace)-1], "masquerade")
		switch {
		case r.Kind == Dropped,
			r.Kind == Rejected && r.RejectWith == real.with,
			r.Kind == Delivered && r.Dst == real.dst && (r.Src == real.src || anySource):
			return f, r, true
		}
	}
	return nil, Result{}, false
}

func describe(results []Result) string {
	var b strings.Builder
	for _, r := range results {
		fmt.Fprintf(&b, "%s %s -> %s (reject %d)\n        %s\n", r.Kind, r.Src, r.Dst, r.RejectWith, strings.Join(r.Trace, "\n        "))
	}
	return b.String()
}

func text(rs nft.Ruleset) string {
	var b strings.Builder
	rs.WriteText(&b) // a Builder never fails
	return b.String()
}
