package store

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/record"
)

// The engine keys other than those of objects: the head, which has the store's revision; copies of files under file/PATH; the version before each
// change under journal/REVISION; seals of files under seal/PATH.
const (
	headKey       = "head"
	filePrefix    = "file/"
	journalPrefix = journal.Prefix
	sealPrefix    = "seal/"
)

// Owner identifies the owner of an object: a file, a controller or the API; see journal.Owner.
type Owner = record.Owner

// Caller identifies the client that made a change; see journal.Caller.
type Caller = journal.Caller

// NamespacesController owns the Namespaces that objects need and that no file or client declares. If a client changes such a Namespace, the API owns
// it from then on.
const NamespacesController = "namespaces"

// NodeController owns the Node of this box. Clients may write to it: their labels, annotations and
// spec.unschedulable stay, as kubectl label and cordon need.
const NodeController = "node"

// IsNodeController reports whether an owner is the controller of the Node of this box or, in a fleet, of any box.
func IsNodeController(owner string) bool {
	return owner == NodeController || strings.HasPrefix(owner, NodeController+"/")
}

// table has the stored objects and the indexes over them. Only the writer changes it, under Store.mu.
type table struct {
	records map[object.Ref]*record.Record // some of them packed, see get
	// whole has the EndpointSlices and Services that are not packed, the latest changed ones last. It may also have earlier versions of them.
	whole []*record.Record
	packs bool // see Pack
	index *index.Index
	lists lists
	// namespaces counts the objects of each namespace.
	namespaces namespaceUse
	foreign    foreigners
	dependents dependents
	// served counts the Services that are not withheld. declaredServices counts those that belong to files, and the Gateways that do: a Service is
	// generated from each.
	served, declaredServices int
	values                   uint64 // sum of value.hash of the values of the Services that are not withheld
	// before has the former versions of the objects that have changed since Store.Track, nil for new ones. The map is nil if Track was not called.
	before map[object.Ref]*record.Record
}

func newTable() *table {
	return &table{
		records: map[object.Ref]*record.Record{}, index: index.New(), lists: lists{kinds: map[string]*kindList{}}, packs: packs,
		namespaces: newNamespaceUse(), foreign: foreigners{}, dependents: dependents{of: map[string]map[object.Ref]struct{}{}, orphaned: map[object.Ref]struct{}{}},
	}
}

// clone returns a copy of the table that shares the objects.
func (t *table) clone() *table {
	n := t.namespaces
	c := &table{
		records: maps.Clone(t.records), index: t.index.Clone(), lists: lists{kinds: map[string]*kindList{}}, foreign: make(foreigners, len(t.foreign)),
		namespaces: namespaceUse{n.state, maps.Clone(n.files), maps.Clone(n.clients), maps.Clone(n.keeping)},
		dependents: dependents{index.CloneMaps(t.dependents.of), maps.Clone(t.dependents.orphaned)},
		served:     t.served, declaredServices: t.declaredServices, values: t.values,
	}
	for each, f := range t.foreign {
		one := *f
		c.foreign[each] = &one
	}
	return c
}

// get returns a stored object, nil when there is none.
func (t *table) get(ref object.Ref) *record.Record { return t.records[ref].Whole() }

// grow allocates the maps for the objects of a first start.
func (t *table) grow(objects int) {
	if len(t.records) == 0 {
		t.records = make(map[object.Ref]*record.Record, objects)
	}
}

// set stores an object under its Ref; nil removes it.
func (t *table) set(ref object.Ref, r *record.Record) {
	old := t.get(ref)
	t.lists.touch(ref)
	if _, kept := t.before[ref]; t.before != nil && !kept {
		t.before[ref] = t.records[ref]
	}
	t.namespaces.move(ref, old, r)
	t.foreign.move(ref, old, r)
	t.dependents.move(ref, old, r)
	if old != nil {
		t.index.Remove(old.Object)
	}
	t.count(ref, old, -1)
	t.count(ref, r, 1)
	if r == nil {
		delete(t.records, ref)
		return
	}
	t.records[ref] = r
	if record.Packs(ref.Kind) {
		t.whole = append(t.whole, r)
	}
	if !r.Withheld {
		t.index.Add(r.Object)
	}
}

// count adds n, which is 1 or -1, to the numbers of Services for a version of an object; nil is none.
func (t *table) count(ref object.Ref, r *record.Record, n int) {
	isService := ref.Kind == object.KindService
	if r != nil && isService && !r.Withheld {
		t.served += n
		for v := range valuesOf(r.Object.(*object.Service)).all {
			t.values += uint64(n) * v.hash(ref.Key())
		}
	}
	if r != nil && r.Owner.File != "" && (isService || ref.Kind == object.KindGateway) {
		t.declaredServices += n
	}
}

// ReasonNoEffect is the Reason of a warning about a label or annotation that asks for something
// svcctl does not do.
const ReasonNoEffect = "NoEffect"

// foreigners counts the objects with each label or annotation that asks for something svcctl does not do. Manifests exported from a cluster may have
// such a label on every object, so there is one warning for all of them.
type foreigners map[annotation.Remark]*foreigner

type foreigner struct {
	count   int
	example object.Ref // one of the objects; the zero Ref when it is gone
}

// move updates the counts for a change of an object from before to after; nil means that the object did not or does not exist.
func (f foreigners) move(ref object.Ref, before, after *record.Record) {
	f.count(ref, before, -1)
	f.count(ref, after, 1)
}

// count adds n, which is 1 or -1, to the counts of an object. Objects of controllers do not count.
func (f foreigners) count(ref object.Ref, r *record.Record, n int) {
	if r == nil || r.Owner.Controller != "" {
		return
	}
	for _, each := range annotation.Unserved(r.Object) {
		c := f[each]
		if c == nil {
			c = &foreigner{}
			f[each] = c
		}
		switch c.count += n; {
		case c.count == 0:
			delete(f, each)
		case n > 0 && c.example == (object.Ref{}):
			c.example = ref
		case n < 0 && c.example == ref:
			c.example = object.Ref{}
		}
	}
}

// service returns the Service with a key, its EndpointSlices and its Endpoints.
func (t *table) service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return t.named(key), wholeSlices(t.slices(key)), t.index.Endpoints(key)
}

// named returns the Service with a key; nil if it does not exist or is withheld.
func (t *table) named(key string) *object.Service {
	if r := t.records[object.ServiceRef(key)]; r != nil && !r.Withheld {
		return record.Whole(r.Object).(*object.Service)
	}
	return nil
}

// slices returns the EndpointSlices of a Service, some of them packed, sorted by name.
func (t *table) slices(key string) (list []*record.Record) {
	for _, name := range t.index.Slices(key) {
		list = append(list, t.records[object.Ref{Kind: object.KindEndpointSlice, Namespace: object.ServiceRef(key).Namespace, Name: name}])
	}
	return list
}

// wholeSlices returns EndpointSlices with packed ones decompressed.
func wholeSlices(list []*record.Record) []*object.EndpointSlice {
	whole := make([]*object.EndpointSlice, len(list))
	for i, r := range list {
		whole[i] = record.Whole(r.Object).(*object.EndpointSlice)
	}
	return whole
}

// endpointsAt returns the "namespace/name" of the Services with an endpoint at an address, some of them several times.
func (t *table) endpointsAt(addr netip.Addr) []string {
	return t.index.EndpointsAt(addr, func(key string) []*object.EndpointSlice { return wholeSlices(t.slices(key)) })
}

// keepWhole is the number of objects that are not packed (compressed): those that changed last; see Config.Whole. packs is the value of
// table.packs during a start. Tests change both. A change packs either no objects, or from keepWhole to packAtOnce of them, in 2 ms. Packing them
// one by one would take 60 us for each, because the CPU caches are cold.
var keepWhole, packs = 256, false

const packAtOnce = 256

// pack packs up to packAtOnce objects, unless the store is starting or fewer than least can be packed. It reports whether more are
// left. Store.mu must be held.
func (s *Store) pack(least int) (more bool) {
	t := s.table
	n := min(len(t.whole)-s.cfg.Whole, packAtOnce)
	if n < least || !t.packs {
		return false
	}
	for _, r := range t.whole[:n] {
		ref := object.RefOf(r.Object)
		if t.records[ref] != r {
			continue
		}
		packed := r.Packed(ref)
		if of := s.declared.byObject[ref]; len(of) == 1 && of[0].path == r.Owner.File {
			packed.Owner.File = of[0].path // one text for all, as each that was read by itself would keep what lay around it in use
		}
		t.records[ref] = packed
		t.lists.touch(ref)
	}
	t.whole = slices.Delete(t.whole, 0, n)
	return true
}

// Pack packs (compresses) EndpointSlices and Services, and makes later changes pack others. It is called once, at the end of a start, which reads
// all of them several times. Of its changes only the last ones are kept: those that follow the store have the others.
func (s *Store) Pack() {
	for more := true; more; {
		s.writer.state.Lock()
		s.mu.Lock()
		s.table.packs = true
		s.feed.log.trim(s.cfg.Whole)
		more = s.pack(1)
		s.mu.Unlock()
		s.writer.state.Unlock()
	}
}

// List returns all objects of a kind in a namespace ("" means all namespaces), sorted by namespace and name, as of a revision (0 means the newest),
// and that revision. The caller must not change the objects. The error is ErrExpired if the revision is too old or in the future.
func (s *Store) List(kind, namespace string, at uint64) ([]object.Object, uint64, error) {
	list, revision, err := s.ListPacked(kind, namespace, at)
	if !record.Packs(kind) {
		return list, revision, err
	}
	return SelectedOf(list, "", ""), revision, err
}

// Selected returns an object from a list of ListPacked, decompressed. It may return nil for a packed object that does not have this name, or does not
// have this text in its JSON; "" matches any.
func Selected(o object.Object, name, text string) object.Object {
	return record.Selected(o, name, text)
}

// SelectedOf returns the result of Selected for each object of a list. It uses all CPUs.
func SelectedOf(list []object.Object, name, text string) []object.Object {
	whole := make([]object.Object, len(list))
	parallel.Do(len(list), parallel.Share, func(i int) { whole[i] = Selected(list[i], name, text) })
	return whole
}

// Revision returns the revision of the last change.
func (s *Store) Revision() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.revision
}

// Revisions returns the revision of the last change, and the revision of the last change that may affect the dataplane. Changes of Leases and Events
// do not affect it.
func (s *Store) Revisions() (accepted, concerning uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.revision, s.feed.dataplane
}

// Changed returns a channel that has a value if a change that may affect the dataplane was published
// since the last receive. It is for one receiver.
func (s *Store) Changed() <-chan struct{} { return s.feed.changed }

// Changes returns the changes after a revision that an earlier ChangeSet gave. For revision 0,
// one that is too old, or one in the future, ChangeSet.All is set.
func (s *Store) Changes(since uint64) ChangeSet {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.since(since)
}

// Service returns a Service by its "namespace/name", its EndpointSlices sorted by name, and its Endpoints. The Service is nil if it does not exist or
// is withheld (see Open), and Endpoints is nil if there is none. The caller must not change the objects.
func (s *Store) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.table.service(key)
}

// ServiceBy is Service with only those EndpointSlices that a given controller owns, unless the Service has a selector. The others need not
// be decompressed.
func (s *Store) ServiceBy(key, controller string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	svc, list := s.table.named(key), s.table.slices(key)
	if svc == nil || len(svc.Spec.Selector) == 0 {
		list = slices.DeleteFunc(list, func(r *record.Record) bool { return r.Owner.Controller != controller })
	}
	return svc, wholeSlices(list), s.table.index.Endpoints(key)
}

// Services returns the "namespace/name" of the Services that may be programmed, sorted by namespace and name.
func (s *Store) Services() (keys []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.services()
}

// services is Services. Store.mu must be held.
func (s *Store) services() (keys []string) {
	for _, o := range s.sorted(object.KindService) {
		if ref := record.RefOf(o); !s.table.records[ref].Withheld {
			keys = append(keys, ref.Key())
		}
	}
	return keys
}

// ServiceKeys returns the "namespace/name" of all Services for which Service returns any object. These include Services that do not exist or are
// withheld, if there are EndpointSlices or Endpoints for them.
func (s *Store) ServiceKeys() []string {
	s.mu.RLock()
	keys := append(s.table.index.Keys(), s.services()...)
	s.mu.RUnlock()
	return sortedOnce(keys)
}

// Pod returns the Pod of a "namespace/name", nil when there is none. The caller must not change it.
func (s *Store) Pod(key string) *object.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.table.index.Pod(key)
}

// Pods returns the "namespace/name" of all Pods; sorted.
func (s *Store) Pods() []string {
	s.mu.RLock()
	keys := s.table.index.Pods()
	s.mu.RUnlock()
	slices.Sort(keys)
	return keys
}

// Selected returns the Pods of a namespace that have all labels of a selector, by name; none for an empty selector. It examines only the Pods that
// have the rarest of these labels.
func (s *Store) Selected(namespace string, selector map[string]string) []*object.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.table.index.Selected(namespace, selector)
}

// Selecting returns the "namespace/name" of the Services whose selector a Pod with these
// labels matches; sorted.
func (s *Store) Selecting(namespace string, labels map[string]string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.table.index.Selecting(namespace, labels, s.table.named)
}

// Get returns an object, nil when there is none, and its owner. The caller must not change the object.
func (s *Store) Get(ref object.Ref) (object.Object, Owner) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.table.get(ref)
	return record.ObjectOf(r), record.OwnerOf(r)
}

// Generated returns the objects that a controller owns, in no order. The caller must not change them.
func (s *Store) Generated(controller string) (all []object.Object) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.table.records {
		if r.Owner.Controller == controller {
			all = append(all, record.Whole(r.Object))
		}
	}
	return all
}

// Document returns the document from which an object of a file was made, the path of the file, and the line at which the document begins. The path is
// "" for an object without a file. The document is nil, and the line 0, if the file has not been read since the start, or cannot be read. The caller
// must not change the document.
func (s *Store) Document(ref object.Ref) (o object.Object, path string, line int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	path = record.OwnerOf(s.table.records[ref]).File
	if d := s.declared.document(ref, path); d != nil {
		return d.Object, path, d.Line
	}
	return nil, path, 0
}

// Location returns the path of an object's file, and the line at which the object begins. The line is 0 if the file has not been read since the
// start: by this machine or, for the file of a source, by another one. The path is "" for an object of the API. An object generated from a Gateway
// has the location of the Gateway.
func (s *Store) Location(ref object.Ref) (path string, line int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.table.get(ref)
	if r == nil {
		return "", 0
	}
	if of := OwnedByController(r.Object, r.Owner).Of; r.Owner.Controller != "" && of != (object.Ref{}) {
		if r = s.table.get(of); r == nil {
			return "", 0
		}
		ref = of
	}
	line, _ = s.position(ref, r.Owner.File, "")
	return r.Owner.File, line
}

// ListPacked is List without decompressing objects. The metadata of a packed object has only namespace and name; record.Whole returns the complete
// object.
func (s *Store) ListPacked(kind, namespace string, at uint64) ([]object.Object, uint64, error) {
	s.mu.RLock()
	list := inNamespace(s.sorted(kind), namespace)
	if revision := s.feed.revision; at == 0 || at == revision {
		s.mu.RUnlock()
		return list, revision, nil
	}
	entries, err := s.entriesAfter(at)
	undo := map[object.Ref]journal.Version{}
	for _, e := range entries {
		if e.Ref.Kind != kind || namespace != "" && e.Ref.Namespace != namespace {
			continue
		}
		if _, seen := undo[e.Ref]; !seen {
			undo[e.Ref] = e.Before()
		}
	}
	s.mu.RUnlock()
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %d", err, at)
	}
	was, d := make(map[object.Ref]object.Object, len(undo)), journal.Decoder{}
	for ref, v := range undo {
		if was[ref], err = d.Decode(ref, v); err != nil {
			return nil, 0, err
		}
	}
	return replace(list, was), at, nil
}

// sorted returns all objects of a kind, sorted by namespace and name. Store.mu must be held.
func (s *Store) sorted(kind string) []object.Object {
	l := &s.table.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.kinds[kind]
	if list == nil {
		list = &kindList{touched: map[object.Ref]struct{}{}}
		for ref := range s.table.records {
			if ref.Kind == kind {
				list.touched[ref] = struct{}{}
			}
		}
		l.kinds[kind] = list
	}
	if len(list.touched) > 0 {
		now := make(map[object.Ref]object.Object, len(list.touched))
		for ref := range list.touched {
			now[ref] = record.ObjectOf(s.table.records[ref])
		}
		list.sorted, list.touched = replace(list.sorted, now), map[object.Ref]struct{}{}
	}
	return list.sorted
}

// lists caches the sorted objects of kinds that were listed. It has a lock of its own, because
// readers update it.
type lists struct {
	mu    sync.Mutex
	kinds map[string]*kindList
}

// kindList has the sorted objects of one kind, and the objects that have changed since.
type kindList struct {
	// sorted is replaced, never changed: readers hold it.
	sorted []object.Object
	// touched are the objects that have changed since sorted was made.
	touched map[object.Ref]struct{}
}

// maxTouched is the number of changes, in addition to half of the length of a cached list, after which the list is dropped.
const maxTouched = 1_000

// touch records that an object has changed since its kind was listed. A list with too many changes is dropped. Store.mu must be held for writing.
func (l *lists) touch(ref object.Ref) {
	if list := l.kinds[ref.Kind]; list != nil {
		list.touched[ref] = struct{}{}
		if len(list.touched) > len(list.sorted)/2+maxTouched {
			delete(l.kinds, ref.Kind)
		}
	}
}

// inNamespace returns the part of a sorted list that is in one namespace; "" means all namespaces.
func inNamespace(list []object.Object, namespace string) []object.Object {
	if namespace == "" {
		return list
	}
	compare := func(o object.Object, namespace string) int { return cmp.Compare(o.GetMeta().Namespace, namespace) }
	from, _ := slices.BinarySearchFunc(list, namespace, compare)
	to, _ := slices.BinarySearchFunc(list, namespace+"\x00", compare)
	return list[from:to:to]
}

// replace returns a copy of a sorted list with new versions of some objects; a nil version removes
// the object.
func replace(list []object.Object, versions map[object.Ref]object.Object) []object.Object {
	if len(versions) == 0 {
		return list
	}
	refs := slices.SortedFunc(maps.Keys(versions), record.CompareRefs)
	out := make([]object.Object, 0, len(list)+len(refs))
	for _, ref := range refs {
		i, found := slices.BinarySearchFunc(list, ref, func(o object.Object, ref object.Ref) int { return record.CompareRefs(record.RefOf(o), ref) })
		out = append(out, list[:i]...)
		if o := versions[ref]; o != nil {
			out = append(out, o)
		}
		if found {
			i++
		}
		list = list[i:]
	}
	return append(out, list...)
}
