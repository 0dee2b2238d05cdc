package resolve

import (
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Reasons of problems of Services that have no endpoint for their clients.
const (
	ReasonNoEndpoints     = "NoEndpoints"
	ReasonNoReadyEndpoint = "NoReadyEndpoint"
	ReasonPortMismatch    = "PortMismatch"
	ReasonNoLocalEndpoint = "NoLocalEndpoint"
	// ReasonOrphanSlice is about an EndpointSlice whose Service does not exist.
	ReasonOrphanSlice = "OrphanSlice"
)

// reportUnserved reports the ports whose clients have no endpoint. ports are what was made of them.
func (r *resolver) reportUnserved(endpoints map[portKey][]endpoint, encrypted []bool) {
	cause := func(p Problem) bool { return p.Object == r.ref && !p.Warning }
	if slices.ContainsFunc(r.out.Problems, cause) {
		return // that is why
	}
	if !slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return len(s.Endpoints) > 0 }) {
		if slices.ContainsFunc(r.out.Ports, func(p nft.ServicePort) bool { return !p.RelayAlone }) {
			r.reportNone()
		}
		return
	}
	for i := range r.Service.Spec.Ports {
		port := &r.Service.Spec.Ports[i]
		id := r.portID(port)
		served, local, alone, planned := false, false, false, false
		for j := range r.out.Ports {
			p := &r.out.Ports[j]
			if p.ID != id || p.Protocol.Name() != port.Protocol {
				continue
			}
			planned = true
			alone = alone || p.RelayAlone
			served = served || p.Takes(nft.PoolCluster)
			local = local || p.Takes(nft.PoolLocal)
		}
		switch {
		case !planned || encrypted[i] || alone:
		case !served:
			r.reportPort(i, endpoints)
		case !local && r.limitedToLocal() != "":
			r.reportAt(i, ReasonNoLocalEndpoint, "%s is Local, and none of its %s has nodeName %s: %s",
				r.limitedToLocal(), counted(r.total(i, endpoints), "endpoint"), r.facts.NodeName,
				map[nft.Refusal]string{nft.Refuse: "clients are refused by this box", nft.Blackhole: "clients get no answer from this box"}[r.noLocal])
		}
	}
}

// Bereft reports the ports whose endpoints all went when their frontends were granted: they lead back to the box.
func Bereft(ref object.Ref, asked, granted []nft.ServicePort) (problems []Problem) {
	for i := range min(len(asked), len(granted)) {
		if asked[i].Takes(nft.PoolCluster) && !granted[i].Takes(nft.PoolCluster) {
			problems = append(problems, Problem{Object: ref, Field: "spec.ports", Reason: ReasonNoReadyEndpoint,
				Message: fmt.Sprintf("none of the endpoints of %s/%s can be used", granted[i].ID, granted[i].Protocol.Name())})
		}
	}
	return problems
}

// reportNone reports that no slice has an endpoint.
func (r *resolver) reportNone() {
	generated := func(s *object.EndpointSlice) bool {
		by := s.Metadata.Labels["endpointslice.kubernetes.io/managed-by"]
		return strings.HasPrefix(by, "endpointslice-controller.") || strings.HasPrefix(by, "endpointslicemirroring-controller.")
	}
	switch {
	case len(r.Service.Spec.Selector) > 0 && !slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return !generated(s) }):
		// The controller of its slices reports which Pods there are.
	case slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return !generated(s) }):
		r.unserved("", ReasonNoEndpoints, "it has no endpoint: EndpointSlice %s has none", r.Slices[0].Metadata.Name)
		r.out.Unserved[0].Warning = true // meant so
	default:
		r.unserved("", ReasonNoEndpoints, "it has no endpoint: no EndpointSlice has the label %s: %s", object.LabelServiceName, r.ref.Name)
	}
}

// reportPort reports why a port has no endpoint though slices have some.
func (r *resolver) reportPort(index int, endpoints map[portKey][]endpoint) {
	port := &r.Service.Spec.Ports[index]
	if n := r.total(index, endpoints); n > 0 {
		r.reportAt(index, ReasonNoReadyEndpoint, "none of its %s takes new connections: not ready, taken out, or of weight 0", counted(n, "endpoint"))
		return
	}
	var others []string
	for key := range endpoints {
		if key.name != port.Name || key.proto.Name() != port.Protocol {
			others = append(others, fmt.Sprintf("%q/%s", key.name, key.proto.Name()))
		}
	}
	slices.Sort(others)
	if others = slices.Compact(others); len(others) > 0 {
		r.reportAt(index, ReasonPortMismatch, "no endpoint has a port named %q of %s; they have %s", port.Name, port.Protocol, strings.Join(others, ", "))
		return
	}
	r.reportAt(index, ReasonNoReadyEndpoint, "none of the endpoints of its EndpointSlices can be used")
}

func (r *resolver) reportAt(index int, reason, format string, args ...any) {
	r.unserved(fmt.Sprintf("spec.ports[%d]", index), reason, "%s: %s", r.portText(index), fmt.Sprintf(format, args...))
}

func (r *resolver) unserved(field, reason, format string, args ...any) {
	r.out.Unserved = append(r.out.Unserved, Problem{Object: r.ref, Field: field, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// total counts the endpoints of a port in any state, in the families of its addresses.
func (r *resolver) total(index int, endpoints map[portKey][]endpoint) (n int) {
	port := &r.Service.Spec.Ports[index]
	proto, _ := nft.ProtocolNamed(port.Protocol)
	for _, family := range nft.Families {
		if r.vips.of(family).cluster.IsValid() {
			n += len(endpoints[portKey{port.Name, proto, family}])
		}
	}
	return n
}

// limitedToLocal names the policy by which clients get local endpoints only; "": none, or other boxes serve them.
func (r *resolver) limitedToLocal() string {
	spec := &r.Service.Spec
	switch {
	case r.facts.Fleet:
		return ""
	case spec.ExternalTrafficPolicy == object.PolicyLocal && (spec.Type != "ClusterIP" || len(spec.ExternalIPs) > 0):
		return "externalTrafficPolicy"
	case object.Deref(spec.InternalTrafficPolicy) == object.PolicyLocal:
		return "internalTrafficPolicy"
	}
	return ""
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
