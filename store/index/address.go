package index

import (
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// Externals are the Services with an external IP, by their "namespace/name".
type Externals map[netip.Addr]map[string]*object.Service

// ExternalIPs are the external IPs that a Service answers on.
func ExternalIPs(svc *object.Service) []netip.Addr {
	if svc == nil || len(svc.Spec.ExternalIPs) == 0 || svc.Headless() || !svc.NeedsClusterIP() {
		return nil
	}
	var addrs []netip.Addr
	for _, text := range svc.Spec.ExternalIPs {
		if addr, err := netip.ParseAddr(text); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// Add adds a Service.
func (x Externals) Add(key string, svc *object.Service) {
	for _, addr := range ExternalIPs(svc) {
		if x[addr] == nil {
			x[addr] = map[string]*object.Service{}
		}
		x[addr][key] = svc
	}
}

func (x Externals) remove(key string, svc *object.Service) {
	for _, addr := range ExternalIPs(svc) {
		if delete(x[addr], key); len(x[addr]) == 0 {
			delete(x, addr)
		}
	}
}

// hostIndex finds the Services that have an endpoint at an address. It is made at the first
// request, which few boxes ever make, and kept from then on.
type hostIndex struct{ services map[netip.Addr][]string }

// EndpointsAt are the "namespace/name" of the Services with an endpoint at an address, some of them several times.
func (x *Index) EndpointsAt(addr netip.Addr) []string {
	h := &x.hosts
	if h.services == nil {
		h.services = map[netip.Addr][]string{}
		for key, list := range x.slices {
			for _, s := range list {
				h.add(key, s)
			}
		}
	}
	return h.services[addr]
}

func (h *hostIndex) add(key string, s *object.EndpointSlice) {
	if h.services == nil {
		return
	}
	for addr := range endpointAddrs(s) {
		h.services[addr] = append(h.services[addr], key)
	}
}

func (h *hostIndex) remove(key string, s *object.EndpointSlice) {
	if h.services == nil {
		return
	}
	for addr := range endpointAddrs(s) {
		keys := h.services[addr]
		if i := slices.Index(keys, key); i >= 0 {
			keys = slices.Delete(keys, i, i+1)
		}
		if len(keys) == 0 {
			delete(h.services, addr)
		} else {
			h.services[addr] = keys
		}
	}
}

// endpointAddrs are the addresses that a slice's endpoints have: the first one of each counts
// (discovery/v1 Endpoint.addresses).
func endpointAddrs(s *object.EndpointSlice) func(yield func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for i := range s.Endpoints {
			if len(s.Endpoints[i].Addresses) == 0 {
				continue
			}
			if addr, err := netip.ParseAddr(s.Endpoints[i].Addresses[0]); err == nil && !yield(addr) {
				return
			}
		}
	}
}
