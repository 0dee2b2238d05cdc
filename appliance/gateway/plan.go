package gateway

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	// ControllerName is the GatewayClass.spec.controllerName of svcctl.
	ControllerName = object.GatewayController
	// ClassName is the name of the GatewayClass that svcctl creates itself.
	ClassName = "svcctl"
)

// Objects finds the objects that Plan reads. The returned objects are immutable.
type Objects interface {
	// Get returns an object, nil when there is none.
	Get(ref object.Ref) object.Object
	// Service returns a Service, nil when there is none, with its EndpointSlices, sorted by name.
	Service(key string) (*object.Service, []*object.EndpointSlice)
	// Children returns the routes and ListenerSets that name a Gateway or ListenerSet as a parent, in any order.
	Children(parent object.Ref) []object.Object
	// Families returns the IP families of a Service that does not request any.
	Families() []string
	// Grants returns the ReferenceGrants of a namespace.
	Grants(namespace string) []*object.ReferenceGrant
	// IsGenerated reports whether an object exists and was generated for a Gateway.
	IsGenerated(ref object.Ref) bool
	// Holder returns the Gateway that has the name of a generated Service. The names of two Gateways may lead to one name of a Service.
	Holder(service string) object.Ref
	// Trouble returns the problems of a generated Service, nil if it is served as it is stored.
	Trouble(key string) []Trouble
}

// Trouble is a problem of a generated Service.
type Trouble struct {
	Port    int  // index of the Service port that is not served; -1: the addresses are the problem
	Failed  bool // the generated objects as a whole could not be stored
	Message string
}

// Planned is the result of planning a Gateway: the objects to write, and what they depend on.
type Planned struct {
	// Generated are the objects that serve the Gateway.
	Generated []object.Object
	// Statuses are the new statuses of the Gateway, its ListenerSets and its routes. Conditions have no transition times, and routes have only the
	// parents entries of this Gateway. Merge adds both.
	Statuses []object.Object
	// Refs are the objects that the plan depends on, whether they exist or not. A ReferenceGrant without a name stands for all of its namespace.
	Refs []object.Ref
	// Service is the key of the Service of the Gateway.
	Service string
	// Pending is set when a condition can be decided only after the dataplane is programmed.
	Pending bool
	// Problems are the conditions of Gateways, ListenerSets and routes that are not met, for the status of the appliance.
	Problems []object.Problem
}

// IsOurs reports whether an object is a GatewayClass with svcctl's controller.
func IsOurs(class object.Object) bool {
	c, is := class.(*object.GatewayClass)
	return is && c.Spec.ControllerName == ControllerName
}

// plan is the state of one call of Plan.
type plan struct {
	objs    Objects
	gateway *object.Gateway
	ref     object.Ref
	refs    map[object.Ref]struct{}
	out     Planned

	sets      []*listenerSet
	listeners []*listener // in the order of precedence
	routes    []*route    // the oldest first
	// accepted is the condition Accepted of the Gateway. refused is set when no part of the Gateway may be served.
	accepted condition
	refused  bool
	// taken names the object of another owner that already has the name of the Service; "" if there is none.
	taken string
}

// Plan computes the objects that serve a Gateway, and all statuses. The Gateway must have a class of svcctl. programmed is set when the generated
// objects are in the kernel.
func Plan(gw *object.Gateway, objs Objects, programmed bool) Planned {
	p := &plan{objs: objs, gateway: gw, ref: object.RefOf(gw), refs: map[object.Ref]struct{}{}}
	p.note(object.Ref{Kind: object.KindGatewayClass, Name: gw.Spec.GatewayClassName})
	p.collect()
	p.checkListeners()
	p.conflicts()
	p.judge()
	p.attach()
	p.generate()
	p.status(programmed)
	p.out.Refs = slices.Collect(maps.Keys(p.refs))
	return p.out
}

// note records in p.refs that the plan depends on an object.
func (p *plan) note(ref object.Ref) { p.refs[ref] = struct{}{} }

// get returns an object, nil if it does not exist, and records that the plan depends on it.
func (p *plan) get(ref object.Ref) object.Object {
	p.note(ref)
	return p.objs.Get(ref)
}

// collect fills in the ListenerSets and the routes of the Gateway, by age, and the listeners, by precedence.
func (p *plan) collect() {
	for i := range p.gateway.Spec.Listeners {
		p.addListener(p.ref, &p.gateway.Metadata, nil, &p.gateway.Spec.Listeners[i])
	}
	for _, o := range p.objs.Children(p.ref) {
		if set, is := o.(*object.ListenerSet); is {
			p.sets = append(p.sets, &listenerSet{object: set, ref: object.RefOf(set)})
		} else if r := routeOf(o); r != nil {
			p.routes = append(p.routes, r)
		}
	}
	slices.SortFunc(p.sets, func(a, b *listenerSet) int { return object.ByAge(&a.object.Metadata, &b.object.Metadata) })
	for rank, set := range p.sets {
		for _, o := range p.objs.Children(set.ref) {
			if r := routeOf(o); r != nil && !slices.ContainsFunc(p.routes, func(other *route) bool { return other.ref == r.ref }) {
				p.routes = append(p.routes, r)
			}
		}
		set.allowed = p.allows(p.gateway.Spec.AllowedListeners, set.object.Metadata.Namespace)
		if !set.allowed {
			continue
		}
		for i := range set.object.Spec.Listeners {
			p.addListener(set.ref, &set.object.Metadata, set, &set.object.Spec.Listeners[i]).rank = rank + 1
		}
	}
	slices.SortFunc(p.routes, func(a, b *route) int {
		return cmp.Or(object.ByAge(a.meta, b.meta), strings.Compare(a.ref.Kind, b.ref.Kind))
	})
}

func (p *plan) addListener(owner object.Ref, meta *object.ObjectMeta, set *listenerSet, spec *object.Listener) *listener {
	l := &listener{owner: owner, meta: meta, set: set, spec: spec, layer4: protocols[spec.Protocol].layer4}
	l.port = strings.ToLower(l.layer4) + "-" + strconv.Itoa(int(spec.Port))
	p.listeners = append(p.listeners, l)
	return l
}

// allows reports whether spec.allowedListeners of the Gateway permits ListenerSets of a namespace.
func (p *plan) allows(allowed *object.AllowedListeners, namespace string) bool {
	if allowed == nil || allowed.Namespaces == nil {
		return false
	}
	from := object.Deref(allowed.Namespaces.From)
	return from != "" && from != object.FromNone && p.isIn(namespace, from, allowed.Namespaces.Selector, p.gateway.Metadata.Namespace)
}

// isIn reports whether a field "from" (All, Selector or Same), with its selector, selects a namespace. Same selects only own, which is the namespace
// of the object that has the field.
func (p *plan) isIn(namespace, from string, selector *object.LabelSelector, own string) bool {
	switch from {
	case object.FromAll:
		return true
	case object.FromSelector:
		ns := p.get(object.Ref{Kind: object.KindNamespace, Name: namespace})
		return ns != nil && selector != nil && selector.Matches(ns.GetMeta().Labels)
	}
	return namespace == own
}

// isGranted reports whether an object of the given kind and namespace may refer to another object, named by the parameter to. Both must be in the
// same namespace, or a ReferenceGrant in to.Namespace must permit the reference.
func (p *plan) isGranted(kind, namespace string, to object.Ref) bool {
	if namespace == to.Namespace {
		return true
	}
	p.note(object.Ref{Kind: object.KindReferenceGrant, Namespace: to.Namespace})
	for _, grant := range p.objs.Grants(to.Namespace) {
		from := slices.ContainsFunc(grant.Spec.From, func(f object.ReferenceGrantFrom) bool {
			return object.Deref(f.Group) == object.GroupGateway && f.Kind == kind && f.Namespace == namespace
		})
		if from && slices.ContainsFunc(grant.Spec.To, func(t object.ReferenceGrantTo) bool {
			return object.Deref(t.Group) == "" && t.Kind == to.Kind && (t.Name == nil || *t.Name == to.Name)
		}) {
			return true
		}
	}
	return false
}

// maxServiceName is the largest length of the name of a generated Service in bytes: the name is also the value of a label.
const maxServiceName = 63

// named returns name if it is at most maxServiceName bytes and unique is "". Otherwise it appends a hash of both, and truncates name to make room for
// it.
func named(name, unique string) string {
	if unique == "" && len(name) <= maxServiceName {
		return name
	}
	tail := "-" + hash(name+"\x00"+unique)
	return strings.TrimRight(name[:min(len(name), maxServiceName-len(tail))], "-.") + tail
}

func hash(text string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return fmt.Sprintf("%08x", h.Sum32())
}

// ServiceName returns the name of the Service of a Gateway (GEP-1762).
func ServiceName(gw *object.Gateway) string {
	return named(strings.ReplaceAll(gw.Metadata.Name, ".", "-")+"-"+strings.ReplaceAll(gw.Spec.GatewayClassName, ".", "-"), "")
}

// generate adds the Services, EndpointSlices and Secrets that serve the Gateway to p.out.Generated. It adds none if another object has the
// name of its Service.
func (p *plan) generate() {
	name := ServiceName(p.gateway)
	p.out.Service = p.gateway.Metadata.Namespace + "/" + name
	ref := object.ServiceRef(p.out.Service)
	if o := p.get(ref); o != nil && !p.objs.IsGenerated(ref) {
		p.taken = ref.String()
	} else if holder := p.objs.Holder(p.out.Service); holder != p.ref {
		p.taken = ref.String() + " of " + holder.String()
	}
	if p.taken != "" || p.refused {
		return
	}
	svc := p.service(name, object.TypeLoadBalancer, !slices.ContainsFunc(p.listeners, (*listener).terminates))
	svc.Spec.AllocateLoadBalancerNodePorts = new(bool)
	families := p.addresses(svc)
	done := map[string]bool{}
	for _, l := range p.listeners {
		if !l.serves() || done[l.port] {
			continue
		}
		done[l.port] = true
		svc.Spec.Ports = append(svc.Spec.Ports, object.ServicePort{Name: l.port, Protocol: l.layer4, Port: l.spec.Port, TargetPort: object.IntOrString{Int: l.spec.Port}})
		if r := p.firstOf(l); r == nil {
			for _, family := range families {
				s := p.slice(svc, group{}, "", family, l, nil)
				delete(s.Metadata.Annotations, object.AnnotationShare)
				p.out.Generated = append(p.out.Generated, s)
			}
		} else if l.isNamed() {
			p.lead(svc, l, families)
		} else {
			if hosts := p.hostsAt(l.spec.Port); l.spec.Protocol == object.ProtocolHTTP && len(hosts) > 0 {
				svc.Metadata.Annotations[annotation.HTTPHosts+"."+l.port] = strings.Join(hosts, ",")
			}
			p.slices(svc, r, l, families)
		}
	}
	p.fit(svc)
	if len(svc.Spec.Ports) > 0 {
		p.out.Generated = append([]object.Object{svc}, p.out.Generated...)
	}
}

// firstOf returns the oldest route on the port of a listener, nil if there is none. It considers only routes that are attached to serving listeners.
func (p *plan) firstOf(of *listener) (first *route) {
	for _, l := range p.listeners {
		if l.serves() && l.port == of.port && len(l.attached) > 0 {
			if r := l.attached[0].route; first == nil || slices.Index(p.routes, r) < slices.Index(p.routes, first) {
				first = r
			}
		}
	}
	return first
}

// service returns a new Service for the Gateway, without ports. kind is the type of the Service, ClusterIP or LoadBalancer. If ends is set, it has the
// annotations of the Gateway about TLS of clients: where no listener ends TLS, they are errors, as at every Service.
func (p *plan) service(name, kind string, ends bool) *object.Service {
	svc := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: p.meta(name), Spec: object.ServiceSpec{Type: kind},
	}
	svc.Metadata.Annotations = map[string]string{}
	if infra := p.gateway.Spec.Infrastructure; infra != nil {
		for key, value := range infra.Annotations {
			about := !ends && strings.HasPrefix(key, "svcctl.io/tls-") || strings.HasPrefix(key, object.AnnotationTLSServices) || strings.HasPrefix(key, object.AnnotationTLSSecret)
			if kind != object.TypeLoadBalancer {
				about = about || key == annotation.LoadBalancerIPs || key == object.AnnotationPortRanges || key == annotation.SharingKey
			}
			if !about {
				svc.Metadata.Annotations[key] = value
			}
		}
	}
	return svc
}

// meta returns the metadata of a generated object. Its labels include those in spec.infrastructure of the Gateway, and its owner is the Gateway. It
// has no annotations.
func (p *plan) meta(name string) object.ObjectMeta {
	gw, yes := p.gateway, true
	meta := object.ObjectMeta{
		Name: name, Namespace: gw.Metadata.Namespace,
		Labels: map[string]string{},
		OwnerReferences: []object.OwnerReference{{
			APIVersion: object.APIVersionGateway, Kind: object.KindGateway, Name: gw.Metadata.Name, UID: gw.Metadata.UID, Controller: &yes, BlockOwnerDeletion: &yes,
		}},
	}
	if gw.Spec.Infrastructure != nil {
		maps.Copy(meta.Labels, gw.Spec.Infrastructure.Labels)
	}
	meta.Labels[object.LabelGateway], meta.Labels[object.LabelGatewayClass] = named(gw.Metadata.Name, ""), named(gw.Spec.GatewayClassName, "")
	return meta
}

// addresses sets the addresses that svc requests for spec.addresses of the Gateway, and returns the IP families of the Service. It keeps the first
// family of the stored Service if possible, since that is immutable.
func (p *plan) addresses(svc *object.Service) (families []string) {
	wanted, had := []string(nil), p.objs.Families()
	old, is := p.objs.Get(object.RefOf(svc)).(*object.Service)
	if is = is && len(old.Spec.IPFamilies) > 0; is {
		had = old.Spec.IPFamilies
	}
	for i := range p.gateway.Spec.Addresses {
		value := object.Deref(p.gateway.Spec.Addresses[i].Value)
		addr, err := netip.ParseAddr(value)
		if err != nil {
			continue // any address of a pool
		}
		wanted = append(wanted, addr.Unmap().String())
		if family := map[bool]string{false: object.IPv4, true: object.IPv6}[addr.Unmap().Is6()]; !slices.Contains(families, family) {
			families = append(families, family)
		}
	}
	if len(wanted) > 0 {
		if len(families) == 2 && families[0] != had[0] {
			slices.Reverse(families)
		}
		svc.Metadata.Annotations[annotation.LoadBalancerIPs] = strings.Join(wanted, ",")
	} else if is {
		families = had[:1] // as a new Service gets, which had others for addresses that are no longer asked for
	}
	if len(families) > 0 {
		svc.Spec.IPFamilies = families
		policy := []string{object.SingleStack, object.RequireDualStack}[len(families)-1]
		svc.Spec.IPFamilyPolicy = &policy
		return families
	}
	return had
}

// lead generates a Service for each route of each TLS listener of a port, and annotates svc so that its relay chooses among them by TLS
// server name. Connections for the hostname of a listener that no route serves, and for all other names, are reset instead of going to a listener with
// a less specific hostname.
func (p *plan) lead(svc *object.Service, first *listener, families []string) {
	to := map[string]string{"*": ""} // by name; "" resets connections
	for _, l := range p.listeners {
		if !l.serves() || l.port != first.port {
			continue
		}
		to[serverName(l.hostname())] = ""
		for _, a := range l.attached {
			names := slices.DeleteFunc(slices.Clone(a.names), func(name string) bool { return !l.isFor(a, name) || p.isLeft(l, name) })
			if len(names) == 0 {
				continue // other routes, or other listeners, have them all
			}
			child := p.child(svc, l, a.route)
			for _, name := range names {
				to[serverName(name)] = child.Metadata.Name
			}
			p.out.Generated = append(p.out.Generated, child)
			p.slices(child, a.route, l, families)
		}
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(to)) {
		pairs = append(pairs, name+"="+to[name])
	}
	svc.Metadata.Annotations[object.AnnotationTLSServices+"."+first.port] = strings.Join(pairs, ",")
}

// isFor reports whether connections for a server name go to an attachment. They go to the route with the most specific hostname for that name at the
// listener, and to the oldest one among equals.
func (l *listener) isFor(a *attachment, name string) bool {
	best, rank := a, a.route.rankAt(l, name)
	for _, other := range slices.Backward(l.attached) {
		if r := other.route.rankAt(l, name); slices.Contains(other.names, name) && r >= rank {
			best, rank = other, r
		}
	}
	return best == a
}

// isLeft reports whether a listener leaves a hostname of its own to another one of its port, whose hostname is more specific (GatewaySpec.listeners).
func (p *plan) isLeft(l *listener, name string) bool {
	return slices.ContainsFunc(p.listeners, func(other *listener) bool {
		return other.serves() && other.port == l.port && other.hostname() != l.hostname() && covers(l.hostname(), other.hostname()) && covers(other.hostname(), name)
	})
}

// serverName returns the form of a listener's hostname in the annotation svcctl.io/tls-services: "**." stands for one label or more, "*"
// for any name.
func serverName(hostname string) string {
	if strings.HasPrefix(hostname, "*.") {
		return "*" + hostname
	}
	return cmp.Or(hostname, "*")
}

// child generates the Service of a route at a TLS listener. The Service svc of the Gateway passes connections on to it by server name.
func (p *plan) child(svc *object.Service, l *listener, r *route) *object.Service {
	of := l.owner.String() + "/" + l.spec.Name + " " + r.ref.String()
	child := p.service(named(svc.Metadata.Name+"-"+strings.ReplaceAll(r.meta.Name, ".", "-"), of), object.TypeClusterIP, l.terminates() || !slices.ContainsFunc(p.listeners, (*listener).terminates))
	child.Spec.IPFamilies, child.Spec.IPFamilyPolicy = svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy
	child.Spec.Ports = []object.ServicePort{{Name: l.port, Protocol: object.ProtocolTCP, Port: l.spec.Port, TargetPort: object.IntOrString{Int: l.spec.Port}}}
	describe(child.Metadata.Annotations, l, r)
	if l.terminates() {
		var names []string
		for _, secret := range l.secrets {
			names = append(names, p.certificate(secret))
		}
		child.Metadata.Annotations[object.AnnotationTLSSecret] = strings.Join(names, ",")
	}
	p.fit(child)
	return child
}

// fit removes from a generated Service the annotations about ports of the Gateway that it does not have. Where it ends no TLS, it passes connections of
// TLS on as they are, whatever protocol the Gateway has for endpoints.
func (p *plan) fit(svc *object.Service) {
	of := svc.Metadata.Annotations
	for _, l := range p.listeners {
		own := object.AnnotationBackendProtocol + "." + l.port
		if !slices.ContainsFunc(svc.Spec.Ports, func(port object.ServicePort) bool { return port.Name == l.port }) {
			maps.DeleteFunc(of, func(key, _ string) bool { return strings.HasSuffix(key, "."+l.port) })
		} else if of[object.AnnotationTLSSecret] == "" && l.isNamed() && of[object.AnnotationBackendProtocol]+of[own] != "" {
			of[own] = "tcp"
		}
	}
}

// certificate returns the name of the Secret with a certificate in the namespace of the Gateway. If a ReferenceGrant permits a Secret of another
// namespace, certificate generates a copy of it in the namespace of the Gateway.
func (p *plan) certificate(ref object.Ref) string {
	if ref.Namespace == p.gateway.Metadata.Namespace {
		return ref.Name
	}
	name := named(ServiceName(p.gateway), "Secret "+ref.Key())
	if !slices.ContainsFunc(p.out.Generated, func(o object.Object) bool {
		return o.GetTypeMeta().Kind == object.KindSecret && o.GetMeta().Name == name
	}) {
		secret := p.objs.Get(ref).(*object.Secret)
		p.out.Generated = append(p.out.Generated, &object.Secret{TypeMeta: secret.TypeMeta, Metadata: p.meta(name), Type: secret.Type, Data: secret.Data})
	}
	return name
}

// describe annotates a generated object with the listener and the route, which may be nil, that it was generated for.
func describe(annotations map[string]string, l *listener, r *route) {
	annotations[object.AnnotationListener] = l.owner.Kind + "/" + l.owner.Key() + "/" + l.spec.Name
	if r != nil {
		annotations[object.AnnotationRoute] = r.ref.Kind + "/" + r.ref.Key()
	}
}

// slices generates the EndpointSlices of a Service for the port of a listener. The endpoints are taken from the slices of the route's backends.
func (p *plan) slices(svc *object.Service, r *route, l *listener, families []string) {
	var out []string
	for _, g := range r.groups[l.layer4] {
		for _, family := range families {
			before := len(p.out.Generated)
			for _, from := range g.slices {
				port := portOf(from, g.port)
				if from.AddressType != family || port == nil || len(from.Endpoints) == 0 {
					continue
				}
				s := p.slice(svc, g, from.Metadata.Name, family, l, r)
				s.Ports[0].Port, s.Endpoints = port.Port, from.Endpoints
				for _, key := range []string{object.AnnotationWeight, object.AnnotationCiliumWeight, object.AnnotationPriority} {
					if value, is := from.Metadata.Annotations[key]; is {
						s.Metadata.Annotations[key] = value
					}
				}
				p.out.Generated = append(p.out.Generated, s)
			}
			if len(p.out.Generated) == before { // its share is refused
				p.out.Generated = append(p.out.Generated, p.slice(svc, g, "", family, l, r))
			}
		}
		if g.service != nil && g.service.Metadata.Annotations[health.AnnotationOut] != "" {
			out = append(out, g.service.Metadata.Annotations[health.AnnotationOut])
		}
	}
	if len(out) > 0 { // endpoints that are taken out of a backend get no connections of the Gateway either
		if own := svc.Metadata.Annotations[health.AnnotationOut]; own != "" {
			out = append([]string{own}, out...)
		}
		svc.Metadata.Annotations[health.AnnotationOut] = strings.Join(out, ",")
	}
}

// portOf returns the port of a slice with the name and protocol of a Service port, nil if the slice has none.
func portOf(s *object.EndpointSlice, port *object.ServicePort) *object.EndpointPort {
	for i := range s.Ports {
		p := &s.Ports[i]
		if object.Deref(p.Name) == port.Name && cmp.Or(object.Deref(p.Protocol), object.ProtocolTCP) == cmp.Or(port.Protocol, object.ProtocolTCP) && object.Deref(p.Port) != 0 {
			return p
		}
	}
	return nil
}

// slice returns a new EndpointSlice without endpoints for one backend of a route.
func (p *plan) slice(svc *object.Service, g group, from, family string, l *listener, r *route) *object.EndpointSlice {
	name, protocol, number := l.port, l.layer4, l.spec.Port
	backend, _, _ := strings.Cut(g.name[strings.IndexByte(g.name, '/')+1:], ":")
	s := &object.EndpointSlice{
		TypeMeta:    object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata:    p.meta(svc.Metadata.Name + "-" + cmp.Or(backend, "none") + "-" + hash(strings.Join([]string{name, g.name, from, family}, "\x00"))),
		AddressType: family, Endpoints: []object.Endpoint{},
		Ports: []object.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}},
	}
	s.Metadata.Labels[object.LabelServiceName], s.Metadata.Labels[object.LabelManagedBy] = svc.Metadata.Name, "gateway-controller.svcctl.io"
	s.Metadata.Annotations = map[string]string{object.AnnotationShare: fmt.Sprintf("%s=%d", g.name, g.weight)}
	describe(s.Metadata.Annotations, l, r)
	return s
}
