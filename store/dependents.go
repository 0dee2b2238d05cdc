package store

import "svcctl.io/svcctl/store/object"

// garbageCollector names, in the journal, who removes objects that have lost their owners.
var garbageCollector = Caller{User: "system:svcctl", Manager: "garbage-collector", Verb: "delete"}

// dependents finds the objects of clients that name an owner (metadata.ownerReferences), by the
// uid of that. What files declare and what controllers make is theirs to remove.
type dependents struct {
	of map[string]map[object.Ref]struct{}
	// orphaned has the objects that lost an owner and have not been examined yet.
	orphaned map[object.Ref]struct{}
}

func newDependents() dependents {
	return dependents{of: map[string]map[object.Ref]struct{}{}, orphaned: map[object.Ref]struct{}{}}
}

// move notes that an object becomes another one; either may be nil.
func (d dependents) move(ref object.Ref, before, after *record) {
	if before != nil && before.owner == (Owner{}) {
		for _, owner := range before.object.GetMeta().OwnerReferences {
			if delete(d.of[owner.UID], ref); len(d.of[owner.UID]) == 0 {
				delete(d.of, owner.UID)
			}
		}
	}
	if after != nil && after.owner == (Owner{}) {
		for _, owner := range after.object.GetMeta().OwnerReferences {
			if d.of[owner.UID] == nil {
				d.of[owner.UID] = map[object.Ref]struct{}{}
			}
			d.of[owner.UID][ref] = struct{}{}
		}
	}
	if before == nil || after != nil && after.object.GetMeta().UID == before.object.GetMeta().UID {
		return
	}
	for dependent := range d.of[before.object.GetMeta().UID] {
		d.orphaned[dependent] = struct{}{}
	}
}

// garbageOf is the garbage collector for a rollout.
func garbageOf(rollout string) Caller {
	c := garbageCollector
	c.Rollout = rollout
	return c
}
