package rest

import (
	"errors"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// removeDependents removes what goes with objects that writes have removed: what has lost all its
// owners by that, and the Endpoints of a Service, as Kubernetes does it, so that a later Service of
// that name does not begin with them. What files declare and what controllers make is left to them.
func (s *Server) removeDependents(writes []store.Write, results []store.Written) {
	var removals []store.Write
	removed := false
	for i, w := range writes {
		if w.DryRun || results[i].Err != nil || !results[i].Removed {
			continue
		}
		removed = true
		if w.Ref.Kind != object.KindService {
			continue
		}
		if again, _ := s.store.Get(w.Ref); again != nil {
			continue // a file has declared it all along
		}
		_, _, endpoints := s.store.Service(w.Ref.Key())
		if endpoints == nil {
			continue
		}
		if _, owner := s.store.Get(object.RefOf(endpoints)); owner == (store.Owner{}) {
			removals = append(removals, store.Write{Ref: object.RefOf(endpoints), Delete: true, UID: endpoints.GetMeta().UID, By: w.By})
		}
	}
	if !removed {
		return
	}
	var err error
	if len(removals) > 0 {
		var gone []store.Written
		gone, err = s.store.Write(removals...)
		for i := range gone {
			if e := gone[i].Err; e != nil && !errors.Is(e, store.ErrNotFound) && !errors.Is(e, store.ErrStale) {
				err = errors.Join(err, e)
			}
		}
	}
	if err = errors.Join(err, s.store.CollectGarbage()); err != nil {
		s.log.Warn("what belonged to an object that was removed is still there", "err", err)
	}
}

// orphan takes an owner out of the objects that name it, so that they stay when it goes.
func (s *Server) orphan(r *request, uid string, by store.Caller) error {
	by.Verb = "update"
	for try := 1; ; try++ {
		var writes []store.Write
		for _, o := range s.store.Dependents(uid) {
			free := o.DeepCopy()
			meta := free.GetMeta()
			meta.OwnerReferences = slices.DeleteFunc(meta.OwnerReferences, func(owner object.OwnerReference) bool { return owner.UID == uid })
			writes = append(writes, store.Write{Ref: object.RefOf(o), Object: free, Version: o.GetMeta().ResourceVersion, By: by})
		}
		if len(writes) == 0 {
			return nil
		}
		results, err := s.store.Write(writes...)
		if err != nil {
			return unavailable(fmt.Sprintf("what depends on %s could not be kept, and nothing was removed: %v", r.ref(), err), busyRetry)
		}
		again := false
		for _, result := range results {
			switch {
			case errors.Is(result.Err, store.ErrStale), errors.Is(result.Err, store.ErrNotFound):
				again = true
			case result.Err != nil:
				return result.Err
			}
		}
		if again && try == maxTries {
			return unavailable(fmt.Sprintf("what depends on %s changes all the time", r.ref()), busyRetry)
		}
	}
}
