package store

import (
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// table has the stored objects, and what is found by them. Only the writer changes it, under Store.mu.
type table struct {
	records map[object.Ref]*record
	index   *index.Index
	lists   lists
	// namespaces counts what is in which namespace.
	namespaces namespaceUse
	foreign    foreigners
	dependents dependents
	// declaredServices counts the Services that belong to files.
	declaredServices int
}

func newTable() table {
	return table{
		records: map[object.Ref]*record{}, index: index.New(), lists: lists{kinds: map[string]*kindList{}},
		namespaces: newNamespaceUse(), foreign: foreigners{}, dependents: newDependents(),
	}
}

// get returns a stored object, nil when there is none.
func (t *table) get(ref object.Ref) *record { return t.records[ref] }

// grow makes room for the objects of a first start.
func (t *table) grow(objects int) {
	if len(t.records) == 0 {
		t.records = make(map[object.Ref]*record, objects)
	}
}

// set puts an object in its place; nil removes it.
func (t *table) set(ref object.Ref, r *record) {
	old := t.records[ref]
	t.lists.touch(ref)
	t.namespaces.move(ref, old, r)
	t.foreign.move(ref, old, r)
	t.dependents.move(ref, old, r)
	if old != nil {
		t.index.Remove(old.object)
	}
	if ref.Kind == object.KindService {
		t.declaredServices += declaredBy(r) - declaredBy(old)
	}
	if r == nil {
		delete(t.records, ref)
		return
	}
	t.records[ref] = r
	if !r.withheld {
		t.index.Add(r.object)
	}
}

// declaredBy is 1 for an object of a file, else 0.
func declaredBy(r *record) int {
	if r != nil && r.owner.File != "" {
		return 1
	}
	return 0
}
