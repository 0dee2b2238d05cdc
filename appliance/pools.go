package appliance

import (
	"errors"
	"sync"

	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
)

// objectPools computes the pools of load balancer IPs and the announcements from objects, and puts them into force.
type objectPools struct {
	*control.Pools
	use func(*advertise.Plan) // puts a plan into force

	mu       sync.Mutex
	problems []resolve.Problem
	last     *advertise.Plan // of the objects
	held     bool            // another plan is in force, see hold
}

// newPools returns objectPools that pass each plan to the configuration and to the announcements.
func newPools(cfg *config.Config, objects *store.Store, announced *announcements.Registry) *objectPools {
	p := &objectPools{}
	p.use = func(plan *advertise.Plan) {
		cfg.ObjectPools.Set(plan.Pools)
		announced.SetPlan(cfg.AnnouncedRanges(), plan, plan.Config)
		p.problems = plan.Problems
	}
	p.Pools = control.NewPools(objects, advertiseBox(cfg), func(plan *advertise.Plan) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.last = plan; !p.held {
			p.use(plan)
		}
	})
	return p
}

// hold puts another plan into force until release.
func (p *objectPools) hold(plan *advertise.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = true
	p.use(plan)
}

// release puts the plan of the objects into force again.
func (p *objectPools) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held && p.last != nil {
		p.use(p.last)
	}
	p.held = false
}

// advertiseBox returns the configuration for advertise.Compile.
func advertiseBox(cfg *config.Config) advertise.Box {
	return advertise.Box{Pools: cfg.Store().Pools, ServiceRanges: cfg.Addresses.ClusterIPRanges, NodeName: cfg.NodeName}
}

// Problems returns the problems of the objects that pools and announcements come from.
func (p *objectPools) Problems() []resolve.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problems
}

// controllers generate objects in a store without a reconcile loop: a copy, or one in memory.
type controllers struct {
	cfg    config.Config // with the pools of the objects
	pools  *control.Pools
	slices *control.Endpoints
	plan   *advertise.Plan // of the objects
}

// controllersOf returns controllers of objects, with those of slices, after their first run.
func controllersOf(cfg config.Config, objects *store.Store, slices *control.Endpoints) (*controllers, error) {
	c := &controllers{cfg: cfg, slices: slices.Aside()}
	c.cfg.ObjectPools = &config.ObjectPools{}
	c.pools = control.NewPools(objects, advertiseBox(&c.cfg), func(plan *advertise.Plan) {
		c.cfg.ObjectPools.Set(plan.Pools)
		c.plan = plan
	})
	_, err := c.sync()
	return c, err
}

// sync runs the controllers. pools reports whether the pools of load balancer IPs changed.
func (c *controllers) sync() (pools bool, err error) {
	if pools, err = c.pools.Sync(); err != nil {
		return pools, err
	}
	return pools, errors.Join(c.slices.Sync(), c.slices.Sync()) // a Service that is made again is deleted first
}
