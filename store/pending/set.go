package pending

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// Set has the versions before the changes of a head, nil for objects that did not exist.
type Set struct {
	*Head // nil: there is none
	Kind  Kind
	// Before is changed by Put alone.
	Before map[object.Ref]*record.Record
	slices map[string][]object.Ref // the EndpointSlices in Before, by their Service
	// Outside is set when this machine programs the versions before.
	Outside bool
}

// New returns a set without versions.
func New(k Kind, head *Head) *Set {
	return &Set{Head: head, Kind: k, Before: map[object.Ref]*record.Record{}, slices: map[string][]object.Ref{}}
}

// With returns the set with another head. The two share the versions.
func (s *Set) With(head *Head) *Set {
	next := *s
	next.Head = head
	return &next
}

// Has reports whether an object is in the set.
func (s *Set) Has(ref object.Ref) bool { _, has := s.Before[ref]; return has }

// Put sets the version before of an object.
func (s *Set) Put(ref object.Ref, before *record.Record) {
	if ref.Kind == object.KindEndpointSlice {
		if was := s.Before[ref]; was != nil {
			key := index.ServiceKey(was.Object)
			s.slices[key] = slices.DeleteFunc(slices.Clone(s.slices[key]), func(other object.Ref) bool { return other == ref })
		}
		if before != nil {
			key := index.ServiceKey(before.Object)
			s.slices[key] = append(slices.Clone(s.slices[key]), ref)
		}
	}
	s.Before[ref] = before
}

// Change is a change of an object: the version before and after (nil: none), the owner afterwards, or that of the removed one, and its client.
type Change struct {
	Ref   object.Ref
	Old   *record.Record
	Next  object.Object
	Owner record.Owner
	By    *journal.Caller
}

// Belongs reports whether a change is one of the set: a write of its client, with Files a change of a file, or in a staged set what a
// controller generates of an object in it.
func (s *Set) Belongs(c *Change) bool {
	switch {
	case !s.Pending():
		return false
	case c.By != nil:
		return s.Kind.IDOf(c.By) == s.ID
	case s.Kind == Timed:
		return s.Files && c.Owner.File != ""
	case c.Ref.Kind != object.KindEndpointSlice && c.Ref.Kind != object.KindEndpoints, c.Owner.Controller == "":
		return false
	}
	for _, o := range []object.Object{record.ObjectOf(c.Old), c.Next} {
		if o == nil {
			continue
		}
		if key := index.ServiceKey(o); s.Has(object.ServiceRef(key)) || s.Has(endpointsRef(key)) && c.Ref.Kind != object.KindEndpoints {
			return true
		}
	}
	return false
}

func endpointsRef(key string) object.Ref {
	ref := object.ServiceRef(key)
	ref.Kind = object.KindEndpoints
	return ref
}

// AddBefore adds the stored form of a version before to a commit.
func (k Kind) AddBefore(ref object.Ref, before *record.Record, revision uint64, out *engine.Transaction) error {
	pair := engine.Pair{Key: k.ObjectKey(ref), Revision: revision}
	if before != nil {
		value, _, err := before.Encode()
		if err != nil {
			return err
		}
		pair.Value, pair.Entry = value[engine.EntryHeader:], value
	}
	out.Puts = append(out.Puts, pair)
	return nil
}

// AddHead adds the stored form of the head to a commit.
func (s *Set) AddHead(revision uint64, out *engine.Transaction) error {
	value, err := json.Marshal(s.Head)
	if err != nil {
		return fmt.Errorf("encode the %s: %w", s.Kind, err)
	}
	out.Puts = append(out.Puts, engine.Pair{Key: s.Kind.HeadKey(), Value: value, Revision: revision})
	return nil
}

// Clone returns a set of the same versions.
func (s *Set) Clone() *Set {
	next := *s
	next.Before, next.slices = maps.Clone(s.Before), maps.Clone(s.slices)
	return &next
}

// AddEnd adds to a commit that the versions before are deleted, and the head becomes another one, or is deleted with them.
func (s *Set) AddEnd(head *Head, revision uint64, out *engine.Transaction) error {
	for ref := range s.Before {
		out.Deletes = append(out.Deletes, s.Kind.ObjectKey(ref))
	}
	if head == nil {
		out.Deletes = append(out.Deletes, s.Kind.HeadKey())
		return nil
	}
	return s.With(head).AddHead(revision, out)
}

// Follow returns the set after a commit of another machine, or as pairs are loaded. It is the set itself when the commit does not
// concern it; headed reports whether the commit has its head.
func (s *Set) Follow(f *engine.Followed) (next *Set, headed bool, err error) {
	ours := func(key string) bool { return strings.HasPrefix(key, s.Kind.Prefix()) }
	if !slices.ContainsFunc(f.Deletes, ours) && !slices.ContainsFunc(f.Puts, func(p engine.Pair) bool { return ours(p.Key) }) {
		return s, false, nil
	}
	next = s.Clone()
	for _, key := range f.Deletes {
		object, isObject := strings.CutPrefix(key, s.Kind.objectPrefix())
		if ref, is := record.RefOfKey(object); is && isObject {
			next.Put(ref, nil)
			delete(next.Before, ref)
		} else if key == s.Kind.HeadKey() {
			next.Head = nil
		}
	}
	for _, pair := range f.Puts {
		if pair.Key == s.Kind.HeadKey() {
			next.Head, headed = &Head{}, true
			if err := json.Unmarshal(pair.Value, next.Head); err != nil {
				return nil, false, fmt.Errorf("read stored %s: %w", pair.Key, err)
			}
		} else if key, is := strings.CutPrefix(pair.Key, s.Kind.objectPrefix()); is {
			ref, before, err := decodeBefore(key, pair)
			if err != nil {
				return nil, false, err
			}
			next.Put(ref, before)
		}
	}
	return next, headed, nil
}

// decodeBefore reads the version before of an object; nil: it did not exist.
func decodeBefore(key string, pair engine.Pair) (object.Ref, *record.Record, error) {
	ref, is := record.RefOfKey(key)
	if !is {
		return object.Ref{}, nil, fmt.Errorf("read stored %s: it is not the key of an object", pair.Key)
	}
	if len(pair.Value) == 0 {
		return ref, nil, nil
	}
	before, err := record.Decode(engine.Pair{Key: key, Value: pair.Value, Revision: pair.Revision})
	return ref, before, err
}

// Service replaces the objects of a Service that are in the set by the versions before.
func (s *Set) Service(key string, svc *object.Service, list []*object.EndpointSlice, endpoints *object.Endpoints) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	if before, has := s.Before[object.ServiceRef(key)]; has {
		svc = nil
		if before != nil && !before.Withheld {
			svc = before.Object.(*object.Service)
		}
	}
	if before, has := s.Before[endpointsRef(key)]; has {
		endpoints, _ = record.ObjectOf(before).(*object.Endpoints)
	}
	isIn := func(slice *object.EndpointSlice) bool { return s.Has(object.RefOf(slice)) }
	if had := s.slices[key]; len(had) > 0 || slices.ContainsFunc(list, isIn) {
		list = slices.DeleteFunc(slices.Clone(list), isIn)
		for _, ref := range had {
			list = append(list, s.Before[ref].Object.(*object.EndpointSlice))
		}
		slices.SortFunc(list, func(a, b *object.EndpointSlice) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	}
	return svc, list, endpoints
}
