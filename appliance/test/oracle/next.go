package oracle

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// take adds a Service without endpoints, and drops Services in conflict with it: with the
// same name, or a value that no allocator gives twice. It returns false if too few others
// would remain.
func (w *World) take(service *object.Service) bool {
	key := object.RefOf(service).Key()
	var gone []string
	for _, o := range w.Services {
		if other := object.RefOf(o).Key(); other == key || clash(o, service) {
			gone = append(gone, other)
		}
	}
	if len(gone) > 2 {
		return false
	}
	for _, other := range gone {
		w.drop(other)
	}
	w.Services = append(w.Services, service)
	return true
}

// takeEndpoints copies the endpoint objects of a Service from another World.
func (w *World) takeEndpoints(from *World, service *object.Service) {
	key := object.RefOf(service).Key()
	for _, slice := range from.Slices {
		if serviceOf(slice) == key {
			w.Slices = append(w.Slices, slice)
		}
	}
	for _, endpoints := range from.Endpoints {
		if object.RefOf(endpoints).Key() == key {
			w.Endpoints = append(w.Endpoints, endpoints)
		}
	}
}

func (w *World) drop(key string) {
	w.Services = slices.DeleteFunc(w.Services, func(o *object.Service) bool { return object.RefOf(o).Key() == key })
	w.Slices = slices.DeleteFunc(w.Slices, func(o *object.EndpointSlice) bool { return serviceOf(o) == key })
	w.Endpoints = slices.DeleteFunc(w.Endpoints, func(o *object.Endpoints) bool { return object.RefOf(o).Key() == key })
}

func serviceOf(slice *object.EndpointSlice) string {
	return slice.Metadata.Namespace + "/" + slice.Metadata.Labels[object.LabelServiceName]
}

// clash reports whether two Services hold the same cluster IP, load balancer IP or node
// port, which no allocator gives twice.
func clash(a, b *object.Service) bool {
	for _, ip := range a.Spec.ClusterIPs {
		if ip != object.ClusterIPNone && slices.Contains(b.Spec.ClusterIPs, ip) {
			return true
		}
	}
	for _, x := range a.Status.LoadBalancer.Ingress {
		for _, y := range b.Status.LoadBalancer.Ingress {
			if x.IP == y.IP {
				return true
			}
		}
	}
	for _, x := range a.Spec.Ports {
		for _, y := range b.Spec.Ports {
			if x.NodePort != 0 && x.NodePort == y.NodePort && x.Protocol == y.Protocol {
				return true
			}
		}
	}
	return false
}

// unbind removes cluster IPs that no longer exist from the host's interface. Addresses of
// the service range that the host has for itself are out of scope.
func (w *World) unbind() {
	gone := func(p netip.Prefix) bool { return anyContains(w.Box.ServiceRanges, p.Addr()) && !w.isVIP(p.Addr()) }
	w.Box.Interfaces = slices.Clone(w.Box.Interfaces)
	for i := range w.Box.Interfaces {
		all := &w.Box.Interfaces[i]
		all.Addresses = slices.DeleteFunc(slices.Clone(all.Addresses), gone)
	}
}
