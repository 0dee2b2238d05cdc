package sim_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	. "svcctl.io/svcctl/nft/sim"
)

// TestKernelAgrees sends random packets through random rulesets, in the kernel and
// here. What became of a packet in the kernel must be one of the outcomes here.
func TestKernelAgrees(t *testing.T) {
	needRoot(t)
	const rulesets, packets = 100, 25
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
	const enough = rulesets * packets / 50
	if min(all.forwarded, all.local, all.dropped, all.rejected, all.dnated, all.snated) < enough {
		t.Errorf("the rulesets are too much alike to prove anything: %+v", all)
	}
}

// TestKernelKnowsTheCases runs the tables of the other tests in the kernel.
func TestKernelKnowsTheCases(t *testing.T) {
	needRoot(t)
	b := newBox(t)
	b.openFence()
	id := uint16(20000)
	for _, tt := range sendCases() {
		id++
		b.load(tt.host.Ruleset)
		b.send(tt.packet, id)
		if real := observed(b.settle(), id, tt.packet.Saddr); !(&suspects{tt.host}).agree(tt.packet, real) {
			t.Errorf("%s: %s\nkernel: %s\nhere:   %s", tt.name, tt.packet, real, tt.want)
		}
	}
}

// TestKernelUpdateKeepsData is TestUpdateKeepsData with the kernel: what a client's many
// connections make the box remember is where the first one went.
func TestKernelUpdateKeepsData(t *testing.T) {
	needRoot(t)
	b := newBox(t)
	b.openFence()
	h := host(
		prerouting(nft.Rule{nft.MatchProto{Proto: nft.TCP}, balance}, nft.Rule{nft.MatchProto{Proto: nft.TCP}, recall}),
		postrouting(nft.Rule{nft.MatchProto{Proto: nft.TCP}, remember}))
	b.load(h.Ruleset)
	ask := syn
	ask.Dport = 81 // which has no backends
	packets := append(slices.Repeat([]Packet{syn}, 12), ask)
	for i, p := range packets {
		b.send(p, 20000+uint16(i))
	}
	seen, boxes := b.settle(), suspects{h}
	for i, p := range packets {
		if real := observed(seen, 20000+uint16(i), p.Saddr); !boxes.agree(p, real) {
			t.Errorf("packet %d: %s\nkernel: %s\nhere:\n%s", i, p, real, describe(boxes[0].Outcomes(p)))
		}
	}
}

// tally counts what became of packets.
type tally struct{ forwarded, local, dropped, rejected, dnated, snated int }

func (c *tally) count(o outcome, p Packet) {
	switch {
	case o.Kind == Dropped:
		c.dropped++
	case o.Kind == Rejected:
		c.rejected++
	default:
		if o.local {
			c.local++
		} else {
			c.forwarded++
		}
		if o.dst.Addr() != p.Daddr {
			c.dnated++
		}
		if o.src != p.Saddr {
			c.snated++
		}
	}
}

// compare runs packets through one random ruleset.
func (b *box) compare(seed uint64, packets int, all *tally) {
	u := &universes[seed%uint64(len(universes))]
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), universe: u}
	host := stateful.Host{Host: Host{Ruleset: g.ruleset(), Network: u}}
	boxes := suspects{&host}
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
		if !boxes.agree(p, real) {
			b.t.Errorf("ruleset %d, packet %d: %s\nkernel: %s\nhere:   %s\n%s", seed, i, p, real, describe(boxes[0].Outcomes(p)), text(host.Ruleset))
			return
		}
		all.count(real, p)
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

// outcome is the observed outcome of a packet.
type outcome struct {
	Kind
	sighting
	deliveries int
}

func (o outcome) String() string {
	return fmt.Sprintf("%d %s -> %s (local %t, reject %d, delivered %d times)", o.Kind, o.src, o.dst, o.local, o.with, o.deliveries)
}

// observed returns the outcome of a packet from the sightings. The stack of a box that it was
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

// suspects are boxes that may be the one in the kernel: alike but for what packets made
// them learn, which does not show outside.
type suspects []*stateful.Host

// agree reports whether a packet may end in one of them as it did in the kernel. Those
// where it may not are out of question from then on.
func (s *suspects) agree(p Packet, real outcome) bool {
	var left suspects
	for _, h := range *s {
		h.Memory = h
		for trail, r := range h.Runs(p) {
			if !real.is(r, p) {
				continue
			}
			if next := h.After(trail); !slices.ContainsFunc(left, next.Remembers) {
				left = append(left, next)
			}
		}
	}
	if len(left) > 0 {
		*s = left
	}
	return len(left) > 0
}

func (o outcome) is(r Result, p Packet) bool {
	switch {
	case r.Kind != o.Kind:
		return false
	case r.Kind == Rejected:
		return r.RejectWith == o.with
	case r.Kind == Dropped:
		return true
	}
	// What the box sends itself by IPv6 is masqueraded with an address that depends on
	// the destination (RFC 6724), which a Host does not know.
	anySource := o.local && p.Iif == 0 && p.Daddr.Is6() && len(r.Trace()) > 0 && strings.Contains(r.Trace()[len(r.Trace())-1], "masquerade")
	return o.deliveries == 1 && r.Dst == o.dst && (r.Src == o.src || anySource)
}

func describe(results []Result) string {
	var b strings.Builder
	for _, r := range results {
		fmt.Fprintf(&b, "%s\n        %s\n", stateful.Text(r), strings.Join(r.Trace(), "\n        "))
	}
	return b.String()
}

func text(rs nft.Ruleset) string {
	var b strings.Builder
	rs.WriteText(&b) // a Builder never fails
	return b.String()
}
