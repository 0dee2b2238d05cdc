package store

import (
	"cmp"
	"maps"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// index finds what belongs to a Service by its "namespace/name", and who selects whom.
// Slices in it are replaced, never changed: readers may hold them.
type index struct {
	services  map[string]*object.Service
	slices    map[string][]*object.EndpointSlice // by name
	endpoints map[string]*object.Endpoints
	pods      map[string]*object.Pod

	// podsWith are the Pods with a label, by their "namespace/name".
	podsWith map[label]map[string]*object.Pod
	// selectors are the Services with a selector, each under that one of its labels which
	// the fewest others were under when it came.
	selectors map[label]map[string]*object.Service

	externals externals
	hosts     *hostIndex
}

// label is a label of a Pod, or one that a selector asks for, in a namespace.
type label struct{ namespace, key, value string }

func newIndex() index {
	return index{
		services:  map[string]*object.Service{},
		slices:    map[string][]*object.EndpointSlice{},
		endpoints: map[string]*object.Endpoints{},
		pods:      map[string]*object.Pod{},
		podsWith:  map[label]map[string]*object.Pod{},
		selectors: map[label]map[string]*object.Service{},
		externals: externals{},
		hosts:     &hostIndex{},
	}
}

// service is the Service of a key and what belongs to it.
func (x index) service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return x.services[key], x.slices[key], x.endpoints[key]
}

// keys are those that service has something for; some are there several times.
func (x index) keys() []string {
	keys := slices.AppendSeq(make([]string, 0, len(x.services)+len(x.slices)+len(x.endpoints)), maps.Keys(x.services))
	keys = slices.AppendSeq(keys, maps.Keys(x.slices))
	return slices.AppendSeq(keys, maps.Keys(x.endpoints))
}

func (x index) add(r *record) {
	key := serviceKeyOf(r.object)
	switch o := r.object.(type) {
	case *object.Service:
		if !r.withheld {
			x.services[key] = o
			x.addSelector(key, o)
			x.externals.add(key, o)
		}
	case *object.Endpoints:
		x.endpoints[key] = o
	case *object.Pod:
		key := object.RefOf(o).Key()
		x.pods[key] = o
		for name, value := range o.Metadata.Labels {
			put(x.podsWith, label{o.Metadata.Namespace, name, value}, key, o)
		}
	case *object.EndpointSlice:
		if key == "" {
			return
		}
		list := slices.Clone(x.slices[key])
		i, _ := slices.BinarySearchFunc(list, o, compareSlices)
		x.slices[key] = slices.Insert(list, i, o)
		x.hosts.add(key, o)
	}
}

func (x index) remove(r *record) {
	key := serviceKeyOf(r.object)
	switch o := r.object.(type) {
	case *object.Service:
		delete(x.services, key)
		x.externals.remove(key, o)
		for name, value := range o.Spec.Selector {
			drop(x.selectors, label{o.Metadata.Namespace, name, value}, key)
		}
	case *object.Endpoints:
		delete(x.endpoints, key)
	case *object.Pod:
		key := object.RefOf(o).Key()
		delete(x.pods, key)
		for name, value := range o.Metadata.Labels {
			drop(x.podsWith, label{o.Metadata.Namespace, name, value}, key)
		}
	case *object.EndpointSlice:
		x.hosts.remove(key, o)
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

// put adds an entry to one of many maps; drop removes it.
func put[V any](all map[label]map[string]V, at label, key string, value V) {
	if all[at] == nil {
		all[at] = map[string]V{}
	}
	all[at][key] = value
}

func drop[V any](all map[label]map[string]V, at label, key string) {
	delete(all[at], key)
	if len(all[at]) == 0 {
		delete(all, at)
	}
}

func (x index) addSelector(key string, svc *object.Service) {
	if len(svc.Spec.Selector) == 0 {
		return
	}
	at, _ := rarest(x.selectors, svc.Metadata.Namespace, svc.Spec.Selector)
	put(x.selectors, at, key, svc)
}

// rarest is the label with the fewest entries, and these.
func rarest[V any](all map[label]map[string]V, namespace string, labels map[string]string) (at label, entries map[string]V) {
	for name, value := range labels {
		candidate := label{namespace, name, value}
		if found := all[candidate]; at == (label{}) || len(found) < len(entries) {
			at, entries = candidate, found
		}
	}
	return at, entries
}

func (x index) selected(namespace string, selector map[string]string) []*object.Pod {
	_, candidates := rarest(x.podsWith, namespace, selector)
	var pods []*object.Pod
	for _, pod := range candidates {
		if matches(selector, pod.Metadata.Labels) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *object.Pod) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return pods
}

func (x index) selecting(namespace string, labels map[string]string) []string {
	found := map[string]bool{}
	for name, value := range labels {
		for key, svc := range x.selectors[label{namespace, name, value}] {
			if matches(svc.Spec.Selector, labels) {
				found[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// matches reports whether labels has all that a selector asks for.
func matches(selector, labels map[string]string) bool {
	for name, value := range selector {
		if have, has := labels[name]; !has || have != value {
			return false
		}
	}
	return true
}

func compareSlices(a, b *object.EndpointSlice) int {
	return cmp.Compare(a.Metadata.Name, b.Metadata.Name)
}
