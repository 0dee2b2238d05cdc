package store

import (
	"slices"

	"svcctl.io/svcctl/store/object"
)

// A Namespace that is deleted stays, going, while there are objects in it, and goes with the
// last of them. Events are left behind: they pass by themselves, and more may come.

func keepsNamespace(ref object.Ref) bool { return ref.Kind != object.KindEvent }

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
	left := t.s.population[namespace]
	for ref := range t.last {
		if ref.Namespace == namespace && keepsNamespace(ref) {
			left += t.added(ref)
		}
	}
	return left > 0
}

// added is 1 when an object has come with what is settled, -1 when it has gone, else 0.
func (t *transaction) added(ref object.Ref) int {
	was, is := t.s.records[ref] != nil, t.record(ref) != nil
	switch {
	case is && !was:
		return 1
	case was && !is:
		return -1
	}
	return 0
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
		if err := t.prepare(end); err != nil {
			return nil, err
		}
		t.last[ref] = end
		ends = append(ends, end)
	}
	return ends, nil
}
