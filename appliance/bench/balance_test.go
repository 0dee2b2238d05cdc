package bench

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// BenchmarkBalance is the CPU of a flow's first packet for the ways to choose its endpoint: all
// Services are of one kind. Those of 100 are in the cache of a CPU, whatever their tables: what
// they cost more is in the rules, and the rest in memory.
func BenchmarkBalance(b *testing.B) {
	for _, services := range []int{100, 1_000, 10_000} {
		lab := netlab.New(b)
		var ways []*way
		for _, kind := range []struct{ name, annotation string }{
			{"at random", ""},
			{"by weight, no holes", "svcctl.io/weights: '%[1]s=2, %[2]s=2, %[3]s=2'"},
			{"by weight, 2 holes of 64", "svcctl.io/weights: '%[1]s=7, %[2]s=5'"},
			{"least-connection", "svcctl.io/balance: least-connection"},
			{"maglev", "svcctl.io/balance: maglev"},
			{"source-hash", "svcctl.io/balance: source-hash"},
			{"destination-hash", "svcctl.io/balance: destination-hash"},
			{"round-robin", "svcctl.io/balance: round-robin"},
		} {
			if kind.name == "round-robin" && services > 1_000 {
				continue // a map for each: the kernel takes 10 s to load 10,000
			}
			name := fmt.Sprintf("%s Services, %s", number(services), kind.name)
			ways = append(ways, balanced(b, lab, name, func(d netlab.Dir) {
				writeAnnotated(d, services, kind.annotation)
			}, standbys(services)...))
		}
		inTurns(b, "New connection, by algorithm: CPU of the first packet", "the first", ways)
	}
}

// BenchmarkBalanceChange is the time that the kernel takes for a change of one of 10,000 Services that are all chosen
// from in one way: the transaction that the compiler makes, committed.
func BenchmarkBalanceChange(b *testing.B) {
	const services = 10_000
	lab := netlab.New(b)
	port := func(i int, balance nft.Balance, second netip.Addr, weights ...uint16) map[string][]nft.ServicePort {
		p := nft.ServicePort{
			ID: fmt.Sprintf("default/s%05d", i), Family: nft.IPv4, Protocol: nft.UDP, Balance: balance,
			Frontends: []nft.Frontend{{Addr: serviceAddr(i), Port: 80}},
		}
		for e := range endpointsEach {
			at := netip.AddrPortFrom(endpointAddr(i, e), 8080)
			if e == 1 && second.IsValid() {
				at = netip.AddrPortFrom(second, 8080)
			}
			p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], at)
			if len(weights) > 0 {
				if p.Weights[nft.PoolCluster] == nil {
					p.Weights[nft.PoolCluster] = map[netip.AddrPort]uint16{}
				}
				p.Weights[nft.PoolCluster][at] = weights[e%len(weights)]
			}
		}
		return map[string][]nft.ServicePort{p.ID: {p}}
	}
	another := netip.MustParseAddr("10.255.0.1")
	// A Service with the first n endpoints, and a refused share.
	first := func(of map[string][]nft.ServicePort, n int, refused uint16) map[string][]nft.ServicePort {
		for _, ports := range of {
			ports[0].Pools[nft.PoolCluster], ports[0].Refused[nft.PoolCluster] = ports[0].Pools[nft.PoolCluster][:n], refused
		}
		return of
	}
	for _, kind := range []struct {
		name          string
		services      int
		before, after func(i int) map[string][]nft.ServicePort
	}{
		{"at random: replace an endpoint", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}) },
			func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, another) }},
		{"by weight: replace an endpoint", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}, 10, 7) },
			func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, another, 10, 7) }},
		{"by weight: a weight less by a tenth", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}, 10, 7, 7, 7, 7) },
			func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}, 9, 7, 7, 7, 7) }},
		{"by weight: an endpoint less", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}, 9, 9, 9, 8, 4) },
			func(i int) map[string][]nft.ServicePort {
				return first(port(i, nft.Random, netip.Addr{}, 9, 9, 9, 8, 4), 4, 0)
			}},
		{"by shares: a share less by a tenth, one refused", services, func(i int) map[string][]nft.ServicePort {
			return first(port(i, nft.Random, netip.Addr{}, 10, 7, 7, 7, 7), 5, 4)
		},
			func(i int) map[string][]nft.ServicePort {
				return first(port(i, nft.Random, netip.Addr{}, 9, 7, 7, 7, 7), 5, 4)
			}},
		{"by shares: a backend of a tenth without endpoints", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}, 9, 9, 9, 8, 4) },
			func(i int) map[string][]nft.ServicePort {
				return first(port(i, nft.Random, netip.Addr{}, 9, 9, 9, 8, 4), 4, 4)
			}},
		{"by shares: a backend of a half without endpoints", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Random, netip.Addr{}, 9, 9, 9, 8, 36) },
			func(i int) map[string][]nft.ServicePort {
				return first(port(i, nft.Random, netip.Addr{}, 9, 9, 9, 8, 36), 4, 36)
			}},
		{"maglev: replace an endpoint", services, func(i int) map[string][]nft.ServicePort { return port(i, nft.Maglev, netip.Addr{}) },
			func(i int) map[string][]nft.ServicePort { return port(i, nft.Maglev, another) }},
		{"round-robin, 1,000 Services: replace an endpoint", 1_000, func(i int) map[string][]nft.ServicePort { return port(i, nft.RoundRobin, netip.Addr{}) },
			func(i int) map[string][]nft.ServicePort { return port(i, nft.RoundRobin, another) }},
	} {
		conn, err := kernel.Open(kernel.Options{NetNS: lab.Router("tables").Namespace()})
		if err != nil {
			b.Fatal(err)
		}
		state := nft.State{Services: map[string][]nft.ServicePort{}}
		for i := range kind.services {
			maps.Copy(state.Services, kind.before(i))
		}
		compiler := nft.NewCompiler()
		tr := compiler.Load(state)
		commitAll(b, conn, tr)
		var took []time.Duration
		for step := range 2 * *rounds {
			to := kind.after
			if step%2 == 1 {
				to = kind.before // of the same Service, back
			}
			tr := compiler.Update(nil, to(step/2*stride%kind.services))
			began := time.Now()
			commitAll(b, conn, tr)
			took = append(took, time.Since(began))
		}
		results.add("Change of one of 10,000 Services, by algorithm: the kernel's part", kind.name, ms(median(took)), "")
		if err := conn.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// commitAll commits a transition.
func commitAll(b *testing.B, conn *kernel.Conn, tr nft.Transition) {
	b.Helper()
	for _, batch := range tr.Stages() {
		if _, err := conn.Commit(&batch, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// writeAnnotated is writeServices with an annotation, in which %[N]s is the N-th endpoint.
func writeAnnotated(d netlab.Dir, services int, annotation string) {
	for first := 0; first < services; first += perFile {
		var docs []string
		for i := first; i < min(first+perFile, services); i++ {
			doc := standby(i)
			if annotation != "" {
				text := annotation
				if strings.Contains(text, "%") {
					text = fmt.Sprintf(annotation, endpointAddr(i, 0), endpointAddr(i, 1), endpointAddr(i, 2))
				}
				doc = strings.Replace(doc, "metadata:\n", "metadata:\n  annotations:\n    "+text+"\n", 1)
			}
			docs = append(docs, doc)
		}
		d.Write(fmt.Sprintf("annotated-%05d.yaml", first), strings.Join(docs, "---\n"))
	}
}
