package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// condition is a condition of a status without lastTransitionTime.
type condition struct {
	kind    string
	is      bool
	reason  string
	message string
	of      int64 // observedGeneration; 0: the present generation
}

func yes(kind, reason, message string) condition { return condition{kind, true, reason, message, 0} }
func no(kind, reason, message string) condition  { return condition{kind, false, reason, message, 0} }

// conditions returns conditions in the form of the API, with an observedGeneration, their messages cut to maxMessage bytes.
func conditions(generation int64, list ...condition) (all []object.Condition) {
	for _, c := range list {
		status := map[bool]string{false: "False", true: "True"}[c.is]
		if len(c.message) > maxMessage {
			c.message = strings.ToValidUTF8(c.message[:maxMessage-len("…")], "") + "…"
		}
		all = append(all, object.Condition{Type: c.kind, Status: status, ObservedGeneration: cmp.Or(c.of, generation), Reason: c.reason, Message: c.message})
	}
	return all
}

// The limits of statuses in the CustomResourceDefinitions of the Gateway API: bytes of a message, conditions, parents entries of a route.
const (
	maxMessage    = 32768
	maxConditions = 8
	maxParents    = 32
)

// orEarlier returns c unless its reason is Pending. In that case it returns the stored condition of the same type instead, if that is true or of this
// generation. It also sets p.out.Pending then, unless the stored condition is both true and of this generation.
func (p *plan) orEarlier(c condition, generation int64, stored []object.Condition) condition {
	if c.reason != reasonPending {
		return c
	}
	for i := range stored {
		if was := &stored[i]; was.Type == c.kind && (was.Status == "True" || was.ObservedGeneration == generation) {
			p.out.Pending = p.out.Pending || was.Status != "True" || was.ObservedGeneration != generation
			return condition{was.Type, was.Status == "True", was.Reason, was.Message, was.ObservedGeneration}
		}
	}
	p.out.Pending = true
	return c
}

// reasonPending is the reason of conditions that are not decided yet.
const reasonPending = "Pending"

// judge sets the condition Accepted of the Gateway from its addresses, its infrastructure and its listeners.
func (p *plan) judge() {
	gw := p.gateway
	p.accepted = yes("Accepted", "Accepted", "the Gateway is valid")
	reject := func(reason, format string, args ...any) {
		if !p.refused {
			p.refused, p.accepted = true, no("Accepted", reason, fmt.Sprintf(format, args...))
		}
	}
	for i := range gw.Spec.Addresses {
		a := &gw.Spec.Addresses[i]
		if a.Type != nil && *a.Type != object.AddressIP {
			reject("UnsupportedAddress", "spec.addresses[%d]: type %s is not served: give an IPAddress, or leave it out for one of a pool", i, *a.Type)
		} else if _, err := netip.ParseAddr(object.Deref(a.Value)); err != nil && object.Deref(a.Value) != "" {
			reject("UnsupportedAddress", "spec.addresses[%d]: %q is no IP address", i, *a.Value)
		}
	}
	if infra := gw.Spec.Infrastructure; infra != nil && infra.ParametersRef != nil {
		reject("InvalidParameters", "spec.infrastructure.parametersRef: svcctl has no kind of parameters: leave it out, and set svcctl.io/* annotations in spec.infrastructure.annotations")
	}
	if gw.Spec.TLS != nil && gw.Spec.TLS.Backend != nil {
		reject("Invalid", "spec.tls.backend: Gateways connect to backends without TLS here: leave it out")
	}
	_, wrong := p.valid(nil)
	switch {
	case !slices.ContainsFunc(p.listeners, (*listener).serves):
		reject("ListenersNotValid", "no listener is valid: %s", wrong)
	case wrong != "" && !p.refused:
		p.accepted = yes("Accepted", "ListenersNotValid", "these listeners are not valid: "+wrong)
	}
}

// valid returns how many listeners of a ListenerSet, or of the Gateway itself if set is nil, may get connections, and why the others may not.
func (p *plan) valid(set *listenerSet) (n int, wrong string) {
	for _, l := range p.listeners {
		switch {
		case l.set != set:
		case l.serves():
			n++
		default:
			wrong += "; " + l.spec.Name + ": " + l.fault().message
		}
	}
	return n, strings.TrimPrefix(wrong, "; ")
}

// status appends the statuses of the Gateway, its ListenerSets and its routes to p.out. done is set when the generated objects are in the
// kernel.
func (p *plan) status(done bool) {
	programmed, addresses := p.programmed(done)
	svc, _ := p.objs.Service(p.out.Service)
	for _, t := range p.objs.Trouble(p.out.Service) {
		for _, l := range p.listeners {
			if svc != nil && t.Port >= 0 && t.Port < len(svc.Spec.Ports) && svc.Spec.Ports[t.Port].Name == l.port && l.accepted.is {
				l.accepted = no("Accepted", "PortUnavailable", t.Message)
			}
		}
	}
	gw := &object.Gateway{TypeMeta: p.gateway.TypeMeta, Metadata: p.gateway.Metadata}
	generation := p.gateway.Metadata.Generation
	gw.Status.Addresses, gw.Status.AttachedListenerSets = addresses, new(int32)
	reported := p.orEarlier(programmed, generation, p.gateway.Status.Conditions)
	gw.Status.Conditions = conditions(generation, p.accepted, reported)
	gw.Status.Listeners = p.listenerStatuses(nil, programmed)
	for _, set := range p.sets {
		if p.setStatus(set, programmed) {
			*gw.Status.AttachedListenerSets++
		}
	}
	p.out.Statuses = append(p.out.Statuses, gw)
	if p.accepted.is && reported.reason != reasonPending {
		p.blame(p.ref, ReasonNotProgrammed, reported)
	} else {
		p.blame(p.ref, ReasonNotProgrammed, p.accepted)
	}
	for _, l := range p.listeners {
		p.blame(l.owner, ReasonListenerNotValid, l.fault().about(l.String()))
	}
	for _, r := range p.routes {
		p.routeStatus(r)
	}
}

// The reasons of problems of Gateways. The message of such a problem begins with the reason of the condition.
const (
	ReasonNotProgrammed    = "GatewayNotProgrammed" // a Gateway or ListenerSet is not accepted, or not programmed
	ReasonListenerNotValid = "ListenerNotValid"
	ReasonRouteNotAccepted = "RouteNotAccepted"
	ReasonRouteUnresolved  = "RouteUnresolved"
	ReasonOrphanRoute      = "OrphanRoute" // no parent of a route or ListenerSet, or one of several, exists
)

// blame appends a Problem to p.out if a condition of an object is false.
func (p *plan) blame(o object.Ref, reason string, c condition) {
	if !c.is {
		p.out.Problems = append(p.out.Problems, object.Problem{Object: o, Reason: reason, Message: c.reason + ": " + c.message})
	}
}

// Orphans returns the problems of the routes and ListenerSets of a parent that does not exist. They name no Gateway and no ListenerSet if parent is
// the zero Ref.
func Orphans(parent object.Ref, children []object.Ref) (all []object.Problem) {
	why := "parentRefs name no Gateway and no ListenerSet: nothing of it is served"
	if parent != (object.Ref{}) {
		why = fmt.Sprintf("there is no %s, which it names as a parent: nothing of it is served there", parent)
	}
	for _, ref := range children {
		all = append(all, object.Problem{Object: ref, Reason: ReasonOrphanRoute, Message: why, Warning: true})
	}
	return all
}

// about returns the condition with "subject: " before its message.
func (c condition) about(subject string) condition {
	c.message = subject + ": " + c.message
	return c
}

// programmed returns the condition Programmed of the Gateway, and the addresses for its status.
func (p *plan) programmed(done bool) (c condition, addresses []object.GatewayStatusAddress) {
	if p.refused {
		return no("Programmed", "Invalid", p.accepted.message), nil
	}
	if p.taken != "" {
		return no("Programmed", "Invalid", fmt.Sprintf("%s is not of this Gateway, and has the name of its Service: rename or delete one of the two", p.taken)), nil
	}
	trouble := ""
	for _, t := range p.objs.Trouble(p.out.Service) {
		if t.Failed {
			return no("Programmed", "Invalid", t.Message), nil
		} else if t.Port < 0 {
			trouble = cmp.Or(trouble, t.Message)
		}
	}
	svc, _ := p.objs.Service(p.out.Service)
	var has []string
	if svc != nil {
		has = svc.IngressIPs()
		for _, ip := range has {
			addresses = append(addresses, object.GatewayStatusAddress{Type: new(object.AddressIP), Value: ip})
		}
	}
	if !done {
		return no("Programmed", reasonPending, "the dataplane does not have it yet"), addresses
	}
	for i := range p.gateway.Spec.Addresses {
		addr, err := netip.ParseAddr(object.Deref(p.gateway.Spec.Addresses[i].Value))
		if svc != nil && err == nil && !slices.Contains(has, addr.Unmap().String()) {
			why := cmp.Or(trouble, fmt.Sprintf("%s is not to be had: it is in no pool of load balancer IPs, or another Service has it", addr))
			return no("Programmed", "AddressNotUsable", why), addresses
		}
	}
	switch {
	case len(has) == 0:
		return no("Programmed", "AddressNotAssigned", cmp.Or(trouble, "no pool of load balancer IPs has an address left: set --load-balancer-pool, or make an IPAddressPool")), nil
	case trouble != "":
		return no("Programmed", "AddressNotUsable", trouble), addresses
	}
	return yes("Programmed", "Programmed", "the dataplane serves it"), addresses
}

// listenerStatuses returns the statuses of the listeners of a ListenerSet. If set is nil, it returns those of the Gateway's own listeners.
func (p *plan) listenerStatuses(set *listenerSet, programmed condition) (all []object.ListenerStatus) {
	for _, l := range p.listeners {
		if l.set != set {
			continue
		}
		s := object.ListenerStatus{Name: l.spec.Name, SupportedKinds: []object.RouteGroupKind{}, AttachedRoutes: int32(len(l.attached))}
		group := object.GroupGateway
		for _, kind := range l.kinds {
			s.SupportedKinds = append(s.SupportedKinds, object.RouteGroupKind{Group: &group, Kind: kind})
		}
		mine := programmed
		switch {
		case l.conflicted.is:
			mine = no("Programmed", l.conflicted.reason, l.conflicted.message)
		case !l.serves():
			mine = no("Programmed", "Invalid", l.fault().message)
		case !programmed.is && programmed.reason != reasonPending:
			mine = no("Programmed", "Invalid", programmed.message)
		}
		mine = p.orEarlier(mine, l.meta.Generation, p.stored(l))
		s.Conditions = conditions(l.meta.Generation, l.accepted, mine, l.resolved, l.conflicted)
		all = append(all, s)
	}
	return all
}

// setStatus appends the status of a ListenerSet to p.out. It reports whether the ListenerSet is accepted and so attached to the Gateway.
func (p *plan) setStatus(set *listenerSet, programmed condition) (attached bool) {
	o := &object.ListenerSet{TypeMeta: set.object.TypeMeta, Metadata: set.object.Metadata}
	p.out.Statuses = append(p.out.Statuses, o)
	accepted, mine := yes("Accepted", "Accepted", "the ListenerSet is valid"), programmed
	valid, wrong := p.valid(set)
	switch {
	case !set.allowed:
		accepted = no("Accepted", "NotAllowed", fmt.Sprintf("Gateway %s takes no ListenerSets of namespace %s (spec.allowedListeners)", p.ref.Key(), set.ref.Namespace))
	case valid == 0:
		accepted = no("Accepted", "ListenersNotValid", "no listener is valid: "+wrong)
	case !p.accepted.is:
		accepted = no("Accepted", "ParentNotAccepted", "Gateway "+p.ref.Key()+" is not accepted")
	case wrong != "":
		accepted = yes("Accepted", "ListenersNotValid", "these listeners are not valid: "+wrong)
	}
	if !accepted.is {
		mine = no("Programmed", accepted.reason, accepted.message)
	} else if !programmed.is && programmed.reason != reasonPending {
		mine = no("Programmed", "Invalid", programmed.message)
	}
	p.blame(set.ref, ReasonNotProgrammed, accepted)
	o.Status.Conditions = conditions(set.object.Metadata.Generation, accepted, p.orEarlier(mine, set.object.Metadata.Generation, set.object.Status.Conditions))
	o.Status.Listeners = p.listenerStatuses(set, programmed)
	return accepted.is
}

// routeStatus appends to p.out the status of a route with the parents entries that refer to the Gateway or its ListenerSets.
func (p *plan) routeStatus(r *route) {
	if len(r.outcome) == 0 {
		return
	}
	next := object.Draft(r.object)
	status := routeOf(next).status
	status.Parents = nil
	for i := range r.parents {
		out := r.outcome[i]
		if out == nil {
			continue
		}
		status.Parents = append(status.Parents, object.RouteParentStatus{
			ParentRef: r.parents[i], ControllerName: ControllerName, Conditions: conditions(r.meta.Generation, out.accepted, r.resolved),
		})
		p.blame(r.ref, ReasonRouteNotAccepted, out.accepted)
	}
	p.blame(r.ref, ReasonRouteUnresolved, r.resolved)
	p.out.Statuses = append(p.out.Statuses, next)
}

// Class returns the GatewayClass "svcctl", which svcctl creates itself.
func Class() *object.GatewayClass {
	return &object.GatewayClass{
		TypeMeta: object.TypeMeta{Kind: object.KindGatewayClass, APIVersion: object.APIVersionGateway},
		Metadata: object.ObjectMeta{Name: ClassName, Generation: 1},
		Spec:     object.GatewayClassSpec{ControllerName: ControllerName},
	}
}

// Features lists the features for status.supportedFeatures, sorted: svcctl passes their tests in the conformance suite of the Gateway API.
var Features = []object.SupportedFeature{{Name: "Gateway"}, {Name: "GatewayAddressEmpty"}, {Name: "GatewayInfrastructure"}, {Name: "GatewayStaticAddresses"}, {Name: "ListenerSet"}, {Name: "ReferenceGrant"}, {Name: "TCPRoute"}, {Name: "TLSRoute"}, {Name: "TLSRouteModeMixed"}, {Name: "TLSRouteModeTerminate"}, {Name: "UDPRoute"}}

// ClassStatus returns a GatewayClass of svcctl's controller with its new status.
func ClassStatus(class *object.GatewayClass) object.Object {
	next := &object.GatewayClass{TypeMeta: class.TypeMeta, Metadata: class.Metadata}
	accepted := yes("Accepted", "Accepted", "Gateways of this class are served by svcctl")
	if class.Spec.ParametersRef != nil {
		accepted = no("Accepted", "InvalidParameters", "spec.parametersRef: svcctl has no kind of parameters: leave it out")
	}
	next.Status.Conditions = conditions(class.Metadata.Generation, accepted)
	next.Status.SupportedFeatures = Features
	return next
}

// Unserved returns a Gateway with the status that it must have if its class is not one of svcctl, and a route or ListenerSet with the one that it must
// have if none of its parents is a Gateway of svcctl. It returns nil for other kinds.
func Unserved(o object.Object) object.Object {
	next := object.Draft(o)
	switch o := next.(type) {
	case *object.Gateway:
		o.Status = object.GatewayStatus{Conditions: object.Waiting("Accepted", "Programmed"), AttachedListenerSets: new(int32)}
	case *object.ListenerSet:
		const why = "its Gateway is not there, or of a class that is not served here"
		o.Status = object.ListenerSetStatus{Conditions: conditions(o.Metadata.Generation, no("Accepted", "ParentNotAccepted", why), no("Programmed", "Invalid", why))}
	default:
		r := routeOf(next)
		if r == nil {
			return nil
		}
		r.status.Parents = nil
	}
	return next
}

// Merge returns a stored object with the planned status, nil if that changes nothing. Conditions with an unchanged status keep their
// lastTransitionTime, and stored conditions of other types are kept. A route also keeps the parents entries of other controllers, and the entries of
// other Gateways: those of the parents for which isOther returns true.
func Merge(stored, planned object.Object, now time.Time, isOther func(object.Ref) bool) object.Object {
	next := object.Draft(stored)
	changed := false
	merge := func(to *[]object.Condition, from []object.Condition) {
		changed = mergeConditions(to, from, now) || changed
	}
	listeners := func(to *[]object.ListenerStatus, from []object.ListenerStatus) {
		before := *to
		*to = nil
		for i, l := range from {
			at := slices.IndexFunc(before, func(b object.ListenerStatus) bool { return b.Name == l.Name })
			kept := object.ListenerStatus{}
			if at >= 0 {
				kept = before[at]
			}
			merge(&kept.Conditions, l.Conditions)
			changed = changed || at != i || kept.AttachedRoutes != l.AttachedRoutes ||
				!slices.EqualFunc(kept.SupportedKinds, l.SupportedKinds, func(a, b object.RouteGroupKind) bool { return a.Kind == b.Kind })
			l.Conditions = kept.Conditions
			*to = append(*to, l)
		}
		changed = changed || len(before) != len(from)
	}
	switch o := next.(type) {
	case *object.GatewayClass:
		status := &planned.(*object.GatewayClass).Status
		merge(&o.Status.Conditions, status.Conditions)
		changed = changed || !slices.Equal(o.Status.SupportedFeatures, status.SupportedFeatures)
		o.Status.SupportedFeatures = status.SupportedFeatures
	case *object.Gateway:
		status := &planned.(*object.Gateway).Status
		merge(&o.Status.Conditions, status.Conditions)
		listeners(&o.Status.Listeners, status.Listeners)
		changed = changed || !slices.EqualFunc(o.Status.Addresses, status.Addresses, func(a, b object.GatewayStatusAddress) bool { return a.Value == b.Value }) ||
			object.Deref(o.Status.AttachedListenerSets) != *status.AttachedListenerSets || o.Status.AttachedListenerSets == nil
		o.Status.Addresses, o.Status.AttachedListenerSets = status.Addresses, status.AttachedListenerSets
	case *object.ListenerSet:
		status := &planned.(*object.ListenerSet).Status
		merge(&o.Status.Conditions, status.Conditions)
		listeners(&o.Status.Listeners, status.Listeners)
	default:
		changed = mergeParents(routeOf(next), routeOf(planned), now, isOther)
	}
	if !changed {
		return nil
	}
	return next
}

// mergeConditions replaces or adds conditions by type, and reports whether that changes anything. A condition whose status changes gets the
// time now.
func mergeConditions(to *[]object.Condition, from []object.Condition, now time.Time) (changed bool) {
	*to = slices.Clone(*to)
	for _, c := range from {
		at := slices.IndexFunc(*to, func(b object.Condition) bool { return b.Type == c.Type })
		if at < 0 {
			c.LastTransitionTime = now
			*to, changed = append(*to, c), true
			if len(*to) > maxConditions { // the last one of another controller makes room
				at = len(*to) - 1
				for at > 0 && slices.ContainsFunc(from, func(b object.Condition) bool { return b.Type == (*to)[at].Type }) {
					at--
				}
				*to = slices.Delete(*to, at, at+1)
			}
			continue
		}
		before := (*to)[at]
		c.LastTransitionTime = before.LastTransitionTime
		if c.Status != before.Status {
			c.LastTransitionTime = now
		}
		(*to)[at], changed = c, changed || c != before
	}
	return changed
}

// mergeParents replaces the parents entries of one Gateway in the status of a route, and reports whether that changes anything. isOther
// selects the parents whose entries stay.
func mergeParents(next, planned *route, now time.Time, isOther func(object.Ref) bool) (changed bool) {
	before := next.status.Parents
	others := slices.DeleteFunc(slices.Clone(before), func(s object.RouteParentStatus) bool { return s.ControllerName == ControllerName })
	var all []object.RouteParentStatus
	find := func(list []object.RouteParentStatus, ref *object.ParentRef) int {
		return slices.IndexFunc(list, func(s object.RouteParentStatus) bool {
			return s.ControllerName == ControllerName && reflect.DeepEqual(&s.ParentRef, ref)
		})
	}
	for i := range next.parents {
		ref := &next.parents[i]
		had, has := find(before, ref), find(planned.status.Parents, ref)
		switch {
		case find(all, ref) >= 0, len(all)+len(others) >= maxParents:
		case has >= 0:
			entry := planned.status.Parents[has]
			var kept []object.Condition
			if had >= 0 {
				kept = before[had].Conditions
			}
			changed = mergeConditions(&kept, entry.Conditions, now) || changed
			entry.Conditions = kept
			all = append(all, entry)
		case had >= 0 && isOther(next.parent(i)):
			all = append(all, before[had])
		}
	}
	all = append(all, others...)
	changed = changed || len(all) != len(before)
	next.status.Parents = all
	return changed
}
