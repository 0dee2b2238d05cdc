package rest

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Labels and annotations of Endpoints and EndpointSlices.
const (
	labelHeadless          = "service.kubernetes.io/headless"
	labelEndpointsManaged  = "endpoints.kubernetes.io/managed-by"
	endpointsAreManaged    = "endpoints-view.svcctl.io"
	labelSliceManaged      = "endpointslice.kubernetes.io/managed-by"
	slicesAreMirrors       = "endpointslicemirroring-controller.k8s.io"
	annotationOverCapacity = "endpoints.kubernetes.io/over-capacity"
	overCapacityTruncated  = "truncated"
)

// endpointsOf is the view of Endpoints: those that are stored, and for Services that have
// none what their EndpointSlices say. Clients of before 2022 look there.
func endpointsOf(s *store.Store) view {
	derive := func() derivation { return endpointsParts{} }
	return view{store: s, derive: derive, one: func(namespace, name string) object.Object {
		all, key := endpointsParts{}, viewKey{namespace, name}
		service, _ := s.Get(object.Ref{Kind: object.KindService, Namespace: namespace, Name: name})
		all.take(nil, service)
		_, endpointSlices, _ := s.Service(namespace + "/" + name)
		for _, slice := range endpointSlices {
			all.take(nil, slice)
		}
		stored, _ := s.Get(object.Ref{Kind: object.KindEndpoints, Namespace: namespace, Name: name})
		all.take(nil, stored)
		return all.show(key)
	}}
}

// endpointsParts has the parts of Endpoints objects.
type endpointsParts map[viewKey]*endpointsPart

// endpointsPart has the stored objects that one Endpoints object is derived from.
type endpointsPart struct {
	service *object.Service
	stored  *object.Endpoints
	slices  []*object.EndpointSlice
}

func (e endpointsParts) sources() []string {
	return []string{object.KindService, object.KindEndpoints, object.KindEndpointSlice}
}

func (e endpointsParts) affected(o object.Object) []viewKey {
	if key, ok := endpointsKey(o); ok {
		return []viewKey{key}
	}
	return nil
}

func (e endpointsParts) take(old, new object.Object) {
	for _, o := range []object.Object{old, new} {
		if o == nil {
			continue
		}
		key, ok := endpointsKey(o)
		if !ok {
			continue
		}
		part := e[key]
		if part == nil {
			part = &endpointsPart{}
			e[key] = part
		}
		part.take(o, o == new)
		if part.service == nil && part.stored == nil && len(part.slices) == 0 {
			delete(e, key)
		}
	}
}

// endpointsKey names the Endpoints that an object is, or is a part of.
func endpointsKey(o object.Object) (viewKey, bool) {
	meta := o.GetMeta()
	slice, ok := o.(*object.EndpointSlice)
	if !ok {
		return viewKey{meta.Namespace, meta.Name}, true
	}
	service := meta.Labels[object.LabelServiceName]
	// A mirror shows what Endpoints say, and is about to go when they are gone.
	return viewKey{meta.Namespace, service}, service != "" && slice.Metadata.Labels[labelSliceManaged] != slicesAreMirrors
}

// take puts an object in its place, or takes it out of there.
func (p *endpointsPart) take(o object.Object, there bool) {
	switch o := o.(type) {
	case *object.Service:
		if p.service = nil; there {
			p.service = o
		}
	case *object.Endpoints:
		if p.stored = nil; there {
			p.stored = o
		}
	case *object.EndpointSlice:
		p.slices = slices.DeleteFunc(slices.Clone(p.slices), func(s *object.EndpointSlice) bool { return s.Metadata.Name == o.Metadata.Name })
		if there {
			p.slices = append(p.slices, o)
		}
	}
}

func (e endpointsParts) show(key viewKey) object.Object {
	part := e[key]
	switch {
	case part == nil:
		return nil
	case part.stored != nil:
		return part.stored
	case part.service == nil:
		return nil
	}
	shown := part.shown()
	if len(shown) == 0 {
		return nil
	}
	meta := &part.service.Metadata
	o := &object.Endpoints{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpoints, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{
			Name: key.name, Namespace: key.namespace, UID: derivedUID(meta.UID, parentResource+"/endpoints"),
			CreationTimestamp: meta.CreationTimestamp, Labels: map[string]string{},
		},
	}
	maps.Copy(o.Metadata.Labels, meta.Labels)
	o.Metadata.Labels[labelEndpointsManaged] = endpointsAreManaged
	if part.service.Spec.ClusterIP == object.ClusterIPNone {
		o.Metadata.Labels[labelHeadless] = ""
	}
	var truncated bool
	if o.Subsets, truncated = subsetsOf(shown); truncated {
		o.Metadata.Annotations = map[string]string{annotationOverCapacity: overCapacityTruncated}
	}
	return o
}

// shown are the slices that Endpoints can tell of, by name: those of the Service's first
// family.
func (p *endpointsPart) shown() []*object.EndpointSlice {
	var shown []*object.EndpointSlice
	for _, slice := range p.slices {
		families := p.service.Spec.IPFamilies
		if slice.AddressType == object.FQDN || len(families) > 0 && families[0] != slice.AddressType {
			continue
		}
		shown = append(shown, slice)
	}
	slices.SortFunc(shown, func(a, b *object.EndpointSlice) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return shown
}

// subsetsOf returns the endpoints of slices as subsets of an Endpoints object: addresses by their
// ports, at most 1,000 in all, the ready ones first.
func subsetsOf(shown []*object.EndpointSlice) (subsets []object.EndpointSubset, truncated bool) {
	type place struct {
		list *[]object.EndpointAddress
		ip   string
	}
	seen := map[place]bool{}
	byPorts := map[string]*object.EndpointSubset{}
	left := object.MaxEndpointsAddresses
	for _, ready := range []bool{true, false} {
		for _, slice := range shown {
			subset := subsetOf(byPorts, slice)
			list := &subset.NotReadyAddresses
			if ready {
				list = &subset.Addresses
			}
			for i := range slice.Endpoints {
				address, ok := addressOf(&slice.Endpoints[i], ready)
				if !ok || seen[place{list, address.IP}] {
					continue
				}
				if left == 0 {
					return subsetList(byPorts), true
				}
				left--
				seen[place{list, address.IP}] = true
				*list = append(*list, address)
			}
		}
	}
	return subsetList(byPorts), false
}

// subsetList is the subsets that have addresses, sorted.
func subsetList(byPorts map[string]*object.EndpointSubset) []object.EndpointSubset {
	var subsets []object.EndpointSubset
	for _, ports := range slices.Sorted(maps.Keys(byPorts)) {
		subset := byPorts[ports]
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			continue
		}
		slices.SortFunc(subset.Addresses, compareAddresses)
		slices.SortFunc(subset.NotReadyAddresses, compareAddresses)
		subsets = append(subsets, *subset)
	}
	return subsets
}

// subsetOf is the subset of the ports that a slice has.
func subsetOf(byPorts map[string]*object.EndpointSubset, slice *object.EndpointSlice) *object.EndpointSubset {
	ports := slices.Clone(slice.Ports)
	for i := range ports {
		if ports[i].Name != nil && *ports[i].Name == "" {
			ports[i].Name = nil
		}
	}
	key, _ := json.Marshal(ports) // text and numbers: it cannot fail
	subset := byPorts[string(key)]
	if subset == nil {
		subset = &object.EndpointSubset{Ports: ports}
		byPorts[string(key)] = subset
	}
	return subset
}

// addressOf is an endpoint in an Endpoints object, if it is among those that are ready, or
// those that are not. One that is about to go is in neither.
func addressOf(e *object.Endpoint, ready bool) (object.EndpointAddress, bool) {
	isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
	isGoing := e.Conditions.Terminating != nil && *e.Conditions.Terminating
	if len(e.Addresses) == 0 || isReady != ready || !isReady && isGoing {
		return object.EndpointAddress{}, false
	}
	address := object.EndpointAddress{IP: e.Addresses[0], NodeName: e.NodeName, TargetRef: e.TargetRef}
	if e.Hostname != nil {
		address.Hostname = *e.Hostname
	}
	return address, true
}

func compareAddresses(a, b object.EndpointAddress) int {
	x, _ := netip.ParseAddr(a.IP)
	y, _ := netip.ParseAddr(b.IP)
	return cmp.Or(x.Compare(y), cmp.Compare(a.IP, b.IP))
}
