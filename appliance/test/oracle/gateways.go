package oracle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// AddGateways adds Gateways with routes to the Services of a world. They ask for addresses that Services have or ask for, and
// listen at ports that Services have; some of their backends are not there, not granted, of another protocol, or empty.
func (w *World) AddGateways(r randSource) {
	one := func(n int) bool { return r.IntN(n) == 0 }
	meta := func(kind, namespace, name string) (object.TypeMeta, object.ObjectMeta) {
		return object.TypeMeta{Kind: kind, APIVersion: object.APIVersionGateway}, object.ObjectMeta{Namespace: namespace, Name: name}
	}
	namespaces := []string{"default", "other"}
	if len(w.Box.Pools)+len(w.Box.InternalPools) == 0 && !one(4) {
		w.Box.Pools = prefixes("198.51.100.4/30", "2001:db8:198::4/126")
	}
	good := w.addBackends(r)
	for i := range 1 + r.IntN(2) {
		gw := &object.Gateway{}
		gw.TypeMeta, gw.Metadata = meta(object.KindGateway, "default", fmt.Sprintf("gw%d", i))
		gw.Spec.GatewayClassName = "svcctl"
		for family := range families {
			if one(2) {
				value := poolIPs[family][r.IntN(len(poolIPs[family]))].String()
				gw.Spec.Addresses = append(gw.Spec.Addresses, object.GatewayAddress{Value: &value})
			}
		}
		for j := range 1 + r.IntN(3) {
			l := object.Listener{Name: fmt.Sprintf("l%d", j), Protocol: protocols[r.IntN(2)], Port: ports[r.IntN(len(ports))]}
			if all := object.FromAll; !one(4) {
				l.AllowedRoutes = &object.AllowedRoutes{Namespaces: &object.RouteNamespaces{From: &all}}
			}
			if !slices.ContainsFunc(gw.Spec.Listeners, func(other object.Listener) bool { return other.Protocol == l.Protocol && other.Port == l.Port }) {
				gw.Spec.Listeners = append(gw.Spec.Listeners, l)
			}
		}
		if of := w.Services[r.IntN(len(w.Services))]; one(2) && len(of.Spec.Ports) > 0 { // in conflict with an external IP of a Service
			if p := of.Spec.Ports[0]; p.Protocol != object.ProtocolSCTP {
				value := poolIPs[0][1].String()
				gw.Spec.Addresses = []object.GatewayAddress{{Value: &value}}
				gw.Spec.Listeners = []object.Listener{{Name: "l0", Protocol: p.Protocol, Port: p.Port}}
				if of.Spec.ExternalIPs = append(of.Spec.ExternalIPs, value); of.Spec.ExternalTrafficPolicy == "" {
					of.Spec.ExternalTrafficPolicy = object.PolicyCluster
				}
			}
		}
		w.Gateways = append(w.Gateways, gw)
	}
	for i := range 1 + r.IntN(5) {
		spec := object.L4RouteSpec{Rules: []object.L4RouteRule{{}}}
		parent := object.ParentRef{Name: w.Gateways[r.IntN(len(w.Gateways))].Metadata.Name, Namespace: &namespaces[0]}
		if section := fmt.Sprintf("l%d", r.IntN(3)); one(2) {
			parent.SectionName = &section
		}
		spec.ParentRefs = []object.ParentRef{parent}
		protocol := protocols[r.IntN(2)]
		for range 1 + r.IntN(3) {
			of := w.Services[r.IntN(len(w.Services))]
			if !one(3) {
				of = good[r.IntN(len(good))]
			}
			ref := object.BackendRef{Name: of.Metadata.Name, Namespace: &of.Metadata.Namespace, Port: &ports[r.IntN(len(ports))]}
			if n := len(of.Spec.Ports); n > 0 && !one(8) {
				p := &of.Spec.Ports[r.IntN(n)]
				if ref.Port = &p.Port; !one(4) {
					protocol = p.Protocol
				}
			}
			if weight := []int32{0, 1, 1, 2, 9, 1_000_000}[r.IntN(6)]; !one(3) {
				ref.Weight = &weight
			}
			spec.Rules[0].BackendRefs = append(spec.Rules[0].BackendRefs, ref)
		}
		namespace, name := namespaces[r.IntN(2)], fmt.Sprintf("%c%d", 'z'-rune(r.IntN(5)), i)
		if protocol == object.ProtocolTCP {
			o := &object.TCPRoute{Spec: spec}
			o.TypeMeta, o.Metadata = meta(object.KindTCPRoute, namespace, name)
			w.Routes = append(w.Routes, o)
		} else {
			o := &object.UDPRoute{Spec: spec}
			o.TypeMeta, o.Metadata = meta(object.KindUDPRoute, namespace, name)
			w.Routes = append(w.Routes, o)
		}
	}
	for _, namespace := range namespaces {
		if one(4) {
			continue
		}
		grant, core := &object.ReferenceGrant{}, ""
		grant.TypeMeta, grant.Metadata = meta(object.KindReferenceGrant, namespace, "grant")
		group := object.GroupGateway
		for _, kind := range []string{object.KindTCPRoute, object.KindUDPRoute} {
			if !one(4) {
				grant.Spec.From = append(grant.Spec.From, object.ReferenceGrantFrom{Group: &group, Kind: kind, Namespace: namespaces[r.IntN(2)]})
			}
		}
		grant.Spec.To = []object.ReferenceGrantTo{{Group: &core, Kind: object.KindService}}
		if len(grant.Spec.From) > 0 {
			w.Grants = append(w.Grants, grant)
		}
	}
}

// addBackends adds Services for TCP and UDP whose endpoints are ready, but for one that may be empty.
func (w *World) addBackends(r randSource) (all []*object.Service) {
	for i, name := range []string{"blue", "green"} {
		service := &object.Service{TypeMeta: object.TypeMeta{APIVersion: object.APIVersionCore, Kind: object.KindService}}
		service.Metadata = object.ObjectMeta{Namespace: []string{"default", "other"}[r.IntN(2)], Name: name, CreationTimestamp: &birth}
		service.Spec = object.ServiceSpec{ClusterIP: object.ClusterIPNone, ClusterIPs: []string{object.ClusterIPNone}, Type: object.TypeClusterIP,
			Ports: []object.ServicePort{{Name: "t", Protocol: object.ProtocolTCP, Port: 80}, {Name: "u", Protocol: object.ProtocolUDP, Port: 53}}}
		object.Default(service)
		w.Services, all = append(w.Services, service), append(all, service)
		for family := range families {
			s := &object.EndpointSlice{TypeMeta: object.TypeMeta{APIVersion: object.APIVersionDiscovery, Kind: object.KindEndpointSlice}, AddressType: families[family], Endpoints: []object.Endpoint{}}
			s.Metadata = object.ObjectMeta{Namespace: service.Metadata.Namespace, Name: name + "-" + strconv.Itoa(family), Labels: map[string]string{object.LabelServiceName: name}}
			for j := range service.Spec.Ports {
				p := &service.Spec.Ports[j]
				s.Ports = append(s.Ports, object.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
			}
			if i == 0 || r.IntN(3) > 0 {
				s.Endpoints = append(s.Endpoints, object.Endpoint{Addresses: []string{endpointIPs[family][2*i].String()}})
			}
			w.Slices = append(w.Slices, s)
		}
	}
	return all
}

// l4Route is a route as the oracle reads it.
type l4Route struct {
	kind string
	meta *object.ObjectMeta
	spec *object.L4RouteSpec
}

// RouteSpec is the spec of a TCPRoute or a UDPRoute.
func RouteSpec(o object.Object) *object.L4RouteSpec {
	if o, is := o.(*object.TCPRoute); is {
		return &o.Spec
	}
	return &o.(*object.UDPRoute).Spec
}

func (w *World) routes() (all []l4Route) {
	for _, o := range w.Routes {
		all = append(all, l4Route{o.GetTypeMeta().Kind, o.GetMeta(), RouteSpec(o)})
	}
	// The oldest one, and of one second the first in alphabetical order of "namespace/name".
	slices.SortFunc(all, func(a, b l4Route) int {
		if x, y := a.meta.CreationTimestamp, b.meta.CreationTimestamp; x != nil && y != nil && !x.Equal(*y) {
			return x.Compare(*y)
		}
		return strings.Compare(a.meta.Namespace+"/"+a.meta.Name, b.meta.Namespace+"/"+b.meta.Name)
	})
	return all
}

// ServiceOf is the key of the Service that serves a Gateway.
func ServiceOf(gw *object.Gateway) string {
	return gw.Metadata.Namespace + "/" + gw.Metadata.Name + "-" + gw.Spec.GatewayClassName
}

// takes returns whether a listener takes a route.
func takes(gw *object.Gateway, l *object.Listener, r l4Route) bool {
	kind := map[string]string{object.ProtocolTCP: object.KindTCPRoute, object.ProtocolUDP: object.KindUDPRoute}[l.Protocol]
	parent := r.spec.ParentRefs[0]
	return r.kind == kind && *parent.Namespace == gw.Metadata.Namespace && parent.Name == gw.Metadata.Name &&
		(parent.SectionName == nil || *parent.SectionName == l.Name) &&
		(l.AllowedRoutes != nil || r.meta.Namespace == gw.Metadata.Namespace)
}

// granted returns whether a route may use a Service.
func (w *World) granted(r l4Route, namespace string) bool {
	return r.meta.Namespace == namespace || slices.ContainsFunc(w.Grants, func(g *object.ReferenceGrant) bool {
		return g.Metadata.Namespace == namespace && slices.ContainsFunc(g.Spec.From, func(from object.ReferenceGrantFrom) bool {
			return from.Kind == r.kind && from.Namespace == r.meta.Namespace
		})
	})
}

// backendPort is the Service and port that a backendRef of a route leads to; false: there is none, so its share is refused.
func (w *World) backendPort(r l4Route, ref object.BackendRef) (f frontend, is bool) {
	for _, service := range w.Services {
		if service.Metadata.Namespace != *ref.Namespace || service.Metadata.Name != ref.Name || service.Spec.Type == object.TypeExternalName {
			continue
		}
		for _, port := range service.Spec.Ports {
			if port.Port == *ref.Port && r.kind == port.Protocol+"Route" && w.granted(r, *ref.Namespace) {
				return frontend{service: service, port: port}, true
			}
		}
	}
	return frontend{}, false
}

// GatewaySlices are the slices of a Gateway's Service: of each port the backends of the first route, with their weights as
// shares, and none where a backend must not be used.
func (w *World) GatewaySlices(gw *object.Gateway) (all []*object.EndpointSlice) {
	add := func(l *object.Listener, family, share string) *object.EndpointSlice {
		name, protocol, number := fmt.Sprintf("%s-%d", strings.ToLower(l.Protocol), l.Port), l.Protocol, l.Port
		s := &object.EndpointSlice{AddressType: family, Ports: []object.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}}}
		_, service, _ := strings.Cut(ServiceOf(gw), "/")
		s.Metadata = object.ObjectMeta{Namespace: gw.Metadata.Namespace, Name: fmt.Sprintf("%s-%d", service, len(all)), Labels: map[string]string{object.LabelServiceName: service}}
		if s.Metadata.Annotations = map[string]string{}; share != "" {
			s.Metadata.Annotations[annotationShare] = share
		}
		all = append(all, s)
		return s
	}
	for i := range gw.Spec.Listeners {
		l := &gw.Spec.Listeners[i]
		routes := slices.DeleteFunc(w.routes(), func(r l4Route) bool { return !takes(gw, l, r) })
		for _, family := range families {
			if len(routes) == 0 {
				add(l, family, "")
				continue
			}
			for n, ref := range routes[0].spec.Rules[0].BackendRefs {
				weight := int32(1)
				if ref.Weight != nil {
					weight = *ref.Weight
				}
				share := "backend" + strconv.Itoa(n) + "=" + strconv.Itoa(int(weight))
				f, is := w.backendPort(routes[0], ref)
				add(l, family, share)
				if f.family = family; is {
					w.copyBackends(f, func() *object.EndpointSlice { return add(l, family, share) })
				}
			}
		}
	}
	return all
}

// copyBackends copies the endpoints of a Service port into slices.
func (w *World) copyBackends(f frontend, add func() *object.EndpointSlice) {
	annotate := func(to *object.EndpointSlice, from map[string]string) {
		for _, key := range []string{annotationWeight, annotationPriority} {
			if text, has := from[key]; has {
				to.Metadata.Annotations[key] = text
			}
		}
	}
	for _, s := range w.Slices {
		if serviceOf(s) != object.RefOf(f.service).Key() || s.AddressType != f.family {
			continue
		}
		for _, port := range s.Ports {
			if number, matches := matchPort(port, f); matches {
				to, n := add(), int32(number)
				to.Ports[0].Port, to.Endpoints = &n, s.Endpoints
				annotate(to, s.Metadata.Annotations)
			}
		}
	}
	for _, b := range w.fromEndpoints(f) {
		to, n, ready := add(), int32(b.address.Port()), b.ready
		to.Ports[0].Port = &n
		e := object.Endpoint{Addresses: []string{b.address.Addr().String()}, Conditions: object.EndpointConditions{Ready: &ready}}
		if b.nodeName != "" {
			e.NodeName = &b.nodeName
		}
		to.Endpoints = []object.Endpoint{e}
		for _, o := range w.Endpoints {
			if object.RefOf(o).Key() == object.RefOf(f.service).Key() {
				annotate(to, o.Metadata.Annotations)
			}
		}
	}
}

// Serving is the Service of a Gateway.
func (w *World) Serving(gw *object.Gateway) *object.Service {
	i := slices.IndexFunc(w.Services, func(s *object.Service) bool { return object.RefOf(s).Key() == ServiceOf(gw) })
	return w.Services[i]
}

// Programmed reports whether a Gateway has the addresses that it asks for, or any.
func (w *World) Programmed(gw *object.Gateway) bool {
	has := w.Serving(gw).Status.LoadBalancer.Ingress
	for _, a := range gw.Spec.Addresses {
		if !slices.ContainsFunc(has, func(i object.LoadBalancerIngress) bool { return a.Value == nil || i.IP == *a.Value }) {
			return false
		}
	}
	return len(has) > 0
}

// IsTaken reports whether another Service or a program has the port of a listener.
func (w *World) IsTaken(gw *object.Gateway, l *object.Listener) bool {
	return slices.ContainsFunc(w.Attempts(w.Serving(gw)), func(a Attempt) bool {
		return string(a.Packet.Protocol) == l.Protocol && int32(a.Packet.To.Port()) == l.Port &&
			(slices.Contains(a.Lacks, LacksClaim) || slices.Contains(a.Lacks, LacksPort))
	})
}

// Parents returns the existing Gateways that a route names.
func (w *World) Parents(o object.Object) (all []*object.Gateway) {
	for _, r := range w.routes() {
		if r.kind != o.GetTypeMeta().Kind || r.meta.Namespace != o.GetMeta().Namespace || r.meta.Name != o.GetMeta().Name {
			continue
		}
		for _, gw := range w.Gateways {
			if parent := r.spec.ParentRefs[0]; gw.Metadata.Namespace == *parent.Namespace && gw.Metadata.Name == parent.Name {
				all = append(all, gw)
			}
		}
	}
	return all
}

// Judge reports whether a listener takes a route, and whether all of its backends can be used.
func (w *World) Judge(o object.Object) (accepted, resolved bool) {
	for _, r := range w.routes() {
		if r.kind != o.GetTypeMeta().Kind || r.meta.Namespace != o.GetMeta().Namespace || r.meta.Name != o.GetMeta().Name {
			continue
		}
		for _, gw := range w.Gateways {
			for i := range gw.Spec.Listeners {
				accepted = accepted || takes(gw, &gw.Spec.Listeners[i], r)
			}
		}
		resolved = !slices.ContainsFunc(r.spec.Rules[0].BackendRefs, func(ref object.BackendRef) bool { _, is := w.backendPort(r, ref); return !is })
	}
	return accepted, resolved
}
