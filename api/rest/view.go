package rest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// viewKey names an object of a view: they are sorted by it.
type viewKey struct{ namespace, name string }

func compareKeys(a, b viewKey) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// A derivation computes objects from stored ones. It holds what it has seen of these.
type derivation interface {
	// sources are the kinds of stored objects that it reads.
	sources() []string
	// affected are the computed objects that a stored one has to do with; sorted.
	affected(o object.Object) []viewKey
	// take replaces a stored object; old is nil when it came, new when it went.
	take(old, new object.Object)
	// show is a computed object, nil when there is none; it has no resourceVersion, unless
	// it is a stored one.
	show(viewKey) object.Object
}

// view is a collection of computed objects. The resourceVersion of one is the revision at
// which it was looked at: that of its last change is not known, and a version may never
// go back.
type view struct {
	store  *store.Store
	derive func() derivation
	// one is get.
	one func(namespace, name string) object.Object
}

func (v view) get(namespace, name string) object.Object {
	revision := v.store.Revision()
	o := v.one(namespace, name)
	if o == nil {
		return nil
	}
	return stamped(o, revision)
}

func (v view) list(namespace string, at uint64) ([]object.Object, uint64, error) {
	d, keys, revision, err := v.at(namespace, at)
	if err != nil {
		return nil, 0, err
	}
	var objects []object.Object
	for _, key := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
		if o := d.show(key); o != nil {
			objects = append(objects, stamped(o, revision))
		}
	}
	return objects, revision, nil
}

// loads bounds the attempts to read all sources at the same revision, which fail only while the
// store changes faster than it is read.
const loads = 3

// at is the derivation as of a revision (0: now), with the keys of all that it may show.
func (v view) at(namespace string, at uint64) (d derivation, keys map[viewKey]struct{}, revision uint64, err error) {
	for range loads {
		d, keys, revision = v.derive(), map[viewKey]struct{}{}, at
		for _, kind := range d.sources() {
			var objects []object.Object
			if objects, revision, err = v.store.List(kind, namespace, revision); err != nil {
				break
			}
			for _, o := range objects {
				d.take(nil, o)
				for _, key := range d.affected(o) {
					keys[key] = struct{}{}
				}
			}
		}
		if err == nil || at != 0 || !errors.Is(err, store.ErrExpired) {
			break
		}
	}
	return d, keys, revision, err
}

func (v view) follow(namespace string, after uint64) (follower, error) {
	d, _, _, err := v.at(namespace, after)
	if err != nil {
		return follower{}, err
	}
	sources := d.sources()
	about := func(ref object.Ref) bool { return slices.Contains(sources, ref.Kind) && isIn(ref, namespace) }
	return follower{about, func(e store.Event) []change {
		keys := affectedBy(d, e)
		before := make([]object.Object, len(keys))
		for i, key := range keys {
			before[i] = d.show(key)
		}
		d.take(e.Old, e.New)
		var changes []change
		for i, key := range keys {
			changes = append(changes, changesOf(e.Revision, before[i], d.show(key))...)
		}
		return changes
	}}, nil
}

// affectedBy are the computed objects that a change has to do with, each once.
func affectedBy(d derivation, e store.Event) []viewKey {
	var keys []viewKey
	for _, o := range []object.Object{e.Old, e.New} {
		if o != nil {
			keys = append(keys, d.affected(o)...)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}

// changesOf is the change from one computed object to another, nil being none. Objects
// with other uids are two that have come after each other.
func changesOf(revision uint64, old, now object.Object) []change {
	switch {
	case old == nil && now == nil:
		return nil
	case old == nil:
		return []change{{revision, nil, stamped(now, revision)}}
	case now == nil:
		return []change{{revision, old, nil}}
	case reflect.DeepEqual(old, now):
		return nil
	case old.GetMeta().UID != now.GetMeta().UID:
		return []change{{revision, old, nil}, {revision, nil, stamped(now, revision)}}
	}
	return []change{{revision, old, stamped(now, revision)}}
}

// stamped is an object with a resourceVersion: its own if it has one.
func stamped(o object.Object, revision uint64) object.Object {
	if o.GetMeta().ResourceVersion != "" {
		return o
	}
	return withVersion(o, revision)
}

// withVersion is a copy of an object with a revision as its resourceVersion.
func withVersion(o object.Object, revision uint64) object.Object {
	c := o.DeepCopy()
	c.GetMeta().ResourceVersion = strconv.FormatUint(revision, 10)
	return c
}

// derivedUID is the uid of an object that is computed from another one: always the same for
// the same (a UUID of version 8, RFC 9562 section 5.8).
func derivedUID(uid, what string) string {
	sum := sha256.Sum256([]byte(uid + "/" + what))
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
