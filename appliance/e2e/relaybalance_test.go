package e2e

import (
	"errors"
	"net/netip"
	"regexp"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

// relayedBy is a Service that is relayed, with endpoints of the weights 3, 1 and 2: L1, L2, R1.
func (b *box) relayedBy(annotations ...string) func(f family) []string {
	return b.weighted(append([]string{"svcctl.io/proxy-mode: userspace"}, annotations...)...)
}

// serversIn counts which servers answered.
func serversIn(servers []string) map[string]int {
	seen := map[string]int{}
	for _, s := range servers {
		seen[s]++
	}
	return seen
}

func Test414_weights_and_algorithms_of_relayed_ports(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.relayedBy())
	b.svcctl.Start()
	ports := map[string]uint16{"tcp": 80, "udp": 53}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "web"))
		for network, port := range ports {
			servers := order(t, 18, b.IN, network, f.at(f.vip(41), port), patiently)
			takeTurnsByWeight(t, servers, map[string]int{"L1": 3, "L2": 1, "R1": 2})
			// The endpoints of this box, which have turns of their own.
			takeTurnsByWeight(t, order(t, 12, b.EXT, network, f.at(f.lb(4), port), patiently), map[string]int{"L1": 3, "L2": 1})
		}
	})
	for algorithm, balance := range map[string]nft.Balance{"source-hash": nft.SourceHash, "maglev": nft.Maglev, "destination-hash": nft.DestinationHash} {
		b.rewrite("web.yaml", b.relayedBy("svcctl.io/balance: "+algorithm))
		b.each(t, func(t *testing.T, b *box, f family) {
			for network, port := range ports {
				b.choosesLike(t, f, balance, network, port)
			}
		})
	}
	b.rewrite("web.yaml", b.relayedBy("svcctl.io/balance: random"))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.shares(t, b.IN, "tcp", f.at(f.vip(41), 80), weightsOf(f.on(80, b.L1, b.L2, b.R1), 3, 1, 2))
	})
}

// takeTurnsByWeight asserts that in each round endpoints answer as often as their weights say.
func takeTurnsByWeight(t *testing.T, servers []string, weights map[string]int) {
	t.Helper()
	round := 0
	for _, w := range weights {
		round += w
	}
	for at := 0; at < len(servers); at += round {
		seen := serversIn(servers[at : at+round])
		for server, w := range weights {
			if seen[server] != w {
				t.Errorf("a round of turns: %v, want %v in each: %v", seen, weights, servers)
				return
			}
		}
	}
}

// choosesLike asserts that clients get the endpoint that the kernel would choose.
func (b *box) choosesLike(t *testing.T, f family, balance nft.Balance, network string, port uint16) {
	t.Helper()
	to := f.at(f.vip(41), port)
	sp := nft.ServicePort{Balance: balance, Weights: [nft.NumPools]map[netip.AddrPort]uint16{{}, {}}, Frontends: []nft.Frontend{{Addr: to.Addr(), Port: port}}}
	for i, at := range f.on(port, b.L1, b.L2, b.R1) {
		sp.Pools[nft.PoolCluster] = append(sp.Pools[nft.PoolCluster], at)
		sp.Weights[nft.PoolCluster][at] = []uint16{3, 1, 2}[i]
	}
	choose := sp.Choice(&sp.Frontends[0], nft.PoolCluster)
	for i := range 12 {
		client := netip.AddrPortFrom(f.client(i), uint16(40000+100*int(balance)+i)) // a client of UDP keeps its endpoint
		want, _ := choose(client)
		got := answers(t, b.EXT, network, to, netlab.From(client.Addr()), netlab.FromPort(client.Port()), patiently)
		if got.At != want {
			t.Errorf("%s: client %s was answered by %s, want %s", network, client, got.At, want)
		}
	}
}

func Test415_least_connection_of_relayed_ports(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.relayedBy("svcctl.io/balance: least-connection"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.noProblem(t, f.object("Service", "web"))
		open := map[string][]*netlab.Conn{}
		dial := func(from *netlab.Host, to netip.AddrPort) {
			t.Helper()
			c, err := from.Dial(to, patiently)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			open[c.Reply.Server] = append(open[c.Reply.Server], c)
		}
		want := func(when string, l1, l2, r1 int) {
			t.Helper()
			if len(open["L1"]) != l1 || len(open["L2"]) != l2 || len(open["R1"]) != r1 {
				t.Errorf("%s: L1 has %d connections, L2 %d, R1 %d; want %d, %d, %d", when, len(open["L1"]), len(open["L2"]), len(open["R1"]), l1, l2, r1)
			}
		}
		for range 12 {
			dial(b.IN, f.at(f.vip(41), 80))
		}
		want("12 connections of the weights 3, 1, 2", 6, 2, 4)
		for range 4 {
			dial(b.EXT, f.at(f.lb(4), 80)) // to endpoints of this box, which have connections already
		}
		want("4 connections to the endpoints of this box", 9, 3, 4)
		closed := len(open["R1"])
		has := regexp.MustCompile(regexp.QuoteMeta(f.on(80, b.R1)[0].String()) + ` \d+[,)]`)
		if text := b.verbs(t).does(0, "explain", "svc/"+f.name("web")); !has.MatchString(text) {
			t.Error("no connections of R1 before:", text)
		}
		for _, c := range open["R1"] {
			c.Close()
		}
		open["R1"] = nil
		eventually(t, syncTimeout, func() error { // the relay has heard of all of them
			if text := b.verbs(t).does(0, "explain", "svc/"+f.name("web")); has.MatchString(text) {
				return errors.New("R1 still has connections: " + has.FindString(text))
			}
			return nil
		})
		for range closed {
			dial(b.IN, f.at(f.vip(41), 80))
		}
		want("after those of R1 were closed", 9, 3, closed)
	})
}
