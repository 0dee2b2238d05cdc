package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Route is a route of the Gateway API of any kind.
type Route struct {
	object.TypeMeta
	Metadata object.ObjectMeta  `json:"metadata"`
	Status   object.RouteStatus `json:"status"`
}

// GatewayFacts are the input of the diagnosis of a Gateway. Its lists may have objects of other Gateways.
type GatewayFacts struct {
	Gateway *object.Gateway
	Sets    []*object.ListenerSet
	Routes  []*Route
	Slices  []*object.EndpointSlice
}

// Gateway returns the findings about a Gateway: its conditions, its addresses, and its listeners with their routes and the shares of the backends.
// The listeners of its ListenerSets are included.
func Gateway(f GatewayFacts) []Finding {
	d := &diagnosis{}
	gw := f.Gateway
	if c := conditionOf(gw.Status.Conditions, "Accepted"); c.Status == "" || c.Reason == "Pending" {
		d.add(Bad, "set spec.gatewayClassName to a class of `svcctl get gatewayclasses`, as svcctl", "it is not served: there is no GatewayClass %s of this appliance", gw.Spec.GatewayClassName)
		return d.findings
	}
	d.judge("it", gw.Status.Conditions, "Accepted", "Programmed")
	for _, a := range gw.Status.Addresses {
		d.good("it has the address %s: `svcctl explain %s` follows its packets", a.Value, a.Value)
	}
	d.listeners(&f, object.Ref{Kind: object.KindGateway, Namespace: gw.Metadata.Namespace, Name: gw.Metadata.Name}, gw.Spec.Listeners, gw.Status.Listeners)
	for _, set := range f.Sets {
		if set.Spec.ParentRef.Name == gw.Metadata.Name && cmp.Or(object.Deref(set.Spec.ParentRef.Namespace), set.Metadata.Namespace) == gw.Metadata.Namespace {
			ref := object.Ref{Kind: object.KindListenerSet, Namespace: set.Metadata.Namespace, Name: set.Metadata.Name} // of a list, without its kind
			d.judge(ref.String(), set.Status.Conditions, "Accepted")
			d.listeners(&f, ref, set.Spec.Listeners, set.Status.Listeners)
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

// remedies maps reasons of conditions to the next step for the user.
var remedies = map[string]string{
	"AddressNotAssigned":    "`svcctl admin alloc` lists the pools with their holders: widen one, or name another address",
	"AddressNotUsable":      "`svcctl admin alloc` lists the pools with their holders: name an address of a pool that is free, or none",
	"BackendNotFound":       "make that Service, or correct backendRefs",
	"HostnameConflict":      "give one of the two listeners another hostname or port",
	"InvalidCertificateRef": "make that Secret, of type kubernetes.io/tls, or correct certificateRefs",
	"NoMatchingParent":      "correct sectionName and port in parentRefs",
	"NotAllowedByListeners": "allow it in allowedRoutes of the listener",
	"ProtocolConflict":      "give one of the two listeners another port",
	"RefNotPermitted":       "make a ReferenceGrant in the namespace of what is referred to",
}

// judge adds a finding for each condition of the given types that is not True, or that is True with another reason than usual. It reports whether all
// are True. If subject is "it", conditions without a fault get a finding too.
func (d *diagnosis) judge(subject string, list []object.Condition, kinds ...string) (good bool) {
	good = true
	for _, kind := range kinds {
		c, about := conditionOf(list, kind), map[string]string{"Accepted": "accepted", "Programmed": "programmed", "ResolvedRefs": "resolved"}[kind]
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

// listeners adds a finding for each listener of a Gateway or ListenerSet, with its routes and their backends. It also adds findings for routes that
// reference the owner but are not accepted, or have unresolved references.
func (d *diagnosis) listeners(f *GatewayFacts, owner object.Ref, specs []object.Listener, statuses []object.ListenerStatus) {
	// at are the entries of a route about the owner.
	at := func(r *Route) []object.RouteParentStatus {
		return slices.DeleteFunc(slices.Clone(r.Status.Parents), func(s object.RouteParentStatus) bool {
			p := &s.ParentRef
			return cmp.Or(object.Deref(p.Kind), object.KindGateway) != owner.Kind || p.Name != owner.Name || cmp.Or(object.Deref(p.Namespace), r.Metadata.Namespace) != owner.Namespace
		})
	}
	for _, r := range f.Routes {
		for _, entry := range at(r) {
			d.judge(r.Kind+" "+r.Metadata.Namespace+"/"+r.Metadata.Name, entry.Conditions, "Accepted", "ResolvedRefs")
		}
	}
	for i := range specs {
		l := &specs[i]
		text := strings.TrimRight(fmt.Sprintf("listener %s, port %d, %s %s", l.Name, l.Port, l.Protocol, object.Deref(l.Hostname)), " ")
		j := slices.IndexFunc(statuses, func(s object.ListenerStatus) bool { return s.Name == l.Name })
		if j < 0 {
			continue // its owner is not accepted
		}
		status := &statuses[j]
		switch {
		case !d.judge(text, status.Conditions, "Accepted", "ResolvedRefs"):
			continue
		case status.AttachedRoutes == 0:
			d.add(Doubt, fmt.Sprintf("make a route whose parentRefs have {kind: %s, namespace: %s, name: %s, sectionName: %s}", owner.Kind, owner.Namespace, owner.Name, l.Name), "%s has no route: connections are refused", text)
			continue
		}
		d.good("%s: %d attached", text, status.AttachedRoutes)
		for _, r := range f.Routes {
			takes := slices.ContainsFunc(status.SupportedKinds, func(k object.RouteGroupKind) bool { return k.Kind == r.Kind })
			if !takes || !slices.ContainsFunc(at(r), func(s object.RouteParentStatus) bool {
				p := &s.ParentRef
				return (p.SectionName == nil || *p.SectionName == l.Name) && (p.Port == nil || *p.Port == l.Port) && conditionOf(s.Conditions, "Accepted").Status == "True"
			}) {
				continue
			}
			name := r.Metadata.Namespace + "/" + r.Metadata.Name
			backends := backendsOf(f.Slices, func(s *object.EndpointSlice) bool {
				return s.Metadata.Annotations[object.AnnotationListener] == owner.Kind+"/"+owner.Key()+"/"+l.Name && s.Metadata.Annotations[object.AnnotationRoute] == r.Kind+"/"+name
			})
			d.details(r.Kind + " " + name + ": " + cmp.Or(backends, "gets no connections here: an older route, or one with a more specific hostname, has them"))
		}
	}
}

// backendsOf lists the backends of generated EndpointSlices with their shares of connections; "" if there are none.
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

// Paths returns a line for each Service port, listener and route of the generated EndpointSlices in list. The parameter of, KIND/NAMESPACE/NAME,
// limits them to those of a Gateway, ListenerSet, route or generated Service. The parameter port limits them to a port by its name; "" means all
// ports.
func Paths(list []*object.EndpointSlice, of, port string) (text string) {
	at := map[string][]*object.EndpointSlice{}
	for _, s := range list {
		labels, a, in := s.Metadata.Labels, s.Metadata.Annotations, s.Metadata.Namespace+"/"
		if a[object.AnnotationRoute] == "" || len(s.Ports) != 1 || len(s.Metadata.OwnerReferences) != 1 || port != "" && object.Deref(s.Ports[0].Name) != port {
			continue
		}
		if strings.HasPrefix(a[object.AnnotationListener], of+"/") || slices.Contains([]string{a[object.AnnotationRoute], "Service/" + in + labels[object.LabelServiceName],
			"Service/" + in + labels[object.LabelGateway] + "-" + labels[object.LabelGatewayClass], "Gateway/" + in + s.Metadata.OwnerReferences[0].Name}, of) {
			path := fmt.Sprintf("%s:%s: listener %s, %s: ", in+labels[object.LabelServiceName], object.Deref(s.Ports[0].Name), a[object.AnnotationListener], a[object.AnnotationRoute])
			at[path] = append(at[path], s)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(at)) {
		text += path + backendsOf(at[path], func(*object.EndpointSlice) bool { return true }) + "\n"
	}
	return text
}

// gateway adds the findings about the Gateway that a generated Service belongs to: its name, and the listener, route and backends of each port and of
// each server name.
func (d *diagnosis) gateway() {
	owners := d.Service.Metadata.OwnerReferences
	if len(owners) == 0 || owners[0].Kind != object.KindGateway {
		return
	}
	name := owners[0].Name
	if route := d.Service.Metadata.Annotations[object.AnnotationRoute]; route != "" {
		d.good("it serves Gateway %s/%s: %s at listener %s", d.Namespace, name, route, d.Service.Metadata.Annotations[object.AnnotationListener])
	} else {
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

// leads adds a finding with the listener, route and backends that serve the clients of at, which is a port or a server name. The backends are the
// generated EndpointSlices in list for which in returns true. Without any there is no finding.
func (d *diagnosis) leads(at string, list []*object.EndpointSlice, in func(*object.EndpointSlice) bool) {
	with := func(s *object.EndpointSlice) bool {
		return in(s) && s.Metadata.Annotations[object.AnnotationRoute] != ""
	}
	if i := slices.IndexFunc(list, with); i >= 0 {
		annotations := list[i].Metadata.Annotations
		d.good("%s: listener %s, %s: %s", at, annotations[object.AnnotationListener], annotations[object.AnnotationRoute], backendsOf(list, with))
	}
}
