package appliance

import (
	"fmt"

	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// endpointsOwner is whose the objects are in the store that the endpoints controllers
// generate.
const endpointsOwner = "endpoints"

// controllers keep in the store what is made of other objects: the EndpointSlices and
// Endpoints of Services with a selector, and the mirrors of Endpoints.
type controllers struct {
	core  *endpoints.Controller
	store *store.Store
	seen  uint64 // the store's revision that they stand at
}

func (c *Config) controllers(objects *store.Store) *controllers {
	return &controllers{store: objects, core: endpoints.New(endpoints.Facts{
		NodeName: c.NodeName, Zone: c.Zone, ServiceRanges: c.ServiceClusterIPRanges,
	})}
}

// sync removes what has lost its owners, and brings what is made of Services and Pods up to the
// store's newest revision, in one commit; when nothing changed there is none.
func (c *controllers) sync() error {
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
	if batch.Empty() {
		return nil
	}
	if _, err := c.store.Generate(endpointsOwner, batch.Puts, batch.Deletes); err != nil {
		c.core.Forget(batch)
		return fmt.Errorf("endpoints of Services: %w", err)
	}
	return nil
}

// problems are those of Pods, selectors and Endpoints.
func (c *controllers) problems() []resolve.Problem {
	found := c.core.Problems()
	all := make([]resolve.Problem, len(found))
	for i, p := range found {
		all[i] = resolve.Problem(p)
	}
	return all
}

// stored is the store as the controllers read it.
type stored struct{ *store.Store }

// Holder implements endpoints.Objects.
func (s stored) Holder(ref object.Ref) endpoints.Holder {
	switch o, owner := s.Get(ref); {
	case o == nil:
		return endpoints.Nobody
	case owner == store.Owner{Controller: endpointsOwner}:
		return endpoints.Ours
	}
	return endpoints.Others
}
