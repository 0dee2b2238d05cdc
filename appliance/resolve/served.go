package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Reasons of problems of Services that have no endpoint for their clients.
const (
	ReasonNoEndpoints     = "NoEndpoints"
	ReasonNoReadyEndpoint = "NoReadyEndpoint"
	ReasonPortMismatch    = "PortMismatch"
	ReasonNoLocalEndpoint = "NoLocalEndpoint"
	reasonOtherFamily     = "OtherFamily"
	// ReasonOrphanSlice is the problem reason for an EndpointSlice whose Service does not exist.
	ReasonOrphanSlice = "OrphanSlice"
)

// reportUnserved reports the ports that have no endpoint for their clients in an IP family of the Service. unwanted is the family that otherFamily
// has already reported, "" if none; for ports that are not relayed, it is not reported again.
func (r *resolver) reportUnserved(endpoints map[portKey][]endpoint, unwanted string) {
	aboutAll := func(p Problem) bool {
		return p.Object == r.ref && !p.Warning && p.Reason != ReasonShareRefused && p.Reason != reasonOtherFamily
	}
	if slices.ContainsFunc(r.out.Problems, aboutAll) {
		return // that is why
	}
	if !slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return len(s.Endpoints) > 0 }) {
		if r.Service.Headless() || slices.ContainsFunc(r.out.Ports, func(p nft.ServicePort) bool { return !p.RelayAlone }) {
			r.reportNone()
		}
		return
	}
	if r.onlyLeaves() {
		r.unserved("", ReasonNoEndpoints, "clients are refused, as is written: its endpoints, which are not ready in any EndpointSlice, only begin connections (%s)", object.AnnotationEgress).Warning = true
		return
	}
	for i := range r.Service.Spec.Ports {
		port := &r.Service.Spec.Ports[i]
		var planned, unserved, notLocal, down []nft.Family
		for j := range r.out.Ports {
			p := &r.out.Ports[j]
			if p.ID != r.portID(port) || p.Protocol.Name() != port.Protocol || p.RelayAlone {
				continue
			}
			planned = append(planned, p.Family)
			switch {
			case p.Family.Name() == unwanted && !r.relayed.Relays(r.Service, i):
			case !p.Takes(nft.PoolCluster):
				unserved = append(unserved, p.Family)
			case !p.Takes(nft.PoolLocal):
				notLocal = append(notLocal, p.Family)
			}
			all := endpoints[portKey{port.Name, p.Protocol, p.Family}]
			if r.out.FailingOpen > 0 && slices.ContainsFunc(p.Frontends, func(fe nft.Frontend) bool {
				return allDown(p.Pools[fe.Internal.Pool], all) || allDown(p.Pools[fe.External.Pool], all)
			}) {
				down = append(down, p.Family)
			}
		}
		switch {
		case len(unserved) > 0:
			r.reportPort(i, endpoints, unserved, over(unserved, planned))
		case len(notLocal) > 0 && r.limitedToLocal() != "":
			r.reportNotLocal(i, endpoints, notLocal, over(notLocal, planned))
		case len(down) > 0:
			r.reportAt(i, over(down, planned), ReasonFailingOpen, "those of its endpoints that are near clients, by policy or zone, are all down, and traffic still goes to them; fix a server, or the check")
		}
	}
}

// otherFamily reports a problem if no endpoint is of the IP family of one of the Service's addresses. It returns that family ("IPv4" or "IPv6"), or
// "" if there is no such problem.
func (r *resolver) otherFamily() (unwanted string) {
	unwanted, why := annotation.OtherFamily(r.Service, r.Slices)
	switch {
	case why == "":
	case len(r.Service.Spec.ClusterIPs) > 1 && object.Deref(r.Service.Spec.IPFamilyPolicy) != object.RequireDualStack:
		r.warn(r.ref, "spec.ipFamilies", reasonOtherFamily, "%s", why) // it takes what there is
	default:
		r.refuse("spec.ipFamilies", reasonOtherFamily, "%s", why)
	}
	return unwanted
}

// allDown reports whether all endpoints in a pool are down according to their checks. They are then used nevertheless, because too few are up. It
// returns false for an empty pool.
func allDown(pool []netip.AddrPort, all []endpoint) bool {
	return len(pool) > 0 && !slices.ContainsFunc(all, func(e endpoint) bool { return !e.notUp && slices.Contains(pool, e.addr) })
}

// over returns " over IPv4" or " over IPv6", for a message about one of two IP families; "" if the message is about all of them.
func over(of, all []nft.Family) string {
	if len(of) == len(all) {
		return ""
	}
	return " over " + of[0].Name()
}

// reportNotLocal reports a port whose traffic policy is Local and that has no usable endpoint on this box.
func (r *resolver) reportNotLocal(index int, endpoints map[portKey][]endpoint, families []nft.Family, over string) {
	all, here := r.total(index, endpoints, families)
	none := fmt.Sprintf("none of its %s has nodeName %s", counted(all, "endpoint"), r.facts.NodeName)
	if here > 0 {
		none = fmt.Sprintf("none of its %s on this box takes new connections", counted(here, "endpoint"))
	}
	r.reportAt(index, over, ReasonNoLocalEndpoint, "%s is Local, and %s: %s", r.limitedToLocal(), none,
		map[nft.Refusal]string{nft.Refuse: "clients are refused by this box", nft.Blackhole: "clients get no answer from this box"}[r.noLocal])
}

// Bereft compares the requested ports of a Service with the granted ones. It returns a problem for each port that lost all its endpoints because they
// are frontends of this box.
func Bereft(ref object.Ref, asked, granted []nft.ServicePort) (problems []Problem) {
	for i := range min(len(asked), len(granted)) {
		if asked[i].Takes(nft.PoolCluster) && !granted[i].Takes(nft.PoolCluster) {
			problems = append(problems, Problem{Object: ref, Field: "spec.ports", Reason: ReasonNoReadyEndpoint,
				Message: fmt.Sprintf("none of the endpoints of %s/%s can be used", granted[i].ID, granted[i].Protocol.Name())})
		}
	}
	return problems
}

// reportNone reports that no slice of the Service has an endpoint.
func (r *resolver) reportNone() {
	generated := func(s *object.EndpointSlice) bool {
		by := s.Metadata.Labels[object.LabelManagedBy]
		return strings.HasPrefix(by, "endpointslice-controller.") || strings.HasPrefix(by, "endpointslicemirroring-controller.")
	}
	switch {
	case len(r.Service.Spec.Selector) > 0 && !slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return !generated(s) }):
		// The controller of its slices reports which Pods there are.
	case slices.ContainsFunc(r.Slices, func(s *object.EndpointSlice) bool { return !generated(s) }):
		r.unserved("", ReasonNoEndpoints, "it has no endpoint: EndpointSlice %s has none", r.Slices[0].Metadata.Name).Warning = true // meant so
	case annotation.HasSources(r.Service.Metadata.Annotations):
		r.unserved("", ReasonNoEndpoints, "it has no endpoint: svcctl discover has written none for %s", annotation.EndpointsFrom)
	default:
		r.unserved("", ReasonNoEndpoints, "it has no endpoint: no EndpointSlice has the label %s: %s", object.LabelServiceName, r.ref.Name)
	}
}

// reportPort reports why a port has no endpoint in some IP families although EndpointSlices have endpoints.
func (r *resolver) reportPort(index int, endpoints map[portKey][]endpoint, families []nft.Family, over string) {
	port := &r.Service.Spec.Ports[index]
	proto, _ := nft.ProtocolNamed(port.Protocol)
	names := object.Texts(r.backends[portKey{port.Name, proto, families[0]}], func(b backend) string { return b.name })
	switch alone := len(names) == 1 && names[0] == ""; { // slices without a share, beside others with one
	case len(names) > 0 && !alone:
		r.reportAt(index, over, ReasonNoReadyEndpoint, "no backend has a usable endpoint: %s", First(names, maxNamed))
		return
	case alone && !slices.ContainsFunc(families, func(f nft.Family) bool {
		return slices.ContainsFunc(r.backends[portKey{port.Name, proto, f}], func(b backend) bool { return b.named })
	}):
		r.reportAt(index, over, ReasonNoEndpoints, "it has no endpoint: the EndpointSlice of the port has none").Warning = true // meant so
		return
	}
	if n, _ := r.total(index, endpoints, families); n > 0 {
		r.reportAt(index, over, ReasonNoReadyEndpoint, "none of its %s takes new connections: not ready, taken out, or of weight 0", counted(n, "endpoint"))
		return
	}
	var others []string
	for key := range endpoints {
		if slices.Contains(families, key.family) {
			others = append(others, fmt.Sprintf("%q/%s", key.name, key.proto.Name()))
		}
	}
	slices.Sort(others)
	if others = slices.Compact(others); len(others) > 0 {
		r.reportAt(index, over, ReasonPortMismatch, "no endpoint has a port named %q of %s; they have %s", port.Name, port.Protocol, strings.Join(others, ", "))
		return
	}
	r.reportAt(index, over, ReasonNoReadyEndpoint, "none of the endpoints of its EndpointSlices can be used")
}

func (r *resolver) reportAt(index int, over, reason, format string, args ...any) *Problem {
	return r.unserved(fmt.Sprintf("spec.ports[%d]", index), reason, "%s%s: %s", r.portText(index), over, fmt.Sprintf(format, args...))
}

func (r *resolver) unserved(field, reason, format string, args ...any) *Problem {
	r.out.Unserved = append(r.out.Unserved, Problem{Object: r.ref, Field: field, Reason: reason, Message: fmt.Sprintf(format, args...)})
	return &r.out.Unserved[len(r.out.Unserved)-1]
}

// total returns the number of endpoints of a port in some IP families, whether ready or not, and the number of those on this box.
func (r *resolver) total(index int, endpoints map[portKey][]endpoint, families []nft.Family) (all, here int) {
	port := &r.Service.Spec.Ports[index]
	proto, _ := nft.ProtocolNamed(port.Protocol)
	for _, family := range families {
		for _, e := range endpoints[portKey{port.Name, proto, family}] {
			all++
			if e.local {
				here++
			}
		}
	}
	return all, here
}

// limitedToLocal returns the name of the policy that limits clients to local endpoints; "" if there is none, or if other boxes of the fleet
// serve the clients.
func (r *resolver) limitedToLocal() string {
	switch spec := &r.Service.Spec; {
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

// Rules finds the problems of an object that do not depend on endpoints. Its fields are the only settings of the box that are taken into account. A
// client that writes the object gets these problems as warnings.
type Rules struct {
	// ConnectionLog is Facts.ConnectionLog.
	ConnectionLog string
	// SourceSets are the names of the source sets of the box.
	SourceSets []string
}

// Remarks returns remarks on an object: those on its annotations (annotation.Remarks) and, for a Service, its problems.
func (rules *Rules) Remarks(o object.Object) []annotation.Remark {
	meta := o.GetMeta()
	if len(meta.Annotations)+len(meta.Labels) == 0 {
		return nil // mostly
	}
	list := annotation.Remarks(o)
	svc, is := o.(*object.Service)
	if !is || annotation.AreInert(meta.Annotations) {
		return list
	}
	r := &resolver{Input: Input{Service: svc}, facts: &Facts{ConnectionLog: rules.ConnectionLog}, ref: object.RefOf(svc), vips: addresses{}}
	for _, name := range rules.SourceSets { // whatever their content
		r.Observed.Answer(Need{Kind: NeedSourceSet, Name: name}, State{Set: &nft.SourceSet{}})
	}
	r.read()
	for _, p := range r.out.Problems {
		list = append(list, annotation.Remark{Field: p.Field, Text: p.Message, Refused: r.wrong[p.Field] && annotation.IsOurs(p.Field), Safe: !p.Warning})
	}
	return list
}

// The reasons of problems about endpoints that have no health check and accept no connections.
const (
	ReasonEndpointRefuses = "EndpointRefuses"
	ReasonEndpointSilent  = "EndpointSilent"
)

// Dead is an endpoint of one port that has no health check and accepts no connections.
type Dead struct {
	Port     Port
	Endpoint netip.AddrPort
	health.Dead
	// Assumed is set when the endpoint was not tested: the kernel served the port without it before this process started. It must be probed.
	Assumed bool
}

// readEject sets Output.Eject from the annotation svcctl.io/eject.
func (r *resolver) readEject() {
	field := annotation.Field(object.AnnotationEject)
	switch wanted, _ := parsed(r, object.AnnotationEject, object.ParseBool, "no endpoint is taken out"); {
	case !wanted:
	case r.Service.Headless():
		r.warn(r.ref, field, reasonNoEffect, "has no effect: a headless Service is not load balanced, so no connection to it is seen; write svcctl.io/health-check")
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolTCP }):
		r.warn(r.ref, field, reasonNoEffect, "has no effect: the Service has no port of TCP, and only TCP shows that a connection failed; write svcctl.io/health-check")
	case r.Service.Spec.PublishNotReadyAddresses:
		r.warn(r.ref, field, reasonNoEffect, "has no effect: publishNotReadyAddresses has every endpoint used")
	case r.relayed.Asked():
		r.warn(r.ref, field, reasonNoEffect, "has no effect on ports that are relayed: the relay tries another endpoint by itself, by %s and %s", annotation.ConnectTimeout, annotation.ConnectRetries)
	default:
		r.out.Eject = true
	}
}

// bury reports the endpoints of a port that have no health check and accept no connections. It excludes them if the Service has svcctl.io/eject.
func (r *resolver) bury(index int, key portKey, list []endpoint) {
	port := &r.Service.Spec.Ports[index]
	name := Port{r.ref.Key(), port.Name, port.Protocol, key.family}
	// Those that nothing but eject can have left out before this process are Down.
	assumed := func(*endpoint) health.State { return health.Up }
	if r.out.Demand.Adopted = r.out.Demand.Adopted || r.out.Eject; r.out.Eject && r.Observed.Adopted != nil {
		assumed = r.starts(name, port, slices.Clone(list))
	}
	var refusing, silent []string
	usable, buried := 0, 0
	for i := range list {
		e := &list[i]
		if e.state < draining || e.weight == 0 {
			continue
		}
		usable++
		dead, is := r.Observed.Dead[e.addr]
		guess := !is && assumed(e) == health.Down
		if !is && !guess {
			continue
		}
		r.out.Dead = append(r.out.Dead, Dead{name, e.addr, dead, guess})
		switch text := fmt.Sprintf("%s (%s)", e.addr, dead.Why); {
		case guess:
		case dead.Refuses:
			refusing = append(refusing, text)
		default:
			silent = append(silent, text)
		}
		if r.out.Eject {
			e.state, e.notUp = failed, true
			buried++
		}
	}
	all := len(refusing)+len(silent) == usable
	r.reportDead(index, ReasonEndpointRefuses, refusing, usable, all)
	r.reportDead(index, ReasonEndpointSilent, silent, usable, all)
	if buried > 0 {
		r.failOpen(index, list, false, usable, usable-buried, slices.Concat(refusing, silent))
	}
}

// reportDead adds a problem about endpoints of a port that accept no connections: an error if all usable endpoints are affected (all), a warning
// otherwise. usable is the number of usable endpoints.
func (r *resolver) reportDead(index int, reason string, dead []string, usable int, all bool) {
	if len(dead) == 0 {
		return
	}
	what := "does not answer clients, nor this box"
	if reason == ReasonEndpointRefuses {
		what = "refuses connections of clients and of this box"
	}
	if len(dead) > 1 {
		what = strings.NewReplacer("does not", "do not", "refuses", "refuse").Replace(what)
	}
	next := fmt.Sprintf("start that server; with the annotation %s: \"true\", or %s, clients get other endpoints meanwhile", object.AnnotationEject, health.AnnotationCheck)
	switch {
	case all:
		next = "clients fail: start one of its servers, or correct their addresses in the EndpointSlice"
	case r.out.Eject:
		next = "it is taken out until it accepts connections"
		if len(dead) > 1 {
			next = "they are taken out until they accept connections"
		}
	}
	of := fmt.Sprintf("%d of %d endpoints", len(dead), usable)
	if usable == 1 {
		of = "the only endpoint"
	}
	r.out.Problems = append(r.out.Problems, Problem{Object: r.ref, Field: fmt.Sprintf("spec.ports[%d]", index), Reason: reason,
		Message: fmt.Sprintf("%s: %s %s: %s; %s", r.portText(index), of, what, First(dead, maxNamed), next), Warning: !all})
	r.cause(dead)
}
