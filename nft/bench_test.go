package nft_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	. "svcctl.io/svcctl/nft"
)

// manyServices is n Services of one port with five endpoints each.
func manyServices(n int) State {
	s := State{Box: testBox(), Services: make(map[string][]ServicePort, n)}
	for i := range n {
		s.Services[fmt.Sprintf("default/s%d", i)] = []ServicePort{numbered(i, 0)}
	}
	return s
}

// numbered is the port of Service i; version changes one of its endpoints.
func numbered(i, version int) ServicePort {
	p := ServicePort{ID: fmt.Sprintf("default/s%d", i), Family: IPv4, Protocol: TCP}
	vip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	p.Frontends = []Frontend{{Addr: vip, Port: 80, SNAT: SNATOutside}}
	for e := range 5 {
		n := i*5 + e
		addr := netip.AddrFrom4([4]byte{10, byte(128 + n>>16), byte(n >> 8), byte(n)})
		if e == 2 && version%2 == 1 {
			addr = netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)})
		}
		p.Pools[PoolCluster] = append(p.Pools[PoolCluster], netip.AddrPortFrom(addr, 8080))
	}
	return p
}

var sizes = []int{100, 1_000, 10_000, 50_000}

// BenchmarkLoad compiles everything, as a start does.
func BenchmarkLoad(b *testing.B) {
	for _, n := range sizes {
		s := manyServices(n)
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewCompiler().Load(s)
			}
		})
	}
}

func BenchmarkReplaceEndpoint(b *testing.B) {
	for _, n := range sizes {
		c := NewCompiler()
		c.Load(manyServices(n))
		version := 0
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				version++
				if tr := c.Update(nil, map[string][]ServicePort{"default/s7": {numbered(7, version)}}); elementOps(tr.Apply) != 4 {
					b.Fatalf("%d element operations", elementOps(tr.Apply))
				}
			}
		})
	}
}

// A change uses the memory of the one before, also when a large one was in between.
func TestReplacingAnEndpointTakesLittleMemory(t *testing.T) {
	c := NewCompiler()
	s := manyServices(200)
	c.Load(s)
	c.Update(nil, s.Services)
	versions := []map[string][]ServicePort{{"default/s7": {numbered(7, 1)}}, {"default/s7": {numbered(7, 2)}}}
	var before, after runtime.MemStats
	const changes = 100
	runtime.ReadMemStats(&before)
	for i := range changes {
		c.Update(nil, versions[i%2])
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > 8<<10 {
		t.Errorf("a change of an endpoint takes %d bytes", each)
	}
}

// BenchmarkFromNothing measures the plan after another program flushed the ruleset.
func BenchmarkFromNothing(b *testing.B) {
	for _, n := range sizes {
		c := NewCompiler()
		c.Load(manyServices(n))
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if tr := c.From(nil); tr.Empty() {
					b.Fatal("nothing to do")
				}
			}
		})
	}
}

// BenchmarkFromTheSame measures the plan of a start over an unchanged ruleset.
func BenchmarkFromTheSame(b *testing.B) {
	for _, n := range sizes {
		c := NewCompiler()
		c.Load(manyServices(n))
		have := Compile(manyServices(n))
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if tr := c.From(have); !tr.Empty() {
					b.Fatal("equal rulesets differ")
				}
			}
		})
	}
}
