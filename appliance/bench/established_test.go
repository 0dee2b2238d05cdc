package bench

import (
	"fmt"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// establish opens a connection with a first packet and its answer, and gives the packets
// that follow.
func (w *way) establish(b *testing.B, n int) [][]byte {
	b.Helper()
	f := flow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 67, byte(w.next >> 8), byte(w.next)}), 5000), w.to[w.next%len(w.to)]}
	w.next++
	if from, to := w.exchange(b, f.packet()); from != f.to || to != f.from {
		b.Fatalf("%s: the answer came from %v to %v", w.name, from, to)
	}
	packets := make([][]byte, n)
	for i := range packets {
		packets[i] = f.packet()
	}
	return packets
}

// exchange sends a client's packet and the endpoint's answer, and tells where the client sees
// that come from and go to.
func (w *way) exchange(b *testing.B, packet []byte) (from, to netip.AddrPort) {
	b.Helper()
	w.router.out.drain(b)
	w.router.inject(b, w.router.in, [][]byte{packet})
	client, server, sent := w.router.out.next(b)
	if !sent {
		b.Fatalf("%s: the first packet was not forwarded", w.name)
	}
	w.router.in.drain(b) // there is room for one packet, and the kernel announces itself there
	w.router.inject(b, w.router.out, [][]byte{flow{server, client}.packet()})
	from, to, sent = w.router.in.next(b)
	if !sent {
		b.Fatalf("%s: the answer was not forwarded", w.name)
	}
	return from, to
}

// followingTurn measures the packets behind the first one.
func (w *way) followingTurn(b *testing.B) {
	b.Helper()
	packets := w.establish(b, seldom+measured)
	w.router.inject(b, w.router.in, packets[:seldom])
	w.took = append(w.took, w.router.inject(b, w.router.in, packets[seldom:]))
	w.router.out.drain(b)
	w.router.forgetFlows(b)
}

// BenchmarkEstablished is the CPU of a packet of a connection that is there, all its way
// through the box.
func BenchmarkEstablished(b *testing.B) {
	lab := netlab.New(b)
	endpoint := netip.MustParseAddrPort("10.128.0.2:8080")
	full := func(name string, to ...netip.AddrPort) *way {
		return balanced(b, lab, name, func(d netlab.Dir) {
			writeServices(d, 10_000)
			d.Write("features.yaml", everyFeature)
		}, to...)
	}
	ways := []*way{
		byHand(b, lab, "plain routing, tracked", conntracked, endpoint),
		byHand(b, lab, "one hand-written DNAT rule: routed past it", oneRule, endpoint),
		byHand(b, lab, "one hand-written filter rule, `ct state invalid`", "table ip t { "+strayRule+" }", endpoint),
		byHand(b, lab, "both hand-written rules: routed past them", "table ip t { "+natRule+strayRule+" }", endpoint),
		full("10,000 Services, every feature on: routed past them", endpoint),
		byHand(b, lab, "one hand-written DNAT rule: through it", oneRule, vip),
		full("10,000 Services, every feature on: to a Service", standbys(10_000)...),
	}
	against := []int{0, 0, 0, 0, 0, 5, 5} // whom each is compared with
	for range *rounds {
		for _, w := range ways {
			w.followingTurn(b)
		}
	}
	for i, w := range ways {
		results.add("Established: CPU of a packet, all its way", w.name, ms(median(w.took)),
			fmt.Sprintf("%.2fx %s", median(ratios(w.took, ways[against[i]].took)), ways[against[i]].name))
	}
}
