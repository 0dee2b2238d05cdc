package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// route holds what TCPRoutes, UDPRoutes, TLSRoutes and HTTPRoutes have in common.
type route struct {
	object    object.Object
	ref       object.Ref
	meta      *object.ObjectMeta
	parents   []object.ParentRef
	hostnames []string
	backends  []object.BackendRef
	status    *object.RouteStatus
	// unserved is the reason why a route of this form cannot be served; "" if it can.
	unserved string

	// outcome has the outcomes of the parentRefs that refer to the Gateway or its ListenerSets, by index of the parentRef.
	outcome map[int]*outcome
	// resolved is the condition ResolvedRefs of the route. groups has the endpoints of its backends, by protocol of the Service port.
	resolved condition
	groups   map[string][]group
}

// outcome is the result of attaching a route by one of its parentRefs.
type outcome struct {
	accepted condition
	attached []*attachment
}

// attachment is a route that is attached to a listener.
type attachment struct {
	route    *route
	listener *listener
	// names are the hostnames that match both the route and the listener; "" stands for any.
	names []string
}

// routeOf converts a TCPRoute, UDPRoute, TLSRoute or HTTPRoute to a route; nil for other kinds.
func routeOf(o object.Object) *route {
	r := &route{object: o, ref: object.RefOf(o), meta: o.GetMeta(), outcome: map[int]*outcome{}}
	rules := func(list []object.L4RouteRule) {
		for i := range list {
			r.backends = append(r.backends, list[i].BackendRefs...)
		}
	}
	switch o := o.(type) {
	case *object.TCPRoute:
		r.parents, r.status = o.Spec.ParentRefs, &o.Status
		rules(o.Spec.Rules)
	case *object.UDPRoute:
		r.parents, r.status = o.Spec.ParentRefs, &o.Status
		rules(o.Spec.Rules)
	case *object.TLSRoute:
		r.parents, r.hostnames, r.status = o.Spec.ParentRefs, o.Spec.Hostnames, &o.Status
		rules(o.Spec.Rules)
	case *object.HTTPRoute:
		r.parents, r.hostnames, r.status = o.Spec.ParentRefs, o.Spec.Hostnames, &o.Status
		r.readHTTP(o)
	default:
		return nil
	}
	return r
}

// ParentsOf returns the Gateways and ListenerSets that a route or ListenerSet names as its parents.
func ParentsOf(o object.Object) (refs []object.Ref) {
	if set, is := o.(*object.ListenerSet); is {
		ref := &set.Spec.ParentRef
		return []object.Ref{{Kind: object.KindGateway, Namespace: cmp.Or(object.Deref(ref.Namespace), set.Metadata.Namespace), Name: ref.Name}}
	}
	if r := routeOf(o); r != nil {
		for i := range r.parents {
			if ref := r.parent(i); ref != (object.Ref{}) && !slices.Contains(refs, ref) {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// parent returns the object that the parentRef of index i names; the zero Ref if it is neither a Gateway nor a ListenerSet.
func (r *route) parent(i int) object.Ref {
	ref := &r.parents[i]
	kind, group := valueOr(ref.Kind, object.KindGateway), valueOr(ref.Group, object.GroupGateway)
	if group != object.GroupGateway || kind != object.KindGateway && kind != object.KindListenerSet {
		return object.Ref{}
	}
	return object.Ref{Kind: kind, Namespace: cmp.Or(object.Deref(ref.Namespace), r.meta.Namespace), Name: ref.Name}
}

// valueOr returns the value of an optional field, or its default.
func valueOr[T any](field *T, otherwise T) T {
	if field == nil {
		return otherwise
	}
	return *field
}

// readHTTP reads an HTTPRoute into r. It is served if it has a single rule without matches and filters, like a TCPRoute; otherwise
// r.unserved is set.
func (r *route) readHTTP(o *object.HTTPRoute) {
	whole := len(o.Spec.Rules) == 1
	for i := range o.Spec.Rules {
		rule := &o.Spec.Rules[i]
		for j := range rule.Matches {
			m := &rule.Matches[j]
			path := m.Path == nil || (object.Deref(m.Path.Type) == "" || *m.Path.Type == "PathPrefix") && (object.Deref(m.Path.Value) == "" || *m.Path.Value == "/")
			whole = whole && path && len(m.Headers)+len(m.QueryParams) == 0 && m.Method == nil
		}
		whole = whole && len(rule.Filters) == 0
		if rule.Timeouts != nil {
			r.unserved = "svcctl balances connections: timeouts of requests are not served; set svcctl.io/idle-timeout in spec.infrastructure.annotations of the Gateway"
		}
		for j := range rule.BackendRefs {
			whole = whole && len(rule.BackendRefs[j].Filters) == 0
			r.backends = append(r.backends, rule.BackendRefs[j].Backend())
		}
	}
	if !whole {
		r.unserved = "svcctl balances connections: matches, filters and several rules are not served"
	}
}

// attach attaches the routes to the listeners that their parentRefs select, and resolves their backends.
func (p *plan) attach() {
	for _, r := range p.routes {
		for i := range r.parents {
			p.attachTo(r, i)
		}
		p.resolve(r)
	}
	for _, l := range p.listeners {
		p.limitHTTP(l)
	}
}

// attachTo attaches a route to the listeners that the parentRef of index i selects, and sets the condition Accepted of that parentRef.
func (p *plan) attachTo(r *route, i int) {
	parent := r.parent(i)
	if parent != p.ref && !slices.ContainsFunc(p.sets, func(s *listenerSet) bool { return s.ref == parent }) {
		return // it is another Gateway's
	}
	ref, refusal := &r.parents[i], ""
	found, hosted := false, false
	out := &outcome{}
	r.outcome[i] = out
	for _, l := range p.listeners {
		if l.owner != parent || ref.SectionName != nil && *ref.SectionName != l.spec.Name || ref.Port != nil && *ref.Port != l.spec.Port {
			continue
		}
		found = true
		if !slices.Contains(l.kinds, r.ref.Kind) {
			refusal = cmp.Or(refusal, fmt.Sprintf("%s takes no %s", l, r.ref.Kind))
			continue
		}
		from, selector := object.FromSame, (*object.LabelSelector)(nil)
		if a := l.spec.AllowedRoutes; a != nil && a.Namespaces != nil {
			from, selector = cmp.Or(object.Deref(a.Namespaces.From), from), a.Namespaces.Selector
		}
		if !p.isIn(r.meta.Namespace, from, selector, l.meta.Namespace) {
			refusal = cmp.Or(refusal, fmt.Sprintf("%s takes no routes of namespace %s (allowedRoutes.namespaces)", l, r.meta.Namespace))
			continue
		}
		hosted = true
		if names := r.namesAt(l); len(names) > 0 {
			out.attached = append(out.attached, &attachment{r, l, names})
		}
	}
	switch {
	case !found:
		what := "no listener"
		if ref.SectionName != nil {
			what += " named " + *ref.SectionName
		}
		if ref.Port != nil {
			what += fmt.Sprintf(" at port %d", *ref.Port)
		}
		out.accepted = no("Accepted", "NoMatchingParent", fmt.Sprintf("%s %s has %s that takes part", parent.Kind, parent.Key(), what))
	case !hosted:
		out.accepted = no("Accepted", "NotAllowedByListeners", refusal)
	case len(out.attached) == 0:
		out.accepted = no("Accepted", "NoMatchingListenerHostname", fmt.Sprintf("none of spec.hostnames (%s) is one of the listeners' hostnames", strings.Join(r.hostnames, ", ")))
	case r.unserved != "":
		out.attached, out.accepted = nil, no("Accepted", "UnsupportedValue", r.unserved)
	default:
		out.accepted = yes("Accepted", "Accepted", "the route is attached")
	}
	for _, a := range out.attached {
		if !slices.ContainsFunc(a.listener.attached, func(other *attachment) bool { return other.route == r }) {
			a.listener.attached = append(a.listener.attached, a)
		}
	}
}

// namesAt returns the hostnames that both the listener and the route match, none if they have nothing in common.
func (r *route) namesAt(l *listener) (names []string) {
	if l.layer4 == "" || l.spec.Protocol != object.ProtocolHTTP && !l.isNamed() || len(r.hostnames) == 0 {
		return []string{l.hostname()}
	}
	for _, h := range r.hostnames {
		if name, has := intersect(l.hostname(), h); has && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// rankAt ranks how specifically a route matches name at a listener. It considers the hostnames of the route whose intersection with the listener's
// hostname is name, and returns the highest rank among them, 0 if there are none. Exact hostnames rank above wildcards, and longer hostnames above
// shorter ones.
func (r *route) rankAt(l *listener, name string) (rank int) {
	for _, h := range r.hostnames {
		if at, has := intersect(l.hostname(), h); has && at == name {
			rank = max(rank, len(h)+map[bool]int{true: 1, false: 1000}[strings.HasPrefix(h, "*")])
		}
	}
	return rank
}

// limitHTTP detaches all HTTPRoutes from an HTTP listener except the oldest one of its port, and sets them to not accepted. All connections of a port
// must go to one route, since requests are not routed individually.
func (p *plan) limitHTTP(l *listener) {
	if l.spec.Protocol != object.ProtocolHTTP || !l.serves() {
		return
	}
	first := p.firstOf(l)
	l.attached = slices.DeleteFunc(l.attached, func(a *attachment) bool {
		if a.route == first {
			return false
		}
		why := fmt.Sprintf("svcctl balances connections: those of HTTP port %d go to one HTTPRoute, which is %s", l.spec.Port, first.ref.Key())
		for _, out := range a.route.outcome {
			if out.attached = slices.DeleteFunc(out.attached, func(other *attachment) bool { return other == a }); len(out.attached) == 0 && out.accepted.is {
				out.accepted = no("Accepted", "UnsupportedValue", why)
			}
		}
		return true
	})
}

// hostsAt returns the values of the header Host that an HTTP port serves; nil if it serves all.
func (p *plan) hostsAt(port int32) (hosts []string) {
	for _, l := range p.listeners {
		if l.spec.Protocol != object.ProtocolHTTP || l.spec.Port != port || !l.serves() {
			continue
		}
		for _, a := range l.attached {
			if slices.Contains(a.names, "") {
				return nil
			}
			hosts = append(hosts, a.names...)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// group holds the endpoints of one backendRef of a route.
type group struct {
	name    string // the backend; "#2" and so on is appended if the route names it repeatedly
	backend string // "namespace/name:port"
	weight  int32
	port    *object.ServicePort // of the Service; nil: the backend does not exist, or may not be used
	service *object.Service
	slices  []*object.EndpointSlice
}

// resolve sets the condition ResolvedRefs of a route. It also sets r.groups, the backends of the route by protocol, for the protocols of the
// listeners that the route is attached to.
func (p *plan) resolve(r *route) {
	r.resolved, r.groups = yes("ResolvedRefs", "ResolvedRefs", "all references are resolved"), map[string][]group{}
	for _, out := range r.outcome {
		for _, a := range out.attached {
			r.groups[a.listener.layer4] = nil
		}
	}
	if len(r.groups) == 0 { // not attached: its references are judged nevertheless
		r.groups[map[bool]string{true: object.ProtocolUDP, false: object.ProtocolTCP}[r.ref.Kind == object.KindUDPRoute]] = nil
	}
	for protocol := range r.groups {
		for i := range r.backends {
			b := &r.backends[i]
			ref := object.Ref{Kind: object.KindService, Namespace: cmp.Or(object.Deref(b.Namespace), r.meta.Namespace), Name: b.Name}
			g := group{backend: fmt.Sprintf("%s:%d", ref.Key(), object.Deref(b.Port)), weight: valueOr(b.Weight, 1)}
			if reason, why := p.findBackend(r, b, ref, protocol, &g); reason != "" && r.resolved.is {
				r.resolved = no("ResolvedRefs", reason, fmt.Sprintf("spec.rules[0].backendRefs[%d]: %s; its share of the connections is refused", i, why))
			}
			g.name = g.backend
			for n := 2; slices.ContainsFunc(r.groups[protocol], func(other group) bool { return other.name == g.name }); n++ {
				g.name = fmt.Sprintf("%s#%d", g.backend, n)
			}
			r.groups[protocol] = append(r.groups[protocol], g)
		}
	}
}

// findBackend sets g to the Service and port that a backendRef names. reason is the reason for setting ResolvedRefs to false, or "" if the backend
// may be used.
func (p *plan) findBackend(r *route, b *object.BackendRef, ref object.Ref, wanted string, g *group) (reason, why string) {
	kind := valueOr(b.Kind, object.KindService)
	if object.Deref(b.Group) != "" || kind != object.KindService {
		return "InvalidKind", fmt.Sprintf("a backend is a Service of the core group, not %s %q", kind, b.Name)
	}
	if !p.isGranted(r.ref.Kind, r.meta.Namespace, ref) {
		return "RefNotPermitted", fmt.Sprintf("no ReferenceGrant in namespace %s lets %ss of namespace %s refer to Service %s", ref.Namespace, r.ref.Kind, r.meta.Namespace, ref.Name)
	}
	p.note(ref)
	svc, slices := p.objs.Service(ref.Key())
	switch {
	case svc == nil:
		return "BackendNotFound", fmt.Sprintf("there is no Service %s", ref.Key())
	case p.objs.IsGenerated(ref):
		return "InvalidKind", fmt.Sprintf("Service %s is generated of a Gateway, which is no backend", ref.Key())
	case svc.Spec.Type == object.TypeExternalName:
		return "BackendNotFound", fmt.Sprintf("Service %s is of type ExternalName, and has no endpoints", ref.Key())
	}
	number := object.Deref(b.Port)
	var other *object.ServicePort
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		if port.Port == number && cmp.Or(port.Protocol, object.ProtocolTCP) == wanted {
			g.port, g.service, g.slices = port, svc, slices
			return "", ""
		} else if port.Port == number {
			other = port
		}
	}
	if other != nil {
		return "UnsupportedProtocol", fmt.Sprintf("port %d of Service %s is %s, not %s", number, ref.Key(), other.Protocol, wanted)
	}
	return "BackendNotFound", fmt.Sprintf("Service %s has no port %d", ref.Key(), number)
}
