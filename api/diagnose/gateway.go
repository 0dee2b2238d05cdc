package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// Route is a route of the Gateway API of any kind.
type Route struct {
	object.TypeMeta
	Metadata object.ObjectMeta `json:"metadata"`
	Spec     struct {
		ParentRefs []object.ParentRef `json:"parentRefs"`
	} `json:"spec"`
	Status object.RouteStatus `json:"status"`
}

// GatewayFacts are the input of the diagnosis of a Gateway. Its lists may have objects of other Gateways.
type GatewayFacts struct {
	Gateway  *object.Gateway
	Sets     []*object.ListenerSet
	Routes   []*Route
	Services []*object.Service
	Slices   []*object.EndpointSlice
	Status   *wire.Status
}

// Gateway goes from a Gateway to the backends of its routes: its conditions, each listener with its routes and shares, the
// routes that are not attached, and the problems of the Services that serve it.
func Gateway(f GatewayFacts) []Finding {
	d := &diagnosis{}
	gw := f.Gateway
	ours := func(meta *object.ObjectMeta) bool {
		return meta.Namespace == gw.Metadata.Namespace && slices.ContainsFunc(meta.OwnerReferences, func(o object.OwnerReference) bool {
			return o.Kind == object.KindGateway && o.Name == gw.Metadata.Name
		})
	}
	f.Slices = slices.DeleteFunc(slices.Clone(f.Slices), func(s *object.EndpointSlice) bool { return !ours(&s.Metadata) })
	f.Services = slices.DeleteFunc(slices.Clone(f.Services), func(s *object.Service) bool { return !ours(&s.Metadata) })
	if c := conditionOf(gw.Status.Conditions, "Accepted"); c.Status == "" || c.Reason == "Pending" {
		d.add(Bad, "set spec.gatewayClassName to a class of `svcctl get gatewayclasses`, as svcctl", "it is not served: there is no GatewayClass %s of this appliance", gw.Spec.GatewayClassName)
		return d.findings
	}
	d.judge("it", gw.Status.Conditions, "Accepted", "Programmed")
	var addresses []string
	for _, a := range gw.Status.Addresses {
		addresses = append(addresses, a.Value)
	}
	for _, svc := range f.Services {
		if svc.Spec.Type == object.TypeLoadBalancer && len(addresses) > 0 {
			d.good("it has the address %s, by Service %s: `svcctl explain svc/%s -n %s` follows its packets", strings.Join(addresses, " and "),
				svc.Metadata.Namespace+"/"+svc.Metadata.Name, svc.Metadata.Name, svc.Metadata.Namespace)
		}
	}
	d.listeners(&f, object.Ref{Kind: object.KindGateway, Namespace: gw.Metadata.Namespace, Name: gw.Metadata.Name}, gw.Spec.Listeners, gw.Status.Listeners)
	for _, set := range f.Sets {
		if set.Spec.ParentRef.Name == gw.Metadata.Name && cmp.Or(object.Deref(set.Spec.ParentRef.Namespace), set.Metadata.Namespace) == gw.Metadata.Namespace {
			ref := object.Ref{Kind: object.KindListenerSet, Namespace: set.Metadata.Namespace, Name: set.Metadata.Name} // of a list, without its kind
			d.judge(ref.String(), set.Status.Conditions, "Accepted")
			d.listeners(&f, ref, set.Spec.Listeners, set.Status.Listeners)
		}
	}
	for _, svc := range f.Services {
		for _, p := range f.Status.Problems {
			if p.Object == object.ServiceRef(svc.Metadata.Namespace+"/"+svc.Metadata.Name).String() {
				d.add(Doubt, "`svcctl status` has the next step", "%s", p.String())
			}
		}
	}
	return d.findings
}

// conditionOf returns a condition; the zero Condition when there is none.
func conditionOf(list []object.Condition, kind string) (c object.Condition) {
	if i := slices.IndexFunc(list, func(c object.Condition) bool { return c.Type == kind }); i >= 0 {
		c = list[i]
	}
	return c
}

// remedies are the next steps for the reasons of conditions.
var remedies = map[string]string{
	"AddressNotAssigned":         "`svcctl admin alloc` lists the pools with their holders: widen one, or name another address",
	"AddressNotUsable":           "`svcctl admin alloc` lists the pools with their holders: name an address of a pool that is free, or none",
	"BackendNotFound":            "make that Service, or correct backendRefs",
	"HostnameConflict":           "give one of the two listeners another hostname or port",
	"InvalidCertificateRef":      "make that Secret, of type kubernetes.io/tls, or correct certificateRefs",
	"InvalidRouteKinds":          "correct allowedRoutes.kinds",
	"ListenersNotValid":          "the listeners below name the reasons",
	"NoMatchingListenerHostname": "give the route a hostname within that of a listener",
	"NoMatchingParent":           "correct sectionName and port in parentRefs",
	"NotAllowed":                 "allow it in spec.allowedListeners of the Gateway",
	"NotAllowedByListeners":      "allow it in allowedRoutes of the listener",
	"PortUnavailable":            "end the program that has the port, or give the listener another one",
	"ProtocolConflict":           "give one of the two listeners another port",
	"RefNotPermitted":            "make a ReferenceGrant in the namespace of what is referred to",
}

// judge adds a finding for each of some conditions, about a subject.
func (d *diagnosis) judge(subject string, list []object.Condition, kinds ...string) (good bool) {
	good = true
	for _, kind := range kinds {
		c := conditionOf(list, kind)
		about := map[string]string{"Accepted": "accepted", "Programmed": "programmed", "ResolvedRefs": "resolved"}[kind]
		switch {
		case c.Status != "True":
			d.add(Bad, remedies[c.Reason], "%s is not %s: %s: %s", subject, about, c.Reason, c.Message)
			good = false
		case c.Reason != kind:
			d.add(Doubt, remedies[c.Reason], "%s is %s, but %s: %s", subject, about, c.Reason, c.Message)
		case subject == "it":
			d.good("it is %s", about)
		}
	}
	return good
}

// listeners adds a finding for each listener of a Gateway or ListenerSet, with its routes and their backends, and those for the routes that
// name it and are not attached.
func (d *diagnosis) listeners(f *GatewayFacts, owner object.Ref, specs []object.Listener, statuses []object.ListenerStatus) {
	attached := map[string][]string{} // the routes by listener
	for _, r := range f.Routes {
		ref := object.Ref{Kind: r.Kind, Namespace: r.Metadata.Namespace, Name: r.Metadata.Name}
		for i := range r.Status.Parents {
			entry := &r.Status.Parents[i]
			parent := &entry.ParentRef
			if cmp.Or(object.Deref(parent.Kind), object.KindGateway) != owner.Kind || parent.Name != owner.Name || cmp.Or(object.Deref(parent.Namespace), ref.Namespace) != owner.Namespace {
				continue
			}
			if !d.judge(ref.String(), entry.Conditions, "Accepted") {
				continue
			}
			d.judge(ref.String(), entry.Conditions, "ResolvedRefs")
			for j := range specs {
				l := &specs[j]
				if (parent.SectionName == nil || *parent.SectionName == l.Name) && (parent.Port == nil || *parent.Port == l.Port) && !slices.Contains(attached[l.Name], ref.Kind+"/"+ref.Key()) {
					attached[l.Name] = append(attached[l.Name], ref.Kind+"/"+ref.Key())
				}
			}
		}
	}
	for i := range specs {
		l := &specs[i]
		text := fmt.Sprintf("listener %s, port %d, %s", l.Name, l.Port, l.Protocol)
		if l.Hostname != nil {
			text += ", hostname " + *l.Hostname
		}
		var status object.ListenerStatus
		if j := slices.IndexFunc(statuses, func(s object.ListenerStatus) bool { return s.Name == l.Name }); j >= 0 {
			status = statuses[j]
		}
		if good := d.judge(text, status.Conditions, "Accepted"); !d.judge(text, status.Conditions, "ResolvedRefs") || !good {
			continue
		}
		if status.AttachedRoutes == 0 {
			d.add(Doubt, fmt.Sprintf("make a route whose parentRefs have {kind: %s, namespace: %s, name: %s, sectionName: %s}", owner.Kind, owner.Namespace, owner.Name, l.Name), "%s has no route: connections are refused", text)
			continue
		}
		d.good("%s: %d attached", text, status.AttachedRoutes)
		at := owner.Kind + "/" + owner.Key() + "/" + l.Name
		for _, route := range attached[l.Name] {
			backends := backendsOf(f.Slices, func(s *object.EndpointSlice) bool {
				return s.Metadata.Annotations[object.AnnotationListener] == at && s.Metadata.Annotations[object.AnnotationRoute] == route
			})
			if backends != "" {
				d.details(strings.Replace(route, "/", " ", 1) + ": " + backends)
			} else if slices.ContainsFunc(status.SupportedKinds, func(k object.RouteGroupKind) bool { return strings.HasPrefix(route, k.Kind+"/") }) {
				d.details(strings.Replace(route, "/", " ", 1) + ": gets no connections here: an older route, or one with a more specific hostname, has them")
			}
		}
	}
}

// backendsOf are the backends of generated EndpointSlices with their parts of the connections; "": there are none.
func backendsOf(list []*object.EndpointSlice, in func(*object.EndpointSlice) bool) string {
	endpoints, shares, sum := map[string]int{}, map[string]uint32{}, uint32(0)
	for _, s := range list {
		if !in(s) {
			continue
		}
		share := s.Metadata.ShareOf()
		if _, has := shares[share.Backend]; !has {
			shares[share.Backend], sum = share.Share, sum+share.Share
		}
		endpoints[share.Backend] += len(s.Endpoints)
	}
	var backends []string
	for _, group := range slices.Sorted(maps.Keys(shares)) {
		backends = append(backends, fmt.Sprintf("%s %d/%d (%d endpoints)", group, shares[group], sum, endpoints[group]))
	}
	return strings.Join(backends, ", ")
}

// gateway names the Gateway that the Service is generated of, and for each port, or server name, the listener, the route and the backends.
func (d *diagnosis) gateway() {
	name := d.Service.Metadata.Labels[object.LabelGateway]
	if name == "" {
		return
	}
	if owners := d.Service.Metadata.OwnerReferences; len(owners) > 0 {
		name = owners[0].Name // the label has a hash of a long one
	}
	switch listener, route := d.Service.Metadata.Annotations[object.AnnotationListener], d.Service.Metadata.Annotations[object.AnnotationRoute]; {
	case route != "":
		d.good("it serves Gateway %s/%s: %s at listener %s", d.Namespace, name, route, listener)
	case listener != "":
		d.good("it serves Gateway %s/%s: names of listener %s without a route, which are refused", d.Namespace, name, listener)
	default:
		d.good("it serves Gateway %s/%s: `svcctl explain gtw/%s -n %s` has all of it", d.Namespace, name, name, d.Namespace)
	}
	for i := range d.Service.Spec.Ports {
		port := &d.Service.Spec.Ports[i]
		if q := d.Question; q.Port != 0 && q.Port != uint16(port.Port) || q.Protocol != "" && q.Protocol != port.Protocol {
			continue
		}
		d.leads(fmt.Sprintf("port %d/%s", port.Port, port.Protocol), d.Slices, func(s *object.EndpointSlice) bool {
			return len(s.Ports) == 1 && object.Deref(s.Ports[0].Name) == port.Name
		})
		for pair := range strings.SplitSeq(d.Service.Metadata.Annotations[object.AnnotationTLSServices+"."+port.Name], ",") {
			if server, service, _ := strings.Cut(pair, "="); service != "" {
				d.leads(fmt.Sprintf("port %d/%s, server name %s", port.Port, port.Protocol, strings.Replace(server, "**.", "*.", 1)), d.Led, func(s *object.EndpointSlice) bool {
					return s.Metadata.Labels[object.LabelServiceName] == service
				})
			}
		}
	}
}

// leads adds the listener, the route and the backends of some generated EndpointSlices, if there are any.
func (d *diagnosis) leads(at string, list []*object.EndpointSlice, in func(*object.EndpointSlice) bool) {
	with := func(s *object.EndpointSlice) bool {
		return in(s) && s.Metadata.Annotations[object.AnnotationRoute] != ""
	}
	if i := slices.IndexFunc(list, with); i >= 0 {
		annotations := list[i].Metadata.Annotations
		d.good("%s: listener %s, %s: %s", at, annotations[object.AnnotationListener], annotations[object.AnnotationRoute], backendsOf(list, with))
	}
}
