package config

import (
	"net/netip"
	"sync"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/alloc"
)

// owned are the ranges of nft.Box.Owned: the service ranges and the load balancer pools without
// the networks and addresses of the box. In a pool on a segment of the box, others may have what
// no Service has. External IP ranges are not among them: they may be as large as everything.
func (c *Config) owned(facts *node.Facts) []nft.Range {
	var all []nft.Range
	for _, p := range c.Addresses.ClusterIPRanges {
		all = append(all, rangeOf(p))
	}
	for _, o := range c.overlaps(facts) {
		all = without(all, rangeOf(o.network))
	}
	var pools []nft.Range
	for _, r := range c.pools() {
		pools = append(pools, wholePrefix(r))
	}
	if facts != nil {
		for _, a := range facts.Addresses {
			pools = without(pools, rangeOf(a.Prefix))
		}
		for _, p := range facts.Connected {
			pools = without(pools, rangeOf(p))
		}
	}
	return append(all, pools...)
}

func rangeOf(p netip.Prefix) nft.Range {
	return nft.Range{First: p.Masked().Addr(), Last: LastAddr(p.Masked())}
}

// wholePrefix is the prefix that a pool has all hosts of, else the pool: packets to the
// network or broadcast address of a pool have no host to go to either.
func wholePrefix(r AddrRange) nft.Range {
	for bits := r.First.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(r.First, bits)
		switch hosts := hostsOf(p); {
		case hosts == r:
			return rangeOf(p)
		case hosts.Last.Compare(r.Last) > 0:
			return nft.Range(r)
		}
	}
	return nft.Range(r)
}

// without takes the addresses of one range out of others.
func without(ranges []nft.Range, gone nft.Range) (rest []nft.Range) {
	for _, r := range ranges {
		if r.First.BitLen() != gone.First.BitLen() || r.Last.Less(gone.First) || gone.Last.Less(r.First) {
			rest = append(rest, r)
			continue
		}
		if r.First.Less(gone.First) {
			rest = append(rest, nft.Range{First: r.First, Last: gone.First.Prev()})
		}
		if gone.Last.Less(r.Last) {
			rest = append(rest, nft.Range{First: gone.Last.Next(), Last: r.Last})
		}
	}
	return rest
}

// ObjectPools are the pools of objects (IPAddressPool); flags have others. They may be used by several goroutines at a
// time; nil has none.
type ObjectPools struct {
	mu    sync.Mutex
	pools []alloc.Pool
}

// Set replaces them. Those without a name, of flags, are left out.
func (p *ObjectPools) Set(pools []alloc.Pool) {
	var named []alloc.Pool
	for _, pool := range pools {
		if pool.Name != "" {
			named = append(named, pool)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools = named
}

func (p *ObjectPools) all() []alloc.Pool {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pools
}
