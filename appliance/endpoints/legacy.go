package endpoints

import (
	"fmt"
	"maps"
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

// isUnready reports whether an endpoint is not ready and not terminating: Endpoints objects have no terminating ones.
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

// sameEndpoints reports whether two versions of an Endpoints object have the same content; nil is
// none.
func sameEndpoints(a, b *object.Endpoints) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return sameMeta(&a.Metadata, &b.Metadata) && len(a.Subsets) == len(b.Subsets) &&
		(len(a.Subsets) == 0 || reflect.DeepEqual(a.Subsets, b.Subsets))
}

const (
	// labelSkipMirror is discovery/v1 LabelSkipMirror: such Endpoints are not mirrored.
	labelSkipMirror = "endpointslice.kubernetes.io/skip-mirror"
	// maxMirrored bounds the addresses of a subset that are mirrored (the default of
	// --mirroring-max-endpoints-per-subset in Kubernetes).
	maxMirrored = 1000
)

// setMirrored puts the addresses of a Service's hand-written Endpoints into its slices.
func (c *Controller) setMirrored(s *service) {
	wanted := map[string][len(families)]*placed{}
	var problems []string
	var addrs []netip.Addr
	for i := range s.foreign.Subsets {
		subset := &s.foreign.Subsets[i]
		ports := mirroredPorts(subset.Ports)
		text := textOfPorts(ports)
		addresses := slices.Concat(subset.Addresses, subset.NotReadyAddresses)
		for j := range addresses[:min(len(addresses), maxMirrored)] {
			a := &addresses[j]
			addr, err := netip.ParseAddr(a.IP)
			if err != nil {
				continue // refused by validation
			}
			addrs = append(addrs, addr)
			family := slices.IndexFunc(families[:], func(f string) bool { return (f == object.IPv4) == addr.Is4() })
			if why := c.refusal(addr); why != "" {
				problems = append(problems, fmt.Sprintf("endpoint %s is left out: %s", addr, why))
				continue
			}
			places := wanted[a.IP+" "+text]
			ready := j < len(subset.Addresses)
			if places[family] != nil && (!ready || isReady(&places[family].endpoint)) {
				continue // an address that is there twice is ready when it is ready once
			}
			in := group{family: families[family], ports: text}.shareOf(&s.foreign.Metadata)
			places[family] = &placed{in, ports, mirroredEndpoint(a, ready)}
			wanted[a.IP+" "+text] = places
		}
		if more := len(addresses) - maxMirrored; more > 0 {
			problems = append(problems, fmt.Sprintf("subsets[%d] has %d addresses, of which the first %d are used: put the others into EndpointSlices", i, len(addresses), maxMirrored))
		}
	}
	for id := range s.layout.places {
		if _, still := wanted[id]; !still {
			s.layout.set(id, [len(families)]*placed{})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		s.layout.set(id, wanted[id])
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	c.mirrored.set(s.key, slices.Compact(addrs))
	c.noteMirror(s, problems)
}

func mirroredEndpoint(a *object.EndpointAddress, ready bool) object.Endpoint {
	endpoint := object.Endpoint{
		Addresses:  []string{a.IP},
		Conditions: object.EndpointConditions{Ready: &ready},
		TargetRef:  a.TargetRef,
		NodeName:   a.NodeName,
	}
	if a.Hostname != "" {
		endpoint.Hostname = &a.Hostname
	}
	return endpoint
}

func mirroredPorts(ports []object.EndpointPort) []object.EndpointPort {
	out := slices.Clone(ports)
	for i := range out {
		if out[i].Name == nil {
			out[i].Name = new(string)
		}
	}
	sortPorts(out)
	return out
}

// mirroredAnnotations leaves out the annotations about the Endpoints object itself.
func mirroredAnnotations(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	for _, key := range []string{"kubectl.kubernetes.io/last-applied-configuration", "endpoints.kubernetes.io/last-change-trigger-time", annotationOverCapacity} {
		delete(out, key)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
