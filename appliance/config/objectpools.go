package config

import (
	"sync"

	"svcctl.io/svcctl/store/alloc"
)

// ObjectPools are the pools of objects (IPAddressPool), beside those of flags. They may be used by several at a
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
