package reconcile

import (
	"slices"

	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/store/object"
)

// generated are the slices that the endpoints controllers make for a Service of a world.
func (w *worldObjects) generated(key string) []*object.EndpointSlice {
	controller := endpoints.New(endpoints.Facts{ServiceRanges: w.Box.ServiceRanges})
	batch := controller.Update(worldStore{w}, endpoints.Changes{Services: w.keys()})
	var parts []*object.EndpointSlice
	for _, o := range batch.Puts {
		if part, ok := o.(*object.EndpointSlice); ok && part.Metadata.Namespace+"/"+part.Metadata.Labels[object.LabelServiceName] == key {
			parts = append(parts, part)
		}
	}
	return parts
}

// worldStore gives the controllers the objects of a world, in which there are no Pods.
type worldStore struct{ *worldObjects }

// Service implements endpoints.Objects.
func (w worldStore) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return w.stored(key)
}

// Pod implements endpoints.Objects.
func (worldStore) Pod(string) *object.Pod { return nil }

// Selected implements endpoints.Objects.
func (worldStore) Selected(string, map[string]string) []*object.Pod { return nil }

// Selecting implements endpoints.Objects.
func (worldStore) Selecting(string, map[string]string) []string { return nil }

// ZoneOf implements endpoints.Objects.
func (worldStore) ZoneOf(string) (string, bool) { return "", false }

// Holder implements endpoints.Objects: everything in a world is its author's.
func (w worldStore) Holder(ref object.Ref) endpoints.Holder {
	named := func(o object.Object) bool { return object.RefOf(o) == ref }
	if slices.ContainsFunc(w.Slices, func(o *object.EndpointSlice) bool { return named(o) }) ||
		slices.ContainsFunc(w.Endpoints, func(o *object.Endpoints) bool { return named(o) }) {
		return endpoints.Others
	}
	return endpoints.Nobody
}
