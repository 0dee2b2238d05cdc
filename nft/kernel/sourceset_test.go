package kernel

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/nft"
)

// shielded is a Service port in a family whose clients are asked for in a source set.
func shielded(f nft.Family, s *nft.SourceSet) nft.State {
	return nft.State{Services: map[string][]nft.ServicePort{"default/web": {{
		ID: "default/web", Family: f, Protocol: nft.TCP,
		Frontends: []nft.Frontend{{Addr: address(f, 1<<20), Port: 80, Sets: &nft.SourceSets{Deny: []*nft.SourceSet{s}}}},
		Pools:     [nft.NumPools][]netip.AddrPort{{netip.AddrPortFrom(address(f, 1<<21), 80)}},
	}}}}
}

// Whatever a source set becomes, step by step, is what the kernel holds: ranges that grow,
// shrink, are split, joined and touch, up to both ends of all addresses.
func TestSourceSetSteps(t *testing.T) {
	for _, f := range nft.Families {
		t.Run(f.String(), func(t *testing.T) {
			n := newNamespace(t)
			c := n.open()
			r := rand.New(rand.NewPCG(1, uint64(f)))
			compiler, generation := nft.NewCompiler(), uint32(0)
			_, generation = read(t, c)
			var prefixes []netip.Prefix
			for step := range 400 {
				for range 1 + r.IntN(4) {
					if len(prefixes) > 0 && r.IntN(2) == 0 {
						i := r.IntN(len(prefixes))
						prefixes = append(prefixes[:i:i], prefixes[i+1:]...)
						continue
					}
					bits := f.AddrLen()*8 - r.IntN(8)
					if r.IntN(40) == 0 {
						bits = r.IntN(3)
					}
					a := address(f, r.IntN(256))
					if r.IntN(10) == 0 {
						a = lastAddress(f)
					}
					prefixes = append(prefixes, netip.PrefixFrom(a, bits).Masked())
				}
				tr := compiler.Load(shielded(f, nft.NewSourceSet("scanners", uint64(step), prefixes)))
				generation = commit(t, c, generation, tr.Apply.Ops...)
				have, _ := read(t, c)
				if left := compiler.From(have); !left.Empty() {
					t.Fatalf("step %d, %v: the kernel holds something else: %+v", step, prefixes, left)
				}
			}
		})
	}
}

// large is a source set of n prefixes that do not touch, from the given one on.
func large(f nft.Family, version uint64, first, n int) *nft.SourceSet {
	prefixes := make([]netip.Prefix, n)
	for i := range prefixes {
		prefixes[i] = netip.PrefixFrom(address(f, 4*(first+i)), f.AddrLen()*8-1)
	}
	return nft.NewSourceSet("scanners", version, prefixes)
}

// BenchmarkSourceSet commits a set of 100,000 prefixes, changes of one prefix in it, and reads it.
func BenchmarkSourceSet(b *testing.B) {
	const size = 100_000
	for _, f := range nft.Families {
		b.Run(fmt.Sprintf("load/%s", f), func(b *testing.B) {
			c := newNamespace(b).open()
			for b.Loop() {
				tr := nft.NewCompiler().Load(shielded(f, large(f, 1, 0, size)))
				commit(b, c, 0, tr.Apply.Ops...)
				b.StopTimer()
				commit(b, c, 0, nft.DeleteTable{Family: f})
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("replace-one/%s", f), func(b *testing.B) {
			c, compiler := newNamespace(b).open(), nft.NewCompiler()
			tr := compiler.Load(shielded(f, large(f, 1, 0, size)))
			commit(b, c, 0, tr.Apply.Ops...)
			_, generation := read(b, c)
			version := uint64(1)
			for b.Loop() {
				b.StopTimer()
				version++
				next := shielded(f, large(f, version, int(version)%2, size))
				b.StartTimer()
				tr := compiler.Update(nil, next.Services)
				generation = commit(b, c, generation, tr.Apply.Ops...)
			}
		})
		b.Run(fmt.Sprintf("read/%s", f), func(b *testing.B) {
			c := newNamespace(b).open()
			tr := nft.NewCompiler().Load(shielded(f, large(f, 1, 0, size)))
			commit(b, c, 0, tr.Apply.Ops...)
			for b.Loop() {
				read(b, c)
			}
		})
	}
}

// lastAddress is 255.255.255.255, or its like in IPv6.
func lastAddress(f nft.Family) netip.Addr {
	return nft.PrefixRange(netip.PrefixFrom(address(f, 0), 0)).Last
}
