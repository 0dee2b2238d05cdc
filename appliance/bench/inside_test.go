package bench

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// stateOf returns the state of the idle Services; version is that of the first one's endpoints.
func stateOf(services int) nft.State {
	s := nft.State{Services: make(map[string][]nft.ServicePort, services)}
	for i := range services {
		s.Services[fmt.Sprintf("default/s%05d", i)] = portsOf(i, 0)
	}
	return s
}

func portsOf(i, version int) []nft.ServicePort {
	p := nft.ServicePort{ID: fmt.Sprintf("default/s%05d/p80", i), Family: nft.IPv4, Protocol: nft.UDP,
		Frontends: []nft.Frontend{{Addr: serviceAddr(i), Port: 80, SNAT: nft.SNATOutside}}}
	for e := range endpointsEach {
		addr := endpointAddr(i, e)
		if e == 2 && version%2 == 1 {
			addr = endpointAddr(60_000, i%256)
		}
		p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], netip.AddrPortFrom(addr, 8080))
	}
	return []nft.ServicePort{p}
}

// BenchmarkCompile is the part of package nft in a change, in a start and in a look at what
// is there: no files, no store, no kernel. Its figures are of the CPU, with that of the collector of garbage.
func BenchmarkCompile(b *testing.B) {
	const section = "Compile and diff: CPU"
	type box struct {
		state         nft.State
		compiler      *nft.Compiler
		replace, diff []time.Duration
		load          []time.Duration
	}
	boxes := make([]box, len(sizes))
	for i, services := range sizes {
		boxes[i] = box{state: stateOf(services), compiler: nft.NewCompiler()}
		boxes[i].compiler.Load(boxes[i].state)
	}
	const changes, loads = 100, 3 // in a sample, and samples of everything
	for round := range *rounds {
		for i := range boxes {
			x := &boxes[i]
			began := processCPU()
			for n := range changes {
				x.compiler.Update(nil, map[string][]nft.ServicePort{"default/s00007": portsOf(7, n+1)})
			}
			x.replace = append(x.replace, (processCPU()-began)/changes)
			if round >= loads {
				continue
			}
			began = processCPU()
			other := nft.NewCompiler()
			other.Load(x.state)
			x.load = append(x.load, processCPU()-began)
			have := x.compiler.Ruleset()
			began = processCPU()
			if tr := other.From(have); !tr.Empty() {
				b.Fatal("equal rulesets differ")
			}
			x.diff = append(x.diff, processCPU()-began)
		}
	}
	for i, x := range boxes {
		size := number(sizes[i]) + " Services"
		results.add(section, "replace an endpoint, "+size, ms(median(x.replace)), fmt.Sprintf("%.2fx of 100 Services", median(ratios(x.replace, boxes[0].replace))))
		results.add(section, "everything, "+size, ms(median(x.load)), fmt.Sprintf("held against an equal ruleset in %s", ms(median(x.diff))))
	}
}
