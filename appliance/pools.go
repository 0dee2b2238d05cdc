package appliance

import (
	"sync"

	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
)

// objectPools follows the objects that say where load balancer IPs come from, and where they are announced.
type objectPools struct {
	*control.Pools
	mu       sync.Mutex
	problems []resolve.Problem
}

// newPools has each plan be that of the configuration and of the announcements.
func newPools(cfg *config.Config, objects *store.Store, announced *announcements.Book) *objectPools {
	p := &objectPools{}
	p.Pools = control.NewPools(objects, advertiseBox(cfg), func(plan *advertise.Plan) {
		cfg.ObjectPools.Set(plan.Pools)
		announced.SetPlan(cfg.AnnouncedRanges(), plan, plan.Config)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = plan.Problems
	})
	return p
}

// advertiseBox takes what is about pools from the configuration.
func advertiseBox(cfg *config.Config) advertise.Box {
	return advertise.Box{Pools: cfg.Store().Pools, ServiceRanges: cfg.Addresses.ClusterIPRanges, NodeName: cfg.NodeName}
}

// Problems returns the problems of the objects.
func (p *objectPools) Problems() []resolve.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problems
}
