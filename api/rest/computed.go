package rest

import (
	"slices"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// computed is a collection of objects that follow from no stored ones: they are computed on request, and cannot be
// watched (kind.Kind.Verbs).
type computed struct {
	store   *store.Store
	objects func() []object.Object
}

// isComputed reports whether a kind has such objects.
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

// poolsOf shows IPAddressPools with their use.
func poolsOf(plain stored) adapted {
	return adapted{plain, func() func(object.Object) object.Object {
		use := plain.store.PoolsInUse()
		return func(o object.Object) object.Object {
			if pool, is := o.(*object.IPAddressPool); is {
				return withUse(pool, use)
			}
			return o
		}
	}}
}

// withUse returns a pool with the status that follows from its allocated addresses. An unused pool has
// none.
func withUse(pool *object.IPAddressPool, use []store.PoolUse) *object.IPAddressPool {
	shown := pool.DeepCopy().(*object.IPAddressPool)
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

// plus adds up to the largest number that there is.
func plus(sum int64, n uint64) int64 {
	const most = 1<<63 - 1
	if n > uint64(most-sum) {
		return most
	}
	return sum + int64(n)
}
