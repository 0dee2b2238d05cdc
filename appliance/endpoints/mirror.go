package endpoints

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/object"
)

const (
	// labelSkipMirror is discovery/v1 LabelSkipMirror: such Endpoints are not mirrored.
	labelSkipMirror = "endpointslice.kubernetes.io/skip-mirror"
	// maxMirrored bounds the addresses of a subset that are mirrored (the default of
	// --mirroring-max-endpoints-per-subset in Kubernetes).
	maxMirrored = 1000
)

// mirrored returns the id of an endpoint that was mirrored: its address, and the ports of its
// slice, for an address may be in several subsets.
func mirrored(s *slice, e *object.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	return e.Addresses[0] + " " + s.group.ports
}

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

// mirroredAnnotations leaves out what is about the Endpoints object itself.
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
