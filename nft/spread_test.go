package nft

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The vectors are of the kernel's own: what include/linux/jhash.h of 6.18 gives, compiled
// on amd64.
func TestJhash(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i*7 + 1)
	}
	for n, want := range jhashVectors {
		if got := jhash(key[:n], HashSeed); got != want {
			t.Errorf("jhash of %d bytes: 0x%08x, want 0x%08x", n, got, want)
		}
	}
}

// These slots are a wire format between boxes: they change with TableVersion only.
func TestHashSlots(t *testing.T) {
	for _, c := range []struct {
		kind   FieldKind
		client string
		mod    uint32
		want   uint32
	}{
		{FieldHashSource, "192.0.2.10:1", 256, slotVectors[0]},
		{FieldHashSource, "192.0.2.10:65535", 256, slotVectors[0]},
		{FieldHashFlow, "192.0.2.10:40000", 256, slotVectors[1]},
		{FieldHashFlow, "192.0.2.10:40000", 1024, slotVectors[2]},
		{FieldHashSource, "[2001:db8::1]:1", 256, slotVectors[3]},
		{FieldHashFlow, "[2001:db8::1]:40000", 16384, slotVectors[4]},
	} {
		if got := HashSlot(c.kind, netip.MustParseAddrPort(c.client), c.mod); got != c.want {
			t.Errorf("%v of %s mod %d: slot %d, want %d", c.kind, c.client, c.mod, got, c.want)
		}
	}
}

// endpointsFor are n endpoints, of which set makes others than another number.
func endpointsFor(n, set int) []netip.AddrPort {
	all := make([]netip.AddrPort, n)
	for i := range all {
		all[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(set), byte(i >> 8), byte(i)}), 8080)
	}
	return all
}

func tableText(sp *ServicePort) string {
	t := sp.tableOf(PoolCluster)
	var b strings.Builder
	for _, slot := range t.slots {
		if slot == hole {
			b.WriteString(" -")
		} else {
			fmt.Fprint(&b, " ", sp.Pools[PoolCluster][slot])
		}
	}
	return t.form + b.String()
}

// Who stands in which slot is a wire format too: a fingerprint of whole tables.
func TestTablesOfVersion1(t *testing.T) {
	if TableVersion != 1 {
		t.Fatal("a version has vectors of its own")
	}
	port := func(b Balance, n int, weights ...uint16) *ServicePort {
		sp := &ServicePort{Balance: b, Weights: [NumPools]map[netip.AddrPort]uint16{{}, {}}}
		sp.Pools[PoolCluster] = endpointsFor(n, 1)
		for i, w := range weights {
			sp.Weights[PoolCluster][sp.Pools[PoolCluster][i]] = w
		}
		return sp
	}
	for name, sp := range map[string]*ServicePort{
		"maglev-5": port(Maglev, 5), "maglev-17": port(Maglev, 17), "source-3": port(SourceHash, 3),
		"weighted-hash": port(Maglev, 3, 7, 2, 1), "weigh-3": port(Random, 3, 70, 20, 10), "weigh-2": port(Random, 2, 65535, 1),
		"weigh-100": port(Random, 100, 1000, 7),
	} {
		h := fnv.New64a()
		h.Write([]byte(tableText(sp)))
		if got := h.Sum64(); got != tableVectors[name] {
			t.Errorf("%s: 0x%016x, want 0x%016x\n%.300s", name, got, tableVectors[name], tableText(sp))
		}
	}
	sp := &ServicePort{Balance: DestinationHash}
	sp.Pools[PoolCluster] = endpointsFor(5, 1)
	var got []string
	for _, fe := range []Frontend{{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}, {Addr: netip.MustParseAddr("10.96.0.11"), Port: 80}, {Port: 30080}} {
		ap, _ := sp.Choice(&fe, PoolCluster)(netip.AddrPort{})
		got = append(got, ap.Addr().String())
	}
	if !slices.Equal(got, destinationVectors) {
		t.Errorf("the endpoints of three destinations are %q, want %q", got, destinationVectors)
	}
}

// Every endpoint has its share to the slot, all slots are taken, and the order in which
// endpoints come is no matter.
func TestHashTablesAreEvenAndWithoutHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 3, 5, 16, 17, 64, 65, 256, 257, 1000} {
		sp := &ServicePort{Balance: Maglev}
		sp.Pools[PoolCluster] = endpointsFor(n, n%200)
		table := sp.tableOf(PoolCluster)
		count := make([]int, n)
		for _, slot := range table.slots {
			count[slot]++ // a hole is out of range
		}
		if least := len(table.slots) / n; slices.Min(count) < least || slices.Max(count) > least+1 {
			t.Errorf("%d endpoints have %d to %d slots of %d", n, slices.Min(count), slices.Max(count), len(table.slots))
		}
		before := tableText(sp)
		r.Shuffle(n, func(i, j int) {
			e := sp.Pools[PoolCluster]
			e[i], e[j] = e[j], e[i]
		})
		if tableText(sp) != before {
			t.Errorf("%d endpoints: another order is another table", n)
		}
	}
}

// When one of N goes, at most 7 % of the others' clients move, and all of its own.
func TestRemovingAnEndpointMovesFewOthers(t *testing.T) {
	for _, n := range []int{3, 5, 10, 16, 17, 20, 40, 64, 65, 100, 256} {
		worst, sum, tries := 0.0, 0.0, min(n, 12)
		for set := range 3 {
			all := endpointsFor(n, 10+set)
			whole := clients(all)
			for gone := range tries {
				rest := slices.Delete(slices.Clone(all), gone*n/tries, gone*n/tries+1)
				now := clients(rest)
				moved, others := 0, 0
				for i, was := range whole {
					if was != all[gone*n/tries] {
						others++
						if now[i] != was {
							moved++
						}
					}
				}
				share := 100 * float64(moved) / float64(others)
				worst, sum = max(worst, share), sum+share
			}
		}
		t.Logf("%d endpoints: %.1f %% of others move, at worst %.1f", n, sum/float64(3*tries), worst)
		if worst > 7 {
			t.Errorf("%d endpoints: %.1f %% of the others' clients move when one goes", n, worst)
		}
	}
}

// clients are the endpoints of the clients in each slot of the largest table.
func clients(endpoints []netip.AddrPort) []netip.AddrPort {
	sp := &ServicePort{Balance: SourceHash}
	sp.Pools[PoolCluster] = endpoints
	table := sp.tableOf(PoolCluster)
	out := make([]netip.AddrPort, 16384)
	for i := range out {
		out[i] = endpoints[table.slots[i*len(table.slots)/len(out)]]
	}
	return out
}

// Shares of weights are right to one connection in size² for each hole, everybody with a
// weight has a slot, and the first slot is taken.
func TestWeighedShares(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	sets := [][]uint16{{70, 20, 10}, {99, 1}, {999, 1}, {65535, 1}, {3, 1}, {1, 2, 3, 4, 5}, {65535, 1, 1, 1, 65534}}
	for range 200 {
		var w []uint16
		for range 2 + r.IntN(40) {
			w = append(w, uint16(1+r.IntN(1<<(1+r.IntN(16))-1)))
		}
		sets = append(sets, w)
	}
	for _, weights := range sets {
		sp := &ServicePort{Weights: [NumPools]map[netip.AddrPort]uint16{{}, {}}}
		sp.Pools[PoolCluster] = endpointsFor(len(weights), 3)
		sum := 0.0
		for i, w := range weights {
			sp.Weights[PoolCluster][sp.Pools[PoolCluster][i]] = w
			sum += float64(w)
		}
		table := sp.tableOf(PoolCluster)
		if table == nil {
			continue // all alike
		}
		_, size := splitForm(table.form)
		got, holes := shares(table, len(weights))
		if table.slots[0] == hole {
			t.Errorf("%v: the first slot is a hole", weights)
		}
		step, small := float64(max(holes, 1))/float64(size*size), 0.0
		for _, w := range weights {
			if float64(w)/sum < step {
				small++ // has a slot of the second level all the same
			}
		}
		for i, w := range weights {
			want, allowed := float64(w)/sum, step*(1.5+small)
			if got[i] == 0 || math.Abs(got[i]-want) > allowed {
				t.Errorf("%v: endpoint %d of weight %d has a share of %.5f, want %.5f (%d holes)", weights, i, w, got[i], want, holes)
			}
		}
	}
}

// shares are how likely each endpoint is drawn.
func shares(table *table, n int) (shares []float64, holes int) {
	_, size := splitForm(table.form)
	shares = make([]float64, n)
	for _, slot := range table.slots[:size] {
		if slot == hole {
			holes++
		} else {
			shares[slot] += 1 / float64(size)
		}
	}
	for _, slot := range table.slots[size:] {
		shares[slot] += float64(holes) / float64(size*size) // a hole is out of range
	}
	return shares, holes
}

func TestAlikeNeedsNoTable(t *testing.T) {
	sp := &ServicePort{Weights: [NumPools]map[netip.AddrPort]uint16{{}, {}}}
	sp.Pools[PoolCluster] = endpointsFor(3, 1)
	for _, ap := range sp.Pools[PoolCluster] {
		sp.Weights[PoolCluster][ap] = 7
	}
	if table := sp.tableOf(PoolCluster); table != nil {
		t.Errorf("equal weights have the table %s", table.form)
	}
	sp.Balance = Maglev
	sp.Pools[PoolCluster] = sp.Pools[PoolCluster][:1]
	if table := sp.tableOf(PoolCluster); table != nil {
		t.Errorf("one endpoint has the table %s", table.form)
	}
}

// Of endpoints that share an address each has a place of its own.
func TestOneAddressTwice(t *testing.T) {
	sp := &ServicePort{Balance: Maglev}
	sp.Pools[PoolCluster] = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.1:81")}
	got, _ := shares(&table{"hash-256", sp.tableOf(PoolCluster).slots}, 2)
	if got[0] != 0.5 || got[1] != 0.5 {
		t.Errorf("their shares are %v", got)
	}
}
