package kernel

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
)

// servicesOf are the elements of n Services with five endpoints each.
func servicesOf(n int) []nft.Element {
	elements := make([]nft.Element, 5*n)
	for i := range elements {
		vip, slot := address(nft.IPv4, i/5), uint32(i%5)
		elements[i] = slotElement(nft.IPv4, i)
		elements[i].Key = string(nft.Key(nil).Addr(vip).Proto(nft.TCP).Port(80).Slot(slot))
	}
	return elements
}

// BenchmarkReplaceEndpoint commits what replacing one endpoint takes: two operations on
// a map, in one transaction.
func BenchmarkReplaceEndpoint(b *testing.B) {
	for _, services := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			n := newNamespace(b)
			c := n.open()
			elements := servicesOf(services)
			commit(b, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
				nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements})
			_, generation := read(b, c)
			i := 0
			for b.Loop() {
				one := elements[i%len(elements) : i%len(elements)+1]
				generation = commit(b, c, generation,
					nft.DeleteElements{Family: nft.IPv4, Set: backends, Elements: one},
					nft.AddElements{Family: nft.IPv4, Set: backends, Elements: one})
				i++
			}
		})
	}
}

// BenchmarkLoad commits everything from nothing, and BenchmarkRead reads it back.
func BenchmarkLoad(b *testing.B) {
	for _, services := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			n := newNamespace(b)
			c := n.open()
			elements := servicesOf(services)
			for b.Loop() {
				commit(b, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
					nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements})
				b.StopTimer()
				commit(b, c, 0, nft.DeleteTable{Family: nft.IPv4})
				b.StartTimer()
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, services := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			n := newNamespace(b)
			c := n.open()
			commit(b, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
				nft.AddElements{Family: nft.IPv4, Set: backends, Elements: servicesOf(services)})
			for b.Loop() {
				read(b, c)
			}
		})
	}
}

// BenchmarkReadTables reads 1,000 Services that hash, of 256 slots each, by dumps and by key.
func BenchmarkReadTables(b *testing.B) {
	s := nft.State{Services: map[string][]nft.ServicePort{}}
	for i := range 1000 {
		p := nft.ServicePort{ID: fmt.Sprint("default/s", i), Family: nft.IPv4, Protocol: nft.TCP, Balance: nft.Maglev}
		p.Frontends = []nft.Frontend{{Addr: address(nft.IPv4, 1<<16+i), Port: 80}}
		for e := range 5 {
			p.Pools[nft.PoolCluster] = append(p.Pools[nft.PoolCluster], netip.AddrPortFrom(address(nft.IPv4, 5*i+e), 80))
		}
		s.Services[p.ID] = []nft.ServicePort{p}
	}
	n := newNamespace(b)
	c := n.open()
	batch := compiled(s).From(nil).Apply
	commit(b, c, 0, batch.Ops...)
	for name, from := range map[string]int{"dump": math.MaxInt, "by key": byKeyFrom} {
		b.Run(name, func(b *testing.B) {
			was := byKeyFrom
			byKeyFrom = from
			defer func() { byKeyFrom = was }()
			for b.Loop() {
				read(b, c)
			}
		})
	}
}

// BenchmarkAfterRefusal commits the same change of 100 Services of 1,000 after transactions that the kernel did not take. Kernels
// without "nf_tables: reset table validation state on abort" (6.18) validate the whole table for each message of a transaction that
// follows one with a circle of jumps: that is the last case, and the others are refusals and trials of ours, which do not get as
// far as a validation.
func BenchmarkAfterRefusal(b *testing.B) {
	const services, changed = 1000, 100
	state := func(without int) nft.State {
		s := nft.State{Services: map[string][]nft.ServicePort{}}
		for i := range services - without {
			p := nft.ServicePort{ID: fmt.Sprint("default/s", i), Family: nft.IPv4, Protocol: nft.TCP, Idle: time.Hour}
			p.Frontends = []nft.Frontend{{Addr: address(nft.IPv4, 1<<16+i), Port: 80}}
			p.Pools[nft.PoolCluster] = []netip.AddrPort{netip.AddrPortFrom(address(nft.IPv4, i), 80)}
			s.Services[p.ID] = []nft.ServicePort{p}
		}
		return s
	}
	n := newNamespace(b)
	c := n.open()
	less := compiled(state(changed)).Ruleset()
	compiler := compiled(state(0))
	batch := compiler.From(nil).Apply
	commit(b, c, 0, batch.Ops...)
	remove, add := compiled(state(changed)).From(compiler.Ruleset()), compiler.From(less)
	refused := append(slices.Clone(add.Apply.Ops), nft.DeleteSet{Family: nft.IPv4, Name: "absent"})
	for _, before := range []struct {
		what string
		do   func()
	}{
		{"nothing", func() {}},
		{"a refused transaction", func() {
			if _, err := c.Commit(&nft.Batch{Ops: refused}, 0); err == nil {
				b.Fatal("the deletion of a set that is not there was taken")
			}
		}},
		{"a trial", func() {
			if err := c.Check(&add.Apply, 0); err != nil {
				b.Fatal(err)
			}
		}},
		{"a circle of another program", func() {
			if n.loads("table ip svcctl {\n chain x { jump y; }\n chain y { jump x; }\n chain prerouting { jump x; }\n}\n") {
				b.Fatal("a circle was taken")
			}
		}},
	} {
		b.Run("after="+before.what, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				commit(b, c, 0, remove.Apply.Ops...)
				commit(b, c, 0, remove.Cleanup.Ops...)
				before.do()
				b.StartTimer()
				commit(b, c, 0, add.Apply.Ops...)
			}
		})
	}
}
