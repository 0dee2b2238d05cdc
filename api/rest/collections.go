package rest

import (
	"slices"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// A collection is the objects of one kind as the API shows them: as stored, or computed from others. Callers may not change the objects
// that it returns.
type collection interface {
	// get returns one object, nil if there is none.
	get(namespace, name string) object.Object
	// list returns the objects of a namespace, or of all namespaces if it is "", sorted by namespace and name, and their revision. at is the revision
	// to read; 0 means the newest. Selectors apply to the objects as returned; viewOf then converts them for the response.
	list(namespace string, at uint64) ([]object.Object, uint64, error)
	// follow returns a follower that converts changes of the store after a revision to changes of the collection. It must be given all of these
	// changes in order. The revision is one that list returned, or one after which the store still has all Events.
	follow(namespace string, after uint64) (follower, error)
}

// A follower turns a change of the store into changes of a collection.
type follower struct {
	// about reports whether changes of a stored object can change the collection. Versions of other objects need not be read.
	about   func(object.Ref) bool
	changes func(store.Event) []change
}

// A change is a change of an object that the API shows.
type change struct {
	revision uint64
	// resume is the revision after which a client that got the change has to go on.
	resume uint64
	// old is nil for a creation, new for a deletion.
	old, new object.Object
}

// stored is the collection of the objects of one kind that the store holds, unlike collections that are computed from other objects.
type stored struct {
	store *store.Store
	kind  string
}

func (c stored) get(namespace, name string) object.Object {
	o, _ := c.store.Get(object.Ref{Kind: c.kind, Namespace: namespace, Name: name})
	return o
}

func (c stored) list(namespace string, at uint64) ([]object.Object, uint64, error) {
	return c.store.ListPacked(c.kind, namespace, at)
}

func (c stored) follow(namespace string, _ uint64) (follower, error) {
	return follower{
		about:   func(ref object.Ref) bool { return ref.Kind == c.kind && isIn(ref, namespace) },
		changes: func(e store.Event) []change { return []change{{e.Revision, e.Revision, e.Old, e.New}} },
	}, nil
}

// isIn reports whether an object is in a namespace, "" being any.
func isIn(ref object.Ref, namespace string) bool {
	return namespace == "" || ref.Namespace == namespace
}

// adapted is a collection of stored objects that the function view converts before they are shown, for example by adding conditions.
type adapted struct {
	stored
	// view returns a function that converts a stored object to what the API shows, and nil to nil. It is called once for each answer and
	// each event.
	view func() func(object.Object) object.Object
}

func (c adapted) get(namespace, name string) object.Object {
	o := c.stored.get(namespace, name)
	if o == nil {
		return nil
	}
	return c.view()(o)
}

// viewOf returns the function that converts an object from a collection's list to what the API shows.
func viewOf(c collection) func(object.Object) object.Object {
	if a, is := c.(adapted); is {
		return a.view()
	}
	return func(o object.Object) object.Object { return o }
}

func (c adapted) follow(namespace string, after uint64) (follower, error) {
	f, err := c.stored.follow(namespace, after)
	stored := f.changes
	f.changes = func(e store.Event) []change {
		changes, show := stored(e), c.view()
		for i := range changes {
			changes[i].old, changes[i].new = show(changes[i].old), show(changes[i].new)
		}
		return changes
	}
	return f, err
}

// collectionOf returns the collection of a kind for an answer in form f. Conditions of Services are not computed for a form that does not
// show them.
func (s *Server) collectionOf(k kind.Kind, f form) collection {
	plain := stored{s.store, k.Name}
	switch {
	case k.Name == object.KindEvent && k.APIVersion() == object.APIVersionEvents:
		return adapted{plain, func() func(object.Object) object.Object { return eventView }}
	case k.Name == object.KindEndpoints:
		return endpointsOf(s.store)
	case k.Name == object.KindIPAddress:
		return view{store: s.store, derive: func() derivation { return holders{} }} // nothing is indexed by address: all Services are searched
	case k.Name == object.KindIPAddressPool:
		return poolsOf(plain)
	case k.Name == object.KindService && s.conditions != nil && (f.shape == whole || f.include == table.IncludeObject):
		return servicesOf(plain, s.conditions)
	case isComputed(k):
		return computed{s.store, s.computed[k.Name]}
	}
	return plain
}

// adapt returns a collection of the stored objects of type T. For each list or change it calls view, and converts the objects with the function that
// view returns.
func adapt[T object.Object](plain stored, view func() func(T) object.Object) adapted {
	return adapted{plain, func() func(object.Object) object.Object {
		show := view()
		return func(o object.Object) object.Object {
			if typed, is := o.(T); is {
				return show(typed)
			}
			return o
		}
	}}
}

// eventView returns an event as events.k8s.io shows it; nil stays nil.
func eventView(o object.Object) object.Object {
	if e, ok := o.(*object.Event); ok {
		return e.View()
	}
	return o
}

// computed is a collection of objects that are not stored: they are computed for each request and cannot be watched (kind.Kind.Verbs).
type computed struct {
	store   *store.Store
	objects func() []object.Object
}

// isComputed reports whether the objects of a kind are computed, so that they cannot be watched.
func isComputed(k kind.Kind) bool { return k.Stored() && !slices.Contains(k.Verbs, "watch") }

func (c computed) get(namespace, name string) object.Object {
	objects, _, _ := c.list(namespace, 0)
	for _, o := range objects {
		if o.GetMeta().Name == name {
			return o
		}
	}
	return nil
}

func (c computed) list(namespace string, _ uint64) ([]object.Object, uint64, error) {
	revision := c.store.Revision()
	var objects []object.Object
	if c.objects != nil {
		objects = c.objects()
	}
	objects = slices.DeleteFunc(objects, func(o object.Object) bool { return namespace != "" && o.GetMeta().Namespace != namespace })
	slices.SortFunc(objects, func(a, b object.Object) int {
		return compareKeys(viewKey{a.GetMeta().Namespace, a.GetMeta().Name}, viewKey{b.GetMeta().Namespace, b.GetMeta().Name})
	})
	for i, o := range objects {
		objects[i] = withVersion(o, revision)
	}
	return objects, revision, nil
}

func (c computed) follow(string, uint64) (follower, error) {
	return follower{about: func(object.Ref) bool { return false }, changes: func(store.Event) []change { return nil }}, nil
}

// poolsOf returns the collection of IPAddressPools, with the numbers of used addresses in their status.
func poolsOf(plain stored) adapted {
	return adapt(plain, func() func(*object.IPAddressPool) object.Object {
		use := plain.store.IngressPools()
		return func(pool *object.IPAddressPool) object.Object { return withUse(pool, use) }
	})
}

// withUse returns a pool with a status that counts its assigned and available addresses. The counts are 0 if none of the store's ranges belongs to
// the pool.
func withUse(pool *object.IPAddressPool, use []store.Pool) *object.IPAddressPool {
	shown := object.DeepCopy(pool)
	shown.Status = &object.IPAddressPoolStatus{}
	for i := range use {
		u := &use[i]
		if u.Name != pool.Metadata.Namespace+"/"+pool.Metadata.Name {
			continue
		}
		assigned, available := &shown.Status.AssignedIPv4, &shown.Status.AvailableIPv4
		if first, _, err := object.ParseAddressRange(u.Range); err == nil && first.Is6() {
			assigned, available = &shown.Status.AssignedIPv6, &shown.Status.AvailableIPv6
		}
		*assigned = plus(*assigned, u.Used)
		*available = plus(*available, u.Size-min(u.Size, u.Used))
	}
	return shown
}

// plus adds, and returns the largest int64 on overflow.
func plus(sum int64, n uint64) int64 {
	const most = 1<<63 - 1
	if n > uint64(most-sum) {
		return most
	}
	return sum + int64(n)
}
