package endpoints

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Of Endpoints (core/v1).
const (
	labelManagedEndpoints = "endpoints.kubernetes.io/managed-by"
	managedEndpoints      = "endpoints-controller.svcctl.io"

	annotationOverCapacity = "endpoints.kubernetes.io/over-capacity"
	overCapacityTruncated  = "truncated"
)

// endpointsObject is the Endpoints object of a Service with a selector: what its slices
// of the first family say, as far as an Endpoints object can: 1,000 addresses, the ready
// ones first.
func (s *service) endpointsObject() *object.Endpoints {
	namespace, name := cutKey(s.key)
	o := &object.Endpoints{
		TypeMeta: object.TypeMeta{Kind: object.KindEndpoints, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: name, Namespace: namespace, Labels: s.labels(s.object.Metadata.Labels)},
	}
	o.Metadata.Labels[labelManagedEndpoints] = managedEndpoints
	parts := s.primarySlices()
	taken, truncated := takeAddresses(parts, object.MaxEndpointsAddresses, isReady)
	more := make([][]object.EndpointAddress, len(parts))
	if !truncated {
		more, truncated = takeAddresses(parts, object.MaxEndpointsAddresses-count(taken), isUnready)
	}
	if truncated {
		o.Metadata.Annotations = map[string]string{annotationOverCapacity: overCapacityTruncated}
	}
	for i, part := range parts {
		if i == 0 || part.group.ports != parts[i-1].group.ports {
			o.Subsets = append(o.Subsets, object.EndpointSubset{Ports: subsetPorts(part.ports)})
		}
		subset := &o.Subsets[len(o.Subsets)-1]
		subset.Addresses = append(subset.Addresses, taken[i]...)
		subset.NotReadyAddresses = append(subset.NotReadyAddresses, more[i]...)
	}
	o.Subsets = slices.DeleteFunc(o.Subsets, func(subset object.EndpointSubset) bool {
		return len(subset.Addresses)+len(subset.NotReadyAddresses) == 0
	})
	for i := range o.Subsets {
		slices.SortFunc(o.Subsets[i].Addresses, compareAddresses)
		slices.SortFunc(o.Subsets[i].NotReadyAddresses, compareAddresses)
	}
	return o
}

// primarySlices are the slices that the Endpoints object is made of, by their ports and
// name. Pods that have none of the Service's ports are in no Endpoints object.
func (s *service) primarySlices() []*slice {
	var parts []*slice
	for _, part := range s.layout.slices {
		headlessWithoutPorts := len(s.object.Spec.Ports) == 0
		if part.group.family == s.object.Spec.IPFamilies[0] && (part.group.ports != "" || headlessWithoutPorts) {
			parts = append(parts, part)
		}
	}
	slices.SortFunc(parts, func(a, b *slice) int {
		if c := compareGroups(a.group, b.group); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	return parts
}

func isReady(e *object.Endpoint) bool { return object.Deref(e.Conditions.Ready) }

// isUnready is not ready and not about to go: who goes is in no Endpoints object.
func isUnready(e *object.Endpoint) bool {
	return !object.Deref(e.Conditions.Ready) && !object.Deref(e.Conditions.Terminating)
}

// takeAddresses takes at most so many endpoints of one kind, and reports whether there are
// more.
func takeAddresses(parts []*slice, most int, kind func(*object.Endpoint) bool) (taken [][]object.EndpointAddress, more bool) {
	taken = make([][]object.EndpointAddress, len(parts))
	for i, part := range parts {
		for j := range part.endpoints {
			e := &part.endpoints[j]
			if !kind(e) {
				continue
			}
			if most == 0 {
				return taken, true
			}
			most--
			taken[i] = append(taken[i], object.EndpointAddress{
				IP: e.Addresses[0], Hostname: object.Deref(e.Hostname), NodeName: e.NodeName, TargetRef: e.TargetRef,
			})
		}
	}
	return taken, false
}

func count(lists [][]object.EndpointAddress) int {
	n := 0
	for _, list := range lists {
		n += len(list)
	}
	return n
}

func subsetPorts(ports []object.EndpointPort) []object.EndpointPort {
	out := slices.Clone(ports)
	for i := range out {
		if object.Deref(out[i].Name) == "" {
			out[i].Name = nil
		}
	}
	return out
}

func compareAddresses(a, b object.EndpointAddress) int {
	x, _ := netip.ParseAddr(a.IP)
	y, _ := netip.ParseAddr(b.IP)
	if c := x.Compare(y); c != 0 {
		return c
	}
	return strings.Compare(a.TargetRef.Name, b.TargetRef.Name)
}

// sameEndpoints reports whether two versions of an Endpoints object say the same; nil is
// none.
func sameEndpoints(a, b *object.Endpoints) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return sameMeta(&a.Metadata, &b.Metadata) && len(a.Subsets) == len(b.Subsets) &&
		(len(a.Subsets) == 0 || reflect.DeepEqual(a.Subsets, b.Subsets))
}
