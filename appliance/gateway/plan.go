package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

const (
	// ControllerName is GatewayClass.spec.controllerName of the classes that are served here.
	ControllerName = "svcctl.io/gateway-controller"
	// ClassName is the name of the GatewayClass that is always there.
	ClassName = "svcctl"
)

// Objects lists the objects that a Plan reads. They are never changed afterwards.
type Objects interface {
	// Get returns an object, nil when there is none.
	Get(ref object.Ref) object.Object
	// Service returns a Service, nil when there is none, with its EndpointSlices by name.
	Service(key string) (*object.Service, []*object.EndpointSlice)
	// Children returns the routes and ListenerSets that name a Gateway or ListenerSet as a parent, in any order.
	Children(parent object.Ref) []object.Object
	// Families returns the families of a Service that asks for none.
	Families() []string
	// Grants returns the ReferenceGrants of a namespace.
	Grants(namespace string) []*object.ReferenceGrant
	// IsGenerated reports whether an object is there and was generated of a Gateway.
	IsGenerated(ref object.Ref) bool
	// Trouble returns the problems of a generated Service; nil: it is served as it is stored.
	Trouble(key string) []Trouble
}

// Trouble is a problem of a generated Service.
type Trouble struct {
	Port    int  // the index of the Service port that is not served; -1: it is about the addresses
	Failed  bool // what was generated is refused, with all that it asks for
	Message string
}

// Planned is what comes of a Gateway.
type Planned struct {
	// Generated are the objects that serve it.
	Generated []object.Object
	// Statuses are the new statuses of the Gateway, its ListenerSets and its routes. Conditions have no times, and a route
	// has the parents entries of this Gateway alone: see Merge.
	Statuses []object.Object
	// Refs are the objects that the plan depends on, there or not. A ReferenceGrant without a name stands for those of the namespace.
	Refs []object.Ref
	// Service is the key of the Service of the Gateway.
	Service string
	// Pending is set when a condition waits for the dataplane.
	Pending bool
	// Problems are those that the conditions show, for the status of the appliance.
	Problems []Problem
}

// Problem is a condition that keeps an object from working as written.
type Problem struct {
	Object          object.Ref
	Reason, Message string
	Warning         bool
}

// IsOurs reports whether Gateways of a GatewayClass are served here.
func IsOurs(class object.Object) bool {
	c, is := class.(*object.GatewayClass)
	return is && c.Spec.ControllerName == ControllerName
}

// plan is the work on one Gateway.
type plan struct {
	objs    Objects
	gateway *object.Gateway
	ref     object.Ref
	refs    map[object.Ref]struct{}
	out     Planned

	sets      []*listenerSet
	listeners []*listener // in the order of precedence
	routes    []*route    // the oldest first
	// accepted is the Gateway's condition; refused is set when nothing of it may be served.
	accepted condition
	refused  bool
	// taken names the object that has the name of the Service and belongs to another owner; "": none.
	taken string
}

// Plan plans a Gateway whose class is ours. programmed is set when the dataplane has the generated objects.
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

// note notes that the plan depends on an object.
func (p *plan) note(ref object.Ref) { p.refs[ref] = struct{}{} }

// get returns an object, on which the plan depends from then on.
func (p *plan) get(ref object.Ref) object.Object {
	p.note(ref)
	return p.objs.Get(ref)
}

// collect finds the ListenerSets and the routes of the Gateway, and all listeners.
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
	slices.SortFunc(p.sets, func(a, b *listenerSet) int { return byAge(&a.object.Metadata, &b.object.Metadata) })
	for rank, set := range p.sets {
		set.allowed = p.allows(p.gateway.Spec.AllowedListeners, set.object.Metadata.Namespace)
		if !set.allowed {
			continue
		}
		for i := range set.object.Spec.Listeners {
			p.addListener(set.ref, &set.object.Metadata, set, &set.object.Spec.Listeners[i]).rank = rank + 1
		}
	}
	for _, set := range p.sets {
		for _, o := range p.objs.Children(set.ref) {
			if r := routeOf(o); r != nil && !slices.ContainsFunc(p.routes, func(other *route) bool { return other.ref == r.ref }) {
				p.routes = append(p.routes, r)
			}
		}
	}
	slices.SortFunc(p.routes, func(a, b *route) int { return cmp.Or(byAge(a.meta, b.meta), strings.Compare(a.ref.Kind, b.ref.Kind)) })
}

func (p *plan) addListener(owner object.Ref, meta *object.ObjectMeta, set *listenerSet, spec *object.Listener) *listener {
	l := &listener{owner: owner, meta: meta, set: set, spec: spec, layer4: layer4(spec.Protocol)}
	l.port = strings.ToLower(l.layer4) + "-" + strconv.Itoa(int(spec.Port))
	p.listeners = append(p.listeners, l)
	return l
}

// allows reports whether a Gateway lets in the ListenerSets of a namespace.
func (p *plan) allows(allowed *object.AllowedListeners, namespace string) bool {
	if allowed == nil || allowed.Namespaces == nil {
		return false
	}
	from := object.Deref(allowed.Namespaces.From)
	return from != "" && from != object.FromNone && p.isIn(namespace, from, allowed.Namespaces.Selector, p.gateway.Metadata.Namespace)
}

// isIn reports whether a namespace is one of those that a field from selects, beside the namespace of its own object.
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

// isGranted reports whether a ReferenceGrant lets an object refer to one of another namespace.
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

// byAge orders objects by creation, then by "namespace/name".
func byAge(a, b *object.ObjectMeta) int {
	if a.CreationTimestamp != nil && b.CreationTimestamp != nil {
		if order := a.CreationTimestamp.Compare(*b.CreationTimestamp); order != 0 {
			return order
		}
	}
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}
