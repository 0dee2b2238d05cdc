package nft

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// sharing is a port with endpoints of these weights, and a share that is refused.
func sharing(b Balance, refused uint16, weights ...uint16) *ServicePort {
	sp := &ServicePort{ID: "default/web", Family: IPv4, Protocol: TCP, Balance: b, Refused: [NumPools]uint16{refused, refused}}
	sp.Frontends = []Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}}
	sp.Pools[PoolCluster] = endpointsFor(len(weights), 1)
	w := map[netip.AddrPort]uint16{}
	for i, ap := range sp.Pools[PoolCluster] {
		w[ap] = weights[i]
	}
	sp.Weights = [NumPools]map[netip.AddrPort]uint16{w, w}
	return sp
}

// chances are how likely a packet gets each endpoint, or with the last one none.
func chances(sp *ServicePort) []float64 {
	table, none := sp.tableOf(PoolCluster), len(sp.Pools[PoolCluster])
	got, first, second := make([]float64, none+1), table.slots, []uint16(nil)
	if strings.HasPrefix(table.form, chainWeigh) {
		_, size := splitForm(table.form)
		first, second = table.slots[:size], table.slots[size:]
	}
	draw := func(slots []uint16, chance float64, hollow func(float64)) {
		for _, slot := range slots {
			if slot == hole {
				hollow(chance / float64(len(slots)))
			} else {
				got[slot] += chance / float64(len(slots))
			}
		}
	}
	refuse := func(chance float64) { got[none] += chance }
	draw(first, 1, func(chance float64) {
		if len(second) == 0 {
			refuse(chance)
		} else {
			draw(second, chance, refuse)
		}
	})
	return got
}

// A refused share is one of the connections that no slot has an endpoint for, whatever the algorithm, and the first slot,
// which packets without one are sent to, is among them.
func TestRefusedShares(t *testing.T) {
	for _, c := range []struct {
		refused uint16
		weights []uint16
	}{
		{2, []uint16{1, 1}}, {8, []uint16{1, 1}}, {1, []uint16{70, 29}}, {8, []uint16{2}}, {1, []uint16{99}}, {1, []uint16{9}}, {1, []uint16{1}},
		{1, []uint16{1, 2, 3, 4}}, {1, []uint16{65535}}, {30, slices.Repeat([]uint16{1}, 16)}, {100, slices.Repeat([]uint16{3}, 100)},
		{1000, slices.Repeat([]uint16{1}, 1500)}, {7, []uint16{100, 50, 25, 13}},
	} {
		sum := float64(c.refused)
		for _, w := range c.weights {
			sum += float64(w)
		}
		for _, b := range []Balance{Random, Maglev, SourceHash, RoundRobin, LeastConnection} {
			sp := sharing(b, c.refused, c.weights...)
			table := sp.tableOf(PoolCluster)
			if table == nil {
				t.Errorf("%v of weights %v, %d refused: no table", b, c.weights, c.refused)
				continue
			}
			unit := 1 / float64(len(table.slots)) // that shares are exact to
			if b == Random {
				_, size := splitForm(table.form)
				holes := len(slices.DeleteFunc(slices.Clone(table.slots[:size]), func(slot uint16) bool { return slot != hole }))
				unit = float64(holes) / float64(size*size)
			}
			allowed := 1.5 * unit
			for _, w := range c.weights {
				allowed += max(0, unit-float64(w)/sum) // it has a slot all the same
			}
			got := chances(sp)
			for i, w := range append(slices.Clone(c.weights), c.refused) {
				if want := float64(w) / sum; math.Abs(got[i]-want) > allowed || got[i] == 0 {
					t.Errorf("%v of weights %v, %d refused: %d of %d has %.5f, want %.5f (%s)", b, c.weights, c.refused, i, len(c.weights), got[i], want, table.form)
				}
			}
			if table.slots[0] != hole || table.slots[len(table.slots)-1] == hole {
				t.Errorf("%v of weights %v, %d refused: the first slot is %d, the last %d", b, c.weights, c.refused, table.slots[0], table.slots[len(table.slots)-1])
			}
			if total := sp.Shares(PoolCluster); math.Abs(1-got[len(c.weights)]-sumOf(total)) > allowed {
				t.Errorf("%v of weights %v, %d refused: shares %v", b, c.weights, c.refused, total)
			}
		}
	}
}

func sumOf(list []float64) (sum float64) {
	for _, x := range list {
		sum += x
	}
	return sum
}

// Another refused share is another table, and takes elements of one map alone.
func TestRefusedShareChanges(t *testing.T) {
	for _, b := range []Balance{Random, Maglev, LeastConnection} {
		c := NewCompiler()
		c.Load(State{Services: map[string][]ServicePort{"default/web": {*sharing(b, 2, 5, 5)}}})
		tr := c.Update(nil, map[string][]ServicePort{"default/web": {*sharing(b, 1, 5, 5)}})
		if tr.Empty() || !tr.Cleanup.Empty() {
			t.Errorf("%v: another refused share is %+v", b, tr)
		}
		for _, op := range tr.Apply.Ops {
			switch op := op.(type) {
			case AddElements:
				if op.Set.Name == "tables" {
					continue
				}
			case DeleteElements:
				if op.Set.Name == "tables" {
					continue
				}
			}
			t.Errorf("%v: another refused share takes %+v", b, op)
		}
	}
}

// With a hash a backend has the slots of its share, whatever endpoints there are: when those of one come and go, or have other
// weights, no client of another one moves, and its own get another endpoint of it, or are refused.
func TestBackendsKeepTheirSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	draw := func(backend int) map[netip.AddrPort]uint32 {
		some := map[netip.AddrPort]uint32{}
		for _, ap := range endpointsFor(r.IntN([]int{1, 3, 6, 40, 300}[r.IntN(5)]), backend) {
			some[ap] = uint32(1 + r.IntN(3))
		}
		return some
	}
	// at returns the endpoint of each client of the largest table, and the backend of each.
	at := func(sp *ServicePort) []netip.AddrPort {
		sp.Pools[PoolCluster], sp.Refused[PoolCluster] = nil, 1 // of which the table does not depend
		for _, b := range sp.Backends[PoolCluster] {
			sp.Pools[PoolCluster] = append(sp.Pools[PoolCluster], slices.Collect(maps.Keys(b.Weights))...)
		}
		if len(sp.Pools[PoolCluster]) == 0 {
			return make([]netip.AddrPort, 16384)
		}
		table := sp.tableOf(PoolCluster)
		if holed := slices.Contains(table.slots, hole); holed != strings.HasSuffix(table.form, withHoles) {
			t.Fatalf("a table of form %s: holes %v", table.form, holed)
		}
		out := make([]netip.AddrPort, 16384)
		for i := range out {
			if at := table.slots[i*len(table.slots)/len(out)]; at != hole {
				out[i] = sp.Pools[PoolCluster][at]
			}
		}
		return out
	}
	for try := range 60 {
		sp := &ServicePort{Balance: []Balance{Maglev, SourceHash}[try%2]}
		sum, n := 0.0, 1+r.IntN([]int{3, 16, 40}[r.IntN(3)])
		for i := range n {
			b := Backend{Name: fmt.Sprintf("b%d", i), Share: uint32(1 + r.IntN(9)), Weights: draw(i)}
			sp.Backends[PoolCluster] = append(sp.Backends[PoolCluster], b)
			sum += float64(b.Share)
		}
		before := at(sp)
		of := func(ap netip.AddrPort) int { return int(ap.Addr().As4()[1]) }
		got := make([]int, n)
		seen := map[netip.AddrPort]bool{}
		for _, ap := range before {
			if ap.IsValid() {
				got[of(ap)]++
				seen[ap] = true
			}
		}
		slot := 16384.0 / 256
		for i, b := range sp.Backends[PoolCluster] {
			if want := 16384 * float64(b.Share) / sum; len(b.Weights) > 0 && math.Abs(float64(got[i])-want) > 1.01*slot {
				t.Errorf("try %d: backend %d of %d has %d of 16384 clients, want %.0f", try, i, n, got[i], want)
			}
			for ap := range b.Weights {
				if !seen[ap] && got[i] >= len(b.Weights) {
					t.Errorf("try %d: endpoint %v of backend %d has no client", try, ap, i)
				}
			}
		}
		changed := r.IntN(n)
		sp.Backends[PoolCluster] = slices.Clone(sp.Backends[PoolCluster])
		sp.Backends[PoolCluster][changed].Weights = draw(changed)
		if try%3 == 0 {
			sp.Backends[PoolCluster][changed].Weights = nil
		}
		for i, ap := range at(sp) {
			was := before[i]
			if was.IsValid() && of(was) != changed && ap != was || ap.IsValid() && of(ap) != changed && ap != was {
				t.Fatalf("try %d: the endpoints of backend %d change, and client %d moves from %v to %v", try, changed, i, was, ap)
			}
		}
	}
}
