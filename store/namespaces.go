package store

import (
	"maps"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// NamespacesInUse lists the namespaces in use.
type NamespacesInUse struct {
	// State is to be given to the next call of Namespaces.
	State uint64
	// Files are the namespaces in which files have objects, Clients those in which clients
	// of the API have some; sorted.
	Files, Clients []string
}

// Namespaces returns the namespaces in use now; false when neither they nor any Namespace have changed
// since the result with the state since. Objects of controllers do not count.
func (s *Store) Namespaces(since uint64) (NamespacesInUse, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.table.namespaces.state == since {
		return NamespacesInUse{State: since}, false
	}
	return NamespacesInUse{
		State:   s.table.namespaces.state,
		Files:   slices.Sorted(maps.Keys(s.table.namespaces.files)),
		Clients: slices.Sorted(maps.Keys(s.table.namespaces.clients)),
	}, true
}

// A Namespace that is deleted stays, going, while there are objects in it, and goes with the
// last of them. Events are left behind: they pass by themselves, and more may come.

func namespaceRef(name string) object.Ref { return object.Ref{Kind: object.KindNamespace, Name: name} }

// isGoing reports whether nothing but its content keeps a Namespace.
func isGoing(r *record) bool {
	if r == nil || r.owner.File != "" {
		return false
	}
	meta := r.object.GetMeta()
	return meta.DeletionTimestamp != nil && len(meta.Finalizers) == 0
}

// isPopulated reports whether there are objects in a namespace after what is settled.
func (t *transaction) isPopulated(namespace string) bool {
	left := t.s.table.namespaces.keeping[namespace]
	for ref := range t.last {
		if ref.Namespace == namespace && keepsNamespace(ref) {
			left += presence(t.record(ref)) - presence(t.s.table.get(ref))
		}
	}
	return left > 0
}

// endNamespaces removes the Namespaces whose last objects go with the transaction. It is
// called when all else is prepared.
func (t *transaction) endNamespaces(changes []*change) ([]*change, error) {
	var ending []string
	for _, c := range changes {
		if c.remove && c.ref.Namespace != "" && isGoing(t.record(namespaceRef(c.ref.Namespace))) {
			ending = append(ending, c.ref.Namespace)
		}
	}
	if len(ending) == 0 {
		return nil, nil
	}
	slices.Sort(ending)
	ending = slices.Compact(ending) // to look into one takes as long as the transaction is
	for _, c := range changes {
		if c.revision != 0 {
			t.last[c.ref] = c
		}
	}
	var ends []*change
	for _, name := range ending {
		ref := namespaceRef(name)
		old := t.record(ref)
		if old == nil || t.isPopulated(name) {
			continue
		}
		end := &change{ref: ref, old: old, owner: old.owner, remove: true}
		if err := t.encode(end); err != nil {
			return nil, err
		}
		t.last[ref] = end
		ends = append(ends, end)
	}
	return ends, nil
}
