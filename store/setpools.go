package store

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
)

// SetPools makes pools those that load balancer IPs come from, and gives addresses to Services that wait for one.
// What is held stays so, in a pool or not. changed is false when they were these pools. The errors are about
// the pools, or that of the commit: call it again then.
func (s *Store) SetPools(pools []alloc.Pool) (changed bool, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if slices.EqualFunc(s.cfg.Pools, pools, samePool) {
		return false, nil
	}
	before := s.cfg.Pools
	if err := s.ledger.pools.Replace(pools); err != nil {
		return false, fmt.Errorf("set the pools: %w", err)
	}
	s.cfg.Pools = pools
	err = s.decide(func() error {
		t := s.begin()
		t.examine(s.concerned(before, pools)...)
		_, err := t.run()
		return err
	})
	if err != nil {
		s.cfg.Pools = before // so that the next call gives the addresses
		return true, fmt.Errorf("give addresses of new pools: %w", err)
	}
	return true, nil
}

// samePool compares all of two pools.
func samePool(a, b alloc.Pool) bool {
	return a.First == b.First && a.Last == b.Last && a.Name == b.Name && a.Internal == b.Internal &&
		a.OnRequest == b.OnRequest && a.AvoidEnds == b.AvoidEnds && a.TakesKey == b.TakesKey
}

// concerned are the Services that wait, and those with an address that lies in other pools than before.
func (s *Store) concerned(before, now []alloc.Pool) []object.Ref {
	nameIn := func(pools []alloc.Pool, addr netip.Addr) (string, bool) {
		i := slices.IndexFunc(pools, func(p alloc.Pool) bool { return p.Contains(addr) })
		if i < 0 {
			return "", false
		}
		return pools[i].Name, true
	}
	refs := map[object.Ref]struct{}{}
	for ref := range s.outcomes.waiting {
		refs[ref] = struct{}{}
	}
	for addr, owners := range s.ledger.pools.Holders() {
		was, wasIn := nameIn(before, addr)
		is, isIn := nameIn(now, addr)
		if was == is && wasIn == isIn {
			continue
		}
		for _, owner := range owners {
			namespace, name, _ := strings.Cut(owner, "/")
			ref := object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}
			if s.table.records[ref] != nil {
				refs[ref] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(refs))
}
