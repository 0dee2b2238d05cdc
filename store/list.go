package store

import (
	"cmp"
	"slices"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// lists has the sorted objects of the kinds that were listed. They have a lock of their own,
// because readers bring them up to date.
type lists struct {
	mu    sync.Mutex
	kinds map[string]*kindList
}

// kindList is the objects of one kind.
type kindList struct {
	// sorted is replaced, never changed: readers hold it.
	sorted []object.Object
	// touched are the objects that have changed since.
	touched map[object.Ref]struct{}
}

// maxTouched bounds the changes that are noted of a short list.
const maxTouched = 1_000

// touch notes that an object has changed. A list that lags too far behind is forgotten.
func (l *lists) touch(ref object.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.kinds[ref.Kind]
	if list == nil {
		return
	}
	list.touched[ref] = struct{}{}
	if len(list.touched) > len(list.sorted)/2+maxTouched {
		delete(l.kinds, ref.Kind)
	}
}

func compareObjects(a, b object.Object) int { return compareNames(a.GetMeta(), b.GetMeta()) }

func compareNames(a, b *object.ObjectMeta) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// inNamespace is the part of a list that is in one namespace.
func inNamespace(list []object.Object, namespace string) []object.Object {
	if namespace == "" {
		return list
	}
	compare := func(o object.Object, namespace string) int { return cmp.Compare(o.GetMeta().Namespace, namespace) }
	from, _ := slices.BinarySearchFunc(list, namespace, compare)
	to, _ := slices.BinarySearchFunc(list, namespace+"\x00", compare)
	return list[from:to:to]
}

// replace is a sorted list with other versions of some objects; nil removes one. The list
// itself stays as it is.
func replace(list []object.Object, versions map[object.Ref]object.Object) []object.Object {
	if len(versions) == 0 {
		return list
	}
	refs := make([]object.Ref, 0, len(versions))
	for ref := range versions {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, compareRefs)
	out := make([]object.Object, 0, len(list)+len(refs))
	for _, ref := range refs {
		name := &object.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}
		i, found := slices.BinarySearchFunc(list, name, func(o object.Object, name *object.ObjectMeta) int {
			return compareNames(o.GetMeta(), name)
		})
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
