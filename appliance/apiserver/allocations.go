package apiserver

import (
	"sync"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
)

// allocations returns the holders of addresses and ports, for one caller at a time: the store
// cannot be written meanwhile, so writers must not wait for a queue of callers.
func allocations(objects *store.Store) func(repair bool) wire.Allocations {
	var turn sync.Mutex
	return func(repair bool) wire.Allocations {
		turn.Lock()
		defer turn.Unlock()
		// The check first: what is told of the pools is then as it was put right.
		a := wire.Allocations{Pools: []wire.Pool{}, Disagreements: []wire.Disagreement{}}
		for _, d := range objects.CheckPools(repair) {
			a.Disagreements = append(a.Disagreements, wire.Disagreement(d))
		}
		for _, p := range objects.Pools() {
			pool := wire.Pool{Kind: p.Kind, Family: p.Family, Range: p.Range, Name: p.Name, Internal: p.Internal, Size: p.Size, Used: p.Used, Holders: []wire.Holder{}}
			for _, h := range p.Holders {
				pool.Holders = append(pool.Holders, wire.Holder(h))
			}
			a.Pools = append(a.Pools, pool)
		}
		return a
	}
}
