package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

// withAnnotations adds annotations to a document of this package.
func withAnnotations(doc string, annotations ...string) string {
	return strings.Replace(doc, "metadata:\n", "metadata:\n  annotations: {"+strings.Join(annotations, ", ")+"}\n", 1)
}

// weighted is a Service with cluster IP, load balancer IP and node ports for TCP and UDP,
// policy Local, and endpoints with weights: L1 3, L2 1, R1 2.
func (b *box) weighted(annotations ...string) func(f family) []string {
	return func(f family) []string {
		ports := "tcp: 80, udp: 53/UDP"
		svc := f.service("web", "type: LoadBalancer", "externalTrafficPolicy: Local",
			"clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "ports:",
			fmt.Sprintf("- {name: tcp, port: 80, nodePort: %d}", f.everywherePort("tcp")),
			fmt.Sprintf("- {name: udp, port: 53, protocol: UDP, nodePort: %d}", f.everywherePort("udp")))
		if len(annotations) > 0 {
			svc = withAnnotations(svc, annotations...)
		}
		return []string{
			svc,
			withAnnotations(f.namedSlice("three", "web", ports, b.L1), `svcctl.io/weight: "3"`),
			f.namedSlice("one", "web", ports, b.L2),
			withAnnotations(f.namedSlice("two", "web", ports, b.R1), `svcctl.io/weight: "2"`),
		}
	}
}

// shares asserts that endpoints answer in proportion to their weights: the sum of
// (got - want)² / want of 600 answers is below 40, which chance exceeds in one of 10⁸ for
// up to four endpoints. The weight of the zero AddrPort is that of connections that are refused.
func (b *box) shares(t *testing.T, from *netlab.Host, network string, to netip.AddrPort, weights map[netip.AddrPort]int, more ...netlab.Option) {
	t.Helper()
	isShared(t, fmt.Sprintf("%s %s to %s", from.Name, network, to), from.AskMany(600, network, to, append(more, patiently)...), weights)
}

// isShared is shares for answers that came already.
func isShared(t *testing.T, what string, tally *netlab.Tally, weights map[netip.AddrPort]int) {
	t.Helper()
	const most = 40
	for how, n := range tally.Failures {
		if how == netlab.Refused || how == netlab.Reset || how == netlab.Unreachable {
			tally.At[netip.AddrPort{}] += n
		}
		if weights[netip.AddrPort{}] == 0 || how != netlab.Refused && how != netlab.Reset && how != netlab.Unreachable {
			t.Errorf("%s: %s", what, tally)
			return
		}
	}
	sum, chi := 0, 0.0
	for _, w := range weights {
		sum += w
	}
	for at, w := range weights {
		want := float64(tally.Asked*w) / float64(sum)
		off := float64(tally.At[at]) - want
		chi += off * off / want
	}
	if chi > most || len(tally.At) != len(weights) {
		t.Errorf("%s: answers %v, want shares of %v: chi-square %.1f, want at most %d", what, tally.At, weights, chi, most)
	}
}

func weightsOf(at []netip.AddrPort, weights ...int) map[netip.AddrPort]int {
	m := map[netip.AddrPort]int{}
	for i, w := range weights {
		m[at[i]] = w
	}
	return m
}

func Test220_shares_by_weight(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.weighted())
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			all := weightsOf(f.on(port, b.L1, b.L2, b.R1), 3, 1, 2)
			local := weightsOf(f.on(port, b.L1, b.L2), 3, 1)
			b.shares(t, b.IN, network, f.at(f.vip(41), port), all)
			b.shares(t, b.IN, network, f.at(f.boxAddr(), f.everywherePort(network)), all)
			b.shares(t, b.EXT, network, f.at(f.lb(4), port), local)
			b.shares(t, b.EXT, network, f.at(f.boxAddr(), f.everywherePort(network)), local)
		}
	})
}

// flowsOf asks from n client ports and addresses of EXT, half of them over UDP, and gives the
// endpoint of each.
func (b *box) flowsOf(t *testing.T, f family, n int) []netip.AddrPort {
	t.Helper()
	at := make([]netip.AddrPort, n)
	tally := netlab.AskEach(n, func(i int) (netlab.Reply, error) {
		network, port := "tcp", uint16(80)
		if i%2 == 1 {
			network, port = "udp", 53
		}
		client := clientOfFlow(f, i)
		reply, err := b.EXT.Ask(network, f.at(f.vip(41), port), patiently, netlab.From(client.Addr()), netlab.FromPort(client.Port()))
		at[i] = reply.At
		return reply, err
	})
	if len(tally.Failures) > 0 {
		t.Fatalf("%d flows: %s", n, tally)
	}
	return at
}

func clientOfFlow(f family, i int) netip.AddrPort {
	return netip.AddrPortFrom(f.client(1+i%100), uint16(20000+7*i))
}

// Two boxes that came to the same endpoints by different ways choose alike for every one of
// 1,000 flows, TCP and UDP, and as the program says they do.
func Test221_boxes_agree(t *testing.T) {
	b := newBox(t, nil)
	two := netlab.NewStandard(t)
	other := &box{Standard: two, svcctl: two.GW1.Appliance(binary, b.flags.args()...), t: t, flags: b.flags}
	ports := "tcp: 80, udp: 53/UDP"
	final := func(b *box, balance string, hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{
				withAnnotations(f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: tcp, port: 80}, {name: udp, port: 53, protocol: UDP}]"), "svcctl.io/balance: "+balance),
				f.slice("web", ports, hosts...),
			}
		}
	}
	b.write("web.yaml", final(b, "maglev", b.L1, b.L2, b.R1, b.R2))
	b.svcctl.Start()
	other.write("web.yaml", final(other, "random", other.R2, other.L1))
	other.svcctl.Start()
	other.rewrite("web.yaml", final(other, "mh", other.L1))
	other.rewrite("web.yaml", final(other, "mh", other.R1, other.L2))
	other.svcctl.Stop()
	other.write("web.yaml", final(other, "mh", other.R2, other.L2, other.L1, other.R1))
	other.svcctl.Start()
	for _, f := range families {
		const flows = 500
		one, another := b.flowsOf(t, f, flows), other.flowsOf(t, f, flows)
		differ, wrong := 0, 0
		for i := range one {
			if one[i] != another[i] {
				differ++
			}
			port := one[i].Port()
			sp := nft.ServicePort{Balance: nft.Maglev}
			sp.Pools[nft.PoolCluster] = f.on(port, b.L1, b.L2, b.R1, b.R2)
			if said, _ := sp.Choice(&nft.Frontend{}, nft.PoolCluster)(clientOfFlow(f, i)); said != one[i] {
				wrong++
			}
		}
		if differ > 0 || wrong > 0 {
			t.Errorf("%s: of %d flows, %d went to another endpoint at the other box, and %d elsewhere than the program says", f, flows, differ, wrong)
		}
	}
}

// A hash sends every flow where the program says that it does: at cluster IPs, load balancer IPs and node ports, of all
// endpoints or of those of this box, by weight, over TCP and UDP.
func Test480_hashes_at_every_address(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.weighted())
	b.svcctl.Start()
	weights := []uint16{3, 1, 2}
	for name, balance := range map[string]nft.Balance{"maglev": nft.Maglev, "source-hash": nft.SourceHash, "destination-hash": nft.DestinationHash} {
		b.rewrite("web.yaml", b.weighted("svcctl.io/balance: "+name))
		b.each(t, func(t *testing.T, b *box, f family) {
			for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
				at := f.on(port, b.L1, b.L2, b.R1)
				sp := nft.ServicePort{Balance: balance, Pools: [nft.NumPools][]netip.AddrPort{nft.PoolCluster: at, nft.PoolLocal: at[:2]}}
				w := map[netip.AddrPort]uint16{}
				for i := range at {
					w[at[i]] = weights[i]
				}
				sp.Weights = [nft.NumPools]map[netip.AddrPort]uint16{w, w}
				nodePort := f.everywherePort(network)
				for _, way := range []struct {
					from *netlab.Host
					to   netip.AddrPort
					fe   nft.Frontend
					pool nft.Pool
				}{
					{b.IN, f.at(f.vip(41), port), nft.Frontend{Addr: netip.MustParseAddr(f.vip(41)), Port: port}, nft.PoolCluster},
					{b.IN, f.at(f.boxAddr(), nodePort), nft.Frontend{Port: nodePort}, nft.PoolCluster},
					{b.EXT, f.at(f.lb(4), port), nft.Frontend{Addr: netip.MustParseAddr(f.lb(4)), Port: port}, nft.PoolLocal},
					{b.EXT, f.at(f.boxAddr(), nodePort), nft.Frontend{Port: nodePort}, nft.PoolLocal},
				} {
					choice := sp.Choice(&way.fe, way.pool)
					wrong, met := 0, map[netip.AddrPort]bool{}
					for i := range 24 {
						client := netip.AddrPortFrom(f.of(way.from), uint16(20000+1000*int(balance)+7*i)) // UDP flows of the algorithm before stay
						if way.from == b.EXT {
							client = netip.AddrPortFrom(f.client(1+i), client.Port())
						}
						reply := answers(t, way.from, network, way.to, netlab.From(client.Addr()), netlab.FromPort(client.Port()))
						if said, known := choice(client); !known || said != reply.At {
							wrong++
						}
						met[reply.At] = true
					}
					if wrong > 0 {
						t.Errorf("%s: %s to %s over %s: %d of 24 flows went elsewhere than the program says", name, way.from.Name, way.to, network, wrong)
					}
					if many := balance == nft.Maglev || balance == nft.SourceHash && way.from == b.EXT; many != (len(met) > 1) {
						t.Errorf("%s: %s to %s over %s meets %d endpoints", name, way.from.Name, way.to, network, len(met))
					}
				}
			}
		})
	}
}

// While the way to choose changes again and again, no connection fails.
func Test222_no_connection_fails_while_algorithms_change(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.weighted())
	b.svcctl.Start()
	var done atomic.Bool
	failed := make(chan *netlab.Tally, 2)
	for _, f := range families {
		go func() {
			var last *netlab.Tally
			for !done.Load() {
				if last = b.IN.AskMany(64, "tcp", f.at(f.vip(41), 80), patiently); len(last.Failures) > 0 {
					break
				}
			}
			failed <- last
		}()
	}
	for _, balance := range []string{"maglev", "random", "dh", "sh", "random", "mh", "dh", "maglev"} {
		b.rewrite("web.yaml", b.weighted("svcctl.io/balance: "+balance))
	}
	b.rewrite("web.yaml", func(f family) []string { // equal weights: no table at all
		return []string{withAnnotations(b.weighted()(f)[0], fmt.Sprintf("svcctl.io/weights: %q", fmt.Sprintf("%s=1, %s=1", f.of(b.L1), f.of(b.R1)))),
			f.slice("web", "tcp: 80, udp: 53/UDP", b.L1, b.R1)}
	})
	done.Store(true)
	for range families {
		if last := <-failed; len(last.Failures) > 0 {
			t.Errorf("connections failed: %s", last)
		}
	}
}

// A client that is not remembered is drawn by weight, and then stays.
func Test223_affinity_draws_by_weight(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		docs := b.weighted()(f)
		docs[0] += "  sessionAffinity: ClientIP\n"
		return docs
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		const clients = 120
		count := map[netip.AddrPort]int{}
		for n := range clients {
			from := netlab.From(f.client(1 + n))
			first := answers(t, b.EXT, "tcp", f.at(f.vip(41), 80), from)
			for range 3 {
				if again := answers(t, b.EXT, "tcp", f.at(f.vip(41), 80), from); again.At != first.At {
					t.Fatalf("client %d went to %s and then to %s", n, first.At, again.At)
				}
			}
			count[first.At]++
		}
		chi := 0.0
		for at, w := range weightsOf(f.on(80, b.L1, b.L2, b.R1), 3, 1, 2) {
			want := float64(clients*w) / 6
			chi += (float64(count[at]) - want) * (float64(count[at]) - want) / want
		}
		if chi > 30 {
			t.Errorf("120 clients are on %v: chi-square %.1f for weights 3, 1, 2", count, chi)
		}
	})
}

// Node ports on loopback addresses go through the program, by the same weights and hashes.
func Test224_loopback_by_weight(t *testing.T) {
	b := newBox(t, loopback)
	b.write("web.yaml", b.weighted())
	b.svcctl.Start()
	f := ipv4
	to := f.at("127.0.0.1", f.everywherePort("tcp"))
	eventually(t, syncTimeout, func() error { _, err := b.GW1.Ask("tcp", to); return err }) // the listener comes after the rules
	b.shares(t, b.GW1, "tcp", to, weightsOf(f.on(80, b.L1, b.L2, b.R1), 3, 1, 2))
	b.rewrite("web.yaml", b.weighted("svcctl.io/balance: source-hash"))
	first := answers(t, b.GW1, "tcp", to).At
	for range 40 {
		if at := answers(t, b.GW1, "tcp", to).At; at != first {
			t.Fatalf("source-hash sends one client to %s and to %s", first, at)
		}
	}
}

// turns asks one question after the other and gives who answered.
func turns(t *testing.T, from *netlab.Host, network string, to netip.AddrPort, n int) (order []netip.AddrPort) {
	t.Helper()
	for range n {
		order = append(order, answers(t, from, network, to).At)
	}
	return order
}

// inTurns asserts that an order repeats itself after a round, in which each endpoint has its
// turns.
//
// A datagram that is sent again on a busy machine takes a turn of its own, so it is tried some times.
func inTurns(t *testing.T, what string, ask func() []netip.AddrPort, round map[netip.AddrPort]int) {
	t.Helper()
	err := errors.New("not asked")
	for try := 0; try < 5 && err != nil; try++ {
		err = turnsOf(ask(), round)
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func turnsOf(order []netip.AddrPort, round map[netip.AddrPort]int) error {
	sum := 0
	for _, n := range round {
		sum += n
	}
	first := map[netip.AddrPort]int{}
	for i, at := range order {
		if i < sum {
			first[at]++
		} else if at != order[i-sum] {
			return fmt.Errorf("the order is not the same in each round: %v", order)
		}
	}
	if !maps.Equal(first, round) {
		return fmt.Errorf("a round is %v, want %v", first, round)
	}
	return nil
}

// Round robin is strict for each Service port, by weight, at every frontend together.
func Test232_round_robin(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.weighted("svcctl.io/balance: rr"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 53} {
			what := f.String() + " " + network
			all := weightsOf(f.on(port, b.L1, b.L2, b.R1), 3, 1, 2)
			inTurns(t, what+" at the cluster IP", func() []netip.AddrPort { return turns(t, b.IN, network, f.at(f.vip(41), port), 24) }, all)
			inTurns(t, what+" at the node port", func() []netip.AddrPort {
				return turns(t, b.IN, network, f.at(f.boxAddr(), f.everywherePort(network)), 24)
			}, all)
			inTurns(t, what+" of this box", func() []netip.AddrPort { return turns(t, b.EXT, network, f.at(f.lb(4), port), 12) }, weightsOf(f.on(port, b.L1, b.L2), 3, 1))
			var both []netip.AddrPort
			for range 6 {
				both = append(both, turns(t, b.IN, network, f.at(f.vip(41), port), 1)...)
				both = append(both, turns(t, b.IN, network, f.at(f.boxAddr(), f.everywherePort(network)), 1)...)
			}
			inTurns(t, what+" at both in turns", func() []netip.AddrPort { return both }, all)
		}
	})
}

// Services that are called in turns do not resonate: each has turns of its own.
func Test233_round_robin_does_not_resonate(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) (docs []string) {
		for i, name := range []string{"one", "two"} {
			docs = append(docs,
				withAnnotations(f.service(name, "clusterIP: "+f.vip(41+i), "ports: [{name: p80, port: 80}]"), "svcctl.io/balance: round-robin"),
				f.slice(name, "p80: 80", b.L1, b.R1))
		}
		return docs
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		var one, two []netip.AddrPort
		for range 20 {
			one = append(one, turns(t, b.IN, "tcp", f.at(f.vip(41), 80), 1)...)
			two = append(two, turns(t, b.IN, "tcp", f.at(f.vip(42), 80), 1)...)
		}
		equal := weightsOf(f.on(80, b.L1, b.R1), 1, 1)
		inTurns(t, f.String()+" one", func() []netip.AddrPort { return one }, equal)
		inTurns(t, f.String()+" two", func() []netip.AddrPort { return two }, equal)
	})
}
