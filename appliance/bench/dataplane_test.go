package bench

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// vip is the frontend that is measured.
var vip = netip.MustParseAddrPort("10.96.0.10:80")

// The hand-written rulesets that are compared with. In "conntrack" connections are
// tracked because of a rule that no forwarded packet meets.
var (
	conntracked = "table ip t { chain c { type filter hook input priority 0; ct state invalid drop; }; }"
	natRule     = "chain c { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 udp dport 80 dnat to 10.128.0.2:8080; };"
	strayRule   = "chain d { type filter hook prerouting priority dstnat + 10; ct state invalid drop; };"
	oneRule     = "table ip t { " + natRule + " }"
)

// oneMap is a ruleset that does no more than it must: one rule, all Services in one map.
func oneMap(services int) string {
	var s strings.Builder
	s.WriteString("table ip t { map m { type ipv4_addr . inet_proto . inet_service . integer : ipv4_addr . inet_service; elements = {\n")
	for i := range services {
		for e := range endpointsEach {
			fmt.Fprintf(&s, "%s . udp . 80 . %d : %s . 8080,\n", serviceAddr(i), e, endpointAddr(i, e))
		}
	}
	fmt.Fprintf(&s, "}; }; chain c { type nat hook prerouting priority dstnat; dnat ip to ip daddr . meta l4proto . th dport . numgen random mod %d map @m; }; }", endpointsEach)
	return strings.Replace(s.String(), "type ipv4_addr . inet_proto . inet_service . integer : ipv4_addr . inet_service",
		"typeof ip daddr . meta l4proto . th dport . numgen random mod 5 : ip daddr . th dport", 1)
}

// way is one way to handle a packet, measured in turns with the others.
type way struct {
	name    string
	router  *router
	to      []netip.AddrPort // what clients ask for, in turns
	clients int              // known ones that are used again and again; 0: every packet has its own
	warmup  int              // packets before those that are measured, in each turn
	next    int              // of the flows that were used
	took    []time.Duration
}

const (
	// steady is a warm-up in which each of 10,000 Services gets a connection, as it does on
	// a box at work; all ways have it, so that each tracks as many connections.
	steady = 12_000
	// seldom brings back what all packets need after the other ways' turns: who is asked for
	// then was not asked for in a long while.
	seldom   = 200
	measured = 4000 // packets that are measured in a turn
	stride   = 7919 // a prime, so that Services that follow each other are not neighbors
)

// acquaint has each of the known clients answered once: only then is it remembered.
func (w *way) acquaint(b *testing.B) {
	b.Helper()
	w.next = 0
	for _, packet := range w.flows(w.clients) {
		w.exchange(b, packet)
	}
	w.router.forgetFlows(b)
}

// alone is the same way once more, after a long pause.
func (w *way) alone() *way {
	return &way{name: w.name, router: w.router, to: w.to, warmup: seldom}
}

// flows are the packets of new flows.
func (w *way) flows(n int) [][]byte {
	packets := make([][]byte, n)
	for i := range packets {
		client := w.next
		if w.clients > 0 {
			client %= w.clients
		}
		addr := netip.AddrFrom4([4]byte{100, 65 + byte(client>>16), byte(client >> 8), byte(client)})
		packets[i] = flow{netip.AddrPortFrom(addr, uint16(1024+w.next%60000)), w.to[w.next*stride%len(w.to)]}.packet()
		w.next++
	}
	return packets
}

// turn measures the first packets of new flows.
func (w *way) turn(b *testing.B) {
	b.Helper()
	w.router.inject(b, w.router.in, w.flows(w.warmup))
	packets := w.flows(measured)
	before := w.router.sent(b)
	w.took = append(w.took, w.router.inject(b, w.router.in, packets))
	if sent := w.router.sent(b) - before; sent < measured {
		b.Fatalf("%s: %d of %d packets were forwarded", w.name, sent, measured)
	}
	w.router.forgetFlows(b)
}

// byHand is a router with a hand-written ruleset.
func byHand(b *testing.B, lab *netlab.Lab, name, ruleset string, to ...netip.AddrPort) *way {
	b.Helper()
	r := newRouter(b, lab, "hand")
	if ruleset != "" {
		r.LoadNft(ruleset)
	}
	return &way{name: name, router: r, to: to, warmup: steady}
}

// balanced is a router with an appliance.
func balanced(b *testing.B, lab *netlab.Lab, name string, manifests func(netlab.Dir), to ...netip.AddrPort) *way {
	b.Helper()
	return balancedWith(b, lab, name, nil, manifests, to...)
}

// balancedWith is balanced with more flags.
func balancedWith(b *testing.B, lab *netlab.Lab, name string, flags []string, manifests func(netlab.Dir), to ...netip.AddrPort) *way {
	b.Helper()
	r := newRouter(b, lab, "gw")
	svcctl := r.Appliance(*program, slices.Concat(boxFlags, flags)...)
	svcctl.Patience = 5 * time.Minute // some load millions of elements
	manifests(svcctl.Manifests)
	svcctl.Start()
	svcctl.Stop() // the rules stay, and it takes no CPU from what is measured
	return &way{name: name, router: r, to: to, warmup: steady}
}

// BenchmarkNewConnection is the CPU of a flow's first packet, all its way through the box.
func BenchmarkNewConnection(b *testing.B) {
	lab := netlab.New(b)
	endpoint := netip.MustParseAddrPort("10.128.0.2:8080")
	ways := []*way{
		byHand(b, lab, "one hand-written DNAT rule", oneRule, vip),
		byHand(b, lab, "plain routing", "", endpoint),
		byHand(b, lab, "plain routing, tracked", conntracked, endpoint),
		byHand(b, lab, "one hand-written rule and map, 10,000 Services", oneMap(10_000), standbys(10_000)...),
	}
	for _, services := range []int{1, 1_000, 10_000} {
		ways = append(ways, balanced(b, lab, number(services)+" plain Services", func(d netlab.Dir) {
			writeServices(d, services)
		}, standbys(services)...))
	}
	for _, services := range []int{1_000, 10_000} {
		ways = append(ways, balanced(b, lab, number(services)+" Services, every feature on", func(d netlab.Dir) {
			writeServices(d, services)
			d.Write("features.yaml", everyFeature)
		}, standbys(services)...))
	}
	for _, endpoints := range []int{1, 10, 100, 1_000} {
		manifests := func(d netlab.Dir) {
			writeServices(d, 1_000)
			d.Write("features.yaml", everyFeature)
			d.Write("probe.yaml", probe(vip, endpoints, "sessionAffinity: ClientIP"))
		}
		name := fmt.Sprintf("affinity, %s endpoints, ", number(endpoints))
		known := balanced(b, lab, name+"known clients", manifests, vip)
		known.clients = 1_000
		known.acquaint(b)
		ways = append(ways, known, balanced(b, lab, name+"new clients", manifests, vip))
	}
	inTurns(b, "New connection: CPU of the first packet, all its way", "one DNAT rule", ways)
	var others []*way
	for i, w := range ways {
		if i == 0 || len(w.to) == 10_000 {
			others = append(others, w.alone())
		}
	}
	inTurns(b, "The same, to a Service that had none in a long while", "one DNAT rule", others)
}

// inTurns measures the ways and compares them with the first, by that name.
func inTurns(b *testing.B, section, first string, ways []*way) {
	b.Helper()
	for range *rounds {
		for _, w := range ways {
			w.turn(b)
		}
	}
	for _, w := range ways {
		results.add(section, w.name, ms(median(w.took)), fmt.Sprintf("%.2fx %s", median(ratios(w.took, ways[0].took)), first))
	}
}

// busy is the number of Services of 10,000 that have all new connections of a mostly idle box.
const busy = 100

// BenchmarkCounters measures what counters of connections cost a first packet: with them against without, in
// turns, on boxes that differ in nothing else. The same ruleset twice says how steady that is.
func BenchmarkCounters(b *testing.B) {
	lab := netlab.New(b)
	all := standbys(10_000)
	manifests := func(d netlab.Dir) { writeServices(d, len(all)) }
	off := []string{"--traffic=off"}
	without := balancedWith(b, lab, "--traffic off", off, manifests, all...)
	again := balancedWith(b, lab, "--traffic off, another box", off, manifests, all...)
	with := balancedWith(b, lab, "--traffic counters", nil, manifests, all...)
	ways := []*way{without, again, with}
	for _, load := range []struct {
		what string
		to   []netip.AddrPort
	}{{"10,000 Services in turn", all}, {number(busy) + " busy ones of 10,000", all[:busy]}} {
		for _, w := range ways {
			w.to, w.took = load.to, nil
		}
		for range *rounds {
			for _, w := range ways {
				w.turn(b)
			}
		}
		for _, w := range ways {
			results.add("What counting costs a first packet", load.what+", "+w.name, ms(median(w.took)), fmt.Sprintf("%.3fx without", median(ratios(w.took, without.took))))
		}
	}
}
