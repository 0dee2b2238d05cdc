package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Dependents are the objects of clients that name an owner by its uid.
func (s *Store) Dependents(uid string) (list []object.Object) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for ref := range s.table.dependents.of[uid] {
		if r := s.table.records[ref]; r != nil {
			list = append(list, r.Object)
		}
	}
	slices.SortFunc(list, func(a, b object.Object) int {
		return strings.Compare(object.RefOf(a).String(), object.RefOf(b).String())
	})
	return list
}

// CollectGarbage removes the objects of clients whose owners are all gone, and what depends on
// them in turn. Only what has lost an owner since the start is looked at: what names one that
// never was here, as a manifest that was exported from a cluster may, stays.
func (s *Store) CollectGarbage() error {
	for {
		writes := s.garbage()
		if len(writes) == 0 {
			return nil
		}
		results, err := s.Write(writes...)
		if err != nil {
			s.mu.Lock()
			for _, w := range writes {
				s.table.dependents.orphaned[w.Ref] = struct{}{} // it is tried again
			}
			s.mu.Unlock()
			return fmt.Errorf("remove what has lost its owners: %w", err)
		}
		var errs []error
		for i := range results {
			if e := results[i].Err; e != nil && !errors.Is(e, ErrNotFound) && !errors.Is(e, ErrStale) {
				errs = append(errs, fmt.Errorf("remove %s, which has lost its owners: %w", writes[i].Ref, e))
			}
		}
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
}

// garbage takes out what has lost an owner, and gives the removals of what has none any more.
func (s *Store) garbage() (writes []Write) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.table.dependents.orphaned {
		delete(s.table.dependents.orphaned, ref)
		r := s.table.records[ref]
		if r == nil || r.Owner != (Owner{}) {
			continue
		}
		meta := r.Object.GetMeta()
		if meta.DeletionTimestamp == nil && len(meta.OwnerReferences) > 0 && !slices.ContainsFunc(meta.OwnerReferences, func(o object.OwnerReference) bool { return s.isThere(o, ref.Namespace) }) {
			writes = append(writes, Write{Ref: ref, Delete: true, UID: meta.UID, By: s.garbageBy(meta)})
		}
	}
	slices.SortFunc(writes, func(a, b Write) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return writes
}

// isThere reports whether an owner is there: of a namespaced object it is in the same namespace,
// or in none.
func (s *Store) isThere(o object.OwnerReference, namespace string) bool {
	for _, in := range []string{namespace, ""} {
		r := s.table.records[object.Ref{Kind: o.Kind, Namespace: in, Name: o.Name}]
		if r != nil && r.Object.GetMeta().UID == o.UID {
			return true
		}
	}
	return false
}

// garbageBy returns the author of the removal of an object whose owners are gone: when a rollout has removed one of them, the object goes with it.
func (s *Store) garbageBy(meta *object.ObjectMeta) Caller {
	if s.pending.staged().Pending() {
		for _, before := range s.pending.staged().Before {
			if before != nil && slices.ContainsFunc(meta.OwnerReferences, func(o object.OwnerReference) bool { return o.UID == before.Object.GetMeta().UID }) {
				return garbageOf(s.pending.staged().ID)
			}
		}
	}
	return garbageCollector
}
