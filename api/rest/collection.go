package rest

import (
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// A collection is the objects of one kind as the API shows them: as they are stored,
// or computed from other ones. What it gives may not be changed.
type collection interface {
	// get is one object, nil when there is none.
	get(namespace, name string) object.Object
	// list returns all objects of a namespace or ("") of all, sorted by namespace and name, at a
	// revision, 0 being the newest, and that revision.
	list(namespace string, at uint64) ([]object.Object, uint64, error)
	// follow returns a follower that turns the changes of the store after a revision into those of
	// the collection; it must be given all of them in order. The revision is one that list
	// returned, or one from which there are Events.
	follow(namespace string, after uint64) (follower, error)
}

// A follower tells what a change of the store changes in a collection.
type follower struct {
	// about are the stored objects that the collection has to do with. The others' changes
	// are nothing to it, and their versions need not be read.
	about   func(object.Ref) bool
	changes func(store.Event) []change
}

// A change is a change of an object that the API shows.
type change struct {
	revision uint64
	// old is nil when it came, new when it went.
	old, new object.Object
}

// stored is a collection of objects as they are stored.
type stored struct {
	store *store.Store
	kind  string
}

func (c stored) get(namespace, name string) object.Object {
	o, _ := c.store.Get(object.Ref{Kind: c.kind, Namespace: namespace, Name: name})
	return o
}

func (c stored) list(namespace string, at uint64) ([]object.Object, uint64, error) {
	return c.store.List(c.kind, namespace, at)
}

func (c stored) follow(namespace string, _ uint64) (follower, error) {
	return follower{
		about:   func(ref object.Ref) bool { return ref.Kind == c.kind && isIn(ref, namespace) },
		changes: func(e store.Event) []change { return []change{{e.Revision, e.Old, e.New}} },
	}, nil
}

// isIn reports whether an object is in a namespace, "" being any.
func isIn(ref object.Ref, namespace string) bool {
	return namespace == "" || ref.Namespace == namespace
}

// adapted is a collection of stored objects that are shown otherwise.
type adapted struct {
	stored
	// view returns the function that shows an object, made anew for each answer and each event; nil stays nil.
	view func() func(object.Object) object.Object
}

func (c adapted) get(namespace, name string) object.Object {
	o := c.stored.get(namespace, name)
	if o == nil {
		return nil
	}
	return c.view()(o)
}

func (c adapted) list(namespace string, at uint64) ([]object.Object, uint64, error) {
	objects, revision, err := c.stored.list(namespace, at)
	show := c.view()
	views := make([]object.Object, len(objects))
	for i, o := range objects {
		views[i] = show(o)
	}
	return views, revision, err
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
