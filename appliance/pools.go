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

// objectPools computes the pools of load balancer IPs and the announcements from the stored objects, and puts them into force.
type objectPools struct {
	*control.Pools
	use func(*advertise.Plan) // puts a plan into force

	mu       sync.Mutex
	problems []resolve.Problem
	last     *advertise.Plan // the plan last computed from the objects
	held     bool            // a plan passed to hold is in force instead of last
}

// newPools returns objectPools that pass the pools of each plan to cfg, and its announcements to announced.
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

// hold puts the given plan into force, instead of the one computed from the objects, until release is called.
func (p *objectPools) hold(plan *advertise.Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = true
	p.use(plan)
}

// release puts the plan computed from the objects into force again, after hold.
func (p *objectPools) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held && p.last != nil {
		p.use(p.last)
	}
	p.held = false
}

// advertiseBox returns the advertise.Box of a configuration, for advertise.Compile.
func advertiseBox(cfg *config.Config) advertise.Box {
	return advertise.Box{Pools: cfg.Store().Pools, ServiceRanges: cfg.Addresses.ClusterIPRanges, NodeName: cfg.NodeName}
}

// Problems returns the problems of the objects that configure pools and announcements.
func (p *objectPools) Problems() []resolve.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problems
}

// controllers generates objects in a store that has no reconcile loop, such as a copy of the store or one in memory.
type controllers struct {
	cfg    config.Config // its ObjectPools are those computed from the objects
	pools  *control.Pools
	slices *control.Endpoints
	plan   *advertise.Plan // computed from the objects
}

// controllersOf returns controllers for the store objects, after their first run. slices is the controller of EndpointSlices for that store; it will
// write no statuses.
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

// sync runs all controllers once. pools reports whether the pools of load balancer IPs changed.
func (c *controllers) sync() (pools bool, err error) {
	if pools, err = c.pools.Sync(); err != nil {
		return pools, err
	}
	return pools, errors.Join(c.slices.Sync(), c.slices.Sync()) // a Service that is made again is deleted first
}
