package bench

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// answersTurn measures answers of a connection that both ends take part in for long.
func (w *way) answersTurn(b *testing.B, answer []byte) {
	b.Helper()
	packets := make([][]byte, measured)
	for i := range packets {
		packets[i] = answer
	}
	w.router.inject(b, w.router.out, packets[:seldom])
	w.took = append(w.took, w.router.inject(b, w.router.out, packets))
	w.router.in.drain(b)
}

// assure opens a connection of UDP that conntrack calls assured, and gives the packet of its answers.
func (w *way) assure(b *testing.B) (answer []byte) {
	b.Helper()
	f := flow{netip.MustParseAddrPort("100.67.0.1:5000"), w.to[0]}
	for range 3 {
		w.router.out.drain(b)
		w.router.inject(b, w.router.in, [][]byte{f.packet()})
		client, server, sent := w.router.out.next(b)
		if !sent {
			b.Fatalf("%s: a packet was not forwarded", w.name)
		}
		answer = flow{server, client}.packet()
		w.router.in.drain(b)
		w.router.inject(b, w.router.out, [][]byte{answer})
		if _, _, sent = w.router.in.next(b); !sent {
			b.Fatalf("%s: an answer was not forwarded", w.name)
		}
		time.Sleep(2100 * time.Millisecond) // it is a stream after 2 s (nf_conntrack_proto_udp.c)
	}
	return answer
}

// BenchmarkAnswers is the CPU of an answer of a connection that is there, by what affinity is asked for.
func BenchmarkAnswers(b *testing.B) {
	lab := netlab.New(b)
	sticky := func(name string, at int, refresh bool) string {
		doc := service(name, "clusterIP: "+serviceAddr(at).String()+"\n  sessionAffinity: ClientIP", "UDP") +
			slice(name, "UDP", []netip.Addr{endpointAddr(at, 0), endpointAddr(at, 1)})
		if refresh {
			doc = strings.Replace(doc, "metadata:\n", "metadata:\n  annotations: {svcctl.io/affinity-refresh: packets}\n", 1)
		}
		return doc
	}
	at := func(i int) netip.AddrPort { return netip.AddrPortFrom(serviceAddr(i), 80) }
	with := func(name string, to netip.AddrPort, refresh bool) *way {
		return balanced(b, lab, name, func(d netlab.Dir) {
			writeServices(d, 1_000)
			d.Write("sticky.yaml", sticky("sticky", 1_000, false)+"---\n"+sticky("refreshed", 1_001, refresh))
		}, to)
	}
	ways := []*way{
		with("of a Service, affinity in use", at(0), false),
		with("of a Service, beside one with refresh by packets", at(0), true),
		with("of a Service with affinity", at(1_000), false),
		with("of a Service with refresh by packets", at(1_001), true),
	}
	packets := make([][]byte, len(ways))
	for i, w := range ways {
		packets[i] = w.assure(b)
	}
	for range *rounds {
		for i, w := range ways {
			w.answersTurn(b, packets[i])
		}
	}
	for _, w := range ways {
		results.add("Answer of an established connection: CPU, all its way", w.name, ms(median(w.took)),
			fmt.Sprintf("%.2fx the first", median(ratios(w.took, ways[0].took))))
	}
}
