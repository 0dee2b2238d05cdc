package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// EndpointsOwner is the owner (store.Owner.Controller) of the EndpointSlices and Endpoints that Endpoints writes.
const EndpointsOwner = "endpoints"

// Endpoints generates objects and stores them: the EndpointSlices and Endpoints of Services with a selector, the EndpointSlices that mirror
// Endpoints, and the Services and slices of Gateways.
type Endpoints struct {
	store *store.Store
	mu    sync.Mutex // guards core and seen, which Fork reads
	core  *endpoints.Controller
	seen  uint64            // the revision of the store that the objects are synced to
	looks endpoints.Changes // changes that the next Sync processes in addition to those of the store
	// missed is set when the objects for boxes that a rollout has not reached are out of date.
	missed   bool
	gateways *gateways
}

func NewEndpoints(facts endpoints.Facts, objects *store.Store) *Endpoints {
	return &Endpoints{store: objects, core: endpoints.New(facts), gateways: newGateways(objects, facts.ServiceRanges)}
}

// Fork returns Endpoints for a copy of the store, made at a revision. Its first Sync processes only the changes since the last Sync of c
// or, if c is in a Sync at this moment, everything.
func (c *Endpoints) Fork(copied *store.Store, revision uint64) *Endpoints {
	f := NewEndpoints(c.core.Facts, copied)
	if !c.mu.TryLock() {
		return f
	}
	defer c.mu.Unlock()
	if changes := c.store.Changes(min(c.seen, revision)); !changes.All {
		f.core, f.seen, f.looks = c.core.Fork(), copied.Revision(), endpoints.Changes{Services: changes.Services, Pods: changes.Pods}
	}
	return f
}

// Aside turns off the writing of statuses, for use with a copy of the store, and returns c.
func (c *Endpoints) Aside() *Endpoints {
	c.gateways.silent = true
	return c
}

// Sync deletes objects whose owners are gone, and updates the generated objects to the store's newest revision. Without a change it writes
// nothing.
func (c *Endpoints) Sync() error {
	if err := c.store.CollectGarbage(); err != nil {
		return err
	}
	changes := c.store.Changes(c.seen)
	looked := endpoints.Changes{Services: append(changes.Services, c.looks.Services...), Pods: append(changes.Pods, c.looks.Pods...)}
	if changes.All {
		looked = c.core.Known()
		looked.Services = append(looked.Services, c.store.ServiceKeys()...)
		looked.Pods = append(looked.Pods, c.store.Pods()...)
	}
	c.mu.Lock()
	batch := c.core.Update(stored{c.store}, looked)
	c.seen, c.looks = changes.Revision, endpoints.Changes{}
	if !batch.Empty() {
		if _, err := c.store.Generate(EndpointsOwner, batch.Puts, batch.Deletes); err != nil {
			c.core.Forget(batch)
			c.mu.Unlock()
			return fmt.Errorf("endpoints of Services: %w", err)
		}
	}
	c.mu.Unlock()
	if err := c.syncBefore(looked); err != nil {
		return err
	}
	return c.gateways.sync()
}

// Ahead returns, by Service, the EndpointSlices that Sync computed and has not stored. The reconcile loop programs them into the dataplane first;
// Programmed then stores them.
func (c *Endpoints) Ahead() map[string][]*object.EndpointSlice {
	return c.gateways.ahead
}

// Programmed stores the EndpointSlices that Ahead returned. revision is the revision of the store that the dataplane implements. planned has the
// problems of the Services that were planned since the last call. again reports whether Sync must be called again.
func (c *Endpoints) Programmed(revision uint64, planned map[string][]resolve.Problem) (again bool, err error) {
	return c.gateways.Programmed(revision, planned)
}

// syncBefore generates the objects for the boxes that a running rollout has not reached yet. It derives them from the versions that Services had
// before the rollout. Without a rollout it does nothing.
func (c *Endpoints) syncBefore(changed endpoints.Changes) error {
	if head, is := c.store.PendingHead(pending.Staged); !is || !head.Pending() {
		c.missed = false
		return nil
	}
	state, _ := c.store.Pending(pending.Staged)
	touched := func(key string) bool { return slices.Contains(changed.Services, key) }
	if !c.missed && len(changed.Pods) == 0 && !slices.ContainsFunc(state.Services, touched) {
		return nil
	}
	c.missed = true
	batch := c.core.Aside().Update(before{stored{c.store}}, endpoints.Changes{Services: state.Services})
	if !batch.Empty() {
		if err := c.store.GenerateBefore(EndpointsOwner, batch.Puts, batch.Deletes); err != nil {
			return fmt.Errorf("endpoints of Services for boxes that the rollout has not come to: %w", err)
		}
	}
	c.missed = false
	return nil
}

// Problems returns the problems of Pods, selectors, Endpoints and Gateways.
func (c *Endpoints) Problems() []resolve.Problem {
	return append(c.core.Problems(), c.gateways.Problems()...)
}

// stored adapts the store to endpoints.Objects.
type stored struct{ *store.Store }

// Service returns a Service with its EndpointSlices and its Endpoints. If the Service has no selector, only generated EndpointSlices are included.
func (s stored) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return s.ServiceBy(key, EndpointsOwner)
}

// ZoneOf returns the zone of a box of the fleet, from the label of its Node. known is false outside of a fleet.
func (s stored) ZoneOf(node string) (zone string, known bool) {
	if !s.IsShared() {
		return "", false
	}
	if o, _ := s.Get(object.Ref{Kind: object.KindNode, Name: node}); o != nil {
		zone = o.GetMeta().Labels[labelZone]
	}
	return zone, true
}

// Holder returns the kind of writer that owns an object.
func (s stored) Holder(ref object.Ref) endpoints.Holder { return holder(s.Get(ref)) }

func holder(o object.Object, owner store.Owner) endpoints.Holder {
	switch {
	case o == nil:
		return endpoints.Nobody
	case owner == store.Owner{Controller: EndpointsOwner}:
		return endpoints.Ours
	}
	return endpoints.Others
}

// before adapts the store to endpoints.Objects like stored, but returns the versions from before a rollout.
type before struct{ stored }

// Service returns a Service as it was before the rollout, with its EndpointSlices and its Endpoints.
func (b before) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return b.Before().Service(key)
}

// Holder returns the kind of writer that owned an object before the rollout.
func (b before) Holder(ref object.Ref) endpoints.Holder { return holder(b.Before().Get(ref)) }

// besideRetry is the wait after a failed write.
const besideRetry = time.Second

// Beside runs the controllers in a separate task, so that the reconcile loop does not wait for writes to etcd. LoopCluster, LoopEndpoints and
// LoopPools replace the controllers in the reconcile loop. In a fleet, hasTurn reports whether this box writes the objects of the whole fleet; every
// box writes its own Node.
type Beside struct {
	cluster   *ClusterObjects
	endpoints *Endpoints
	pools     *Pools
	store     *store.Store
	hasTurn   func() bool
	log       *slog.Logger
	wake      chan struct{}

	mu       sync.Mutex
	facts    *node.Facts
	problems []resolve.Problem
	repooled bool // the pools changed, and LoopPools.Sync has not reported it yet
	applied  uint64
	planned  map[string][]resolve.Problem // problems of the Services planned since the last run, by Service
}

// NewBeside returns a Beside that runs these controllers. No other code may use them from then on.
func NewBeside(cluster *ClusterObjects, endpoints *Endpoints, pools *Pools, objects *store.Store, hasTurn func() bool, log *slog.Logger) *Beside {
	return &Beside{cluster: cluster, endpoints: endpoints, pools: pools, store: objects, hasTurn: hasTurn, log: log, wake: make(chan struct{}, 1)}
}

// Facts records new facts of the host for the next run of the controllers, and wakes Run. It does not wait.
func (b *Beside) Facts(facts *node.Facts) {
	b.mu.Lock()
	changed := facts != nil && facts != b.facts
	if changed {
		b.facts = facts
	}
	b.mu.Unlock()
	if changed {
		task.Wake(b.wake)
	}
}

// Problems returns the problems that the endpoints controller found in its last run.
func (b *Beside) Problems() []resolve.Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.problems
}

// Run runs the controllers after each change, until ctx is done. changed returns a channel that is closed when the result of hasTurn may have
// changed. wakeLoop wakes the reconcile loop when it has to fetch the results of a run.
func (b *Beside) Run(ctx context.Context, changed func() <-chan struct{}, wakeLoop func()) error {
	logged := ""
	for ctx.Err() == nil {
		published, turned := b.store.Published(), changed()
		err := b.sync(wakeLoop)
		wait := time.Hour
		if err == nil {
			logged = ""
		} else if wait = besideRetry; err.Error() != logged {
			logged = err.Error()
			b.log.Warn("objects of this box are not written yet", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-published:
		case <-turned:
		case <-b.wake:
		case <-time.After(wait):
			continue
		}
		if err != nil { // what changes meanwhile is no reason to try sooner
			task.Sleep(ctx, wait)
		}
	}
	return nil
}

func (b *Beside) sync(wakeLoop func()) error {
	b.mu.Lock()
	facts := b.facts
	b.mu.Unlock()
	err := errors.Join(b.cluster.syncNode(facts), b.syncPools(wakeLoop))
	if !b.hasTurn() {
		return err
	}
	b.mu.Lock()
	applied, planned := b.applied, b.planned
	b.planned = nil
	b.mu.Unlock()
	_, stored := b.endpoints.Programmed(applied, planned)
	err = errors.Join(err, stored, b.cluster.KeepNamespaces(), b.cluster.syncServiceCIDR(), b.endpoints.Sync())
	problems := b.endpoints.Problems()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = problems
	return err
}

// syncPools gives this box's store the address pools of the current objects, and wakes the loop if they changed.
func (b *Beside) syncPools(wakeLoop func()) error {
	before := b.pools.plans
	changed, err := b.pools.Sync()
	if changed || b.pools.plans != before { // a Plan has problems, too
		b.mu.Lock()
		b.repooled = b.repooled || changed
		b.mu.Unlock()
		wakeLoop()
	}
	return err
}

// LoopCluster takes the place of ClusterObjects in the reconcile loop.
type LoopCluster struct{ *Beside }

// Sync records the facts of the host for Run, and never fails.
func (c LoopCluster) Sync(facts *node.Facts) error { c.Facts(facts); return nil }

// LoopEndpoints takes the place of Endpoints in the reconcile loop.
type LoopEndpoints struct{ *Beside }

// Sync does nothing: Run syncs the endpoints.
func (LoopEndpoints) Sync() error { return nil }

// Ahead returns nothing: objects that several boxes share are stored before they are programmed.
func (LoopEndpoints) Ahead() map[string][]*object.EndpointSlice { return nil }

// Programmed records the revision and the problems for Run. It never waits, and never fails.
func (e LoopEndpoints) Programmed(revision uint64, planned map[string][]resolve.Problem) (again bool, err error) {
	e.mu.Lock()
	moved := e.applied != revision || len(planned) > 0
	if e.applied = revision; e.planned == nil {
		e.planned = map[string][]resolve.Problem{}
	}
	maps.Copy(e.planned, planned)
	e.mu.Unlock()
	if moved {
		task.Wake(e.wake)
	}
	return false, nil
}

// LoopPools takes the place of Pools in the reconcile loop.
type LoopPools struct{ *Beside }

// Sync reports whether the pools changed since the last call. It never fails: Run repeats what failed.
func (p LoopPools) Sync() (changed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed, p.repooled = p.repooled, false
	return changed, nil
}
