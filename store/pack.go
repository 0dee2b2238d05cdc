package store

import (
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/record"
)

// service returns the Service of a key and what belongs to it.
func (t *table) service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	svc, names, endpoints := t.index.Service(key)
	return svc, t.slices(key, names), endpoints
}

// slices returns the EndpointSlices of a Service by their names.
func (t *table) slices(key string, names []string) []*object.EndpointSlice {
	namespace, _, _ := strings.Cut(key, "/")
	list := make([]*object.EndpointSlice, len(names))
	for i, name := range names {
		list[i] = t.get(object.Ref{Kind: object.KindEndpointSlice, Namespace: namespace, Name: name}).Object.(*object.EndpointSlice)
	}
	return list
}

// endpointsAt are the "namespace/name" of the Services with an endpoint at an address, some of them several times.
func (t *table) endpointsAt(addr netip.Addr) []string { return t.index.EndpointsAt(addr, t.slices) }

// keepWhole is how many EndpointSlices stay unpacked: those that changed last. It is a variable for tests. A change packs at most
// packAtOnce others.
var keepWhole = 256

const packAtOnce = 256

// pack packs EndpointSlices. It reports whether there are more. Store.mu must be held.
func (t *table) pack() (more bool) {
	n := min(len(t.whole)-keepWhole, packAtOnce)
	if n <= 0 {
		return false
	}
	packed := make([]*record.Record, n)
	parallel.Do(n, parallel.Share, func(i int) {
		if r := t.records[t.whole[i]]; r != nil {
			packed[i] = r.Packed(t.whole[i])
		}
	})
	for i, r := range packed {
		if r != nil {
			t.records[t.whole[i]] = r
			t.lists.touch(t.whole[i])
		}
	}
	t.whole = slices.Delete(t.whole, 0, n)
	return true
}

// Pack packs what a start has left whole; later changes pack what they find.
func (s *Store) Pack() {
	for more := true; more; {
		s.writer.state.Lock()
		s.mu.Lock()
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

// Whole returns the object of a list (ListPacked) with all that it has.
func Whole(o object.Object) object.Object { return record.Whole(o) }
