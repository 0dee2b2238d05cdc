package control

import (
	"fmt"
	"slices"

	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// EndpointsOwner owns the EndpointSlices and Endpoints that Endpoints writes (store.Owner.Controller).
const EndpointsOwner = "endpoints"

// Endpoints keeps generated objects in the store: the EndpointSlices and
// Endpoints of Services with a selector, the mirrors of Endpoints, and what serves Gateways.
type Endpoints struct {
	core  *endpoints.Controller
	store *store.Store
	seen  uint64 // the revision of the store that the objects are synced to
	// missed is set when the objects for boxes outside of a rollout are not up to date.
	missed   bool
	gateways *gateways
}

func NewEndpoints(facts endpoints.Facts, objects *store.Store) *Endpoints {
	return &Endpoints{store: objects, core: endpoints.New(facts), gateways: newGateways(objects, facts.ServiceRanges)}
}

// Aside returns an Endpoints for a copy of the objects: it writes no statuses.
func (c *Endpoints) Aside() *Endpoints {
	c.gateways.silent = true
	return c
}

// Sync removes objects whose owners are gone, and brings the generated objects up to the store's
// newest revision; without a change it commits nothing.
func (c *Endpoints) Sync() error {
	if err := c.store.CollectGarbage(); err != nil {
		return err
	}
	changes := c.store.Changes(c.seen)
	looked := endpoints.Changes{Services: changes.Services, Pods: changes.Pods}
	if changes.All {
		looked = c.core.Known()
		looked.Services = append(looked.Services, c.store.ServiceKeys()...)
		looked.Pods = append(looked.Pods, c.store.Pods()...)
	}
	batch := c.core.Update(stored{c.store}, looked)
	c.seen = changes.Revision
	if !batch.Empty() {
		if _, err := c.store.Generate(EndpointsOwner, batch.Puts, batch.Deletes); err != nil {
			c.core.Forget(batch)
			return fmt.Errorf("endpoints of Services: %w", err)
		}
	}
	if err := c.syncBefore(looked); err != nil {
		return err
	}
	return c.gateways.sync()
}

// Ahead returns the EndpointSlices of Services that Sync has made and Programmed stores.
func (c *Endpoints) Ahead() map[string][]*object.EndpointSlice {
	return c.gateways.ahead
}

// Programmed takes the revision that the dataplane has, and the problems of the Services that were planned since the last
// call, and stores what Ahead has. It reports whether Sync has something to write then.
func (c *Endpoints) Programmed(revision uint64, planned map[string][]resolve.Problem) (again bool, err error) {
	return c.gateways.Programmed(revision, planned)
}

// syncBefore generates the objects of the versions before a rollout, for the boxes that it has not come to.
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
	found := c.core.Problems()
	all := make([]resolve.Problem, len(found))
	for i, p := range found {
		all[i] = resolve.Problem{Object: p.Object, Field: p.Field, Reason: p.Reason, Message: p.Message, Warning: p.Warning}
	}
	return append(all, c.gateways.Problems()...)
}

// stored is the store as the endpoints controller reads it.
type stored struct{ *store.Store }

// ZoneOf implements endpoints.Objects.
func (s stored) ZoneOf(node string) (zone string, known bool) {
	if !s.IsShared() {
		return "", false
	}
	if o, _ := s.Get(object.Ref{Kind: object.KindNode, Name: node}); o != nil {
		zone = o.GetMeta().Labels[labelZone]
	}
	return zone, true
}

// Holder implements endpoints.Objects.
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

// before is the store as boxes have it that a rollout has not come to.
type before struct{ stored }

// Service implements endpoints.Objects.
func (b before) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return b.Before().Service(key)
}

// Holder implements endpoints.Objects.
func (b before) Holder(ref object.Ref) endpoints.Holder { return holder(b.Before().Get(ref)) }
