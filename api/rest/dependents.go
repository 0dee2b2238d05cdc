package rest

import (
	"errors"
	"slices"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// removeDependents removes what goes with Services that writes have removed: the Endpoints of
// the same name, as Kubernetes does it, so that a later Service of that name does not begin
// with them, and the EndpointSlices that belonged to nothing else. What files declare and what
// controllers make is left to them.
func (s *Server) removeDependents(writes []store.Write, results []store.Written) {
	var removals []store.Write
	for i, w := range writes {
		if w.Ref.Kind != object.KindService || w.DryRun || results[i].Err != nil || !results[i].Removed {
			continue
		}
		if again, _ := s.store.Get(w.Ref); again != nil {
			continue // a file has declared it all along
		}
		_, endpointSlices, endpoints := s.store.Service(w.Ref.Key())
		var dependents []object.Object
		if endpoints != nil {
			dependents = append(dependents, endpoints)
		}
		for _, slice := range endpointSlices {
			if ownedBy(slice, results[i].Object.GetMeta().UID) {
				dependents = append(dependents, slice)
			}
		}
		for _, o := range dependents {
			if _, owner := s.store.Get(object.RefOf(o)); owner == (store.Owner{}) {
				removals = append(removals, store.Write{Ref: object.RefOf(o), Delete: true, UID: o.GetMeta().UID, By: w.By})
			}
		}
	}
	if len(removals) == 0 {
		return
	}
	gone, err := s.store.Write(removals...)
	for i := range gone {
		if e := gone[i].Err; e != nil && !errors.Is(e, store.ErrNotFound) && !errors.Is(e, store.ErrStale) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		s.log.Warn("what belonged to a Service that was removed is still there", "err", err)
	}
}

// ownedBy reports whether an object belongs to one other, and to nothing else.
func ownedBy(o object.Object, uid string) bool {
	owners := o.GetMeta().OwnerReferences
	return len(owners) > 0 && !slices.ContainsFunc(owners, func(owner object.OwnerReference) bool { return owner.UID != uid })
}
