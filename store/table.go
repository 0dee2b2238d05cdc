package store

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/record"
)

// The keys of the engine besides those of objects: the head, whose revision is the store's; last good copies under file/PATH; the
// version before a change under journal/REVISION; seals of files under seal/PATH.
const (
	headKey       = "head"
	filePrefix    = "file/"
	journalPrefix = journal.Prefix
	sealPrefix    = "seal/"
)

// Owner is the owner of an object.
type Owner = record.Owner

// Caller is the client of a change, as the journal keeps it.
type Caller = journal.Caller

// NamespacesController makes Namespaces that objects need and no file or client declares. They
// become the API's when a client changes them.
const NamespacesController = "namespaces"

// NodeController keeps the Node of this box. Clients may write to it: labels and annotations that are not
// the controller's stay, as kubectl label and cordon have it.
const NodeController = "node"

// IsNodeController reports whether an owner keeps the Node of a box: of this one, or in a fleet of any.
func IsNodeController(owner string) bool {
	return owner == NodeController || strings.HasPrefix(owner, NodeController+"/")
}

// table has the stored objects and the indexes over them. Only the writer changes it, under Store.mu.
type table struct {
	records map[object.Ref]*record.Record // packed ones among them, see get
	// whole are EndpointSlices that are not packed, those that changed last at the end.
	whole []object.Ref
	packs bool // see Pack
	index *index.Index
	lists lists
	// namespaces counts the objects of each namespace.
	namespaces namespaceUse
	foreign    foreigners
	dependents dependents
	// declaredServices counts the Services that belong to files.
	declaredServices int
}

func newTable() *table {
	return &table{
		records: map[object.Ref]*record.Record{}, index: index.New(), lists: lists{kinds: map[string]*kindList{}}, packs: packs,
		namespaces: newNamespaceUse(), foreign: foreigners{}, dependents: dependents{of: map[string]map[object.Ref]struct{}{}, orphaned: map[object.Ref]struct{}{}},
	}
}

// clone returns a table of the same objects.
func (t *table) clone() *table {
	n := t.namespaces
	c := &table{
		records: maps.Clone(t.records), index: t.index.Clone(), lists: lists{kinds: map[string]*kindList{}}, foreign: make(foreigners, len(t.foreign)),
		namespaces:       namespaceUse{n.state, maps.Clone(n.files), maps.Clone(n.clients), maps.Clone(n.keeping)},
		dependents:       dependents{index.CloneMaps(t.dependents.of), maps.Clone(t.dependents.orphaned)},
		declaredServices: t.declaredServices,
	}
	for each, f := range t.foreign {
		one := *f
		c.foreign[each] = &one
	}
	return c
}

// get returns a stored object, nil when there is none.
func (t *table) get(ref object.Ref) *record.Record { return t.records[ref].Whole() }

// grow makes room for the objects of a first start.
func (t *table) grow(objects int) {
	if len(t.records) == 0 {
		t.records = make(map[object.Ref]*record.Record, objects)
	}
}

// set puts an object in its place; nil removes it.
func (t *table) set(ref object.Ref, r *record.Record) {
	old := t.get(ref)
	t.lists.touch(ref)
	t.namespaces.move(ref, old, r)
	t.foreign.move(ref, old, r)
	t.dependents.move(ref, old, r)
	if old != nil {
		t.index.Remove(old.Object)
	}
	if ref.Kind == object.KindService {
		t.declaredServices += declaredBy(r) - declaredBy(old)
	}
	if r == nil {
		delete(t.records, ref)
		return
	}
	t.records[ref] = r
	if ref.Kind == object.KindEndpointSlice {
		t.whole = append(t.whole, ref)
	}
	if !r.Withheld {
		t.index.Add(r.Object)
	}
}

// declaredBy is 1 for an object of a file, else 0.
func declaredBy(r *record.Record) int {
	if r != nil && r.Owner.File != "" {
		return 1
	}
	return 0
}

// ReasonNoEffect is the reason of a warning about a label or annotation that asks for what does
// not happen here.
const ReasonNoEffect = "NoEffect"

// foreigners counts the objects with each label or annotation that asks for what does not happen
// here. Manifests that were exported from a cluster have some on every object, and one line about
// all of them is as useful as ten thousand.
type foreigners map[annotation.Foreign]*foreigner

type foreigner struct {
	count   int
	example object.Ref // the zero Ref when that one has gone
}

// move counts a change from one version of an object to another; nil stands for none. Objects that the appliance made itself do
// not count.
func (f foreigners) move(ref object.Ref, before, after *record.Record) {
	if before != nil && before.Owner.Controller == "" {
		for _, each := range annotation.Unserved(before.Object) {
			c := f[each]
			if c == nil {
				continue
			}
			if c.count--; c.count == 0 {
				delete(f, each)
			} else if c.example == ref {
				c.example = object.Ref{}
			}
		}
	}
	if after != nil && after.Owner.Controller == "" {
		for _, each := range annotation.Unserved(after.Object) {
			c := f[each]
			if c == nil {
				c = &foreigner{}
				f[each] = c
			}
			if c.count++; c.example == (object.Ref{}) {
				c.example = ref
			}
		}
	}
}

// service returns the Service of a key and what belongs to it.
func (t *table) service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	svc, list, endpoints := t.index.Service(key)
	return svc, wholeSlices(list), endpoints
}

// wholeSlices returns EndpointSlices that may be packed as they were before.
func wholeSlices(list []object.Object) []*object.EndpointSlice {
	whole := make([]*object.EndpointSlice, len(list))
	for i, o := range list {
		whole[i] = record.Whole(o).(*object.EndpointSlice)
	}
	return whole
}

// endpointsAt are the "namespace/name" of the Services with an endpoint at an address, some of them several times.
func (t *table) endpointsAt(addr netip.Addr) []string { return t.index.EndpointsAt(addr, wholeSlices) }

// keepWhole EndpointSlices stay whole, those that changed last, and packs is whether others are packed during a start; tests have their own.
// A change packs packAtOnce of them at most, which takes 2 ms.
var keepWhole, packs = 256, false

const packAtOnce = 256

// pack packs EndpointSlices, unless the store starts. It reports whether there are more. Store.mu must be held.
func (t *table) pack() (more bool) {
	n := min(len(t.whole)-keepWhole, packAtOnce)
	if n <= 0 || !t.packs {
		return false
	}
	for _, ref := range t.whole[:n] {
		if r := t.records[ref]; r != nil {
			packed := r.Packed(ref)
			t.index.Pack(r.Object, packed.Object)
			t.records[ref] = packed
			t.lists.touch(ref)
		}
	}
	t.whole = slices.Delete(t.whole, 0, n)
	return true
}

// Pack is called when a start is over, which reads all EndpointSlices several times: it packs them, and has later changes pack others.
func (s *Store) Pack() {
	for more := true; more; {
		s.writer.state.Lock()
		s.mu.Lock()
		s.table.packs = true
		more = s.table.pack()
		s.mu.Unlock()
		s.writer.state.Unlock()
	}
}

// List returns all objects of a kind, of one namespace or ("") of all, sorted by namespace and
// name, at a revision, 0 being the newest, and that revision. The caller must not change them.
// ErrExpired: the revision is too old, or does not exist yet.
func (s *Store) List(kind, namespace string, at uint64) ([]object.Object, uint64, error) {
	list, revision, err := s.ListPacked(kind, namespace, at)
	if kind != object.KindEndpointSlice {
		return list, revision, err
	}
	whole := make([]object.Object, len(list))
	parallel.Do(len(list), parallel.Share, func(i int) { whole[i] = record.Whole(list[i]) })
	return whole, revision, err
}

// Selected returns the object of a list (ListPacked) with all that it has. Of packed ones it may leave out (nil) those that do not have this
// name, or this text in their JSON ("": any).
func Selected(o object.Object, name, text string) object.Object {
	return record.Selected(o, name, text)
}
