package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

func splitRanges(text string) []string { return strings.Split(text, ",") }

// endpointsOf gives a Service slices of both families and sometimes an Endpoints object.
func (g *generator) endpointsOf(service *object.Service) {
	// Endpoints cannot say what slices can. Where both name an endpoint they would say
	// different things of it, which no text decides: then the slices say no more either.
	g.plain = service.Spec.TrafficDistribution == nil && !prefersZone(service) && oneIn(g.Rand, 3)
	if g.plain && oneIn(g.Rand, 2) {
		g.world.Endpoints = append(g.world.Endpoints, g.endpoints(service))
	}
	for i := range families {
		for n := range pick(g.Rand, []int{0, 1, 1, 2}) {
			g.world.Slices = append(g.world.Slices, g.slice(service, i, fmt.Sprintf("%d-%d", i, n)))
		}
	}
	if oneIn(g.Rand, 10) {
		slice := g.slice(service, 0, "fqdn")
		slice.AddressType = object.FQDN
		for i := range slice.Endpoints {
			slice.Endpoints[i].Addresses = []string{"db.example.com"}
		}
		g.world.Slices = append(g.world.Slices, slice)
	}
}

func (g *generator) slice(service *object.Service, family int, suffix string) *object.EndpointSlice {
	slice := &object.EndpointSlice{
		TypeMeta: object.TypeMeta{APIVersion: object.APIVersionDiscovery, Kind: object.KindEndpointSlice},
		Metadata: object.ObjectMeta{
			Namespace: service.Metadata.Namespace,
			Name:      service.Metadata.Name + "-" + suffix,
			Labels:    map[string]string{object.LabelServiceName: service.Metadata.Name},
		},
		AddressType: families[family],
	}
	slice.Metadata.Annotations = g.share()
	if oneIn(g.Rand, 6) {
		slice.Metadata.Annotations[annotationShare] = pick(g.Rand, []string{"0", "1", "9", "a=3", "a=0", "b=1", "b=1000000"})
	}
	for _, port := range service.Spec.Ports {
		if oneIn(g.Rand, 8) {
			continue // this slice has nothing for that port
		}
		slice.Ports = append(slice.Ports, g.slicePort(port))
	}
	for range g.IntN(5) {
		slice.Endpoints = append(slice.Endpoints, g.endpoint(service, family))
	}
	object.Default(slice)
	return slice
}

// share returns sometimes a weight, and sometimes a priority.
func (g *generator) share() map[string]string {
	annotations := map[string]string{}
	if oneIn(g.Rand, 4) {
		annotations[annotationWeight] = pick(g.Rand, []string{"0", "1", "5", "65535"})
	}
	if oneIn(g.Rand, 6) {
		annotations[annotationPriority] = pick(g.Rand, []string{"0", "3", "9"})
	}
	return annotations
}

// slicePort returns the port of a slice for one of the Service's, now and then one that
// does not fit: of another name or protocol, or without a number.
func (g *generator) slicePort(port object.ServicePort) object.EndpointPort {
	name, protocol, number := port.Name, port.Protocol, pick(g.Rand, targetPorts)
	result := object.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
	switch g.IntN(20) {
	case 0:
		name += "x"
	case 1:
		protocol = pick(g.Rand, protocols)
	case 2:
		result.Port = nil
	case 3:
		number = 0
	}
	if name == "" && oneIn(g.Rand, 2) {
		result.Name = nil
	}
	return result
}

func (g *generator) endpoint(service *object.Service, family int) object.Endpoint {
	// Where an endpoint is does not depend on the slice that names it.
	index := g.IntN(len(endpointIPs[family]))
	endpoint := object.Endpoint{Addresses: []string{endpointIPs[family][index].String()}}
	if oneIn(g.Rand, 10) {
		endpoint.Addresses = append(endpoint.Addresses, endpointIPs[family][0].String())
	}
	endpoint.NodeName = nodeOf(service, index)
	seed := index + int(service.Metadata.Name[0])
	if zone := zoneNames[seed%len(zoneNames)]; zone != "" {
		endpoint.Zone = &zone
	}
	endpoint.Conditions = g.conditions()
	if g.plain {
		endpoint.Zone = nil
		return endpoint
	}
	// Of an endpoint whose Service asks for a distribution, hints are written seldom.
	asks := service.Spec.TrafficDistribution != nil || prefersZone(service)
	if seed%2 == 0 && (!asks || seed%3 == 0) {
		endpoint.Hints = hintsOf(endpoint, index)
	}
	return endpoint
}

// nodeOf returns the node of the endpoint with that index.
func nodeOf(service *object.Service, index int) *string {
	node := nodeNames[(index+int(service.Metadata.Name[0]))%len(nodeNames)]
	if node == "" {
		return nil
	}
	return &node
}

func (g *generator) conditions() object.EndpointConditions {
	yes, no := true, false
	switch g.IntN(10) {
	case 0:
		return object.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	case 1:
		return object.EndpointConditions{Ready: &no, Terminating: &yes} // serving: absent
	case 2:
		return object.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
	case 3:
		return object.EndpointConditions{Ready: &no}
	case 4:
		return object.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes}
	case 5:
		return object.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
	}
	return object.EndpointConditions{}
}

// hintsOf returns hints that depend on the endpoint alone.
func hintsOf(endpoint object.Endpoint, index int) *object.EndpointHints {
	hints := &object.EndpointHints{}
	if endpoint.Zone != nil {
		hints.ForZones = append(hints.ForZones, object.ForZone{Name: *endpoint.Zone})
	} else {
		hints.ForZones = append(hints.ForZones, object.ForZone{Name: "zone-b"}, object.ForZone{Name: "zone-a"})
	}
	if index%3 != 0 && endpoint.NodeName != nil {
		hints.ForNodes = append(hints.ForNodes, object.ForNode{Name: *endpoint.NodeName})
	}
	return hints
}

func (g *generator) endpoints(service *object.Service) *object.Endpoints {
	endpoints := &object.Endpoints{
		TypeMeta: object.TypeMeta{APIVersion: object.APIVersionCore, Kind: object.KindEndpoints},
		Metadata: object.ObjectMeta{Namespace: service.Metadata.Namespace, Name: service.Metadata.Name},
	}
	if oneIn(g.Rand, 6) {
		endpoints.Metadata.Labels = map[string]string{labelSkipMirror: "true"}
	}
	endpoints.Metadata.Annotations = g.share()
	for range 1 + g.IntN(2) {
		subset := object.EndpointSubset{Addresses: g.endpointAddresses(service, 1+g.IntN(2)), NotReadyAddresses: g.endpointAddresses(service, g.IntN(2))}
		for _, port := range service.Spec.Ports {
			name, protocol, number := port.Name, port.Protocol, pick(g.Rand, targetPorts)
			subset.Ports = append(subset.Ports, object.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
		}
		endpoints.Subsets = append(endpoints.Subsets, subset)
	}
	object.Default(endpoints)
	return endpoints
}

func (g *generator) endpointAddresses(service *object.Service, n int) []object.EndpointAddress {
	var all []object.EndpointAddress
	for range n {
		family := endpointIPs[g.IntN(len(families))]
		index := g.IntN(len(family))
		all = append(all, object.EndpointAddress{IP: family[index].String(), NodeName: nodeOf(service, index)})
	}
	return all
}

// Packets returns n random first packets to addresses and ports of the World, or close to
// them.
func (w *World) Packets(r randSource, n int) []Packet {
	var all []Packet
	for range n {
		all = append(all, w.packet(r))
	}
	return all
}

func (w *World) packet(r randSource) Packet {
	family := r.IntN(len(families))
	from := clients[r.IntN(len(clients))]
	p := Packet{
		Interface: from.behind,
		Protocol:  Protocol(protocols[r.IntN(len(protocols))]),
		From:      netip.AddrPortFrom(from.addresses[family], uint16(40000+r.IntN(20000))),
	}
	to, port := w.anyAddress(r, family), w.anyPort(r)
	if all := w.frontends(); len(all) > 0 && r.IntN(4) > 0 {
		// Three of four packets go to a frontend.
		f := all[r.IntN(len(all))]
		index := slices.Index(families, f.family)
		p.Protocol, port = f.protocol, f.anyPort(r)
		p.From = netip.AddrPortFrom(from.addresses[index], p.From.Port())
		to = f.address
		if f.place == atNodePort {
			to = w.anyLocal(r, index)
		}
	}
	if r.IntN(12) == 0 {
		p.Protocol = Ping
	}
	p.To = netip.AddrPortFrom(to, port)
	return p
}

// randSource is the source of random numbers for packets.
type randSource interface{ IntN(n int) int }

func (w *World) anyPort(r randSource) uint16 {
	all := slices.Concat(ports, nodePorts, []int32{9999})
	return uint16(all[r.IntN(len(all))])
}

func (w *World) anyAddress(r randSource, family int) netip.Addr {
	all := slices.Concat(clusterIPs[family], poolIPs[family], externalIPs[family], endpointIPs[family][:1])
	if r.IntN(4) == 0 {
		return w.anyLocal(r, family)
	}
	return all[r.IntN(len(all))]
}

// anyPort returns the port of a frontend; of a range an end, or one that others have or serve.
func (f frontend) anyPort(r randSource) uint16 {
	if !f.isRange() {
		return f.number
	}
	within := []uint16{f.number, f.last}
	for _, port := range slices.Concat(ports, targetPorts, targetPorts) {
		if n := uint16(port); f.number <= n && n <= f.last {
			within = append(within, n)
		}
	}
	return within[r.IntN(len(within))]
}

// anyLocal returns an address of the host that other hosts can send to.
func (w *World) anyLocal(r randSource, family int) netip.Addr {
	var all []netip.Addr
	for _, i := range w.Box.Interfaces {
		for _, p := range i.Addresses {
			if familyOf(p.Addr()) == families[family] && !p.Addr().IsLoopback() {
				all = append(all, p.Addr())
			}
		}
	}
	return all[r.IntN(len(all))]
}
