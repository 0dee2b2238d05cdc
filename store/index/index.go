package index

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// An Index finds the EndpointSlices, Endpoints and Pods of a Service by its "namespace/name".
type Index struct {
	slices    Lists[string] // names of EndpointSlices, sorted
	endpoints map[string]*object.Endpoints
	pods      map[string]*object.Pod

	// podsWith maps each label to the Pods that have it, by their "namespace/name".
	podsWith map[label]map[string]*object.Pod
	// selectors holds the names of the Services that have a selector. Each is stored under one label of its selector: the one that had the fewest
	// Services when it was added, usually none.
	selectors Lists[label]

	externals Externals
	// hosts has the Services by the addresses of their endpoints. It is made at the first lookup, which few boxes ever make, and then kept up to date.
	hosts Lists[netip.Addr]
}

// label is a label of a Pod, or of a Service's selector, with the namespace.
type label struct{ namespace, key, value string }

// New returns an empty Index.
func New() *Index {
	return &Index{
		slices:    Lists[string]{},
		endpoints: map[string]*object.Endpoints{},
		pods:      map[string]*object.Pod{},
		podsWith:  map[label]map[string]*object.Pod{},
		selectors: Lists[label]{},
		externals: Externals{},
	}
}

// Clone returns an Index of the same objects.
func (x *Index) Clone() *Index {
	return &Index{
		slices: x.slices.clone(), endpoints: maps.Clone(x.endpoints), pods: maps.Clone(x.pods),
		podsWith: CloneMaps(x.podsWith), selectors: x.selectors.clone(), externals: x.externals.clone(),
	}
}

// Lists maps keys of an index to objects, by name or "namespace/name". An object that is added several times to a list is in it as often.
type Lists[K comparable] map[K][]string

// Add adds an object to the lists of some keys.
func (l Lists[K]) Add(name string, to ...K) {
	for _, at := range to {
		l[at] = append(l[at], name)
	}
}

// remove removes an object, if it is there, from the lists of some keys.
func (l Lists[K]) remove(name string, from ...K) {
	for _, at := range from {
		switch i := slices.Index(l[at], name); {
		case i < 0:
		case len(l[at]) == 1:
			delete(l, at)
		default:
			l[at] = slices.Delete(l[at], i, i+1)
		}
	}
}

func (l Lists[K]) clone() Lists[K] {
	c := maps.Clone(l)
	for at, list := range c {
		if cap(list) > 1 { // else no change of one writes where the other reads
			c[at] = slices.Clone(list)
		}
	}
	return c
}

// CloneMaps returns a copy of a map of maps, with copies of the inner maps.
func CloneMaps[M ~map[K]map[L]V, K, L comparable, V any](of M) M {
	c := make(M, len(of))
	for key, one := range of {
		c[key] = maps.Clone(one)
	}
	return c
}

// Slices returns the names of the EndpointSlices of a Service, sorted. The caller must not keep them.
func (x *Index) Slices(key string) []string { return x.slices[key] }

// Endpoints returns the Endpoints of a Service, nil when there are none.
func (x *Index) Endpoints(key string) *object.Endpoints { return x.endpoints[key] }

// Keys returns the keys of EndpointSlices and Endpoints, in no order and with repetitions.
func (x *Index) Keys() []string {
	return slices.AppendSeq(slices.Collect(maps.Keys(x.slices)), maps.Keys(x.endpoints))
}

// Add adds an object.
func (x *Index) Add(added object.Object) {
	key := ServiceKey(added)
	switch o := added.(type) {
	case *object.Service:
		if len(o.Spec.Selector) > 0 {
			at := rarest(o.Metadata.Namespace, o.Spec.Selector, func(l label) int { return len(x.selectors[l]) })
			x.selectors.Add(o.Metadata.Name, at)
		}
		x.externals.Add(key, ExternalIPs(o)...)
	case *object.Endpoints:
		x.endpoints[key] = o
	case *object.Pod:
		key := object.RefOf(o).Key()
		x.pods[key] = o
		for name, value := range o.Metadata.Labels {
			Put(x.podsWith, label{o.Metadata.Namespace, name, value}, key, o)
		}
	case *object.EndpointSlice:
		if key == "" {
			return
		}
		i, _ := slices.BinarySearch(x.slices[key], o.Metadata.Name)
		x.slices[key] = slices.Insert(x.slices[key], i, o.Metadata.Name)
		if x.hosts != nil {
			x.hosts.Add(key, endpointAddrs(o)...)
		}
	}
}

// Remove removes an object, if it is there: the very one that was added.
func (x *Index) Remove(removed object.Object) {
	key := ServiceKey(removed)
	switch o := removed.(type) {
	case *object.Service:
		x.externals.remove(key, ExternalIPs(o)...)
		for name, value := range o.Spec.Selector {
			x.selectors.remove(o.Metadata.Name, label{o.Metadata.Namespace, name, value})
		}
	case *object.Endpoints:
		delete(x.endpoints, key)
	case *object.Pod:
		key := object.RefOf(o).Key()
		delete(x.pods, key)
		for name, value := range o.Metadata.Labels {
			Drop(x.podsWith, label{o.Metadata.Namespace, name, value}, key)
		}
	case *object.EndpointSlice:
		if x.hosts != nil {
			x.hosts.remove(key, endpointAddrs(o)...)
		}
		x.slices.remove(o.Metadata.Name, key)
	}
}

// Put sets all[at][key] to value. It creates the inner map all[at] if needed.
func Put[K, L comparable, V any](all map[K]map[L]V, at K, key L, value V) {
	if all[at] == nil {
		all[at] = map[L]V{}
	}
	all[at][key] = value
}

// Drop removes all[at][key], and the inner map all[at] if it becomes empty.
func Drop[K, L comparable, V any](all map[K]map[L]V, at K, key L) {
	if delete(all[at], key); len(all[at]) == 0 {
		delete(all, at)
	}
}

// Pod returns the Pod of a "namespace/name", nil when there is none.
func (x *Index) Pod(key string) *object.Pod { return x.pods[key] }

// Pods returns the "namespace/name" of all Pods, in no order.
func (x *Index) Pods() []string { return slices.Collect(maps.Keys(x.pods)) }

// Externals returns the Services with external IPs. The caller must not change the maps.
func (x *Index) Externals() Externals { return x.externals }

// rarest returns the label for which entries returns the smallest number; the zero label if there are no labels.
func rarest(namespace string, labels map[string]string, entries func(label) int) (at label) {
	fewest := 0
	for name, value := range labels {
		candidate := label{namespace, name, value}
		if found := entries(candidate); at == (label{}) || found < fewest {
			at, fewest = candidate, found
		}
	}
	return at
}

// Selected returns the Pods of a namespace that have all labels of a selector, by name; none for
// an empty selector. It examines as many Pods as have the rarest of these labels.
func (x *Index) Selected(namespace string, selector map[string]string) []*object.Pod {
	at := rarest(namespace, selector, func(l label) int { return len(x.podsWith[l]) })
	var pods []*object.Pod
	for _, pod := range x.podsWith[at] {
		if object.HasLabels(pod.Metadata.Labels, selector) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *object.Pod) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return pods
}

// Selecting returns the sorted keys of the Services in a namespace whose selector matches a Pod with these labels. service returns a Service by its
// key.
func (x *Index) Selecting(namespace string, labels map[string]string, service func(key string) *object.Service) []string {
	var found []string
	for name, value := range labels {
		for _, svc := range x.selectors[label{namespace, name, value}] {
			if key := namespace + "/" + svc; object.HasLabels(labels, service(key).Spec.Selector) {
				found = append(found, key)
			}
		}
	}
	slices.Sort(found)
	return found
}

// ServiceKey returns the "namespace/name" of a Service, or of the Service that an EndpointSlice or Endpoints object belongs to. It returns "" for an
// EndpointSlice without a Service, and for other kinds.
func ServiceKey(o object.Object) string {
	meta := o.GetMeta()
	switch o.(type) {
	case *object.Service, *object.Endpoints:
		return meta.Namespace + "/" + meta.Name
	case *object.EndpointSlice:
		if name := meta.Labels[object.LabelServiceName]; name != "" {
			return meta.Namespace + "/" + name
		}
	}
	return ""
}

// AddressesOf returns the endpoint addresses in an EndpointSlice, Endpoints or Pod, and those that a Service has or asks for. For a Pod, it returns none
// unless the labels of the Pod match selector.
func AddressesOf(o object.Object, selector map[string]string) (texts []string) {
	switch o := o.(type) {
	case *object.Service:
		texts = slices.Concat([]string{o.Spec.LoadBalancerIP}, o.Spec.ClusterIPs, o.Spec.ExternalIPs, o.IngressIPs())
	case *object.EndpointSlice:
		for _, e := range o.Endpoints {
			texts = append(texts, e.Addresses...)
		}
	case *object.Endpoints:
		for _, subset := range o.Subsets {
			for _, a := range subset.Addresses {
				texts = append(texts, a.IP)
			}
		}
	case *object.Pod:
		if object.HasLabels(o.Metadata.Labels, selector) {
			texts = o.IPs()
		}
	}
	return texts
}

// Externals maps external IPs to the Services that have them, by their "namespace/name".
type Externals = Lists[netip.Addr]

// ExternalIPs returns the valid external IPs of a Service.
func ExternalIPs(svc *object.Service) []netip.Addr {
	if svc == nil || len(svc.Spec.ExternalIPs) == 0 || svc.Headless() || !svc.NeedsClusterIP() {
		return nil
	}
	return object.Addrs(svc.Spec.ExternalIPs)
}

// EndpointsAt returns the "namespace/name" of the Services with an endpoint at an address, possibly with duplicates. of returns the EndpointSlices of
// a Service.
func (x *Index) EndpointsAt(addr netip.Addr, of func(key string) []*object.EndpointSlice) []string {
	if x.hosts == nil {
		x.hosts = Lists[netip.Addr]{}
		for key := range x.slices {
			for _, s := range of(key) {
				x.hosts.Add(key, endpointAddrs(s)...)
			}
		}
	}
	return x.hosts[addr]
}

// endpointAddrs returns the first address of each endpoint of an EndpointSlice. Further addresses have no meaning (discovery/v1 Endpoint.addresses).
func endpointAddrs(s *object.EndpointSlice) (addrs []netip.Addr) {
	for i := range s.Endpoints {
		if len(s.Endpoints[i].Addresses) == 0 {
			continue
		}
		if addr, err := netip.ParseAddr(s.Endpoints[i].Addresses[0]); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
