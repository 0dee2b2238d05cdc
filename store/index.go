package store

import (
	"cmp"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// index finds what belongs to a Service by its "namespace/name". Slices in it are
// replaced, never changed: readers may hold them.
type index struct {
	services  map[string]*object.Service
	slices    map[string][]*object.EndpointSlice // by name
	endpoints map[string]*object.Endpoints
}

func newIndex() index {
	return index{
		services:  map[string]*object.Service{},
		slices:    map[string][]*object.EndpointSlice{},
		endpoints: map[string]*object.Endpoints{},
	}
}

func (x index) add(r *record) {
	key := serviceKeyOf(r.object)
	switch o := r.object.(type) {
	case *object.Service:
		if !r.withheld {
			x.services[key] = o
		}
	case *object.Endpoints:
		x.endpoints[key] = o
	case *object.EndpointSlice:
		if key == "" {
			return
		}
		list := slices.Clone(x.slices[key])
		i, _ := slices.BinarySearchFunc(list, o, compareSlices)
		x.slices[key] = slices.Insert(list, i, o)
	}
}

func (x index) remove(r *record) {
	key := serviceKeyOf(r.object)
	switch o := r.object.(type) {
	case *object.Service:
		delete(x.services, key)
	case *object.Endpoints:
		delete(x.endpoints, key)
	case *object.EndpointSlice:
		var list []*object.EndpointSlice
		for _, other := range x.slices[key] {
			if other != o {
				list = append(list, other)
			}
		}
		if len(list) == 0 {
			delete(x.slices, key)
			return
		}
		x.slices[key] = list
	}
}

func compareSlices(a, b *object.EndpointSlice) int {
	return cmp.Compare(a.Metadata.Name, b.Metadata.Name)
}
